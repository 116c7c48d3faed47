"""Effect of removing pods on their workload: it recreates them, or it fails. Pure.

Sources: kubernetes/kubernetes, pkg/controller/job (`isPodFailed`, pod_failure_policy.go); kubernetes-sigs/jobset,
pkg/controllers/failure_policy.go; kubeflow/training-operator 1.9, pkg/controller.v1 (common/job.go, pytorch);
kubeflow/mpi-operator, v2beta1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from itertools import islice
from typing import Any

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.model import counted
from gpu_healthcheck.healthcheck.text.boundary import attempt, text_or_number, valid, whole
from gpu_healthcheck.healthcheck.text.printable import printable

JOB, JOB_SET, PYTORCH_JOB, MPI_JOB = "Job", "JobSet", "PyTorchJob", "MPIJob"
WITH_RETRIES = (JOB, JOB_SET, PYTORCH_JOB, MPI_JOB)
"""Kinds whose objects state how many failures they survive."""
MOST_RULES = 2
"""Controllers above a pod whose rules count: a Job, and its JobSet or MPIJob."""
_RECREATED = frozenset(("ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet"))
_JOB_DEFAULT = 6
"""`backoffLimit` of a Job and of an MPIJob's launcher that state none."""
_EXIT_CODES = (143, 137, 1)
"""Exit codes of a container that SIGTERM or SIGKILL ends, and of a program that handles SIGTERM, such as torchrun."""
_FAILING = {"FailJob": "PodFailurePolicy", "FailIndex": "FailedIndexes"}
"""Actions of a podFailurePolicy that fail the Job, at once or in the end, and the reasons of its condition."""
_INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_DISRUPTION = "DisruptionTarget"
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_LONGEST_NAME, _MOST_ENTRIES = 253, 100


class Removal(Enum):
    """How a pod is removed."""

    DELETION = "deletion"
    EVICTION = "eviction"
    """By the Eviction API, which also sets the condition DisruptionTarget of the pod."""


class Fate(IntEnum):
    """Fate of a workload after the removal of some of its pods, from the best to the worst."""

    CONTINUES = 0
    UNKNOWN = 1
    MAY_FAIL = 2
    FAILS = 3
    GONE = 4
    """No controller recreates the pod."""


_JOB_SET_ACTIONS = {
    "FailJobSet": Fate.FAILS,
    "RestartJobSet": Fate.CONTINUES,
    "RestartJobSetAndIgnoreMaxRestarts": Fate.CONTINUES,
    "RecreateJob": Fate.CONTINUES,
}


class RemovalEffect(Struct, frozen=True):
    """Effect of a removal. `text` is its description, '' if the workload just continues; `why` the reason alone."""

    fate: Fate
    text: str = ""
    why: str = ""


class RemovedPod(Struct, frozen=True):
    """A pod to remove, as far as its workload's rules distinguish pods."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class OwnerRef(Struct, frozen=True):
    """Reference to a controller. `group` is '' if it is unknown or the core group."""

    kind: str
    name: str
    uid: str = ""
    group: str = ""


class FailureRule(Struct, frozen=True):
    """A rule of a Job's podFailurePolicy, or of a JobSet's failurePolicy."""

    action: str
    container: str
    """Container with the exit code; '' for any."""
    operator: str
    """`In` or `NotIn`; '' without exit codes."""
    codes: frozenset[str]
    is_on_disruption: bool
    """Whether it matches a pod with the condition DisruptionTarget."""
    reasons: frozenset[str]
    targets: frozenset[str]
    has_patterns: bool


class Retries(Struct, frozen=True):
    """Rules by which a workload replaces pods, and how many of its retries are used."""

    kind: str
    name: str
    uid: str
    replicated_job: str
    """Replicated Job of the JobSet to which a Job belongs."""
    limit: int | None
    """`backoffLimit`, or `maxRestarts` of a JobSet."""
    index_limit: int | None
    failed: int
    """Counted failures, or restarts of a JobSet."""
    active: int
    """Pods that have not ended."""
    rules: tuple[FailureRule, ...] | None
    """None without such a policy."""
    restart_policies: Mapping[str, str]
    """Restart policies by replica type in lower case, of a PyTorchJob."""
    init_containers: frozenset[str]
    """Init containers of a Job's pods that have ended when its containers run."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


def read_retries(kind: str, raw: Mapping[str, Any]) -> Retries | None:
    """Read the rules from a workload's object; None for other kinds."""
    if kind not in WITH_RETRIES:
        return None
    metadata, spec, status = (_object(raw.get(key)) for key in ("metadata", "spec", "status"))
    policy = spec.get("failurePolicy" if kind == JOB_SET else "podFailurePolicy")
    limits = {JOB: spec.get("backoffLimit"), JOB_SET: _object(policy).get("maxRestarts")}
    pod = _object(_object(spec.get("template")).get("spec"))
    replicas = (_object(value).items() for key, value in spec.items() if str(key).endswith("ReplicaSpecs"))
    used = ("restartsCountTowardsMax", "restarts") if kind == JOB_SET else ("failed",)
    return Retries(
        kind,
        printable(str(metadata.get("name", "")), _LONGEST_NAME),
        str(metadata.get("uid", "")),
        str(_object(metadata.get("labels")).get(_REPLICATED_JOB) or ""),
        _whole(limits.get(kind, _object(spec.get("runPolicy")).get("backoffLimit"))),
        _whole(spec.get("backoffLimitPerIndex")),
        next((number for key in used if (number := _whole(status.get(key))) is not None), 0),
        _whole(status.get("active")) or _whole(spec.get("parallelism")) or 1,
        tuple(map(_rule, _objects(policy.get("rules")))) if isinstance(policy, dict) else None,
        {str(name).lower(): str(_object(one).get("restartPolicy")) for each in replicas for name, one in each},
        frozenset(
            str(one.get("name")) for one in _objects(pod.get("initContainers")) if one.get("restartPolicy") != "Always"
        ),
    )


def _rule(raw: Mapping[str, Any]) -> FailureRule:
    on_exit = _object(raw.get("onExitCodes"))
    disruptions = (one for one in _objects(raw.get("onPodConditions")) if one.get("type") == _DISRUPTION)
    return FailureRule(
        printable(str(raw.get("action") or ""), _LONGEST_NAME),
        str(on_exit.get("containerName") or ""),
        str(on_exit.get("operator") or ""),
        _words(on_exit.get("values")),
        any(one.get("status", "True") == "True" for one in disruptions),
        _words(raw.get("onJobFailureReasons")),
        _words(raw.get("targetReplicatedJobs")),
        bool(raw.get("onJobFailureMessagePatterns")),
    )


def removal_effect(
    removal: Removal, pods: Sequence[RemovedPod], owner: OwnerRef | None, chain: Sequence[Retries | None], unread: str
) -> RemovalEffect:
    """Return the effect of removing these pods of one controller, all at once.

    `chain`: the rules of the controller and of its own controller, at most MOST_RULES; None for an unreadable one, with
    the reason `unread`. A controller whose kind has no such rules, such as a CronJob, ends it.
    """
    if owner is None:
        return RemovalEffect(Fate.GONE, "no controller recreates it")
    if owner.kind in _RECREATED:
        return RemovalEffect(Fate.CONTINUES)
    rules = chain[0] if chain else None
    if rules is None or rules.kind == JOB_SET:
        return _effect(Fate.UNKNOWN, f"{owner.kind} {owner.name}", unread or "the rules of its kind are not known")
    if rules.kind == JOB:
        return _of_job(removal, pods, rules, chain[1:], unread)
    return _of_pytorch_job(pods, rules) if rules.kind == PYTORCH_JOB else _of_mpi_job(rules)


def _effect(fate: Fate, title: str, why: str) -> RemovalEffect:
    shown = {
        Fate.UNKNOWN: f"could not check whether this fails {title}: {why}",
        Fate.MAY_FAIL: f"this may fail {title}: {why}",
        Fate.FAILS: f"this fails {title}: {why}",
    }
    return RemovalEffect(fate, shown.get(fate, ""), why)


def _of_job(
    removal: Removal, pods: Sequence[RemovedPod], job: Retries, above: Sequence[Retries | None], unread: str
) -> RemovalEffect:
    outcomes = [_of_exit(removal, pods, job, code) for code in _EXIT_CODES]
    fate, why, reason = max(outcomes, key=lambda outcome: outcome[0])
    if fate is Fate.FAILS and min(outcomes)[0] is not Fate.FAILS:
        fate, why = Fate.MAY_FAIL, f"{why}, which depends on the exit code"
    if fate is Fate.CONTINUES or not above:
        return _effect(fate, job.title, why)
    parent, end = above[0], f"{'fails' if fate is Fate.FAILS else 'may fail'} ({why})"
    if parent is None:
        return _effect(Fate.UNKNOWN, f"the owner of {job.title}, which {end}", unread)
    if parent.kind != JOB_SET:  # an MPIJob, with the Job of its launcher
        return _effect(fate, f"{parent.title} with its {job.title}", why)
    upper, limit = _of_job_set(parent, job, reason)
    return _effect(min(fate, upper), parent.title, f"its {job.title} {end}, and {limit}")


def _of_exit(removal: Removal, pods: Sequence[RemovedPod], job: Retries, code: int) -> tuple[Fate, str, str]:
    """Return the Job's fate if the containers of these pods end with this exit code, why, and its failure's reason."""
    limit = _JOB_DEFAULT if job.limit is None and job.index_limit is None else job.limit
    action, at = _action(removal, job, code)
    if action in _FAILING:
        return Fate.FAILS, f"rule {at} of its podFailurePolicy is {action}", _FAILING[action]
    number = 0 if action == "Ignore" else len(pods)
    if number and job.index_limit is not None and any(_failures(pod) >= job.index_limit for pod in pods):
        return Fate.FAILS, f"the pod's index fails, by backoffLimitPerIndex {job.index_limit}", "FailedIndexes"
    shown = f"backoffLimit {limit}" + (f", and {counted(job.failed, 'pod')} failed before" if job.failed else "")
    if number and limit is not None and job.failed + number > limit:
        return Fate.FAILS, shown, "BackoffLimitExceeded"
    others = job.active - len(pods)
    if others > 0 and limit is not None and job.failed + number + others > limit:
        why = f"{shown}, and failures of its {counted(others, 'other pod')}, which may follow, count too"
        return Fate.MAY_FAIL, why, "BackoffLimitExceeded"
    return Fate.CONTINUES, "", ""


def _action(removal: Removal, job: Retries, code: int) -> tuple[str, int]:
    """Return the action of the first matching rule, and its position; 'Count' if there is none."""
    for at, rule in enumerate(job.rules or ()):
        if rule.operator:
            is_other = rule.container in job.init_containers
            matches = not is_other and (str(code) in rule.codes) == (rule.operator == "In")
        else:
            matches = removal is Removal.EVICTION and rule.is_on_disruption
        if matches:
            return rule.action, at
    return "Count", -1


def _failures(pod: RemovedPod) -> int:
    """Return how many pods of this index failed before this one."""
    text = pod.annotations.get(_INDEX_FAILURES, "")
    return int(text) if _NUMBER.fullmatch(text) else 0


def _of_job_set(job_set: Retries, job: Retries, reason: str) -> tuple[Fate, str]:
    """Return the fate of a JobSet whose Job fails for this reason, and why."""
    if job_set.rules is None:
        return Fate.FAILS, "the JobSet has no failurePolicy"
    matching = (
        rule
        for rule in job_set.rules or ()
        if reason in (rule.reasons or (reason,)) and job.replicated_job in (rule.targets or (job.replicated_job,))
    )
    rule = next(matching, None)
    if rule is not None and (rule.has_patterns or rule.action not in _JOB_SET_ACTIONS):
        return Fate.UNKNOWN, f"a rule {rule.action} of its failurePolicy can't be evaluated"
    if rule is not None and rule.action != "RestartJobSet":
        return _JOB_SET_ACTIONS[rule.action], f"its failurePolicy has the rule {rule.action}"
    most = job_set.limit or 0
    return (
        Fate.FAILS if job_set.failed >= most else Fate.CONTINUES,
        f"{job_set.failed} of maxRestarts {most} are used",
    )


def _of_pytorch_job(pods: Iterable[RemovedPod], job: Retries) -> RemovalEffect:
    if job.limit is not None and job.limit < 1:
        return _effect(Fate.FAILS, job.title, f"runPolicy.backoffLimit {job.limit}")
    policies = {job.restart_policies.get(pod.labels.get(_REPLICA_TYPE, "").lower(), "") for pod in pods}
    if "Never" in policies:
        return _effect(Fate.FAILS, job.title, "restartPolicy Never")
    if "ExitCode" in policies:
        return _effect(Fate.MAY_FAIL, job.title, "with restartPolicy ExitCode, an exit code below 128 fails it")
    return _effect(Fate.CONTINUES, job.title, "")


def _of_mpi_job(job: Retries) -> RemovalEffect:
    if job.limit is not None and job.limit < 1:
        why = f"its launcher ends with a worker, and runPolicy.backoffLimit is {job.limit}"
        return _effect(Fate.MAY_FAIL, job.title, why)
    return _effect(Fate.CONTINUES, job.title, "")


def _whole(value: object) -> int | None:
    return attempt(whole, value)


def _words(value: object) -> frozenset[str]:
    return frozenset(valid(text_or_number, value) if isinstance(value, list) else ())


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    listed = islice(value, _MOST_ENTRIES) if isinstance(value, list) else ()
    return (one for one in listed if isinstance(one, dict))


def controller_of(raw: Mapping[str, Any]) -> OwnerRef | None:
    """Return the controller of an object; None if it has none."""
    references = _objects(_object(raw.get("metadata")).get("ownerReferences"))
    one = next((one for one in references if one.get("controller") is True), None)
    if one is None:
        return None
    kind, name, uid = (printable(str(one.get(key) or ""), _LONGEST_NAME) for key in ("kind", "name", "uid"))
    return OwnerRef(kind, name, uid, str(one.get("apiVersion") or "").rpartition("/")[0])
