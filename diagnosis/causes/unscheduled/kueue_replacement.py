"""Find jobs whose replacement pods Kueue pins to a node that they can't use, and then ends, again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

from diagnosis.facts.commands import command
from diagnosis.facts.placement import untolerated
from diagnosis.facts.quantity import counted
from diagnosis.model import Family, FoundCause, Link, Search
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.cluster_events import Event
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.kueue import Queued
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod, condition_in
from healthcheck.text.moments import EARLIEST
from healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED)
LOOP = _scheduled(
    "KueueReplacesOnTaintedNode",
    "Kueue ends the replacement pods of a job, because the node that it assigned to them has a taint, and pins the "
    "next ones to the same node: the job does not move, and uses up its retries.",
    "Evict the Kueue Workload, so that it gets other nodes: set `spec.active` to false, then to true.",
    source="https://github.com/kubernetes-sigs/kueue/issues/14917: event PodTerminatedByKueue, condition "
    "TerminatedByKueue with reason UnschedulableOnAssignedNode",
    urgent=True,
)
_EVENT, _CONDITION = "PodTerminatedByKueue", "TerminatedByKueue"
_HOST = "kubernetes.io/hostname"
_TIMES = 2
_LATELY = timedelta(minutes=15)
"""Period after the last termination in which the next one is to be expected."""
_MOST = 4


def find_loops(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield jobs whose pods Kueue has ended more than once on a node that still has the taint."""
    about = {event.about: event for event in snapshot.events if event.reason == _EVENT}
    nodes = {node.meta.labels.get(_HOST, node.name): node for node in snapshot.nodes}
    pinned = (((snapshot.line(pod.meta)[-1], _host(pod)), pod) for pod in snapshot.pods if _is_pinned(pod, about))
    for (job, host), pods in grouped(pinned).items():
        node = nodes.get(host)
        times = sum(pod.over for pod in pods) + (_forgotten(snapshot, pods[0], about) if about else 0)
        if node is not None and times >= _TIMES and _goes_on(snapshot, job, pods, node, about):
            yield _found(snapshot, job, pods, node, times)


def _host(pod: Pod) -> str:
    return pod.spec.node_selector.get(_HOST, "")


def _is_pinned(pod: Pod, about: dict[str, Event]) -> bool:
    """Whether Kueue has ended the pod, or the pod waits for the node that Kueue assigned."""
    if pod.over:
        return pod.subject in about or condition_in(pod.conditions, _CONDITION, "True") is not None
    return bool(_host(pod)) and not pod.spec.node and pod.meta.deleted is None


def _forgotten(snapshot: Snapshot, pod: Pod, about: dict[str, Event]) -> int:
    """Return how many more pods of the owner were ended that no longer exist: only events name them."""
    owner = pod.meta.owner
    prefix = f"pod/{pod.meta.namespace}/{owner.name}-" if owner is not None else pod.subject
    there = {each.subject for each in snapshot.pods if each.subject in about}
    return sum(subject.startswith(prefix) and subject not in there for subject in about)


def _goes_on(snapshot: Snapshot, job: str, pods: list[Pod], node: Node, about: dict[str, Event]) -> bool:
    """Whether the next pod will be ended too: the node is closed to it, and the job has not moved."""
    if not any(True for _ in untolerated(pods[0].spec, node)) or _is_over(snapshot, job):
        return False
    if any(not pod.over for pod in pods):
        return True
    last = max(filter(None, (_at(pod, about) for pod in pods)), default=EARLIEST)
    others = (
        pod for pod in snapshot.pods_under.get(job, ()) if not pod.over and (pod.meta.created or EARLIEST) >= last
    )
    return not any(map(_host, others)) and snapshot.now - last < _LATELY


def _at(pod: Pod, about: dict[str, Event]) -> datetime | None:
    """Return when Kueue ended the pod."""
    condition = condition_in(pod.conditions, _CONDITION, "True")
    event = about.get(pod.subject)
    return (condition.since if condition is not None else None) or (event.last if event is not None else None)


def _is_over(snapshot: Snapshot, job: str) -> bool:
    """Whether the job has ended, or is suspended because its Workload was evicted."""
    maker = snapshot.workload.get(job)
    ends = ("Complete", "Failed", "Completed")
    return maker is not None and (
        maker.suspended or any(condition_in(maker.conditions, kind, "True") is not None for kind in ends)
    )


def _found(snapshot: Snapshot, job: str, pods: list[Pod], node: Node, times: int) -> FoundCause:
    taints = ", ".join(map(str, untolerated(pods[0].spec, node)))
    names = named((pod.subject for pod in pods), _MOST)
    evidence = [
        f"Kueue ended {counted(times, 'pod')} of {job} that it had assigned to {node.subject}; pods now: {names}",
        f"{node.subject} has the taint {taints}, which the pods do not tolerate",
    ]
    workload = _workload_of(snapshot, pods[0])
    if workload is not None:
        evidence += [str(each) for each in workload.conditions if each.type == "Admitted"]
    affected = tuple(pod.subject for pod in pods)
    return FoundCause(LOOP, job, tuple(evidence), tuple(_remedy(pods[0], workload)), affected)


def _workload_of(snapshot: Snapshot, pod: Pod) -> Queued | None:
    """Return Kueue's Workload of the pod's job."""
    line = snapshot.line(pod.meta)
    owned = ((each, each.meta.owner) for each in snapshot.queued if each.meta.namespace == pod.meta.namespace)
    return next(
        (each for each, owner in owned if owner and subject(owner.kind, pod.meta.namespace, owner.name) in line), None
    )


def _remedy(pod: Pod, workload: Queued | None) -> Iterator[str]:
    namespace = pod.meta.namespace
    if workload is None:
        see = command("kubectl", "-n", namespace, "get", "workloads.kueue.x-k8s.io")
        yield f"Find the job's Workload, and set its `spec.active` to false, then to true: {see}"
        return
    yield f"Evict the Workload: {_activate(workload, False)}"
    yield f"When its pods are gone, queue it again; it gets other nodes: {_activate(workload, True)}"


def _activate(workload: Queued, active: bool) -> str:
    patch = json.dumps({"spec": {"active": active}}, separators=(",", ":"))
    namespace, name = workload.meta.namespace, workload.meta.name
    return command("kubectl", "-n", namespace, "patch", "workloads.kueue.x-k8s.io", name, "--type=merge", "-p", patch)


SEARCHES = (Search((LOOP,), ("Node", "Pod"), find_loops),)
