"""One sweep: read the cluster, remove leftovers, start a Job per node, and follow the Jobs to their end.

An interrupted sweep is continued by the next: the Node is claimed before its Job is created, and released after the Job
has ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound, Unavailable
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.cluster.retries import RetryLimits
from gpu_healthcheck.healthcheck.deep.claim import Claim, Claimant, RunKind, claim_on, clear, is_marked
from gpu_healthcheck.healthcheck.deep.due import Attempt, obstacle
from gpu_healthcheck.healthcheck.deep.job import JobState, TemplateError
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.node.devices import AllocatedDevices
from gpu_healthcheck.healthcheck.node.state import NodeState, with_devices
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.verdict.budget import Slot
from gpu_healthcheck.healthcheck.verdict.taint_decision import says_devices
from gpu_healthcheck.sweeper.leftovers import (
    FreedSlot,
    Leftovers,
    SlotOwner,
    find_leftovers,
    is_working,
    kept_without_agent,
    unowned,
)
from gpu_healthcheck.sweeper.select import (
    SELECTOR,
    Candidate,
    Decision,
    JobSettings,
    SweepLimits,
    busy_nodes,
    candidate,
    in_the_way,
    job_for,
    job_name,
    select,
    tolerations,
)

log = structlog.get_logger()

T = TypeVar("T")
CRON_JOB = "gpu-healthcheck-sweep-node"
_PLACE_SECONDS = 60.0
"""Longest wait for the scheduling of a pod: after it, another pod has the GPUs."""
_SLACK_SECONDS = 120.0
"""Margin of a claim beyond the Job's deadline: time for the pods to end and for the sweep to notice."""
_WATCH_SECONDS, _BETWEEN_WATCHES_SECONDS = 300.0, 1.0
_CLOSELY_SECONDS = 1.0
"""Interval of the checks for pods that wait for the devices of a test."""
_PATIENCE = RetryLimits(60.0)
"""Retry time of one request."""
_AT_ITS_START = RetryLimits(15.0, (Forbidden,), longest_pause=0.5)
"""Retry time of forbidden requests: an API server that has just started has not loaded its roles yet."""
_MOST_RECLAIMED = 500
"""Most slots of the fleet budget that one sweep releases, so that they do not delay the tests."""
_MOST_NAMED = 20
_REFUSED = "the kubelet rejected the pod, so only an agent of the full image can run level 2"
_NODE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")


class ClusterView(Struct, frozen=True):
    """State of the cluster from one read."""

    candidates: tuple[Candidate, ...]
    busy: Mapping[str, str]
    marked: tuple[NodeState, ...]
    """Nodes with a mark of a deep run."""
    jobs: tuple[JobState, ...]
    slots: tuple[Slot, ...]
    holders: Mapping[str, SlotOwner]
    refused: Mapping[str, str] = {}
    """Message of a kubelet that rejected a pod, by the name of its Job."""


class SweepPlan(Struct, frozen=True):
    """Plan from one read of the cluster."""

    decisions: tuple[Decision, ...]
    leftovers: Leftovers
    unowned: tuple[FreedSlot, ...] = ()
    """Slots of the fleet budget without an owner."""
    without_agent: tuple[str, ...] = ()
    """Names of nodes that keep our taint and have no agent to lift it."""


class Sweep:
    """One sweep. Raises ClusterError for a failed request, TemplateError for an unusable template."""

    def __init__(self, cluster: Cluster, values: NodeSettings) -> None:
        self._cluster = cluster
        self._namespace = values.sweep_namespace
        self._job_settings = JobSettings(
            values.sweep_namespace, values.dcgm_timeout_seconds + values.job_timeout_seconds
        )
        self._values = values
        self._limits = SweepLimits(values.max_nodes_per_sweep, values.max_sweep_percent)
        self._heartbeats_valid_until: dict[str, datetime] = {}
        self._placed: set[str] = set()
        self._allocated = AllocatedDevices()
        self._made_way: set[str] = set()

    def plan(self) -> SweepPlan:
        """Read the cluster once, and plan. Changes nothing."""
        view, now = patiently(self._read_cluster), _now()
        left = find_leftovers(view.marked, view.jobs, now)
        jobs = sorted(view.jobs, key=lambda job: job.created)
        tried = {job.node: Attempt(job.created, view.refused.get(job.name, "")) for job in jobs}
        most_nodes = self._limits.nodes - len(left.alive)
        return SweepPlan(
            tuple(select(view.candidates, view.busy, tried, most_nodes, self._limits, now)),
            left,
            tuple(unowned(view.slots, view.holders, now)),
            tuple(kept_without_agent(view.slots, view.holders, now)),
        )

    def run(self, plan: SweepPlan) -> None:
        """Execute the plan, and wait until all Jobs have ended, including those of an earlier sweep."""
        waiting = {job.name: job for job in plan.leftovers.alive}
        try:
            failed = self._work_off(plan, waiting)
        except Unavailable as error:
            failed = [error]
        self._follow(waiting)
        if failed:
            raise failed[0]

    def _work_off(self, plan: SweepPlan, waiting: dict[str, JobState]) -> list[ClusterError]:
        """Remove leftovers and start Jobs independently: a refusal for one node does not prevent other tests."""
        taken = [decision.node for decision in plan.decisions if not decision.why]
        holders = dict.fromkeys(place.slot.holder for place in plan.unowned[:_MOST_RECLAIMED])
        steps = [
            *(partial(self._clear, name) for name in plan.leftovers.marked),
            *(partial(self._stop_stray, job) for job in plan.leftovers.stray),
            *(partial(self._start, node, waiting) for node in taken),
            *(partial(self._reclaim, name) for name in holders),
        ]
        failed: list[ClusterError] = []
        for step in steps:
            try:
                step()
            except Unavailable:
                raise  # no answer: the other steps would fail in the same way
            except ClusterError as error:
                log.warning("skipped", error=str(error))
                failed.append(error)
        return failed

    @cached_property
    def _template(self) -> dict[str, Any]:
        try:
            return self._cluster.jobs.read_template(CRON_JOB)
        except NotFound as error:
            raise TemplateError(f"there is no CronJob {NAMESPACE}/{CRON_JOB}: {error}") from error

    # --- reading: one listing each of heartbeats, Nodes, pods and Jobs

    def _read_cluster(self) -> ClusterView:
        """Read the cluster. Jobs are listed last, so that each claim on a listed Node already has its Job."""
        tolerated = tolerations(self._template)
        slots = self._slots()
        self._allocated = self._by_claims()
        beats = self._cluster.leases.heartbeats(_now())
        self._heartbeats_valid_until = {
            name: beat.renewed + timedelta(seconds=beat.seconds) for name, beat in beats.items()
        }
        candidates, marked, holders, now = [], [], {}, _now()
        slot_owners = {slot.holder for slot in slots}
        for node in map(self._with_devices, self._cluster.nodes.select()):
            holders[node.name] = self._holder(node, slot_owners)
            if is_marked(node):
                marked.append(node)
            interval = timedelta(seconds=self._values.for_labels(node.labels).dcgm_l2_interval_seconds)
            node_candidate = candidate(node, self._heartbeats_valid_until.get(node.name), tolerated, interval, now)
            if node_candidate is not None:
                candidates.append(node_candidate)
        busy = busy_nodes(self._cluster.pods.list_with_gpus(), self._claimed(), self._allocated.devices)
        jobs, _ = self._cluster.jobs.select(self._namespace, SELECTOR)
        return ClusterView(tuple(candidates), busy, tuple(marked), tuple(jobs), slots, holders, self._refused(jobs))

    def _refused(self, jobs: Iterable[JobState]) -> dict[str, str]:
        if all(job.outcome in ("", "Complete") for job in jobs):
            return {}
        found = self._cluster.pods.list_refused(self._namespace, SELECTOR)
        return {name: f"{_REFUSED}: {message}" for name, message in found.items()}

    def _slots(self) -> tuple[Slot, ...]:
        """List the slots before the Nodes, so that the Nodes already show the taint of each slot."""
        try:
            return tuple(self._cluster.leases.slots())
        except Forbidden as error:
            # The role may be older than this program; the tests still run.
            log.warning("the Leases that count tainted nodes can't be read", error=str(error))
            return ()

    def _by_claims(self) -> AllocatedDevices:
        """Return the devices that DRA allocates; empty without the permission, as on a cluster without DRA."""
        try:
            return self._cluster.dra.read_given_out(self._namespace)
        except Forbidden:
            return AllocatedDevices()

    def _with_devices(self, node: NodeState) -> NodeState:
        return with_devices(node, self._allocated)

    def _claimed(self) -> Mapping[str, str] | None:
        """Return the owners of DRA devices by node name; None if not visible. Call it after the pods are listed."""
        try:
            return self._allocated.claimed_by(self._cluster.dra.list_gpu_claims()) if self._allocated.devices else None
        except Forbidden:
            return None

    def _holder(self, node: NodeState, slot_owners: Container[str]) -> SlotOwner:
        is_tainted = node.tainted() or (node.name in slot_owners and says_devices(node))
        return SlotOwner(node.uid, is_tainted, self._heartbeats_valid_until.get(node.name))

    # --- clearing

    def _clear(self, name: str) -> None:
        """Remove marks without an owner. The Node is read again, because it may have changed since the list."""
        update = partial(self._cluster.nodes.update, name, lambda node: clear(node, _now(), self._is_over))
        with suppress(NotFound):
            if patiently(update) is not None:
                log.warning("removed the marks of an ended run from a node", node=name)

    def _is_over(self, claim: Claim) -> bool:
        """Whether the claim is of a sweep with an ended Job."""
        if claim.kind is not RunKind.SWEEP:
            return False
        try:
            return not is_working(self._cluster.jobs.read(self._namespace, claim.holder))
        except NotFound:
            return True

    def _stop_stray(self, job: JobState) -> None:
        def stop() -> bool:
            node = self._node(job.node) if job.node else None
            run = claim_on(node, _now()) if node else None
            if run is not None and run.holder == job.name:
                return False  # claimed after the Nodes were listed
            return self._deleted(job)

        if patiently(stop):
            log.warning("stopped a Job without a claim", job=job.name, node=job.node)

    def _deleted(self, job: JobState) -> bool:
        try:
            self._cluster.jobs.delete(job)
        except (NotFound, Conflict):
            return False
        return True

    def _reclaim(self, holder: str) -> None:
        """Release the slots of this node without an owner. They and the Node are read again."""
        # A Lease created by hand may have any owner name: then there is no Node to read and no label to list by.
        name = holder if _NODE_NAME.match(holder) else ""

        def gone() -> list[FreedSlot]:
            slots = [slot for slot in self._cluster.leases.slots(name) if slot.holder == holder]
            node = self._node(name) if name else None
            nodes = {holder: self._holder(node, {holder})} if node is not None else {}
            still = unowned(slots, nodes, _now())[:_MOST_RECLAIMED]
            return [freed for freed in still if self._freed(freed.slot)]

        if found := patiently(gone):
            names, whys = [freed.slot.name for freed in found], sorted({freed.why for freed in found})
            log.warning(
                "deleted Leases of tainted nodes without an owner",
                node=holder,
                places=names[:_MOST_NAMED],
                number=len(names),
                why=whys,
            )

    def _freed(self, slot: Slot) -> bool:
        try:
            self._cluster.leases.delete_slot(slot)
        except (NotFound, Conflict):
            return False  # deleted, or owned by another node now
        return True

    # --- starting

    def _start(self, node: Candidate, waiting: dict[str, JobState]) -> None:
        at = _now()
        until = at + timedelta(seconds=self._job_settings.deadline_seconds + _SLACK_SECONDS)
        claimant = self._claimant(node.name, job_name(node.name, at))
        job = job_for(self._template, node, self._job_settings, at)
        if not self._acquire(node.name, claimant, until):
            return
        try:
            made = patiently(partial(self._made, job))
        except ClusterError:
            self._release(claimant)
            raise
        waiting[made.name] = made
        log.info("a sweep Job is started", node=node.name, job=made.name, until=until.isoformat())

    def _claimant(self, node_name: str, job_name: str) -> Claimant:
        return Claimant(RunKind.SWEEP, job_name, partial(self._cluster.nodes.update, node_name), _now)

    def _acquire(self, name: str, claimant: Claimant, until: datetime) -> bool:
        """Claim the node, and return whether that succeeded.

        The Node is read again, because the listing is seconds old.
        """

        def why_not(node: NodeState) -> str:
            if why := obstacle(self._with_devices(node), self._heartbeats_valid_until.get(name), _now()):
                log.info("not claimed after all", node=name, why=why)
            return why

        try:
            return patiently(partial(claimant.acquire, until, why_not)) is not None
        except NotFound:
            return False

    def _made(self, job: Mapping[str, Any]) -> JobState:
        try:
            return self._cluster.jobs.create(job)
        except Conflict:
            # Each name is used once: an earlier try succeeded, and its answer was lost.
            return self._cluster.jobs.read(job["metadata"]["namespace"], job["metadata"]["name"])

    # --- following

    def _follow(self, waiting: dict[str, JobState]) -> None:
        """Wait until all Jobs have ended, at most until the last deadline."""
        if not waiting:
            return
        # Forbidden too: an API server that has just started does not know its roles yet.
        retries = RetryLimits(self._job_settings.deadline_seconds + _SLACK_SECONDS, (ClusterError,))
        try:
            has_ended = retries.until(partial(self._watch, waiting), _BETWEEN_WATCHES_SECONDS)
        except ClusterError:
            has_ended = False
        if not has_ended:
            log.warning("left to the next sweep", jobs=sorted(waiting))

    def _watch(self, waiting: dict[str, JobState]) -> bool:
        """Watch the Jobs once, and return whether all have ended. The list before it has earlier changes."""
        jobs, version = self._cluster.jobs.select(self._namespace, SELECTOR)
        listed = {job.name: job for job in jobs}
        for name, job in list(waiting.items()):
            self._see(listed.get(name, job), waiting, there=name in listed)
        self._stop_unplaced(waiting)
        self._make_way(waiting)
        if waiting:
            for job, there in self._cluster.jobs.watch(self._namespace, SELECTOR, version, self._seconds(waiting)):
                self._see(job, waiting, there=there)
                if not waiting:
                    break
        return not waiting

    def _see(self, job: JobState, waiting: dict[str, JobState], *, there: bool) -> None:
        """Release the node of an ended Job at once, without waiting for the others."""
        if job.name in waiting and (job.outcome or not there):
            self._release(self._claimant(job.node, job.name))
            del waiting[job.name]
            log.info("a sweep Job has ended", node=job.node, job=job.name, outcome=job.outcome or "deleted")

    def _stop_unplaced(self, waiting: Mapping[str, JobState]) -> None:
        """End the Jobs of nodes that other work uses by now: their pods would wait for the GPUs.

        As with every Job, the node is released when the Job is gone.
        """
        old = {name for name, job in waiting.items() if _age_seconds(job) >= _PLACE_SECONDS} - self._placed
        if not old:
            return
        for name in old & self._cluster.pods.list_unplaced(self._namespace, SELECTOR):
            log.info("its node is in use after all", node=waiting[name].node, job=name)
            self._deleted(waiting[name])
        self._placed |= old

    def _make_way(self, waiting: Mapping[str, JobState]) -> None:
        """End the tests with claimed devices when work may need them.

        The scheduler does not: it never preempts a pod for a claimed device, whatever the priority.
        """
        if not any(job.claims for job in waiting.values()):
            return
        for job in in_the_way(waiting.values(), self._cluster.pods.list_unplaced_since()):
            if job.name not in self._made_way:
                log.info("waiting work may need its devices", node=job.node, job=job.name)
                self._deleted(job)
                self._made_way.add(job.name)

    def _seconds(self, waiting: Mapping[str, JobState]) -> int:
        """Return the time of the watch: until the next Job must be scheduled."""
        left = [_PLACE_SECONDS - _age_seconds(job) for name, job in waiting.items() if name not in self._placed]
        closely = [_CLOSELY_SECONDS for job in waiting.values() if job.claims]
        return int(min([_WATCH_SECONDS, *left, *closely])) + 1

    def _release(self, claimant: Claimant) -> None:
        with suppress(NotFound):
            patiently(claimant.release)

    # --- the Node

    def _node(self, name: str) -> NodeState | None:
        try:
            return self._cluster.nodes.read(name)
        except NotFound:
            return None


def patiently(ask: Callable[[], T]) -> T:
    """Return the answer of a request with retries. Raises the last error."""
    return _PATIENCE.ask(partial(_AT_ITS_START.ask, ask))


def _age_seconds(job: JobState) -> float:
    return (_now() - job.created).total_seconds()


def _now() -> datetime:
    return clock.now().wall
