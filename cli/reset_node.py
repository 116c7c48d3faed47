"""Reset of one node's GPUs: claim, evictions and the operator's labels by the user's permissions, the rest by a Job.

Each step first checks whether it was done already, so that a new run can continue an interrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.cli.eviction import (
    Eviction,
    NodeDrain,
    eviction_effects,
    must_be_allowed,
    must_not_be_refused,
    warnings_of,
)
from gpu_healthcheck.cli.node_job import JobKind, NodeJob
from gpu_healthcheck.cli.node_requests import CouldNot, NodeRequests, must_have
from gpu_healthcheck.cli.node_step import node_step
from gpu_healthcheck.cli.reset_life import SignOfLife
from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound, Refused, Unavailable
from gpu_healthcheck.healthcheck.cluster.installation import Right
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.cluster.retries import CommandRetries, Interrupted, TookTooLong
from gpu_healthcheck.healthcheck.deep.attempts import INTERRUPTED, is_rebooted_at_once
from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, acquire, claim_on, release
from gpu_healthcheck.healthcheck.deep.job import JobState
from gpu_healthcheck.healthcheck.deep.reset_command import (
    command_in,
    new_command,
    operands_before,
    render,
    restored,
    returned,
    switch_off,
    switched_off,
)
from gpu_healthcheck.healthcheck.deep.reset_plan import (
    ResetTarget,
    Step,
    awaits_reboot,
    drained,
    ends_by_reset,
    may_have_begun,
    needs_reboot,
    obstacles,
    reset_targets,
    why_not_offered,
    why_not_reboot,
    why_not_reset,
)
from gpu_healthcheck.healthcheck.model import Severity, Status, counted
from gpu_healthcheck.healthcheck.node.devices import DRIVER
from gpu_healthcheck.healthcheck.node.gpu_resources import listed
from gpu_healthcheck.healthcheck.node.state import (
    REBOOT_REQUIRED,
    RESET_COMMAND,
    RESET_RESULT,
    RESULTS,
    NodeState,
    annotated,
    is_our_condition,
)
from gpu_healthcheck.healthcheck.operations.drain import (
    DrainPermissions,
    DrainPlan,
    EvictedPod,
    HolderKind,
    holder_kind,
    is_device_plugin,
    is_dra_plugin,
    plan_drain,
    title,
)
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.operations.reset_job import AUTOMATION, COMPONENT, CRON_JOB, job_name, reset_job
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import adopted_records_on, has_adopted, is_adopted
from gpu_healthcheck.healthcheck.verdict.node_events import cut
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, ResetStepRow, RunRecord, StandingRecord

T = TypeVar("T")
POLL_SECONDS = 1.0
"""Pause between two checks during a wait."""
_KIND = JobKind(CRON_JOB, COMPONENT)
_RECORD = "reset-result"
_CLAIMED = timedelta(minutes=30)
"""Duration of the command's claim; the Job renews it."""
_JOB_ENDS_SECONDS = 300.0
"""Longest wait for the end of a deleted Job: a reset that it began is not interrupted."""
_TAKEN_SECONDS = 60.0
"""Longest wait for the agent, which ends the findings."""
_UNAIDED_SECONDS = 15.0
"""Time in which a device plugin may re-advertise the GPUs by itself, before its pod is restarted."""
_LEAST_SECONDS = 60.0
_MOST_OPERANDS = 8
_HANDSHAKE, _DELETED = "hami.io/node-handshake", "Deleted"
_BATCH = "batch"
_MOST_JOBS = 4
"""Most Jobs of one run: the one of a reset, the one of the verification after a reboot, and two that a reboot ended."""
_RESULTS = (Status.PASS.value, Status.FAIL.value)
_RIGHTS = (
    Right("get", "nodes"),
    Right("patch", "nodes"),
    Right("list", "pods"),
    Right("get", "pods/log", "", NAMESPACE),
    Right("get", "cronjobs", _BATCH, NAMESPACE, CRON_JOB),
    Right("get", "jobs", _BATCH, NAMESPACE),
    Right("create", "jobs", _BATCH, NAMESPACE),
    Right("delete", "jobs", _BATCH, NAMESPACE),
)


class ResetOptions(Struct, frozen=True):
    """Options of the command line."""

    gpus: tuple[str, ...]
    force: bool
    allowed: DrainPermissions
    seconds: float
    reboot: bool = False
    """Whether the node may be drained and rebooted."""
    is_automatic: bool = False


class _Over(Exception):
    """The Job has written its last record, or the node is about to reboot, which ends the Job."""


class HoldingPod(Struct, frozen=True):
    """Pod with GPUs. `warning` describes what its eviction does to its workload; '' if that just continues."""

    shown: str
    warning: str

    def __str__(self) -> str:
        return f"{self.shown} ({self.warning})" if self.warning else self.shown


class ResetPlan(Struct, frozen=True):
    """Plan of a reset, from one read of the cluster. `following`: a Job that already runs on the node."""

    node: NodeState
    template: Mapping[str, Any]
    targets: tuple[ResetTarget, ...]
    operands: tuple[str, ...]
    holding: tuple[HoldingPod, ...]
    """Pods with GPUs on the node, one of which may be evicted."""
    following: JobState | None = None
    is_unreturned: bool = False
    """Whether an earlier run ended before it returned the node, and nothing is left to reset."""
    is_rebooting: bool = False
    """Whether an earlier run ended after it had requested a reboot."""
    is_at_once: bool = False
    """Whether the node is rebooted without a reset."""
    drain: DrainPlan = DrainPlan()
    """Drain before a reboot."""


class ResetOutcome(Struct, frozen=True):
    """Result of the command. `status` is '' without a result, and `why_not` then has the reason."""

    node: str
    status: str = ""
    record: RunRecord = field(default_factory=RunRecord)
    seconds: float = 0.0
    left: tuple[str, ...] = ()
    """What is left to do, as text."""
    step: NextStep = field(default_factory=NextStep)
    """Next step if the GPUs do not work again."""
    why_not: str = ""
    plan: tuple[str, ...] = ()
    """Planned actions of a dry run, as text."""


class _Withheld(Struct, frozen=True):
    """Reason why pods can't request a GPU, '' for none, and the pods whose restart may end it."""

    why: str
    is_plugin: Callable[[Mapping[str, Any]], bool] = is_device_plugin


class NodeReset:
    """Reset GPUs of the node. Raises CouldNot, ClusterError and Interrupted.

    `ending` are the retries after Ctrl-C: only a second one ends them.
    """

    def __init__(self, requests: NodeRequests, options: ResetOptions, ending: CommandRetries) -> None:
        self._requests = requests
        self._cluster = requests.cluster
        self._name = requests.name
        self._options = options
        self._ending = ending
        self._progress = requests.progress
        self._job = NodeJob(requests, _KIND, job_name(requests.name))
        self._operands_evicted = 0
        self._began = time.monotonic()
        self._last_message = ""

    def plan(self) -> ResetPlan:
        """Plan the run; reject it if it could not be completed. Changes nothing."""
        must_have(_RIGHTS, self._requests.is_allowed)
        node, template, job = self._requests.node(), self._job.template(), self._job.read()
        if job is not None:
            self._job.must_be_ours(job, template)
        following = job if job is not None and not job.outcome and not job.leaving else None
        targets = reset_targets(node, self._options.gpus)
        is_rebooting = self._is_rebooting(node, targets)
        is_unreturned = not (following or is_rebooting or targets or self._is_to_reboot(node))
        is_unreturned = is_unreturned and self._is_unreturned(node)
        is_new = not (following or is_rebooting or is_unreturned)
        if following is None and (why := list(self._objections(node, targets, is_new=is_new))):
            raise CouldNot("its GPUs are not reset, and nothing was changed", *why)
        if is_new:
            must_not_be_refused(self._requests, node)
        force = self._options.force
        is_at_once = is_new and self._options.reboot and is_rebooted_at_once(node, targets, force=force)
        drain = DrainPlan()
        if is_new and self._options.reboot:
            drain = self._drain.plan()
            self._drain.must_be_permitted(drain)
        return ResetPlan(
            node,
            template,
            targets,
            () if is_at_once else tuple(operands_before(node)),
            self._holding(),
            following,
            is_unreturned,
            is_rebooting,
            is_at_once,
            drain,
        )

    def _holding(self) -> tuple[HoldingPod, ...]:
        held = self._ask(lambda: list(self._cluster.pods.list_with_gpus(self._name)))
        names = {f"{pod.namespace}/{pod.name}" for pod in held}
        there = self._ask(lambda: self._cluster.pods.list_on(self._name)) if held else []
        pods = {title(pod): pod for pod in there if title(pod) in names}
        effects = self._ask(lambda: eviction_effects(self._cluster, pods.values()))
        texts = {name: effects[uid].text for name, pod in pods.items() if (uid := pod["metadata"]["uid"]) in effects}
        return tuple(HoldingPod(str(pod), texts.get(f"{pod.namespace}/{pod.name}", "")) for pod in held)

    def run(self, plan: ResetPlan) -> ResetOutcome:
        for warning in warnings_of(plan.drain):
            self._progress.say(warning)
        for pod in plan.holding if not plan.is_at_once else ():
            if pod.warning:
                self._progress.say(f"{pod.shown}, and is evicted if that is reset: {pod.warning}")
        with SignOfLife(self._cluster, self._name, extends=not self._options.is_automatic):
            return self._run(plan)

    def _run(self, plan: ResetPlan) -> ResetOutcome:
        self._began = time.monotonic()
        try:
            if plan.is_unreturned:
                return self._return(plan)
            job = plan.following
            if plan.is_rebooting:
                self._take_over()
            elif job is None:
                self._claim()
                job = self._created(plan)
            late = self._follow(plan, job)
        except (Interrupted, CouldNot, ClusterError) as error:
            self._continue_until_second_interrupt()
            if not self._has_begun(plan):
                self._progress.say(f"not reset: {printable(str(error)) or 'interrupted'}")
                self._end_job()
                if not self._has_begun(plan):
                    self._undo(plan, f"undone: {printable(str(error))}" if str(error) else INTERRUPTED)
                    raise
            self._progress.say("the reset has begun: waiting for its end. After another Ctrl-C, run reset again")
            late = self._follow(plan, self._job.read())
        self._continue_until_second_interrupt()
        return self._not_rebooted(late) if late else self._return(plan)

    def _is_unreturned(self, node: NodeState) -> bool:
        """Whether a run that has ended left its claim or its annotation, or GPUs that pods can't request."""
        is_reset = self._record(node).status == Status.PASS.value
        # On a tainted node a later fault may be the reason, and a restarted device plugin would not be scheduled.
        is_withheld = node.gpus != node.gpu_capacity and not node.tainted()
        is_left = self._has_claim(node) or command_in(node.annotations) is not None
        return is_left or (is_reset and is_withheld)

    def _has_claim(self, node: NodeState) -> bool:
        run = claim_on(node, datetime.now(UTC))
        return run is not None and (run.kind, run.holder) == (RunKind.RESET, self._job.name)

    def _is_rebooting(self, node: NodeState, targets: Sequence[ResetTarget]) -> bool:
        """Whether an earlier run has requested a reboot that may be in progress, or from which the node is to return.

        With --reboot, a reboot that has not happened is requested again, by a new run. New findings after the end of
        the claim belong to a new run, too.
        """
        record = self._record(node)
        is_again = self._options.reboot and awaits_reboot(record, node.boot_id)
        return record.running == Step.REBOOT and not is_again and (self._has_claim(node) or not targets)

    def _is_to_reboot(self, node: NodeState) -> bool:
        return self._options.reboot and (self._options.force or bool(needs_reboot(node)))

    def _objections(self, node: NodeState, targets: Sequence[ResetTarget], *, is_new: bool) -> Iterator[str]:
        now = datetime.now(UTC)
        if not is_new:
            return obstacles(node, self._job.name, now)
        why_not = why_not_reboot if self._options.reboot else why_not_reset
        return why_not(node, targets, self._job.name, now, force=self._options.force)

    # --- before the reset

    def _claim(self) -> None:
        """Claim the node. Operands that an earlier run has switched off stay off."""
        self._progress.stage("is claimed")
        why: list[str] = []

        def claiming(node: NodeState) -> Mapping[str, Any] | None:
            nonlocal why
            now = datetime.now(UTC)
            claim = Claim(RunKind.RESET, self._job.name, now + _CLAIMED)
            why = list(obstacles(node, self._job.name, now))
            patch = None if why else acquire(node, claim, now, claim.is_same_run)
            if patch is None:
                return None
            texts = {
                RESET_RESULT: records.dump(self._first_record(node, now)),
                RESET_COMMAND: self._sign(_still_off(node)),
            }
            return annotated(node, texts, patch)

        if self._requests.patched(claiming) is None:
            raise CouldNot("the node is in use", *(why or ["another run has just begun: try again later"]))
        self._progress.say("claimed")

    def _first_record(self, node: NodeState, now: datetime) -> RunRecord:
        return RunRecord(
            schema=records.SCHEMA,
            timestamp=timestamp(now),
            started=now,
            node=node.name,
            suite="reset",
            by="reset",
            holder=self._job.name,
            status=Status.UNKNOWN.value,
            severity=Severity.PASS.name,
            checks=(),
            findings=(),
            unobserved=(),
            running=Step.CLAIM.value,
            steps=(ResetStepRow(step=Step.CLAIM.value, at=now, detail="a taint keeps new pods away"),),
        )

    def _sign(self, operands: Mapping[str, str]) -> str:
        return render(new_command(self._job.name, operands, datetime.now(UTC)))

    def _take_over(self) -> None:
        """Continue for a command that died while the node rebooted: the Job needs a living one."""

        def taking_over(node: NodeState) -> Mapping[str, Any] | None:
            return None if RESET_COMMAND in node.annotations else annotated(node, {RESET_COMMAND: self._sign({})})

        self._requests.patched(taking_over)

    def _created(self, plan: ResetPlan, rebooted: str = "") -> JobState:
        """Create the Job of the reset, or the one that verifies a node in the boot after `rebooted`."""
        self._progress.stage("creating its Job")
        gpus = [] if rebooted or plan.is_at_once else [target.name for target in plan.targets]
        reboot = rebooted or (plan.node.boot_id if self._options.reboot else "")
        made_by = AUTOMATION if self._options.is_automatic else ""
        make = partial(reset_job, plan.template, plan.node, NAMESPACE, gpus, self._options.seconds, reboot, made_by)
        return self._job.started(plan.template, make)

    def _follow(self, plan: ResetPlan, job: JobState | None) -> str:
        """Follow the Job to its end, and through a reboot. Return why the node has not returned from it; '' if it has.

        The Job that requests the reboot ends with it, and another one continues.
        """
        for _ in range(_MOST_JOBS):
            if job is not None:
                with suppress(_Over):
                    following, _ended = self._job.followed(job, plan.template, self._meanwhile)
                    self._last_message = following.last_message
            rebooted = self._record(self._requests.node())
            if rebooted.running != Step.REBOOT:
                return ""
            if late := self._wait_for_boot():
                return late
            if self._record(self._requests.node()).running != Step.REBOOT:
                return ""
            job = self._created(plan, rebooted.boot_id or "")
        return f"step '{Step.REBOOT}': its Job has ended {_MOST_JOBS} times without a result: {self._last_message}"

    def _meanwhile(self) -> None:
        """Evict the pods that the Job names, and switch the operands off once no other pod has the GPUs."""
        node = self._requests.node()
        record = self._record(node)
        if record.running == Step.OPERANDS:
            self._switch_off()
        if record.running in (Step.FREE, Step.OPERANDS) and record.pods:
            self._evict(set(record.pods))
        if record.running == Step.DRAIN.value and not drained(record):
            self._drain_node()
        # After its last record, the Job waits until the node is returned, and returns it if this command dies.
        if awaits_reboot(record, node.boot_id) or (record.started is not None and record.running is None):
            raise _Over

    def _switch_off(self) -> None:
        """Switch the operator's operands off, and list their labels in the same write."""

        def switching_off(node: NodeState) -> Mapping[str, Any] | None:
            return switch_off(node) if self._record(node).running == Step.OPERANDS else None

        node = self._requests.patched(switching_off)
        if node is not None:
            self._progress.say(
                f"the GPU operator's pods switched off: {', '.join(switched_off(node.labels, node.annotations))}"
            )

    def _evict(self, named: set[str]) -> None:
        """Evict these pods if they are on the node and use GPUs: the Job's word alone does not suffice.

        Components of NVIDIA leave last: the device plugin may not return to a tainted node if the run ends early.
        """
        there = [pod for pod in self._cluster.pods.list_on(self._name) if title(pod) in named]
        kinds = [(pod, holder_kind(pod)) for pod in there]
        workloads = [pod for pod, kind in kinds if kind is HolderKind.WORKLOAD]
        plan = plan_drain(workloads, self._options.allowed, eviction_effects(self._cluster, workloads))
        must_be_allowed(plan)
        if plan.left:
            raise CouldNot("pods that stay on it use its GPUs", *(f"{name}: {why}" for name, why in plan.left))
        # An automatic reset may evict none: the operator ends those whose labels are off.
        may_end = not (plan.leaving or self._options.is_automatic)
        operands = [
            pod["metadata"]
            for pod, kind in kinds
            if kind is HolderKind.OPERAND and may_end and "deletionTimestamp" not in pod["metadata"]
        ]
        self._operands_evicted += len(operands)
        if self._operands_evicted > _MOST_OPERANDS:
            raise CouldNot("a component of NVIDIA returns after each eviction, and uses the GPUs", *named)
        leaving = [
            *plan.leaving,
            *(EvictedPod(str(one["namespace"]), str(one["name"]), str(one["uid"])) for one in operands),
        ]
        self._requests.must_evict(pod.namespace for pod in leaving)
        if leaving:
            Eviction(self._requests).run(leaving, self._left_seconds())

    # --- a reboot

    @property
    def _drain(self) -> NodeDrain:
        return NodeDrain(self._requests, self._job.name, self._options.allowed)

    def _drain_node(self) -> None:
        """Drain the node, and record this for the Job. The taint of the claim keeps new pods away."""
        if not self._options.reboot:
            self._progress.stage("its Job waits: run the same command again with --reboot")
            return
        plan = self._drain.run(self._left_seconds())
        detail = f"{counted(len(plan.leaving), 'pod')} evicted; {len(plan.left)} of DaemonSets and static ones stay"
        row = ResetStepRow(step=Step.DRAIN.value, at=datetime.now(UTC), detail=detail)

        def recording(node: NodeState) -> Mapping[str, Any] | None:
            record = self._record(node)
            if record.running != Step.DRAIN or drained(record):
                return None
            text = records.dump(replace(record, steps=(*(record.steps or ()), row)))
            return annotated(node, {RESET_RESULT: text})

        self._requests.patched(recording)

    def _wait_for_boot(self) -> str:
        """Wait until the node is Ready in another boot. Return why it is not; '' if it is, or if its Job has failed."""
        node = self._requests.node()
        is_by_program = (condition := node.condition(REBOOT_REQUIRED)) is not None and is_our_condition(condition)
        by = f"a program that follows the condition {REBOOT_REQUIRED}" if is_by_program else "its systemd"
        self._progress.say(f"waiting until {by} has rebooted it")

        def is_back() -> bool | None:
            nonlocal node
            node = self._requests.node()
            record = self._record(node)
            is_over = record.running != Step.REBOOT
            self._progress.stage("reboots" if awaits_reboot(record, node.boot_id) else "starts after its reboot")
            is_booted = bool(node.boot_id) and node.boot_id != record.boot_id
            return True if is_over or (is_booted and node.is_ready) else None

        try:
            self._requests.retries.until(is_back, self._left_seconds())
        except TookTooLong:
            is_same = awaits_reboot(self._record(node), node.boot_id)
            state = f"it still runs the boot {node.boot_id}" if is_same else f"it runs the new boot {node.boot_id}"
            ready = "Ready" if node.is_ready else "not Ready"
            why = f"step '{Step.REBOOT}': {by} has not returned it within {self._options.seconds:g} s"
            return f"{why}: {state}, and is {ready}"
        return ""

    def _not_rebooted(self, why: str) -> ResetOutcome:
        """Leave the claim, which outlives the boot, so that another run can continue."""
        record = self._record(self._requests.node())
        self._restore()
        return self._ended(replace(record, status=Status.FAIL.value), (why,))

    # --- an early end

    def _has_begun(self, plan: ResetPlan) -> bool:
        """Whether the GPUs may have been touched by this run. If the Node can't be read, they may."""
        record = self._record(self._requests.node())
        is_ours = plan.following or plan.is_unreturned or plan.is_rebooting
        is_ours = is_ours or record.started != self._record(plan.node).started
        return may_have_begun(record) and bool(is_ours)

    def _continue_until_second_interrupt(self) -> None:
        """Continue with the retries that only a second Ctrl-C ends."""
        self._requests = replace(self._requests, retries=self._ending)
        self._job = NodeJob(self._requests, _KIND, self._job.name)

    def _end_job(self) -> None:
        """Delete the Job and wait for its end. A reset that it has begun is not interrupted."""
        self._progress.stage("waiting for the end of its Job")
        job = self._job.read()
        if job is not None:
            self._ask(partial(self._cluster.jobs.delete, job))
            self._requests.retries.until(lambda: True if self._job.read() is None else None, _JOB_ENDS_SECONDS)

    def _undo(self, plan: ResetPlan, why: str) -> None:
        """Return the node, and wait until pods can request its GPUs as before."""
        self._progress.stage("is released")
        self._restore()
        self._release()
        left = self._why_not_offered(plan)
        self._finish(why, *filter(None, [left]))
        self._progress.say(
            "undone: the node's labels and marks are as before; evicted pods do not come back by themselves"
        )
        if left:
            self._progress.say(f"left: {left}")

    def _why_not_offered(self, plan: ResetPlan) -> str:
        """Wait until pods can request as many GPUs as before the run, and return why they can't; '' if they can."""
        self._progress.stage("waiting until pods can request its GPUs")
        return self._obstacle_after(_UNAIDED_SECONDS, lambda: why_not_offered(self._requests.node(), plan.node))

    def _obstacle_after(self, seconds: float, read_obstacle: Callable[[], str]) -> str:
        """Wait until there is no obstacle, and return ''; after the time, return the last one."""
        obstacle = ""

        def is_over() -> bool | None:
            nonlocal obstacle
            obstacle = read_obstacle()
            return None if obstacle else True

        with suppress(TookTooLong):
            self._requests.retries.until(is_over, seconds)
        return obstacle

    def _restore(self) -> None:
        """Switch the operands on that this or an earlier run switched off, unless the Job has done it."""
        on: tuple[str, ...] = ()

        def restoring(node: NodeState) -> Mapping[str, Any] | None:
            nonlocal on
            on = switched_off(node.labels, node.annotations)
            return restored(node)

        self._requests.patched(restoring)
        if on:
            self._progress.say(f"the GPU operator's pods switched on again: {', '.join(on)}")

    def _release(self) -> None:
        """Release the claim and its taint: a device plugin does not start before."""
        self._requests.patched(lambda node: release(node, Claim(RunKind.RESET, self._job.name, datetime.now(UTC))))

    def _finish(self, *left: str) -> None:
        """End the command's permissions, and record what is left to do."""

        def finishing(node: NodeState) -> Mapping[str, Any] | None:
            patch, record = returned(node, self._job.name, datetime.now(UTC)), self._record(node)
            if patch is None or not left or record.holder is None:
                return patch
            reasons = (*(record.reasons or ()), *(cut(text) for text in left))
            ended = records.within_limit(replace(record, running=None, reasons=reasons))
            return annotated(node, {RESET_RESULT: records.dump(ended)}, patch)

        self._requests.patched(finishing)

    # --- after the reset

    def _return(self, plan: ResetPlan) -> ResetOutcome:
        """Return the node: operands, findings, claim, and the GPUs that pods can request."""
        node = self._requests.node()
        record = self._record(node)
        self._restore()
        has_passed = record.status == Status.PASS.value
        of_agent = self._wait_for_agent(record) if has_passed else ""
        self._release()
        of_gpus = self._wait_for_gpus(plan.node.gpu_capacity, record) if has_passed else self._why_not_offered(plan)
        left = tuple(filter(None, (of_agent, of_gpus)))
        self._finish(*left)
        self._wait_for_job()
        return self._ended(record, left)

    def _wait_for_job(self) -> None:
        """Wait for the Job, which ends once the node is returned, so that another run does not follow it."""
        self._obstacle_after(_TAKEN_SECONDS, lambda: "its Job" if (job := self._job.read()) and not job.outcome else "")

    def _wait_for_agent(self, record: RunRecord) -> str:
        """Wait until the agent has adopted the result, and return what it has not done; '' for nothing."""
        self._progress.stage("waiting for the agent")
        addresses = {gpu.address for gpu in record.gpus or ()}
        is_rebooted = any(row.step == Step.REBOOT for row in record.steps or ())
        # After a reboot, the agent's pod may need minutes to start.
        seconds = max(self._left_seconds(), _TAKEN_SECONDS) if is_rebooted else _TAKEN_SECONDS
        return self._obstacle_after(
            seconds, lambda: self._waits_for(self._requests.node(), record, addresses, is_rebooted=is_rebooted)
        )

    def _waits_for(
        self, node: NodeState, record: RunRecord, addresses: Container[str | None], *, is_rebooted: bool
    ) -> str:
        """Return what the agent has not done yet; '' if nothing, or if the node has no agent."""
        if RESULTS not in node.annotations:
            return ""
        if not has_adopted(node, _RECORD, record.timestamp):
            return "the agent has not read the result: check its pod"
        verdict = records.on_node(AgentRecord, node, RESULTS)
        findings = verdict.findings or ()
        if active := [
            *(
                printable(f"{row.reason} on {row.subject}")
                for row in findings
                if (ends_by_reset(row) or None) in addresses
            ),
            *(needs_reboot(node) if is_rebooted else ()),
        ]:
            return f"findings are still active: {', '.join(active)}"
        # Its last check of the GPUs may be from the middle of the reset. The claim lets it check again every 10 s.
        is_blind = bool(verdict.unobserved) or not findings
        if node.tainted() and is_blind and not any((row.severity or 0) >= Severity.RESET for row in findings):
            return f"the node's taint stays: gpu-healthcheck status {self._name} shows why"
        return ""

    def _wait_for_gpus(self, before: Mapping[str, int], record: RunRecord) -> str:
        """Wait until pods can request all GPUs, and return why they can't; '' if they can.

        A plugin that does not offer them by itself is restarted.
        """
        withheld = _Withheld("")

        def read_obstacle() -> str:
            nonlocal withheld
            node = self._requests.node()
            # HAMi's scheduler writes it while its plugin is away, and its releases up to 2.7 never remove it.
            if node.annotations.get(_HANDSHAKE, "").startswith(_DELETED) and self._requests.patched(_without_handshake):
                self._progress.say("HAMi's handshake removed, which kept its GPUs out")
            withheld = self._withheld(node, before, record)
            return withheld.why

        self._progress.stage("waiting until pods can request its GPUs")
        for seconds in (_UNAIDED_SECONDS, max(self._left_seconds(), _LEAST_SECONDS)):
            if not (why := self._obstacle_after(seconds, read_obstacle)):
                return ""
            if self._requests.node().tainted():  # a restarted plugin would not be scheduled
                return f"{why} while the taint of other findings stays: gpu-healthcheck status {self._name}"
            if seconds == _UNAIDED_SECONDS:
                self._restart(withheld.is_plugin)
        return f"{why}: gpu-healthcheck diagnose node {self._name} shows why"

    def _withheld(self, node: NodeState, before: Mapping[str, int], record: RunRecord) -> _Withheld:
        """Return why pods can't request a GPU of the reset."""
        # The kubelet forgets the capacity some minutes after the end of a device plugin.
        if node.gpus != {**before, **node.gpu_capacity}:
            return _Withheld(f"pods can request {listed(node.gpus) or 'no GPU'} of {listed(node.gpu_capacity)}")
        try:
            devices = DeviceTaints(self._cluster.connection).list_devices(self._name)
        except (NotFound, Forbidden):
            return _Withheld("")  # without dynamic resource allocation, or for a user without its objects
        except (Unavailable, Refused) as error:
            return _Withheld(f"the devices of its DRA driver can't be read: {error}", is_dra_plugin)
        names = {name for gpu in record.gpus or () for name in (gpu.address, gpu.uuid)}
        tainted = [
            f"{device.name} ({device.taint})"
            for device in devices
            if device.taint.startswith(f"{DRIVER}/") and not names.isdisjoint({device.address, *device.uuids})
        ]
        return _Withheld(f"its DRA driver keeps a taint on {', '.join(tainted)}" if tainted else "", is_dra_plugin)

    def _restart(self, is_plugin: Callable[[Mapping[str, Any]], bool]) -> None:
        for pod in self._ask(partial(self._cluster.pods.list_on, self._name)):
            if is_plugin(pod):
                metadata = pod["metadata"]
                try:
                    self._ask(partial(self._cluster.pods.delete, metadata["namespace"], metadata["name"]))
                except NotFound:
                    continue
                except Forbidden as error:
                    self._progress.say(f"{title(pod)} does not offer all GPUs, and can't be restarted: {error}")
                else:
                    self._progress.say(f"restarted, because it does not offer all GPUs: {title(pod)}")

    def _ended(self, record: RunRecord, left: tuple[str, ...]) -> ResetOutcome:
        self._progress.stage("")
        seconds = time.monotonic() - self._began
        is_well = record.status == Status.PASS.value and not left
        words = "the GPUs work again" if is_well else "; ".join([*(record.reasons or ()), *left]) or self._last_message
        status = record.status or ""
        why_not = words if status not in _RESULTS else ""
        step = NextStep() if is_well else self._next_step(record)
        return ResetOutcome(self._name, status, record, seconds, left, step, why_not)

    def _next_step(self, record: RunRecord) -> NextStep:
        """Return the step of `status NODE`. An agent that has not adopted a passed reset counts as silent."""
        try:
            node = self._requests.node()
        except (CouldNot, ClusterError, Interrupted):
            return NextStep()
        has_passed = record.status == Status.PASS.value
        silent = (
            has_passed
            and RESULTS in node.annotations
            and not is_adopted(record, RESET_RESULT, adopted_records_on(node))
        )
        return node_step(node, records.on_node(StandingRecord, node, RESULTS), silent, datetime.now(UTC))

    # --- requests

    def _record(self, node: NodeState) -> RunRecord:
        """Return the record of this node's resets; an empty one if it is another program's."""
        record = records.on_node(RunRecord, node, RESET_RESULT)
        return record if record.holder == self._job.name else RunRecord()

    def _ask(self, question: Callable[[], T]) -> T:
        return self._requests.retries.ask(question)

    def _left_seconds(self) -> float:
        return max(self._options.seconds - (time.monotonic() - self._began), 1.0)


def _still_off(node: NodeState) -> dict[str, str]:
    """Return the operands that an earlier run has switched off, with their values before."""
    return {label: value for label, value in operands_before(node).items() if node.labels.get(label) != value}


def _without_handshake(node: NodeState) -> Mapping[str, Any]:
    return {"metadata": {"resourceVersion": node.resource_version, "annotations": {_HANDSHAKE: None}}}
