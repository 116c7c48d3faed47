"""Quarantine of one node: cordon, drain, test by a Job, and optionally uncordon.

Each step first checks whether it was done already, so that a new run can continue an interrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import Struct, field

from gpu_healthcheck.cli.eviction import NodeDrain, must_be_allowed, must_not_be_refused, warnings_of
from gpu_healthcheck.cli.node_job import Following, JobKind, NodeJob
from gpu_healthcheck.cli.node_requests import CouldNot, NodeRequests
from gpu_healthcheck.cli.node_step import idle_step
from gpu_healthcheck.cli.output.lines import COMMAND
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.installation import Right
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.deep.claim import RunKind, claim_on
from gpu_healthcheck.healthcheck.deep.job import JobState
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, RESULTS, NodeState, is_tested
from gpu_healthcheck.healthcheck.operations.drain import (
    DrainPermissions,
    DrainPlan,
    cordon,
    cordoned_by,
    lift,
    why_kept,
)
from gpu_healthcheck.healthcheck.operations.next_step import NextStep, next_step
from gpu_healthcheck.healthcheck.operations.quarantine_job import COMPONENT, CRON_JOB, job_name, quarantine_job
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import adopted_records_on, is_adopted
from gpu_healthcheck.healthcheck.verdict.record import RunRecord, StandingRecord

PASSED, _RERUN = "return-to-service", "rerun"
POLL_SECONDS = 2.0
"""Pause between two checks during a wait."""
KIND = JobKind(CRON_JOB, COMPONENT)
_BATCH = "batch"
RIGHTS = (
    Right("get", "nodes"),
    Right("patch", "nodes"),
    Right("list", "pods"),
    Right("get", "pods/log", "", NAMESPACE),
    Right("get", "cronjobs", _BATCH, NAMESPACE),
    Right("get", "jobs", _BATCH, NAMESPACE),
    Right("create", "jobs", _BATCH, NAMESPACE),
    Right("patch", "jobs", _BATCH, NAMESPACE),
    Right("delete", "jobs", _BATCH, NAMESPACE),
)


class QuarantineOptions(Struct, frozen=True):
    """Options of the command line."""

    drain: bool
    allowed: DrainPermissions
    drain_seconds: float
    release_on_pass: bool


class QuarantinePlan(Struct, frozen=True):
    """Plan of a quarantine, from one read of the cluster.

    `following`: the Job that already runs on the node, or that has ended unobserved.
    """

    node: NodeState
    template: Mapping[str, Any]
    drain: DrainPlan
    following: JobState | None


class QuarantineOutcome(Struct, frozen=True):
    """Result of the command.

    `record` is the annotation; without one `recommendation` is '', and `why_not` the reason.
    """

    node: str
    recommendation: str = ""
    record: RunRecord = field(default_factory=RunRecord)
    cordoned: bool = False
    step: NextStep = field(default_factory=NextStep)
    why_not: str = ""
    plan: tuple[str, ...] = ()
    """Planned actions of a dry run, as text."""


class NodeQuarantine:
    """Quarantine the node. Raises CouldNot, ClusterError and Interrupted."""

    def __init__(self, requests: NodeRequests, options: QuarantineOptions) -> None:
        self._requests = requests
        self._name = requests.name
        self._job = NodeJob(requests, KIND, job_name(requests.name))
        self._drain = NodeDrain(requests, self._job.name, options.allowed)
        self._options = options
        self._progress = requests.progress

    def plan(self) -> QuarantinePlan:
        """Plan the run; reject it if it could not be completed. Changes nothing."""
        node = self._requests.node()
        held = claim_on(node, datetime.now(UTC))
        if held is not None and held.kind is not RunKind.QUARANTINE:
            until = timestamp(held.until)
            raise CouldNot(f"{held.kind.value} {held.holder} tests it until {until} at the latest; try again then")
        if is_tested(node):
            raise CouldNot("HyperPod tests it now (deep-health-check-status=InProgress); try again when it has ended")
        template, job = self._job.template(), self._job.read()
        if job is not None:
            self._job.must_be_ours(job, template)
        following = job if job and _is_to_follow(job, node) else None
        if following is None:
            must_not_be_refused(self._requests, node)
        # The drain would also evict the pod of the running test.
        drain = DrainPlan() if following or not self._options.drain else self._drain.plan()
        plan = QuarantinePlan(node, template, drain, following)
        self._must_be_possible(plan)
        return plan

    def run(self, plan: QuarantinePlan) -> QuarantineOutcome:
        for warning in warnings_of(plan.drain):
            self._progress.say(warning)
        self._cordon()
        if self._options.drain and not plan.following:
            self._drain.run(self._options.drain_seconds)
        self._progress.stage("creating its Job")
        job = self._job.started(
            plan.template,
            partial(quarantine_job, plan.template, plan.node, NAMESPACE),
            plan.following.uid if plan.following else "",
        )
        following, ended = self._job.followed(job, plan.template)
        return self._end(plan, following, ended)

    def leftovers(self) -> Iterator[str]:
        """Yield the leftovers of an interrupted run in the cluster, and the commands to continue or cancel it."""
        node, job = self._requests.node(), self._job.read()
        running = job is not None and not job.outcome
        give_up = [f"kubectl delete job -n {NAMESPACE} {self._job.name}"] if running else []
        if node.cordoned:
            is_ours = cordoned_by(node) == self._job.name
            yield "the node is cordoned " + (
                "by this command" if is_ours else "by another owner, who has to uncordon it"
            )
            give_up += [f"kubectl uncordon {self._name}"] if is_ours else []
        if job is not None:
            yield f"Job {job.namespace}/{job.name} " + ("continues" if running else f"has ended: {job.outcome}")
        held = claim_on(node, datetime.now(UTC))
        if held is not None and held.kind is RunKind.QUARANTINE:
            yield f"its run holds the node until {timestamp(held.until)} at the latest"
        if not running and not node.cordoned:
            yield "nothing to clean up: the node is not cordoned and has no Job"
            return
        yield "to continue, run with the same options:"
        yield f"  {COMMAND}gpu-healthcheck quarantine {self._name}"
        if give_up:
            yield "to abandon the run:"
            yield f"  {COMMAND}{' && '.join(give_up)}"

    # --- reading

    def _must_be_possible(self, plan: QuarantinePlan) -> None:
        must_be_allowed(plan.drain)
        if not plan.following:
            self._must_be_free_then(plan.drain)
        self._drain.must_be_permitted(plan.drain)

    def _must_be_free_then(self, drain: DrainPlan) -> None:
        """Raise if GPU pods would stay on the node: the test would refuse to begin after the evictions."""
        going = {pod.title for pod in drain.leaving}
        held = self._requests.retries.ask(lambda: list(self._requests.cluster.pods.list_with_gpus(self._name)))
        staying = [str(pod) for pod in held if f"{pod.namespace}/{pod.name}" not in going]
        if staying:
            raise CouldNot("the test would not start, because pods that stay on it use its GPUs", *staying)

    # --- the steps

    def _cordon(self) -> None:
        self._progress.stage("is cordoned")
        node = self._requests.patched(lambda node: cordon(node, self._job.name))
        if node is not None:
            self._progress.say("cordoned")
        elif cordoned_by(self._requests.node()) == self._job.name:
            self._progress.say("is cordoned already, by an earlier run of this command")
        else:
            self._progress.say("is cordoned already by another owner, and stays so")

    def _end(self, plan: QuarantinePlan, following: Following, ended: JobState) -> QuarantineOutcome:
        self._progress.stage("")
        node = self._requests.node()
        record = _record_of(node, ended, plan.node.annotations.get(QUARANTINE_RESULT, ""))
        if record is None:
            why = f"its Job ended ({ended.outcome}) without a result on the node; its last message"
            raise CouldNot(why, following.last_message)
        recommendation = str(record.recommendation)
        if recommendation == PASSED and self._options.release_on_pass:
            node = self._uncordoned()
        with suppress(ClusterError):  # the request is repeated
            self._requests.cluster.jobs.note_shown(ended, datetime.now(UTC))
        if is_adopted(record, QUARANTINE_RESULT, adopted_records_on(node)):
            step = idle_step(node, records.on_node(StandingRecord, node, RESULTS), silent=False)
        else:
            step = next_step(recommendation, node, record.findings or ())
        return QuarantineOutcome(self._name, recommendation, record, node.cordoned, step)

    def _uncordoned(self) -> NodeState:
        """Uncordon the node if this command's cordon is on it, and return the Node."""

        def ours(node: NodeState) -> Mapping[str, Any] | None:
            now = datetime.now(UTC)
            return lift(node, now) if cordoned_by(node) == self._job.name and not why_kept(node, now) else None

        node = self._requests.patched(ours)
        if node is not None:
            self._progress.say("uncordoned")
            return node
        node = self._requests.node()
        why = why_kept(node, datetime.now(UTC)) or f"{cordoned_by(node)} cordoned it"
        self._progress.say(f"not uncordoned: {why}" if node.cordoned else "is uncordoned already, by another client")
        return node


def _is_to_follow(job: JobState, node: NodeState) -> bool:
    """Whether the Job is running, or has an unreported result for a node that is still in quarantine.

    A Job whose result only recommends another run is replaced at once.
    """
    if job.leaving or not job.outcome:
        return not job.leaving
    if not (job.unshown and node.cordoned):
        return False
    record = _record_of(node, job, node.annotations.get(QUARANTINE_RESULT, ""))
    return record is not None and record.recommendation != _RERUN


def _record_of(node: NodeState, job: JobState, before: str) -> RunRecord | None:
    """Return the record of this Job; None if the annotation is older or unreadable.

    A record is newer than the Job by its time, or, with a wrong clock on the node, by being different from the last
    one.
    """
    text = node.annotations.get(QUARANTINE_RESULT, "")
    record = records.on_node(RunRecord, node, QUARANTINE_RESULT)
    at = records.time_of(record)
    is_new = text != before or (at is not None and at >= job.created)
    return record if is_new and record.recommendation else None
