"""Find workloads that a queue or a scheduling gate holds back, by the messages of Kueue and Volcano."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct

from gpu_healthcheck.diagnosis.causes.unscheduled.schedulers import NO_SCHEDULER, PATIENCE
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import group_of, unplaced
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.gpu_requests import asks_for_gpus, is_gpu
from gpu_healthcheck.diagnosis.facts.placement import ZERO, untolerated
from gpu_healthcheck.diagnosis.facts.quantity import amount, counted, shown
from gpu_healthcheck.diagnosis.model import CauseSeverity, Family, FoundCause, Link, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import Meta, subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, condition_in
from gpu_healthcheck.diagnosis.snapshot.queues import GroupQueue, PodGroup, Queued
from gpu_healthcheck.healthcheck.text.moments import EARLIEST
from gpu_healthcheck.healthcheck.text.naming import named

_queued = Family(Link.QUEUED, severity=CauseSeverity.MEDIUM)
_scheduled = Family(Link.SCHEDULED)
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
HELD = _queued(
    "VolcanoHoldsGroup",
    "Volcano has not admitted a group of pods to its queue: no pod is scheduled, and a Volcano Job creates none.",
    "Check the group's queue: whether it is open, and whether its quota covers the group's request.",
    source="https://volcano.sh/en/docs/podgroup/: phases Pending and Inqueue; "
    "https://volcano.sh/en/docs/queue/: capability",
)
LOOP = _scheduled(
    "KueueReplacesOnTaintedNode",
    "Kueue ends the replacement pods of a job, because the node that it assigned to them has a taint, and pins the "
    "next ones to the same node: the job does not move, and uses up its retries.",
    "Evict the Kueue Workload, so that it gets other nodes: set `spec.active` to false, then to true.",
    source="https://github.com/kubernetes-sigs/kueue/issues/14917: event PodTerminatedByKueue, condition "
    "TerminatedByKueue with reason UnschedulableOnAssignedNode",
    urgent=True,
)

_VOLCANOS = "queues.scheduling.volcano.sh"
_WORKLOADS = "workloads.kueue.x-k8s.io"
_QUEUE_NAME = "kueue.x-k8s.io/queue-name"
_ADMISSION, _TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
_IN_LINE = timedelta(minutes=10)
"""Time until waiting for resources in use counts as a problem; it is long, because queues exist for that."""
_UNUSED = "insufficient unused quota"
"""Kueue's message if the nominal quota suffices; else it writes `insufficient quota`, or names the maximum."""
_STEPS = (
    (
        r"insufficient unused quota for (\S{1,320}) in flavor ([^\s,]{1,253}), (\S{1,40}) more needed",
        "Wait for other workloads of the queue, stop some, or raise its nominalQuota of {0} in flavor {1} by {2}{edit}",
    ),
    (
        (
            r"insufficient quota for (\S{1,320}) in flavor ([^\s,]{1,253}), .{0,200}maximum capacity "
            r"\((?:\S{1,40} > )?([^)\s]{1,40})\)"
        ),
        "Request at most {2} {0}, or raise its nominalQuota in flavor {1}{edit}",
    ),
    (
        r"resource (\S{1,320}) unavailable in ClusterQueue",
        "Add {0} to `coveredResources` and to a flavor of the ClusterQueue{edit}",
    ),
    (
        r"ClusterQueue \S{1,253} is (?:inactive|stopped)",
        "Make the ClusterQueue active: its conditions name what it lacks{edit}",
    ),
    (
        r"namespace doesn't match ClusterQueue selector",
        "Let the ClusterQueue's `namespaceSelector` match the namespace, or name a queue of another one{edit}",
    ),
    (
        (
            r"untolerated taint \W{0,2}(?:Taint\{)?(?:Key:)?([^\s,]{1,317})[ ,](?:Value:)?([^\s,]{0,63})[ ,]"
            r"(?:Effect:)?(\w{1,20}).{0,40}? in flavor ([^\s,;.]{1,253})"
        ),
        (
            "Add to the tolerations of the job's pod template: key: {0}, value: {1}, effect: {2}. Or add it to "
            "`spec.tolerations` of the flavor, if all workloads of the queue may run there: "
            "`kubectl edit resourceflavors.kueue.x-k8s.io {3}`"
        ),
    ),
    (
        r"flavor ([^\s,;]{1,253}) doesn't match node affinity",
        (
            "The job's node selector excludes the nodes of the flavor. Give it a value that the flavor's `nodeLabels` "
            "have: `kubectl get resourceflavors.kueue.x-k8s.io {0} -o yaml`"
        ),
    ),
    (
        r"topology \S{1,255} (?:doesn't allow to fit|allows to fit only)",
        (
            "The pods must share one domain of the topology, and none has room for all: stop pods in one, use fewer "
            "pods, or replace the annotation kueue.x-k8s.io/podset-required-topology by podset-preferred-topology."
        ),
    ),
)
"""What ends Kueue's refusals, by its words."""
_PREFIXES = ("requests.", "limits.")
_OVER, _MANY_PODS = "queue resource quota insufficient", Decimal(10000)
_TERMINATED, _EVENT = "TerminatedByKueue", "PodTerminatedByKueue"
_HOST = "kubernetes.io/hostname"
_LATELY = timedelta(minutes=15)
"""Period after Kueue has ended a pod in which the next one is to be expected."""
_MOST = 5


def find_gates(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that wait for the removal of a scheduling gate."""
    for pod in unplaced(snapshot):
        if pod.spec.gates and not snapshot.is_new(pod.meta, PATIENCE):
            yield _gated(snapshot, pod)


def _gated(snapshot: Snapshot, pod: Pod) -> FoundCause:
    gates, workload = pod.spec.gates, snapshot.line(pod.meta)[-1]
    evidence = [f"{pod.subject}: scheduling gates {', '.join(gates)}"]
    if _ADMISSION not in gates and _TOPOLOGY not in gates:
        look = kubectl("get", pod.meta, "-o", "yaml", "--show-managed-fields")
        remedy = f"Find the owner of the gate (managedFields), and check that controller: {look}"
        return FoundCause(GATED, workload, tuple(evidence), (remedy,), (pod.subject,))
    # The pod or one of its owners names the LocalQueue.
    metas = [pod.meta, *(snapshot.owners[text] for text in snapshot.line(pod.meta)[1:] if text in snapshot.owners)]
    queue = next((meta.labels[_QUEUE_NAME] for meta in metas if _QUEUE_NAME in meta.labels), "")
    messages = [event.message for event in snapshot.events_of(pod) if "kueue" in event.by]
    namespace = ("-n", pod.meta.namespace)
    remedy = f"Find out why Kueue does not admit it: {command('kubectl', *namespace, 'describe', _WORKLOADS)}"
    see = command("kubectl", *namespace, "describe", "localqueues.kueue.x-k8s.io", queue)
    steps = (remedy, f"Check whether the queue exists, is active, and has quota left: {see}")[: 2 if queue else 1]
    if _ADMISSION not in gates:
        return FoundCause(TOPOLOGY, workload, (*evidence, *messages[-1:]), steps, (pod.subject,))
    evidence.append(f"label {_QUEUE_NAME}={queue}" if queue else "no label names a queue")
    where = subject("LocalQueue", pod.meta.namespace, queue) if queue else workload
    return FoundCause(KUEUE, where, (*evidence, *messages[-1:]), steps, (pod.subject,))


def find_queued(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield workloads that wait in a Kueue queue, gated or suspended, with Kueue's messages."""
    for workload in snapshot.queued:
        done = any(map(workload.is_true, ("Finished", "Admitted", "QuotaReserved")))
        messages = [each.message for each in workload.conditions if each.type == "QuotaReserved"]
        in_line = any(_UNUSED in text and "maximum capacity" not in text for text in messages)
        young = snapshot.is_new(workload.meta, _IN_LINE if in_line else PATIENCE)
        if not done and not young and workload.active and any(map(asks_for_gpus, workload.specs)):
            yield _held_by_kueue(snapshot, workload)


def _held_by_kueue(snapshot: Snapshot, workload: Queued) -> FoundCause:
    maker, namespace = _maker(workload.meta), workload.meta.namespace
    local_queues = snapshot.local_queues_in.get(namespace, {})
    conditions = [str(condition) for condition in workload.conditions if condition.message]
    evidence = [f"{maker}: {text}" for text in conditions[:2]] or [f"{maker}: Kueue has not reported anything about it"]
    local = local_queues.get(workload.queue)
    queues = (local, snapshot.cluster_queues.get(local.above)) if local is not None else ()
    for queue in filter(None, queues):
        evidence += [f"{queue.meta.subject}: {each}" for each in queue.conditions if each.status == "False"]
    remedy = []
    if not workload.queue:
        names = named(local_queues, _MOST) or "there is none in the namespace"
        remedy.append(f"Name a queue by the label {_QUEUE_NAME}: {names}.")
    elif local is None and snapshot.sees("LocalQueue"):
        known = named(local_queues, _MOST) or "another"
        remedy.append(f"There is no LocalQueue {workload.queue} in {namespace}: create it, or name {known}.")
    above = local.above if local is not None else ""
    remedy += _by_words(" ".join(condition.message for condition in workload.conditions), above)
    remedy.append(f"Check its queue: {command('kubectl', '-n', namespace, 'describe', _WORKLOADS, workload.meta.name)}")
    where = subject("LocalQueue", namespace, workload.queue) if workload.queue else maker
    return FoundCause(KUEUE, where, tuple(evidence), tuple(remedy), (maker,))


def _by_words(message: str, cluster_queue: str) -> Iterator[str]:
    """Yield how the ClusterQueue, or the request, is changed so that Kueue admits the workload."""
    edit = command("kubectl", "edit", "clusterqueues.kueue.x-k8s.io", cluster_queue)
    for words, step in _STEPS:
        if (found := re.search(words, message, re.ASCII | re.DOTALL)) is not None:
            yield step.format(*found.groups(), edit=f": {edit}" if cluster_queue else ".")


def _maker(meta: Meta) -> str:
    """Return the owner of the object, or the object itself without one."""
    return subject(meta.owner.kind, meta.namespace, meta.owner.name) if meta.owner is not None else meta.subject


def find_groups(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield each group that Volcano has not admitted; its queue is the subject if the queue must be changed.

    A Volcano Job has no pods until then.
    """
    waiting = [each for each in snapshot.pod_groups if each.phase == "Pending" and each.meta.deleted is None]
    pods = snapshot.pods if waiting else ()
    of_gpus = {(pod.meta.namespace, group_of(pod)) for pod in pods if asks_for_gpus(pod.spec)}
    queues = {each.meta.name: each for each in snapshot.group_queues}
    for group in waiting:
        asks = any(is_gpu(name.removeprefix(prefix)) for name in group.least for prefix in ("", *_PREFIXES))
        if asks or (group.meta.namespace, group.meta.name) in of_gpus:
            obstacles = list(_obstacles(snapshot, group, queues)) or list(_unnamed(snapshot, group, queues))
            patience = PATIENCE if any(each.lasts for each in obstacles) else _IN_LINE
            if not snapshot.is_new(group.meta, patience) and group.meta.created is not None:
                yield _held_by_volcano(snapshot, group, obstacles)


class _Obstacle(Struct, frozen=True):
    """What keeps Volcano from admitting a group, and the step that ends it. `lasts`: however long the group waits."""

    text: str
    step: str
    lasts: bool = True


def _obstacles(snapshot: Snapshot, group: PodGroup, queues: Mapping[str, GroupQueue]) -> Iterator[_Obstacle]:
    queue, names = queues.get(group.queue), named(sorted(queues), _MOST) or "none"
    if queue is None and snapshot.sees("Queue"):
        missing = f"queue {group.queue} does not exist; existing queues: {names}"
        yield _Obstacle(missing, f"Name an existing queue in `spec.queue` of the workload, or create {group.queue}.")
    if queue is None:
        return
    if queue.state in ("Closed", "Closing"):
        closed = f"{queue.meta.subject} is {queue.state}: it accepts no further groups"
        yield _Obstacle(
            closed, f"Open it with Volcano's `vcctl queue operate -a open -n {group.queue}`, or name another."
        )
    for name, text in group.least.items():
        asked, most = amount(text), amount(queue.most.get(name, ""))
        given = amount(queue.given.get(name, "0")) or ZERO
        if asked is None or most is None or given + asked <= most:
            continue
        requests = f"the group requests {shown(name, asked)}"
        raised = _raised(group.queue, name, given + asked)
        if asked > most:
            bound = f"{requests} {name} at once, and the queue may have {shown(name, most)}"
            yield _Obstacle(
                bound, f"Request at most {shown(name, most)} {name} at once, or raise the capability: {raised}"
            )
        else:
            allocated = f"queue {group.queue}: {shown(name, given)} of {shown(name, most)} {name} are allocated"
            step = f"Wait for other groups of the queue, stop some, or raise its capability: {raised}"
            yield _Obstacle(f"{allocated}, and {requests}", step, lasts=False)


def _unnamed(snapshot: Snapshot, group: PodGroup, queues: Mapping[str, GroupQueue]) -> Iterator[_Obstacle]:
    """Yield a capability that leaves out pods, if Volcano refuses the group although its resources have room."""
    queue = queues.get(group.queue)
    if queue is not None and queue.most and "pods" not in queue.most and _OVER in _message(snapshot, group):
        text = f"{queue.meta.subject} has room for the request; its capability names no pods, as Volcano 1.9 requires"
        step = "Volcano 1.9 takes pods for 0 if the capability does not name them. Name them, or upgrade: "
        yield _Obstacle(text, step + _raised(group.queue, "pods", _MANY_PODS))


def _message(snapshot: Snapshot, group: PodGroup) -> str:
    """Return Volcano's newest message about the group: an event of any type, or a condition."""
    events = [each for each in snapshot.events_about.get(group.meta.subject, ()) if each.reason == "Unschedulable"]
    conditions = [each for each in group.conditions if each.type == "Unschedulable" and each.status == "True"]
    messages = [each.message for each in events] or [each.message for each in conditions]
    return messages[-1] if messages else ""


def _raised(queue: str, resource: str, needed: Decimal) -> str:
    patch = json.dumps({"spec": {"capability": {resource: f"{needed.normalize():f}"}}}, separators=(",", ":"))
    return command("kubectl", "patch", _VOLCANOS, queue, "--type=merge", "-p", patch)


def _held_by_volcano(snapshot: Snapshot, group: PodGroup, obstacles: Sequence[_Obstacle]) -> FoundCause:
    maker = _maker(group.meta)
    message = _message(snapshot, group)
    messages = [f"Volcano: {message}"] if message else []
    see = command("kubectl", "describe", _VOLCANOS, group.queue)
    look = command(
        "kubectl", "-n", group.meta.namespace, "describe", "podgroups.scheduling.volcano.sh", group.meta.name
    )
    steps = [each.step for each in obstacles] or [f"Check its queue's quota and use: {see}"]
    return FoundCause(
        HELD,
        subject("Queue", "", group.queue) if any(each.lasts for each in obstacles) else group.meta.subject,
        (f"{group.meta.subject}: phase Pending, queue {group.queue}", *(each.text for each in obstacles), *messages),
        (*steps, f"Check the group's total request: {look}"),
        (maker,),
        because_of=origins((NO_SCHEDULER,), maker, group.meta.subject),
    )


def find_loops(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield jobs whose pods Kueue has ended more than once on a node that still has the taint."""
    ended = {event.about: event for event in snapshot.events if event.reason == _EVENT}
    nodes = {node.meta.labels.get(_HOST, node.name): node for node in snapshot.nodes}
    pinned = (((snapshot.line(pod.meta)[-1], _host(pod)), pod) for pod in snapshot.pods if _is_pinned(pod, ended))
    for (job, host), pods in grouped(pinned).items():
        node = nodes.get(host)
        times = sum(pod.over for pod in pods) + (_deleted(snapshot, pods[0], ended) if ended else 0)
        closed = node is not None and any(True for _ in untolerated(pods[0].spec, node))
        if node is not None and closed and times > 1 and _goes_on(snapshot, job, pods, ended):
            yield _loop(snapshot, job, pods, node, times)


def _host(pod: Pod) -> str:
    return pod.spec.node_selector.get(_HOST, "")


def _is_pinned(pod: Pod, ended: Mapping[str, Event]) -> bool:
    """Whether Kueue has ended the pod, or the pod waits for the node that Kueue assigned."""
    if pod.over:
        return pod.subject in ended or condition_in(pod.conditions, _TERMINATED, "True") is not None
    return bool(_host(pod)) and not pod.spec.node and pod.meta.deleted is None


def _deleted(snapshot: Snapshot, pod: Pod, ended: Mapping[str, Event]) -> int:
    """Return how many more pods of the owner were ended that no longer exist: only events name them."""
    owner = pod.meta.owner
    prefix = f"pod/{pod.meta.namespace}/{owner.name}-" if owner is not None else pod.subject
    return sum(name.startswith(prefix) and name not in snapshot.pod for name in ended)


def _goes_on(snapshot: Snapshot, job: str, pods: Sequence[Pod], ended: Mapping[str, Event]) -> bool:
    """Whether the next pod will be ended too: the job has not moved, ended or been suspended."""
    maker = snapshot.workload.get(job)
    ends = ("Complete", "Failed", "Completed")
    if maker is not None and (
        maker.suspended or any(condition_in(maker.conditions, kind, "True") is not None for kind in ends)
    ):
        return False
    if any(not pod.over for pod in pods):
        return True
    last = max(filter(None, (_ended_at(pod, ended) for pod in pods)), default=EARLIEST)
    others = (pod for pod in snapshot.pods_under.get(job, ()) if not pod.over and _host(pod))
    moved = any((pod.meta.created or EARLIEST) >= last for pod in others)
    return not moved and snapshot.now - last < _LATELY


def _ended_at(pod: Pod, ended: Mapping[str, Event]) -> datetime | None:
    condition, event = condition_in(pod.conditions, _TERMINATED, "True"), ended.get(pod.subject)
    return (condition.since if condition is not None else None) or (event.last if event is not None else None)


def _loop(snapshot: Snapshot, job: str, pods: Sequence[Pod], node: Node, times: int) -> FoundCause:
    taints = ", ".join(map(str, untolerated(pods[0].spec, node)))
    names = named((pod.subject for pod in pods), _MOST)
    evidence = [
        f"Kueue ended {counted(times, 'pod')} of {job} that it had assigned to {node.subject}; pods now: {names}",
        f"{node.subject} has the taint {taints}, which the pods do not tolerate",
    ]
    namespace, line = pods[0].meta.namespace, snapshot.line(pods[0].meta)
    owned = (each for each in snapshot.queued if each.meta.namespace == namespace and each.meta.owner is not None)
    workload = next((each for each in owned if _maker(each.meta) in line), None)
    if workload is None:
        see = command("kubectl", "-n", namespace, "get", _WORKLOADS)
        remedy = [f"Find the job's Workload, and set its `spec.active` to false, then to true: {see}"]
    else:
        evidence += [str(each) for each in workload.conditions if each.type == "Admitted"]
        off, on = (_activate(workload.meta, active) for active in (False, True))
        remedy = [
            f"Evict the Workload: {off}",
            f"When its pods are gone, queue it again; it gets other nodes: {on}",
        ]
    return FoundCause(LOOP, job, tuple(evidence), tuple(remedy), tuple(pod.subject for pod in pods))


def _activate(meta: Meta, active: bool) -> str:
    patch = json.dumps({"spec": {"active": active}}, separators=(",", ":"))
    return command("kubectl", "-n", meta.namespace, "patch", _WORKLOADS, meta.name, "--type=merge", "-p", patch)


SEARCHES = (
    Search((KUEUE, TOPOLOGY, GATED), ("Pod",), find_gates),
    Search((KUEUE,), (), find_queued),
    Search((HELD,), (), find_groups),
    Search((LOOP,), ("Node", "Pod"), find_loops),
)
