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

from cli.eviction import CouldNot, Eviction
from cli.log_format import LogLines
from cli.output.lines import COMMAND
from cli.output.progress import NodeProgress
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.command_retries import CommandRetries, TookTooLong
from healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound
from healthcheck.cluster.names import NAMESPACE
from healthcheck.cluster.pods import JOB_LABEL
from healthcheck.cluster.rights import Right
from healthcheck.deep.claim import RunKind, claim_on
from healthcheck.deep.job import JobState, TemplateError, account_of, pod_of
from healthcheck.node.pods import PodState
from healthcheck.node.state import QUARANTINE_RESULT, NodeState, PatchFor, is_tested
from healthcheck.operations.cordon import cordon, cordoned_by, lift, why_kept
from healthcheck.operations.drain import DrainPermissions, DrainPlan, plan_drain
from healthcheck.operations.next_step import NextStep, next_step
from healthcheck.operations.quarantine_job import COMPONENT, CRON_JOB, job_name, quarantine_job
from healthcheck.text.moments import timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RunRecord

PASSED, _RERUN = "return-to-service", "rerun"
LOOK_SECONDS = 2.0
"""Pause between two checks during a wait."""
_GONE_SECONDS = 180.0
"""Longest wait for the end of an earlier Job; after it, the node is assumed not to answer."""
_LONGEST_JOB_SECONDS = 86400.0
"""Deadline for a template that has none."""
_SLACK_SECONDS = 180.0
_LONGEST_WARNING = 500
_BATCH = "batch"
_RIGHTS = (
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


def must_have_rights(cluster: Cluster) -> None:
    """Raise CouldNot with the permissions that every node needs and the user lacks. Raises ClusterError."""
    if missing := [str(right) for right in _RIGHTS if not cluster.rights.is_allowed(right)]:
        raise CouldNot("you lack permissions that it needs, and nothing was changed", *missing)


class NodeQuarantine:
    """Quarantine the node. Raises CouldNot, ClusterError and Interrupted."""

    def __init__(
        self, cluster: Cluster, name: str, options: QuarantineOptions, patience: CommandRetries, voice: NodeProgress
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._job_name = job_name(name)
        self._options = options
        self._patience = patience
        self._voice = voice

    def plan(self) -> QuarantinePlan:
        """Plan the run; reject it if it could not be completed. Changes nothing."""
        node = self._node()
        held = claim_on(node, datetime.now(UTC))
        if held is not None and held.kind is not RunKind.QUARANTINE:
            until = timestamp(held.until)
            raise CouldNot(f"{held.kind.value} {held.holder} tests it until {until} at the latest; try again then")
        if is_tested(node):
            raise CouldNot("HyperPod tests it now (deep-health-check-status=InProgress); try again when it has ended")
        template = self._template()
        job = self._job()
        if job is not None:
            _must_be_ours(job, template)
        following = job if job and _is_to_follow(job, node) else None
        # The drain would also evict the pod of the running test.
        drain = DrainPlan() if following or not self._options.drain else self._drain_plan()
        plan = QuarantinePlan(node, template, drain, following)
        self._must_be_possible(plan)
        return plan

    def run(self, plan: QuarantinePlan) -> QuarantineOutcome:
        self._cordon()
        if self._options.drain and not plan.following:
            self._drain()
        following = _Following(self._cluster, self._started(plan), self._voice)
        return self._end(plan, following, self._followed(following, _deadline_seconds(plan.template)))

    def standing(self) -> Iterator[str]:
        """Yield the leftovers of an interrupted run in the cluster, and the commands to continue or cancel it."""
        node, job = self._node(), self._job()
        running = job is not None and not job.outcome
        give_up = [f"kubectl delete job -n {NAMESPACE} {self._job_name}"] if running else []
        if node.cordoned:
            is_ours = cordoned_by(node) == self._job_name
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

    def _node(self) -> NodeState:
        try:
            return self._patience.ask(partial(self._cluster.nodes.read, self._name))
        except NotFound:
            raise CouldNot("the node does not exist (any more)") from None

    def _job(self) -> JobState | None:
        try:
            return self._patience.ask(partial(self._cluster.jobs.read, NAMESPACE, self._job_name))
        except NotFound:
            return None

    def _template(self) -> Mapping[str, Any]:
        try:
            template = self._patience.ask(partial(self._cluster.jobs.read_template, CRON_JOB))
            pod_of(template)
        except NotFound:
            raise CouldNot(f"there is no CronJob {NAMESPACE}/{CRON_JOB}: apply kubernetes/manifests/ first") from None
        except TemplateError as error:
            raise CouldNot(f"the CronJob {NAMESPACE}/{CRON_JOB} can't be used: {error}") from None
        return template

    def _drain_plan(self) -> DrainPlan:
        pods = self._patience.ask(partial(self._cluster.pods.list_on, self._name))
        # The Job's own pods end with the Job.
        others = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(JOB_LABEL) != self._job_name]
        return plan_drain(others, self._options.allowed)

    def _must_be_possible(self, plan: QuarantinePlan) -> None:
        _must_be_allowed(plan.drain)
        if not plan.following:
            self._must_be_free_then(plan.drain)
        rights = (
            Right("create", "pods/eviction", "", name) for name in sorted({p.namespace for p in plan.drain.leaving})
        )
        missing = [
            str(right) for right in rights if not self._patience.ask(partial(self._cluster.rights.is_allowed, right))
        ]
        if missing:
            raise CouldNot("you have no permission to evict its pods", *missing)

    def _must_be_free_then(self, drain: DrainPlan) -> None:
        """Raise if GPU pods would stay on the node: the test would refuse to begin after the evictions."""
        going = {pod.title for pod in drain.leaving}
        held = self._patience.ask(lambda: list(self._cluster.pods.list_with_gpus(self._name)))
        staying = [str(pod) for pod in held if f"{pod.namespace}/{pod.name}" not in going]
        if staying:
            raise CouldNot("pods that stay on it use its GPUs, so the test would not start", *staying)

    # --- the steps

    def _cordon(self) -> None:
        self._voice.stage("is cordoned")
        node = self._patched(lambda node: cordon(node, self._job_name))
        if node is not None:
            self._voice.say("cordoned")
        elif cordoned_by(self._node()) == self._job_name:
            self._voice.say("is cordoned already, by an earlier run of this command")
        else:
            self._voice.say("is cordoned already by another owner, and stays so")

    def _drain(self) -> None:
        """Drain the node, including pods that arrived between the plan and the cordon."""
        plan = self._drain_plan()
        _must_be_allowed(plan)
        for title, why in plan.left:
            self._voice.say(f"stays: {title}: {why}")
        if plan.leaving:
            eviction = Eviction(self._cluster, self._name, self._patience, self._voice)
            eviction.run(plan.leaving, self._options.drain_seconds)
        self._voice.say("drained")

    def _started(self, plan: QuarantinePlan) -> JobState:
        try:
            return self._patience.until(partial(self._start, plan), _GONE_SECONDS)
        except TookTooLong:
            raise CouldNot(
                f"Job {NAMESPACE}/{self._job_name} of an earlier run is not deleted: its pod has not ended"
            ) from None

    def _start(self, plan: QuarantinePlan) -> JobState | None:
        """Return the running Job, found or created; None while an ended Job is still being deleted."""
        self._voice.stage("creating its Job")
        known = self._job()
        if known is not None:
            _must_be_ours(known, plan.template)
        try:
            if known is None:
                job = self._cluster.jobs.create(quarantine_job(plan.template, plan.node, NAMESPACE))
                self._voice.say(f"Job {job.namespace}/{job.name} created")
                return job
            if not known.outcome and not known.leaving:
                self._voice.say(f"Job {known.namespace}/{known.name} is running already, and is followed")
                return known
            if plan.following and known.uid == plan.following.uid and not known.leaving:
                self._voice.say(
                    f"Job {known.namespace}/{known.name} ended unobserved: this is its result; the same "
                    "command tests again"
                )
                return known
            if not known.leaving:
                self._cluster.jobs.delete(known)
                self._voice.say(f"Job {known.namespace}/{known.name} of an earlier run deleted ({known.outcome})")
        except (Conflict, NotFound):
            pass  # created or deleted by another client in between
        return None

    def _followed(self, following: _Following, seconds: float) -> JobState:
        try:
            return self._patience.until(following.look, seconds)
        except TookTooLong:
            raise CouldNot(f"{following.title} has not ended within {seconds:g} s", following.last_said) from None

    def _end(self, plan: QuarantinePlan, following: _Following, ended: JobState) -> QuarantineOutcome:
        self._voice.stage("")
        node = self._node()
        record = _record_of(node, ended, plan.node.annotations.get(QUARANTINE_RESULT, ""))
        if record is None:
            why = f"its Job ended ({ended.outcome}) without a result on the node; its last message"
            raise CouldNot(why, following.last_said)
        recommendation = str(record.recommendation)
        if recommendation == PASSED and self._options.release_on_pass:
            node = self._uncordoned()
        with suppress(ClusterError):  # the request is repeated
            self._cluster.jobs.note_shown(ended, datetime.now(UTC))
        step = next_step(recommendation, node, record.findings or ())
        return QuarantineOutcome(self._name, recommendation, record, node.cordoned, step)

    def _uncordoned(self) -> NodeState:
        """Uncordon the node if this command's cordon is on it, and return the Node."""

        def ours(node: NodeState) -> Mapping[str, Any] | None:
            now = datetime.now(UTC)
            return lift(node, now) if cordoned_by(node) == self._job_name and not why_kept(node, now) else None

        node = self._patched(ours)
        if node is not None:
            self._voice.say("uncordoned")
            return node
        node = self._node()
        why = why_kept(node, datetime.now(UTC)) or f"{cordoned_by(node)} cordoned it"
        self._voice.say(f"not uncordoned: {why}" if node.cordoned else "is uncordoned already, by another client")
        return node

    def _patched(self, change: PatchFor) -> NodeState | None:
        """Patch the Node and return it; None if there was nothing to patch."""
        try:
            return self._patience.ask(lambda: self._cluster.nodes.update(self._name, change))
        except NotFound:
            raise CouldNot("the node is gone") from None


class _Following:
    """One Job, polled for its pod, its log and its end."""

    def __init__(self, cluster: Cluster, job: JobState, voice: NodeProgress) -> None:
        self._cluster = cluster
        self._job = job
        self._voice = voice
        self._lines: dict[str, LogLines] = {}
        self._last_notice = ""
        self._last_line = ""
        self.title = f"Job {job.namespace}/{job.name}"

    @property
    def last_said(self) -> str:
        """Return the last line of the Job's log, and later messages about the Job and its pod."""
        return "; ".join(filter(None, [self._last_line, self._last_notice])) or "nothing"

    def look(self) -> JobState | None:
        """Wait for the end of the Job, and return it."""
        try:
            job = self._cluster.jobs.read(self._job.namespace, self._job.name)
        except NotFound:
            job = None
        if job is None or job.uid != self._job.uid:
            raise CouldNot("its Job was deleted, possibly with the node")
        # A log that is read after the end of the Job is complete.
        pods = self._cluster.pods.list_of(job)
        if pods:
            self._look_at(pods[-1])
        elif not job.outcome:
            self._look_for_its_pod(job)
        return job if job.outcome else None

    def _look_for_its_pod(self, job: JobState) -> None:
        self._voice.stage("its Job has no pod yet")
        why = "it is suspended by a queue or a person" if job.suspended else self._warning(job.uid)
        if why:
            self._tell(f"{self.title} has no pod: {why}")

    def _look_at(self, pod: PodState) -> None:
        if pod.waits_for:
            # If the pod can't be scheduled, its condition has the same message as the Events.
            why = "; ".join(filter(None, [pod.waits_for, self._warning(pod.uid) if pod.node else ""]))
            self._voice.stage(f"its pod waits: {why}")
            self._tell(f"pod {pod.name} waits: {why}")
            return
        lines = self._lines.setdefault(pod.uid, LogLines())
        try:
            for line in lines.take(self._cluster.pods.read_log_of(pod, lines.since)):
                self._voice.stage(line)
                self._voice.say(line)
                self._last_line, self._last_notice = line, ""
        except ClusterError as error:
            self._tell(f"the log of pod {pod.name} can't be read now: {error}")
        if pod.ended:
            self._tell(f"pod {pod.name} ended: {pod.ended}")

    def _warning(self, uid: str) -> str:
        """Return the newest warning Event about the object; '' without one, or without permission to read Events."""
        try:
            return "".join(self._cluster.events.list_warnings(self._job.namespace, uid)[-1:])[:_LONGEST_WARNING]
        except Forbidden:
            return ""

    def _tell(self, text: str) -> None:
        """Report a state once while it does not change."""
        if text != self._last_notice:
            self._voice.say(text)
        self._last_notice = text


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


def _must_be_ours(job: JobState, template: Mapping[str, Any]) -> None:
    """Raise if a Job of that name is not a quarantine's. Its result is not trusted, and it is not deleted."""
    if (job.component, job.account) == (COMPONENT, account_of(template)):
        return
    raise CouldNot(
        f"Job {job.namespace}/{job.name} is not a quarantine's; it is neither followed nor deleted",
        f"it has the component '{job.component}' and the account '{job.account}', "
        f"where a quarantine's has '{COMPONENT}' and '{account_of(template)}'",
        f"find its creator, then: kubectl delete job -n {job.namespace} {job.name}",
    )


def _must_be_allowed(plan: DrainPlan) -> None:
    if plan.refused:
        raise CouldNot(
            "some pods on it are evicted only with your permission", *(f"{title}: {why}" for title, why in plan.refused)
        )


def _deadline_seconds(template: Mapping[str, Any]) -> float:
    """Return the longest duration of a Job of this template, with a margin to observe its end."""
    result = template["spec"].get("activeDeadlineSeconds")
    return (result if isinstance(result, int) else _LONGEST_JOB_SECONDS) + _SLACK_SECONDS


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
