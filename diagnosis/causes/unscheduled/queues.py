"""Find pods that no scheduler has tried to bind.

The reason is a gate, a queue, an incomplete group, or a scheduler that is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache

from msgspec import Struct

from diagnosis.causes.components import NOT_READY
from diagnosis.causes.unscheduled.device_claims import lacks_claims
from diagnosis.causes.unscheduled.waiting import Waiting, group_of, group_subject, tells_of_gang, unplaced
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.components import Component, is_ready
from diagnosis.facts.gangs import Gang, gang_of, group_message, is_held_back
from diagnosis.facts.gpu_requests import asks_for_gpus
from diagnosis.facts.placement import ZERO, asked_by
from diagnosis.facts.quantity import counted, shown
from diagnosis.hami.installation import installations
from diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.kueue import Queue, Queued
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.pods import Pod
from healthcheck.text.moments import EARLIEST
from healthcheck.text.naming import named as listed

_queued = Family(Link.QUEUED, severity=CauseSeverity.MEDIUM)
_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
KUEUE = _queued(
    "KueueHoldsPod",
    "Kueue has not admitted the workload: its pods keep a scheduling gate of Kueue.",
    "Check the Kueue Workload and its queue: quota, existence and state of the queue.",
)
TOPOLOGY = _queued(
    "KueueTopologyPending",
    "Kueue has not assigned a topology to the pod: its topology gate remains.",
    "Check the Kueue Workload's topology assignment, and Kueue's controller.",
)
GATED = _queued(
    "SchedulingGateHeld",
    "A pod keeps a scheduling gate that its owner has not removed.",
    "Find the controller that owns the gate, and why it waits.",
)
NO_SCHEDULER = _scheduled(
    "SchedulerNotThere",
    "A pod names a scheduler that does not respond: no scheduler has processed the pod.",
    "Name a running scheduler, or install the named one.",
    severity=CauseSeverity.HIGH,
)
GANG = _scheduled(
    "GangIncomplete",
    "A group of pods that must start together cannot start: some pods have no room, or do not exist.",
    "Make room for the whole group, or use fewer or smaller pods.",
)
ERROR = _scheduled(
    "SchedulerFailed",
    "The scheduler failed with an error when it tried to schedule a pod.",
    "Fix the step that the error names; the scheduler then retries. Its messages: "
    "`kubectl get events -A --field-selector=reason=FailedScheduling`.",
)
CAUSES = (KUEUE, TOPOLOGY, GATED, NO_SCHEDULER, GANG, ERROR)

_QUEUE_NAME = "kueue.x-k8s.io/queue-name"
_ADMISSION, _TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
_DEFAULT = "default-scheduler"
_ALSO_CALLED = {_DEFAULT: "kube-scheduler", "volcano": "vc-scheduler"}
_NOTED = frozenset(("FailedScheduling", "Scheduled", "FilteringFailed", "FilteringSucceed", "Unschedulable"))
PATIENCE = timedelta(minutes=2)
"""Time until a gate, or a pod without a scheduler's message, counts as a problem."""
_IN_LINE = timedelta(minutes=10)
"""Time until waiting for resources in use counts as a problem; it is long, because queues exist for that."""
_MOST, _MOST_WORDS = 5, 8
_UNUSED = "insufficient unused quota"
"""Kueue's message if the nominal quota suffices; else it writes `insufficient quota`, or names the maximum."""


class GroupRequest(Struct, frozen=True):
    """Number of the pods of a group that wait, and how much of a resource they request together."""

    pods: int
    total: Decimal


def find_gates(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that wait for the removal of a scheduling gate."""
    for pod in unplaced(snapshot):
        if pod.spec.gates and not snapshot.is_new(pod.meta, PATIENCE):
            yield _gated(snapshot, pod)


def find_queued(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield workloads that wait in a Kueue queue, gated or suspended, with Kueue's messages."""
    for workload in snapshot.queued:
        done = any(map(workload.is_true, ("Finished", "Admitted", "QuotaReserved")))
        patience = _IN_LINE if _is_in_line(workload) else PATIENCE
        young = snapshot.is_new(workload.meta, patience)
        if not done and not young and workload.active and any(map(asks_for_gpus, workload.specs)):
            yield _held_back(snapshot, workload)


def find_unlooked(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that no scheduler has processed."""
    waits: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in unplaced(snapshot):
        if pod.spec.gates or _is_looked_at(snapshot, pod) or snapshot.is_new(pod.meta, PATIENCE):
            continue
        if is_held_back(snapshot, pod):
            continue  # another search reports the gang
        if lacks_claims(snapshot, pod):
            continue  # the scheduler waits for the claims first
        group = _group_says(snapshot, pod)
        if group is not None:
            yield group
        else:
            waits[pod.spec.scheduler or _DEFAULT].append(pod)
    for name, pods in sorted(waits.items()):
        yield from _not_there(snapshot, name, pods)


def find_gang(snapshot: Snapshot, waiting: Waiting, free: Decimal) -> Iterator[FoundCause]:
    """Yield a group whose pods each fit alone. `free`: of the requested devices on all eligible nodes.

    Either the scheduler waits for all of them, or there is not enough room for all.
    """
    pod, name = waiting.pods[0], next(iter(waiting.devices), "")
    group, gang = group_of(pod), gang_of(snapshot, pod)
    own = GroupRequest(len(waiting.pods), waiting.asked.get(name, ZERO) * len(waiting.pods))
    asked = _requests(snapshot).get((pod.meta.namespace, group, name), own) if group else own
    short = bool(group and name) and asked.pods > 1 and asked.total > free
    if not short and not is_gang(waiting):
        return
    evidence = [f"the scheduler: {waiting.message}"]
    if name:
        wanted, left = shown(name, asked.total), shown(name, free)
        evidence.append(f"{asked.pods} pods that request {wanted} {name} wait; {left} free on eligible nodes")
    if gang is not None:
        evidence.append(f"{group_subject(pod)}: minCount {gang.least}, {gang.placed} of its pods have a node")
    where = group_subject(pod) if pod.meta.owner is None else ""
    yield waiting.found(GANG, *evidence, subject=where)


@lru_cache(maxsize=1)
def _requests(snapshot: Snapshot) -> Mapping[tuple[str, str, str], GroupRequest]:
    """Return what the unscheduled pods of each group request together, by namespace, group and resource.

    Of a gang of Kubernetes, only as many pods count as still need a node.
    """
    of_groups = ((pod, group) for pod in unplaced(snapshot) if (group := group_of(pod)))
    amounts = grouped(
        ((pod.meta.namespace, group, name), (value, gang_of(snapshot, pod)))
        for pod, group in of_groups
        for name, value in asked_by(pod.spec).items()
    )
    return {key: _together(some) for key, some in amounts.items()}


def _together(amounts: Sequence[tuple[Decimal, Gang | None]]) -> GroupRequest:
    gang = amounts[0][1]
    counted = sorted(value for value, _ in amounts)[: gang.unplaced if gang is not None else None]
    return GroupRequest(len(counted), sum(counted, ZERO))


def is_gang(waiting: Waiting) -> bool:
    """Whether the scheduler reports that it waits for other pods of a group."""
    return tells_of_gang(waiting.message, waiting.fit)


def is_error(waiting: Waiting) -> bool:
    """Whether the scheduler failed before it judged nodes."""
    condition = waiting.pods[-1].condition("PodScheduled")
    return waiting.fit is None and condition is not None and condition.reason == "SchedulerError"


def find_error(waiting: Waiting) -> Iterator[FoundCause]:
    """Yield a scheduler error that no other search recognises. HAMi's errors belong to another family."""
    if is_error(waiting) and not waiting.hami and "has been locked within" not in waiting.message:
        evidence = (f"the scheduler: {waiting.message}",)
        yield waiting.found(ERROR, *evidence, certainty=Certainty.LIKELY)


def _is_in_line(workload: Queued) -> bool:
    """Whether the queue's quota is sufficient as soon as other workloads release some of it."""
    messages = [each.message for each in workload.conditions if each.type == "QuotaReserved"]
    return any(_UNUSED in text and "maximum capacity" not in text for text in messages)


def _gated(snapshot: Snapshot, pod: Pod) -> FoundCause:
    gates, workload = pod.spec.gates, snapshot.line(pod.meta)[-1]
    evidence = [f"{pod.subject}: scheduling gates {', '.join(gates)}"]
    queue = _queue(snapshot, pod)
    messages = [event.message for event in snapshot.events_of(pod) if "kueue" in event.by]
    if _ADMISSION in gates:
        evidence += [f"label {_QUEUE_NAME}={queue}"] if queue else ["no label names a queue"]
        where = subject("LocalQueue", pod.meta.namespace, queue) if queue else workload
        return FoundCause(KUEUE, where, (*evidence, *messages[-1:]), _look_at_kueue(pod, queue), (pod.subject,))
    if _TOPOLOGY in gates:
        return FoundCause(TOPOLOGY, workload, (*evidence, *messages[-1:]), _look_at_kueue(pod, queue), (pod.subject,))
    look = kubectl("get", pod.meta, "-o", "yaml", "--show-managed-fields")
    remedy = (f"Find the owner of the gate (managedFields), and check that controller: {look}",)
    return FoundCause(GATED, workload, tuple(evidence), remedy, (pod.subject,))


def _held_back(snapshot: Snapshot, workload: Queued) -> FoundCause:
    owner = workload.meta.owner
    made_by = subject(owner.kind, workload.meta.namespace, owner.name) if owner is not None else workload.meta.subject
    messages = [str(condition) for condition in workload.conditions if condition.message]
    state = [f"{made_by}: {text}" for text in messages[:2]] or [f"{made_by}: Kueue has not reported anything about it"]
    kubectl = ("kubectl", "-n", workload.meta.namespace)
    look = command(*kubectl, "describe", "workloads.kueue.x-k8s.io", workload.meta.name)
    remedy = (*_fix_queue(snapshot, workload), f"Check its queue: {look}")
    where = subject("LocalQueue", workload.meta.namespace, workload.queue) if workload.queue else made_by
    return FoundCause(KUEUE, where, (*state, *_about_queue(snapshot, workload)), remedy, (made_by,))


def _about_queue(snapshot: Snapshot, workload: Queued) -> Iterator[str]:
    for queue in _queues_of(snapshot, workload):
        yield from (f"{queue.meta.subject}: {each}" for each in queue.conditions if each.status == "False")


def _fix_queue(snapshot: Snapshot, workload: Queued) -> Iterator[str]:
    there = snapshot.local_queues_in.get(workload.meta.namespace, {})
    if not workload.queue:
        names = listed(there, _MOST) or "there is none in the namespace"
        yield f"Name a queue by the label {_QUEUE_NAME}: {names}."
    elif workload.queue not in there and snapshot.sees("LocalQueue"):
        known = listed(there, _MOST) or "another"
        yield f"There is no LocalQueue {workload.queue} in {workload.meta.namespace}: create it, or name {known}."


def _queues_of(snapshot: Snapshot, workload: Queued) -> Iterator[Queue]:
    local = snapshot.local_queues_in.get(workload.meta.namespace, {}).get(workload.queue)
    if local is not None:
        yield local
        above = snapshot.cluster_queues.get(local.above)
        yield from (above,) if above is not None else ()


def _queue(snapshot: Snapshot, pod: Pod) -> str:
    """Return the name of the pod's LocalQueue, from its own label or that of one of its owners."""
    metas = [pod.meta, *(snapshot.owners[text] for text in snapshot.line(pod.meta)[1:] if text in snapshot.owners)]
    return next((meta.labels[_QUEUE_NAME] for meta in metas if _QUEUE_NAME in meta.labels), "")


def _look_at_kueue(pod: Pod, queue: str) -> tuple[str, ...]:
    kubectl = ("kubectl", "-n", pod.meta.namespace)
    steps = [f"Find out why Kueue does not admit it: {command(*kubectl, 'describe', 'workloads.kueue.x-k8s.io')}"]
    if queue:
        describe = command(*kubectl, "describe", "localqueues.kueue.x-k8s.io", queue)
        steps.append(f"Check whether the queue exists, is active, and has quota left: {describe}")
    return tuple(steps)


def _not_there(snapshot: Snapshot, name: str, pods: Sequence[Pod]) -> Iterator[FoundCause]:
    answers = _answers(snapshot, name)
    if answers is not None:
        evidence = [
            f"{counted(len(pods), 'pod')} of schedulerName {name}: no condition and no event of any scheduler",
            answers,
        ]
        running = [scheduler for scheduler in _schedulers(snapshot) if scheduler != name]
        if running:
            evidence.append(f"schedulers of this cluster: {', '.join(running)}")
        remedy = tuple(_fix_scheduler(snapshot, name, running))
        because = tuple((NOT_READY[component.role].name, component.subject) for component in _of_hami(snapshot, name))
        of_workloads = grouped((snapshot.line(pod.meta)[-1], pod.subject) for pod in pods)
        for workload, names in sorted(of_workloads.items()):
            where = f"scheduler/{name}" if name == _DEFAULT else workload
            sure = Certainty.PROVEN if name != _DEFAULT and snapshot.sees("Lease") else Certainty.LIKELY
            yield FoundCause(NO_SCHEDULER, where, tuple(evidence), remedy, tuple(names), sure, because)


def _answers(snapshot: Snapshot, name: str) -> str | None:
    """Return the evidence that this scheduler is missing; None if it works."""
    if name in _at_work(snapshot):
        return None
    renewed = _renewed(snapshot, name)
    if renewed is not None:
        minutes = int((snapshot.now - renewed).total_seconds() // 60)
        return f"its Lease was last renewed {minutes} minutes ago" if minutes > 1 else None
    own = _pods_of_scheduler(snapshot, name)
    if any(map(is_ready, own)):
        return None
    if own:
        return f"{own[0].subject} is not ready" + (f", and {len(own) - 1} more" if len(own) > 1 else "")
    whole = "no running pod" if snapshot.spans_namespaces else ""
    seen = "no Lease and no running pod" if snapshot.sees("Lease") else whole
    return f"{seen} has its name" if seen else None


@lru_cache(maxsize=1)
def _at_work(snapshot: Snapshot) -> frozenset[str]:
    """Return the schedulers that report about pods, or have placed one lately."""
    reasons = ("Scheduled", "FailedScheduling")
    reporting = (event.by for event in snapshot.events if event.reason in reasons)
    placed = (pod for pod in snapshot.pods if pod.spec.node and not pod.over and snapshot.is_new(pod.meta, PATIENCE))
    return frozenset((*reporting, *(pod.spec.scheduler for pod in placed)))


def _renewed(snapshot: Snapshot, name: str) -> datetime | None:
    """Return when a Lease whose name begins with the scheduler's name was renewed last; None without one."""
    leases, found = _leases(snapshot), []
    for begin in _called(name):
        place = bisect_left(leases, (begin, EARLIEST))
        while place < len(leases) and leases[place][0].startswith(begin):
            found.append(leases[place][1])
            place += 1
    return max(found, default=None)


@lru_cache(maxsize=1)
def _leases(snapshot: Snapshot) -> list[tuple[str, datetime]]:
    return sorted((lease.meta.name, lease.renewed) for lease in snapshot.leases if lease.renewed is not None)


def _pods_of_scheduler(snapshot: Snapshot, name: str) -> list[Pod]:
    """Return the scheduler's pods: HAMi's by its installation, those of other schedulers by name.

    Controllers of the same installation are left out, because they do not schedule pods.
    """
    known = [pod for component in _of_hami(snapshot, name) for pod in component.pods]
    named = known or [pod for text in _called(name) for pod in _by_part(snapshot).get(text, ())]
    return [pod for pod in named if "sched" in pod.meta.name] or named


@lru_cache(maxsize=1)
def _by_part(snapshot: Snapshot) -> Mapping[str, Sequence[Pod]]:
    """Return the running pods by each part of their names, between dashes, that is the name of a scheduler."""
    wanted = {text for pod in unplaced(snapshot) for text in _called(pod.spec.scheduler or _DEFAULT)}
    running = (pod for pod in snapshot.pods if pod.phase == "Running")
    return grouped((part, pod) for pod in running for part in _parts(pod.meta.name) & wanted)


def _parts(name: str) -> set[str]:
    words = name.split("-")[:_MOST_WORDS]
    return {"-".join(words[begin:end]) for begin in range(len(words)) for end in range(begin + 1, len(words) + 1)}


def _of_hami(snapshot: Snapshot, name: str) -> list[Component]:
    return _hami_schedulers(snapshot).get(name, [])


@lru_cache(maxsize=1)
def _hami_schedulers(snapshot: Snapshot) -> dict[str, list[Component]]:
    return grouped((each.scheduler_name, each.scheduler) for each in installations(snapshot) if each.scheduler)


def _called(name: str) -> tuple[str, ...]:
    return name, _ALSO_CALLED.get(name, name)


def _fix_scheduler(snapshot: Snapshot, name: str, running: Sequence[str]) -> Iterator[str]:
    """Yield the steps to get a working scheduler.

    Another scheduler is suggested only if the named scheduler has no pods, and never as a replacement of the cluster's
    default.
    """
    own = _pods_of_scheduler(snapshot, name)
    look = command("kubectl", "get", "pods", "-A", "-o", "wide")
    if own:
        yield f"Find the reason: {kubectl('describe', own[0].meta)}"
    elif name == _DEFAULT:
        yield f"Start kube-scheduler, a part of the control plane: {look}"
    else:
        yield f"Name a running scheduler ({', '.join(running) or _DEFAULT}) in the workload's schedulerName."
        yield f"Or start the named scheduler: {look}"


def _is_looked_at(snapshot: Snapshot, pod: Pod) -> bool:
    noted = (event.reason in _NOTED or event.by == pod.spec.scheduler for event in snapshot.events_of(pod))
    return pod.condition("PodScheduled") is not None or any(noted) or bool(group_message(snapshot, pod))


def _group_says(snapshot: Snapshot, pod: Pod) -> FoundCause | None:
    """Return the warning of Volcano, or a similar scheduler, about the pod's group while all of it waits."""
    name = group_of(pod)
    group = subject("PodGroup", pod.meta.namespace, name)
    noted = [event for event in snapshot.events_about.get(group, ()) if event.warning] if name else []
    if not noted or group in _pending_groups(snapshot):
        return None
    look = command("kubectl", "-n", pod.meta.namespace, "describe", "podgroups", name)
    remedy = (f"Check its queue's free quota, and the number of pods that the group needs: {look}",)
    return FoundCause(GANG, snapshot.line(pod.meta)[-1], (f"{group}: {noted[-1].message}",), remedy, (pod.subject,))


@lru_cache(maxsize=1)
def _pending_groups(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(each.meta.subject for each in snapshot.pod_groups if each.phase == "Pending")


@lru_cache(maxsize=1)
def _schedulers(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the schedulers that have placed pods."""
    placed = {pod.spec.scheduler for pod in snapshot.pods if pod.spec.node and pod.spec.scheduler}
    return tuple(sorted(placed))[:5]
