"""Evictions of one Node: announce them, request them after the delay, and write their states to the annotation.

Each call of `handle` begins with the current Node and its pods, so it continues the work of a process that ended at any
point. An eviction is requested by the UID of its pod: a replacement with the same name is never evicted for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.evict.metrics import Metrics
from gpu_healthcheck.evict.select import (
    EvictionPlan,
    Fault,
    Target,
    fault_on,
    is_selected,
    plan_evictions,
    stands_back,
    targets,
)
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import (
    Blocked,
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    Unavailable,
)
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.model import counted
from gpu_healthcheck.healthcheck.node.evictions import (
    VALID,
    EvictionState,
    NodeEvictions,
    PodEviction,
    eviction_text,
    evictions_on,
)
from gpu_healthcheck.healthcheck.node.state import EVICT, NodeState, annotated
from gpu_healthcheck.healthcheck.operations.drain import has_ended
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.verdict.budget import allowed
from gpu_healthcheck.healthcheck.verdict.node_events import InvolvedPod, NodeEvent, cut, event_name

log = structlog.get_logger()

ANNOUNCED, REQUESTED, REFUSED, CANCELLED = (
    f"Eviction{word}" for word in ("Announced", "Requested", "Refused", "Cancelled")
)
SLURM_MUST_DRAIN = "SlurmMustDrain"
_AGAIN_SECONDS, _CLOSELY_SECONDS = 300.0, 5.0
"""Interval of the reads of a faulty Node, and of one whose pods are ending or wait for the budget."""
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 5.0, 60.0
_FLEET_SECONDS = 60.0
"""Time for which the count of the fleet's nodes is valid."""
_RENEW_BEFORE = timedelta(minutes=30)
_MOST_NAMED, _LONGEST_WHY = 8, 400


class _Tries(Struct):
    """Requests of one pod's eviction by this process."""

    count: int = 0
    next_at: datetime | None = None


class Evictor:
    """Evicts the pods of faulty Nodes. `handle` is called for one Node at a time, from several threads."""

    def __init__(self, cluster: Cluster, values: Callable[[], NodeSettings], metrics: Metrics) -> None:
        self._cluster = cluster
        self._values = values
        self._metrics = metrics
        self._budget = _Budget(cluster)
        self._tries: dict[str, dict[str, _Tries]] = {}
        """Requests by Node and UID of the pod."""
        self._states: dict[str, NodeEvictions] = {}
        """Evictions by Node. The annotation is older where its write met a concurrent change."""

    def resume(self, node: NodeState) -> bool:
        """Count a Node's evictions of an earlier process, and return whether it has an annotation."""
        evictions = evictions_on(node, clock.now().wall)
        uids = {pod.uid for pod in evictions.pods}
        # The earlier process may have ended before it wrote the request into the annotation.
        ending = (
            (pod["metadata"]["uid"] for pod in self._cluster.pods.list_on(node.name) if has_ended(pod)) if uids else ()
        )
        if _is_active(evictions.pods) or not uids.isdisjoint(ending):
            self._budget.resume(node.name)
        return EVICT in node.annotations

    def handle(self, name: str) -> float | None:
        """Do the next step on a Node. Return the seconds until the following one.

        inf: it follows a change of the Node or of the settings. None: it follows a change of the Node. Raises
        ClusterError: the call must be repeated.
        """
        try:
            node = self._cluster.nodes.read(name)
        except NotFound:
            self._forget(name)
            return None
        now = clock.now().wall
        values = self._values().for_labels(node.labels)
        before = self._states.get(name) or evictions_on(node, now)
        fault = fault_on(node, values.evict_severity)
        if fault is None:
            self._cancel(node, before)
            return math.inf if is_selected(node) else None
        if stands_back(node, now):
            return _AGAIN_SECONDS
        found = targets_on(self._cluster, node, fault)
        plan = plan_evictions(found, before.pods, timedelta(seconds=values.evict_delay_seconds), now)
        self._announce(node, fault, plan, values, now)
        # Announced pods get their annotation before others are evicted. Without a delay, all are evicted at once.
        is_delayed = bool(plan.announced) and values.evict_delay_seconds > 0
        pods = plan.pods if is_delayed else self._evict(node, fault, plan, found, values)
        tries = self._tries.get(name, {})
        self._tries[name] = {target.uid: tries[target.uid] for target in found if target.uid in tries}
        self._write(node, fault, pods)
        if is_delayed and plan.ready:
            return 0.0
        return min(self._seconds_until_next(name, pods), default=_AGAIN_SECONDS)

    # --- announcing

    def _announce(self, node: NodeState, fault: Fault, plan: EvictionPlan, values: NodeSettings, now: datetime) -> None:
        """Write the Events of new evictions. They come before the annotation, so a crash loses no announcement."""
        slurm = [pod for pod in plan.announced if pod.state is EvictionState.SLURM]
        evicted = [pod for pod in plan.announced if pod.state is EvictionState.ANNOUNCED]
        if slurm:
            text = f"Slurm must drain its node, because {fault} is faulty; the pod is not evicted"
            self._report(node, SLURM_MUST_DRAIN, f"{_listed(slurm)}: {text}", slurm, text)
        if evicted:
            at = timestamp(now + timedelta(seconds=values.evict_delay_seconds))
            text = (
                f"the pod is evicted at {at}, because its GPU on {node.name} is faulty: {fault}. Write a checkpoint now"
            )
            self._report(node, ANNOUNCED, f"{_listed(evicted)} evicted at {at}: {fault}", evicted, text)

    def _report(self, node: NodeState, reason: str, of_node: str, pods: Iterable[PodEviction], of_pod: str) -> None:
        """Create an Event about the Node and one about each pod. A missing permission does not stop the evictions."""
        for pod in (None, *pods):
            about = InvolvedPod(str(pod.namespace), str(pod.name), str(pod.uid)) if pod else None
            message = cut(of_pod if pod else of_node)
            name = event_name(str(pod.name) if pod else node.name, reason, message, str(pod.uid) if pod else "")
            try:
                self._cluster.events.create(node, NodeEvent(name, "Warning", reason, message, about), clock.now().wall)
            except (Forbidden, Refused, NotFound) as error:
                log.warning("an Event was not accepted", node=node.name, reason=reason, error=str(error))

    # --- evicting

    def _evict(
        self, node: NodeState, fault: Fault, plan: EvictionPlan, found: Sequence[Target], values: NodeSettings
    ) -> tuple[PodEviction, ...]:
        """Request the evictions that are due, and return all evictions with their states."""
        if not plan.ready:
            return plan.pods
        if wait := self._budget.acquire(node.name, values.max_unhealthy_percent):
            return tuple(replace(pod, why=wait) if pod in plan.ready else pod for pod in plan.pods)
        by_uid = {target.uid: target for target in found}
        tries = self._tries.setdefault(node.name, {})
        done = {
            pod.uid: self._request(pod, by_uid[str(pod.uid)], tries.setdefault(str(pod.uid), _Tries()))
            for pod in plan.ready
        }
        changed = [pod for pod in plan.ready if done[pod.uid] not in (pod, None)]
        for pod in (done[one.uid] for one in changed):
            if pod is not None and pod.state is EvictionState.REFUSED:
                text = f"the eviction from {node.name} is refused by {pod.obstacle}, and retried"
                self._report(node, REFUSED, f"{pod.title}: {text}", (pod,), text)
        if requested := [pod for pod in changed if (new := done[pod.uid]) and new.state is EvictionState.REQUESTED]:
            self._report(node, REQUESTED, f"{_listed(requested)} evicted now: {fault}", (), "")
        pods = (done.get(pod.uid, pod) for pod in plan.pods)
        return tuple(pod for pod in pods if pod is not None)

    def _request(self, pod: PodEviction, target: Target, tries: _Tries) -> PodEviction | None:
        """Request the eviction of a pod, and return its new state; None: the pod is gone."""
        now = clock.now().wall
        if tries.next_at is not None and now < tries.next_at:
            return pod
        tries.next_at = now + timedelta(
            seconds=min(_FIRST_RETRY_SECONDS * 2.0 ** min(tries.count, 8), _LONGEST_RETRY_SECONDS)
        )
        tries.count += 1
        refusal = ""
        try:
            self._cluster.pods.evict(target.namespace, target.name, target.uid)
        except (NotFound, Conflict):  # another pod has its name by now
            return None
        except (Blocked, Forbidden, Refused) as error:
            refusal = str(error)
        except Unavailable as error:
            self._metrics.count("failed")
            log.warning("an eviction was not answered", pod=target.name, namespace=target.namespace, error=str(error))
            return replace(pod, why=str(error)[:_LONGEST_WHY])
        state = EvictionState.REFUSED if refusal else EvictionState.REQUESTED
        if state is not pod.state:
            self._metrics.count(state.value)
            log.info("eviction", pod=target.name, namespace=target.namespace, uid=target.uid, refusal=refusal)
        return replace(pod, state=state, why=refusal[:_LONGEST_WHY] or None)

    # --- writing

    def _cancel(self, node: NodeState, before: NodeEvictions) -> None:
        """Remove the annotation of a Node whose fault has ended."""
        open_ = [pod for pod in before.pods if pod.state in (EvictionState.ANNOUNCED, EvictionState.REFUSED)]
        if open_:
            text = f"the pod is not evicted: {node.name} has no fault any more that requires it"
            self._report(node, CANCELLED, f"{_listed(open_)} not evicted: the fault has ended", open_, text)
        if EVICT in node.annotations:
            self._cluster.nodes.patch(node.name, annotated(node, {EVICT: None}))
        self._forget(node.name)

    def _write(self, node: NodeState, fault: Fault, pods: Sequence[PodEviction]) -> None:
        """Write the annotation if it changed, or is due for renewal. Raises Conflict after a concurrent change."""
        now = clock.now().wall
        self._states[node.name] = NodeEvictions(finding=fault.title, pods=tuple(pods))
        self._budget.settle(node.name, is_active=_is_active(pods))
        self._metrics.show(list(self._states.values()))
        until = evictions_on(node, now).until
        written_at = now if until is None or until - now < _RENEW_BEFORE else until - VALID
        text = eviction_text(fault.title, pods, written_at)
        if text != node.annotations.get(EVICT):
            self._cluster.nodes.patch(node.name, annotated(node, {EVICT: eviction_text(fault.title, pods, now)}))

    def _forget(self, name: str) -> None:
        self._tries.pop(name, None)
        self._states.pop(name, None)
        self._budget.settle(name, is_active=False)
        self._metrics.show(list(self._states.values()))

    def _seconds_until_next(self, name: str, pods: Iterable[PodEviction]) -> Iterator[float]:
        """Yield, for each pod, the seconds until its next step."""
        now, tries = clock.now().wall, self._tries.get(name, {})
        for pod in pods:
            if pod.state is EvictionState.ANNOUNCED and pod.due and pod.due > now:
                yield (pod.due - now).total_seconds()
            elif pod.state is EvictionState.REFUSED and (known := tries.get(str(pod.uid))) and known.next_at:
                yield max((known.next_at - now).total_seconds(), 0.0)
            elif pod.state is not EvictionState.SLURM:
                yield _CLOSELY_SECONDS


def targets_on(cluster: Cluster, node: NodeState, fault: Fault) -> list[Target]:
    """Return the Node's pods that use a faulty GPU. Raises ClusterError."""
    found = targets(fault, cluster.pods.list_on(node.name))
    if not any(target.only_claims for target in found):
        return found
    users = {(claim.namespace, pod) for claim in cluster.dra.list_gpu_claims() for pod in claim.pods}
    return [target for target in found if not target.only_claims or (target.namespace, target.name) in users]


def _is_active(pods: Iterable[PodEviction]) -> bool:
    """Whether a Node with these evictions counts towards the budget."""
    return any(pod.state in (EvictionState.REQUESTED, EvictionState.REFUSED) for pod in pods)


def _listed(pods: Iterable[PodEviction]) -> str:
    return named([pod.title for pod in pods], _MOST_NAMED)


class _Budget:
    """Nodes whose pods are evicted at the same time: at most as many as the fleet budget lets be tainted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._active: set[str] = set()
        self._fleet: int | None = None
        """Number of nodes with an agent; None: never known."""
        self._valid_until = -math.inf

    def resume(self, name: str) -> None:
        """Count a Node whose evictions an earlier process began."""
        self._active.add(name)

    def acquire(self, name: str, percent: int) -> str:
        """Count this Node, and return '' or the reason why it must wait."""
        with self._lock:
            if time.monotonic() >= self._valid_until:
                self._valid_until = time.monotonic() + _FLEET_SECONDS
                with suppress(ClusterError):  # the last count stays valid
                    self._fleet = self._cluster.leases.count_heartbeats()
            most = allowed(self._fleet, percent)
            if name not in self._active and len(self._active) >= most:
                return f"pods of {counted(most, 'node')} are evicted now, the most that MAX_UNHEALTHY_PERCENT allows"
            self._active.add(name)
            return ""

    def settle(self, name: str, *, is_active: bool) -> None:
        """Stop counting a Node without a requested or refused eviction."""
        if not is_active:
            with self._lock:
                self._active.discard(name)
