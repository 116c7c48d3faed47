"""Find the queue or quota by which a scheduler refuses a pod before it judges nodes, by its words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal

from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting
from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.placement import ZERO
from gpu_healthcheck.diagnosis.facts.quantity import amount
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

_queued = Family(Link.QUEUED, severity=CauseSeverity.MEDIUM)
LIMIT = _queued(
    "QueueLimitReached",
    "The queue of a pod may use no more GPUs: its limit, or its quota for pods that can't be preempted, is used up.",
    "Raise the limit or quota of the queue, or stop other workloads of the queue.",
    source="https://github.com/kai-scheduler/KAI-Scheduler, pkg/scheduler/api: OverLimit, NonPreemptibleOverQuota; "
    "Koordinator and scheduler-plugins: ElasticQuota; YuniKorn: queue limits",
)
MISSING = _queued(
    "QueueMissing",
    "The queue that a pod names does not exist, or is not below a parent queue: KAI schedules no pod of it.",
    "Name an existing queue in the pod's label `kai.scheduler/queue`, or create the queue below a parent queue.",
    severity=CauseSeverity.HIGH,
    source="https://github.com/kai-scheduler/KAI-Scheduler/pull/820: QueueDoesNotExist; issues/621: only leaf queues",
)
CAUSES = (LIMIT, MISSING)

_QUEUES, _LABELS = "queues.scheduling.run.ai", ("kai.scheduler/queue", "runai/queue")
_POOL = "kai.scheduler/node-pool"
_OF_KAI = re.compile(r"\bkai\b|runai", re.ASCII)
_SILENT = timedelta(minutes=10)
"""Time in which KAI reports about a pod: its cycles last seconds, on large clusters minutes."""
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_OVER_LIMIT = re.compile(
    r"(?P<queue>\S{1,255}) quota has reached the allowable limit of (?P<resource>GPUs|CPU|memory).{1,60}"
    rf"currently (?P<used>{_NUMBER}) .{{1,60}}requested (?P<asked>{_NUMBER})",
    re.ASCII,
)
_OVER_QUOTA = re.compile(
    rf"requested (?P<asked>{_NUMBER}) (?P<resource>GPUs|CPU|GB).{{0,20}}, but (?P<queue>\S{{1,255}}) quota is "
    rf"[^,]{{1,30}}(?:, while (?P<used>{_NUMBER}))?",
    re.ASCII,
)
_NO_QUEUE = re.compile(
    r"QueueDoesNotExist: (?:.{0,20}queue '?([^\s']{1,253}))?|\AUnable to schedule pod\Z", re.IGNORECASE
)
_PREEMPTIBLE = (
    "Or let the workload exceed the quota: give it a PriorityClass with a value below 100, such as train. KAI may then "
    "preempt it."
)


_OTHERS = (
    (
        r"Insufficient quotas.{0,100}quotaName: ([\w.-]{1,253})",
        "elasticquota",
        "Raise `max` of the ElasticQuota {}, or stop its pods: `kubectl get elasticquotas.scheduling.sigs.k8s.io -A`",
    ),
    (
        r"ElasticQuota (?:[\w.-]{1,63}/)?([\w.-]{1,253}) is more than (?:Max|Min)",
        "elasticquota",
        "Raise `max` of the ElasticQuota {}, or stop its pods: `kubectl get elasticquotas.scheduling.x-k8s.io -A`",
    ),
    (
        r"(?:not|n't) fit in queue '?([\w.-]{0,252}\w)",
        "queue",
        "Raise `resources.max` of the queue {} in the ConfigMap yunikorn-configs, or stop applications of the queue.",
    ),
)
"""Refusals of Koordinator, CapacityScheduling and YuniKorn: words with the quota's name, its kind, and the fix."""


def find_refused(waiting: Waiting) -> Iterator[FoundCause]:
    """Yield the queue or quota that refuses the pods."""
    evidence = f"the scheduler: {waiting.message}"
    if (over := _OVER_LIMIT.search(waiting.message) or _OVER_QUOTA.search(waiting.message)) is not None:
        yield _over(waiting, over, evidence)
    elif (missing := _NO_QUEUE.search(waiting.message)) is not None:
        yield _missing(waiting, missing[1] or "", evidence)
    else:
        for words, kind, step in _OTHERS:
            if (over := re.search(words, waiting.message, re.ASCII | re.IGNORECASE)) is not None:
                yield waiting.found(LIMIT, evidence, subject=f"{kind}/{over[1]}", remedy=(step.format(over[1]),))


def _over(waiting: Waiting, over: re.Match[str], evidence: str) -> FoundCause:
    queue, key = over["queue"].strip("'"), "limit" if over.re is _OVER_LIMIT else "quota"
    users = command("kubectl", "get", "pods", "-A", "-l", f"{_LABELS[0]}={queue}")
    remedy = (
        _raise(waiting, queue, key, over),
        *((_PREEMPTIBLE,) if key == "quota" else ()),
        f"Or stop other pods of the queue, or wait for them: {users}",
    )
    return waiting.found(LIMIT, evidence, subject=subject("Queue", "", queue), remedy=remedy)


def _raise(waiting: Waiting, queue: str, key: str, over: re.Match[str]) -> str:
    """Return how the limit or quota becomes large enough."""
    if waiting.spec.scheduler.startswith("runai"):
        return f"Raise the {key} of the project or department {queue} in run:ai, which writes its queues itself."
    if over["resource"] != "GPUs" or over["used"] is None:
        return f"Raise the {key} in `spec.resources` of the queue: {command('kubectl', 'edit', _QUEUES, queue)}"
    needed = (amount(over["used"]) or ZERO) + (amount(over["asked"]) or ZERO)
    # KAI adds fractions as floating point numbers, and may refuse an exact match.
    needed += ZERO if needed == int(needed) else Decimal("0.01")
    patch = json.dumps({"spec": {"resources": {"gpu": {key: float(needed)}}}}, separators=(",", ":"))
    change = command("kubectl", "patch", _QUEUES, queue, "--type=merge", "-p", patch)
    return f"Raise the queue's {key} of GPUs to {needed.normalize():f} (-1 is without a bound): {change}"


def find_silent(snapshot: Snapshot, scheduler: str, pods: Sequence[Pod]) -> Iterator[FoundCause]:
    """Yield pods about which KAI reports nothing, although it works: it skips pods of an unknown queue or node pool."""
    evidence = f"schedulerName {scheduler}: no condition and no event about the pod, while the scheduler works"
    log = command("kubectl", "-n", "kai-scheduler", "logs", "-l", "app=pod-grouper", "--tail=50")
    for pod in pods if _OF_KAI.search(scheduler) and snapshot.sees("Event") else ():
        if not snapshot.is_new(pod.meta, _SILENT):
            where, steps = _queue_of(pod)
            pool = pod.meta.labels.get(_POOL)
            more = (f"Create a SchedulingShard for the pod's label {_POOL}={pool}, if there is none.",) if pool else ()
            remedy = (*steps, *more, f"Read the log of the pod-grouper, which assigns pods to queues: {log}")
            maker = snapshot.line(pod.meta)[-1]
            yield FoundCause(MISSING, maker, (evidence, where), remedy, (pod.subject,), Certainty.LIKELY)


def _missing(waiting: Waiting, queue: str, evidence: str) -> FoundCause:
    where, remedy = _queue_of(waiting.pods[0])
    certainty = Certainty.PROVEN if queue else Certainty.LIKELY
    return waiting.found(MISSING, evidence, where, remedy=remedy, certainty=certainty)


def _queue_of(pod: Pod) -> tuple[str, tuple[str, ...]]:
    """Return how the pod names its queue, and the steps to a queue that exists."""
    labels = pod.meta.labels
    label = next((f"label {key}={labels[key]}" for key in _LABELS if key in labels), "")
    see = command("kubectl", "get", _QUEUES, "-o", "custom-columns=NAME:.metadata.name,PARENT:.spec.parentQueue")
    other = f"Set the pod's label {_LABELS[0]} to a queue that has a parent and is no parent itself"
    remedy = (
        f"See which queues exist, and which have a parent: {see}",
        f"{other}; or create the queue with `spec.parentQueue`, and its parent.",
    )
    return label or f"no label {_LABELS[0]}: KAI then assumes default-queue", remedy
