"""Find pods that no scheduler has tried to bind.

The reason is a gate, a queue, an incomplete group, or a scheduler that is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal

from diagnosis.causes.unready_components import NOT_READY
from diagnosis.causes.unscheduled.device_claims import lacks_claims
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting, group_of, group_subject, tells_of_gang, unplaced
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.components import Component, is_ready
from diagnosis.facts.gangs import gang_of, group_message, is_held_back
from diagnosis.facts.gpu_requests import asks_for_gpus
from diagnosis.facts.placement import ZERO, asked_by
from diagnosis.facts.quantity import counted, shown
from diagnosis.hami.installation import installations
from diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.kueue import Queue, Queued
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.pods import Pod

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
_UNUSED = "insufficient unused quota"
"""Kueue's message if the nominal quota suffices; else it writes `insufficient quota`, or names the maximum."""


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


def find_gang(snapshot: Snapshot, waiting: Waiting, rooms: Sequence[NodeUse]) -> Iterator[FoundCause]:
    """Yield a group whose pods each fit alone.

    Either the scheduler waits for all of them, or there is not enough room for all.
    """
    group, name = group_of(waiting.pods[0]), next(iter(waiting.devices), "")
    asked = [asked_by(pod.spec).get(name, ZERO) for pod in _members(snapshot, waiting, group)]
    if (gang := gang_of(snapshot, waiting.pods[0])) is not None:
        asked = sorted(asked)[: gang.unplaced]
    free = sum((room.free(name) for room in rooms), ZERO)
    short = bool(group and name) and len(asked) > 1 and sum(asked) > free
    if not short and not is_gang(waiting):
        return
    evidence = [f"the scheduler: {waiting.message}"]
    if name and rooms:
        wanted, left = shown(name, Decimal(sum(asked))), shown(name, Decimal(free))
        evidence.append(f"{len(asked)} pods that request {wanted} {name} wait; {left} free on eligible nodes")
    if gang is not None:
        placed = sum(bool(pod.spec.node) for pod in gang.members)
        evidence.append(f"{group_subject(waiting.pods[0])}: minCount {gang.least}, {placed} of its pods have a node")
    alone = waiting.pods[0].meta.owner is None
    where = group_subject(waiting.pods[0]) if alone else ""
    yield waiting.found(GANG, *evidence, subject=where)


def _members(snapshot: Snapshot, waiting: Waiting, group: str) -> list[Pod]:
    """Return the unscheduled pods of the group; without a group, the waiting pods themselves."""
    namespace = waiting.pods[0].meta.namespace
    others = (pod for pod in unplaced(snapshot) if pod.meta.namespace == namespace and group_of(pod) == group)
    return list(others) if group else list(waiting.pods)


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
    there = sorted(each.meta.name for each in snapshot.queues if each.meta.namespace == workload.meta.namespace)
    if not workload.queue:
        yield f"Name a queue by the label {_QUEUE_NAME}: {', '.join(there) or 'there is none in the namespace'}."
    elif workload.queue not in there and snapshot.sees("LocalQueue"):
        known = ", ".join(there) or "another"
        yield f"There is no LocalQueue {workload.queue} in {workload.meta.namespace}: create it, or name {known}."


def _queues_of(snapshot: Snapshot, workload: Queued) -> Iterator[Queue]:
    for local in snapshot.queues:
        if (local.meta.kind, local.meta.namespace, local.meta.name) == (
            "LocalQueue",
            workload.meta.namespace,
            workload.queue,
        ):
            yield local
            yield from (each for each in snapshot.queues if each.meta.subject == f"clusterqueue/{local.above}")


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
        for workload in sorted({snapshot.line(pod.meta)[-1] for pod in pods}):
            names = tuple(pod.subject for pod in pods if snapshot.line(pod.meta)[-1] == workload)
            where = f"scheduler/{name}" if name == _DEFAULT else workload
            sure = Certainty.PROVEN if name != _DEFAULT and snapshot.sees("Lease") else Certainty.LIKELY
            yield FoundCause(NO_SCHEDULER, where, tuple(evidence), remedy, names, sure, because)


def _answers(snapshot: Snapshot, name: str) -> str | None:
    """Return the evidence that this scheduler is missing; None if it works."""
    lately = [
        event for event in snapshot.events if event.by == name and event.reason in ("Scheduled", "FailedScheduling")
    ]
    if lately:
        return None
    pods = [
        pod
        for pod in snapshot.pods
        if pod.spec.scheduler == name and not pod.over and pod.spec.node and snapshot.is_new(pod.meta, PATIENCE)
    ]
    if pods:
        return None
    renewed = [
        lease.renewed for lease in snapshot.leases if lease.renewed and lease.meta.name.startswith(_called(name))
    ]
    if renewed:
        minutes = int((snapshot.now - max(renewed)).total_seconds() // 60)
        return f"its Lease was last renewed {minutes} minutes ago" if minutes > 1 else None
    own = _pods_of_scheduler(snapshot, name)
    if any(map(is_ready, own)):
        return None
    if own:
        return f"{own[0].subject} is not ready" + (f", and {len(own) - 1} more" if len(own) > 1 else "")
    whole = len({pod.meta.namespace for pod in snapshot.pods}) > 1
    seen = "no Lease and no running pod" if snapshot.sees("Lease") else "no running pod" if whole else ""
    return f"{seen} has its name" if seen else None


def _pods_of_scheduler(snapshot: Snapshot, name: str) -> list[Pod]:
    """Return the scheduler's pods: HAMi's by its installation, those of other schedulers by name.

    Controllers of the same installation are left out, because they do not schedule pods.
    """
    known = [pod for component in _of_hami(snapshot, name) for pod in component.pods]
    running = (pod for pod in snapshot.pods if pod.phase == "Running")
    named = known or [pod for pod in running if any(text in pod.meta.name for text in _called(name))]
    return [pod for pod in named if "sched" in pod.meta.name] or named


def _of_hami(snapshot: Snapshot, name: str) -> list[Component]:
    return [each.scheduler for each in installations(snapshot) if each.scheduler_name == name and each.scheduler]


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
    if not noted or any(each.meta.subject == group and each.phase == "Pending" for each in snapshot.pod_groups):
        return None
    look = command("kubectl", "-n", pod.meta.namespace, "describe", "podgroups", name)
    remedy = (f"Check its queue's free quota, and the number of pods that the group needs: {look}",)
    return FoundCause(GANG, snapshot.line(pod.meta)[-1], (f"{group}: {noted[-1].message}",), remedy, (pod.subject,))


def _schedulers(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the schedulers that have placed pods."""
    placed = {pod.spec.scheduler for pod in snapshot.pods if pod.spec.node and pod.spec.scheduler}
    return tuple(sorted(placed))[:5]
