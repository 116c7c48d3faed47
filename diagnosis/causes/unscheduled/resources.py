"""Find too few free resources: the owners of the GPUs, and other resources used up on GPU nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice

from msgspec.structs import replace

from diagnosis.causes.device_plugins import OFFERS_NONE, UNHEALTHY, stack, why_none_left
from diagnosis.causes.unscheduled import rdma_resources, refused
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting, is_extended, is_stuck, without
from diagnosis.facts import autoscaler
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.fit_error import ReasonSubject
from diagnosis.facts.gpu_requests import SHARES, is_gpu, meant_as_gpu
from diagnosis.facts.placement import ZERO, Amounts, Obstacle, ObstacleKind, asked_by, has, offers, shortages
from diagnosis.facts.quantity import amount, counted, shown
from diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Origin, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.pods import Pod

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
IN_USE = _scheduled(
    "GpusAllInUse",
    "Every GPU that suits waiting pods is in use by another pod.",
    "Wait, stop unneeded workloads, give the waiting pods a higher priority, or add nodes.",
)
FRAGMENTED = _scheduled(
    "GpusFragmented",
    "Enough GPUs are free in total, but no single node has as many free as one pod requests.",
    "Move small pods together, or use more pods with fewer GPUs each.",
)
TERMINATING = _scheduled(
    "TerminatingPodHoldsGpus",
    "A pod still owns its GPUs minutes after its deletion was due.",
    "Find the reason: a finalizer, a node that does not respond, or a process that hangs in the driver.",
    severity=CauseSeverity.HIGH,
)
HOST_USED_UP = _scheduled(
    "CpuOrMemoryUsedUp",
    "GPUs are free, but CPU, memory or another plain resource of their nodes is used up.",
    "Move pods without GPUs off the GPU nodes, or request less per GPU.",
)
TOO_MANY = _scheduled(
    "MoreGpusThanAnyNodeHas",
    "One pod requests more GPUs than any eligible node has.",
    "Request fewer GPUs per pod and spread the work over several pods, or add larger nodes.",
    severity=CauseSeverity.HIGH,
)
TOO_MUCH = _scheduled(
    "MoreCpuOrMemoryThanAnyGpuNodeHas",
    "One pod requests more CPU, memory or another plain resource than any eligible GPU node has.",
    "Request less, or add larger nodes.",
    severity=CauseSeverity.HIGH,
)
SHORT = _scheduled(
    "InsufficientResource",
    "The scheduler finds too little of a resource; the snapshot does not show the reason.",
    "Check which nodes offer it (`kubectl describe nodes`) and which pods of all namespaces own it; GPUs: "
    "`gpu-healthcheck status --allocation`.",
)
CAUSES = (IN_USE, FRAGMENTED, TERMINATING, UNHEALTHY, HOST_USED_UP, TOO_MANY, TOO_MUCH, SHORT)

_HANGS = (
    "Check the node for a process that cannot be killed (state D), such as one that hangs in the GPU driver; "
    "a reboot of the node ends it."
)
_MOST_NODES = 8
_MOST_HOLDERS = 4
_MOST_STUCK = 64
"""Stuck pods reported for the same waiting pods; each one has its own result, too."""


def find_too_many(waiting: Waiting, rooms: Sequence[NodeUse]) -> Iterator[FoundCause]:
    """Yield requests that exceed the total of each of `rooms`, regardless of the pods on them."""
    for name, asked in waiting.devices.items():
        largest = max(rooms, key=lambda room: has(room.node, name), default=None)
        if largest is not None and has(largest.node, name) < asked:
            most = shown(name, has(largest.node, name))
            evidence = (
                f"one pod requests {shown(name, asked)} {name}; the most on one node is {most} ({largest.node.name})"
            )
            cause = TOO_MANY if meant_as_gpu(name) else TOO_MUCH
            yield waiting.found(cause, evidence, remedy=_fewer(name, most))


def find_no_huge_pages(waiting: Waiting, rooms: Sequence[NodeUse]) -> Iterator[FoundCause]:
    """Yield huge pages of which no node has reserved as many as requested, regardless of the pods there."""
    for name, asked in waiting.huge_pages.items():
        largest = max(rooms, key=lambda room: offers(room.node, name))
        most = offers(largest.node, name)
        if most < asked:
            wanted, least = shown(name, asked), shown(name, most)
            reserved = f"the most that one has reserved is {least} ({largest.node.name})" if most else "none has any"
            evidence = f"one pod requests {wanted} {name}; of {counted(len(rooms), 'suitable node')}, {reserved}"
            remedy = (
                _reserve(name, asked),
                f"Or request at most {least}." if most else f"Or remove {name} from the pod.",
            )
            yield waiting.found(TOO_MUCH, evidence, remedy=remedy)


def _reserve(name: str, asked: Decimal) -> str:
    """Return how the kernel of a node reserves as many huge pages."""
    size = name.removeprefix("hugepages-")
    number = int(asked / (amount(size) or asked))
    return (
        f"Reserve {number} pages on the nodes at boot, by `hugepagesz={size.removesuffix('i')} hugepages={number}` on "
        "the kernel's command line: the kernel offers huge pages, no device plugin does. Then restart the kubelet."
    )


def find_shortages(
    snapshot: Snapshot, waiting: Waiting, rooms: Sequence[NodeUse], silent: Sequence[NodeUse] = ()
) -> Iterator[FoundCause]:
    """Yield why all of `rooms` lack something, although they are large enough and open to the pod.

    Faults are reported before full nodes. `silent` have GPUs and offer none; the reason for that is the origin of the
    shortage.
    """
    faults = [
        *_stuck(snapshot, waiting, rooms),
        *_unhealthy(snapshot, waiting, rooms),
        *_lacks_other_resources(waiting, rooms),
    ]
    subjects = (*(room.node.subject for room in silent), *(stack(snapshot) if silent and not faults else ()))
    above = tuple((cause.name, subject) for subject in subjects for cause in OFFERS_NONE) if not faults else ()
    yield from faults or (replace(result, because_of=above) for result in _all_in_use(snapshot, waiting, rooms))


def find_by_text(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield shortages from the scheduler's text alone."""
    # No node offers HAMi's shares: only HAMi's scheduler knows them.
    short = [unfit_reason for unfit_reason in waiting.reasons(ReasonSubject.SHORT) if unfit_reason.what not in SHARES]
    most = max((unfit_reason.nodes or 0 for unfit_reason in short if is_extended(unfit_reason.what)), default=0)
    for reason in short:
        if not is_extended(reason.what) and (reason.nodes or 0) <= most:
            continue  # as many nodes have no GPU left, and it is unknown which lack both
        if 0 < (reason.nodes or 0) <= len(snapshot.nodes) - _nodes_with(snapshot)[reason.what]:
            continue  # that many nodes never have the resource: not a finding
        evidence = (waiting.quote(reason),)
        above = origins((TERMINATING,), *_kept_by(snapshot, reason.what))
        what = f"resource/{reason.what}"
        yield waiting.found(SHORT, *evidence, subject=what, certainty=Certainty.LIKELY, because_of=above)


@lru_cache(maxsize=1)
def _nodes_with(snapshot: Snapshot) -> Counter[str]:
    """Return, by resource, how many nodes have any."""
    names = ((name, node) for node in snapshot.nodes for name in {**node.capacity, **node.allocatable})
    return Counter(name for name, node in names if has(node, name))


def _kept_by(snapshot: Snapshot, resource: str) -> Iterator[str]:
    """Yield pods that should be gone and still own some of the resource.

    If nodes are visible, none are yielded, because their pods are then counted instead.
    """
    yield from () if snapshot.sees("Node") else _kept(snapshot).get(resource, ())


@lru_cache(maxsize=1)
def _kept(snapshot: Snapshot) -> Mapping[str, Sequence[str]]:
    stuck = (pod for pod in snapshot.pods if pod.spec.node and is_stuck(snapshot, pod))
    return grouped((name, pod.subject) for pod in stuck for name in asked_by(pod.spec))


def find_stuck(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that still own GPUs long after their end, whether or not other pods wait."""
    for pod in snapshot.pods:
        if pod.spec.node and is_stuck(snapshot, pod) and any(is_extended(name) for name in asked_by(pod.spec)):
            yield _terminating(snapshot, pod)


def _stuck(snapshot: Snapshot, waiting: Waiting, rooms: Iterable[NodeUse]) -> Iterator[FoundCause]:
    some = ((room, [pod for pod in room.pods if is_stuck(snapshot, pod)]) for room in rooms)
    held = (going for room, going in some if going and without(room, going).fits(waiting.counted))
    for pod in islice(chain.from_iterable(held), _MOST_STUCK):
        yield _terminating(snapshot, pod, waiting.names)


def _terminating(snapshot: Snapshot, pod: Pod, affected: tuple[str, ...] = ()) -> FoundCause:
    held = ", ".join(f"{shown(name, value)} {name}" for name, value in asked_by(pod.spec).items() if is_extended(name))
    since = int((snapshot.now - pod.meta.deleted).total_seconds() // 60) if pod.meta.deleted else 0
    evidence = [f"{pod.subject} on node/{pod.spec.node} owns {held}; its grace period ended {since} minutes ago"]
    why, remedy = _why_kept(snapshot, pod)
    because = origins((refused.NOT_READY,), f"node/{pod.spec.node}")
    return FoundCause(TERMINATING, pod.subject, (*evidence, *why), remedy, affected, because_of=because)


def _why_kept(snapshot: Snapshot, pod: Pod) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the evidence why the pod still exists, and the steps to remove it."""
    node = snapshot.by_node.get(pod.spec.node)
    if pod.meta.finalizers:
        look = kubectl("get", pod.meta, "-o", "jsonpath={.metadata.finalizers}")
        return (f"finalizers: {', '.join(pod.meta.finalizers)}",), (f"Find the controller of the finalizer: {look}",)
    if node is not None and not node.ready:
        gone = kubectl("delete", node.meta)
        remedy = f"Restore the node, or remove it from the cluster: {gone}"
        return (f"{node.subject} is not ready, so no kubelet can end the pod",), (remedy,)
    delete = kubectl("delete", pod.meta, "--force", "--grace-period=0")
    return (), (_HANGS, f"Only if the pod's processes are certainly gone: {delete}")


def _unhealthy(snapshot: Snapshot, waiting: Waiting, rooms: Iterable[NodeUse]) -> Iterator[FoundCause]:
    devices, amounts = waiting.devices, waiting.counted
    workloads: tuple[str, ...] | None = None
    for room in rooms:
        sick = {name: has(room.node, name) - offers(room.node, name) for name in devices}
        if not any(sick.values()):
            continue
        lacking = [each for each in _short(amounts, room) if sick.get(each.resource, ZERO) + each.free < each.asked]
        if not lacking:
            workloads = stack(snapshot) if workloads is None else workloads
            above = why_none_left(room.node.subject, workloads)
            yield from (_sick(room, name, waiting.names, above) for name, value in sick.items() if value)


def _sick(room: NodeUse, name: str, affected: tuple[str, ...], above: tuple[Origin, ...]) -> FoundCause:
    """Return the result for unhealthy GPUs of a node.

    If some are still offered, the plugin works and the GPUs themselves are faulty. If none are, the plugin may be at
    fault.
    """
    node = room.node
    because = () if offers(node, name) else above
    there, given = shown(name, has(node, name)), shown(name, offers(node, name))
    numbers = f"{node.subject}: capacity {there} {name}, allocatable {given}"
    if rdma_resources.plugin_of(name) is not None:
        return rdma_resources.found_unhealthy(room, numbers, affected)
    return FoundCause(UNHEALTHY, node.subject, (numbers,), (), affected, because_of=because)


def _lacks_other_resources(waiting: Waiting, rooms: Sequence[NodeUse]) -> Iterator[FoundCause]:
    """Yield nodes with enough GPUs that lack another resource, such as CPU or memory."""
    amounts = waiting.counted
    short = [(room, _short(amounts, room)) for room in rooms]
    plain = [(room, some) for room, some in short if some and not any(is_gpu(obstacle.resource) for obstacle in some)]
    for name in sorted({obstacle.resource for _, some in plain for obstacle in some}):
        if is_extended(name) and any(
            offers(room.node, name) < waiting.asked[name] <= has(room.node, name) for room in rooms
        ):
            continue  # its devices are unhealthy
        lines = [(room, obstacle) for room, some in plain for obstacle in some if obstacle.resource == name]
        # If no node is large enough, the workload must change; if one node is, the resource is used up.
        if all(offers(room.node, name) < waiting.asked[name] for room in rooms):
            yield _too_much(waiting, name, lines)
        else:
            used = [(room, obstacle) for room, obstacle in lines if obstacle.why is ObstacleKind.IN_USE] or lines
            yield _used_up(waiting, name, used)


def _too_much(waiting: Waiting, name: str, lines: Sequence[tuple[NodeUse, Obstacle]]) -> FoundCause:
    room, obstacle = max(lines, key=lambda line: line[1].offered)
    asked, most = shown(name, obstacle.asked), shown(name, obstacle.offered)
    evidence = f"one pod requests {asked} {name}; the most on a GPU node is {most} ({room.node.name})"
    return waiting.found(TOO_MUCH, evidence, remedy=(f"Request at most {most} {name} per pod.",))


def _used_up(waiting: Waiting, name: str, lines: Sequence[tuple[NodeUse, Obstacle]]) -> FoundCause:
    evidence = [f"one pod requests {shown(name, waiting.asked[name])} {name}"]
    for room, obstacle in lines[:_MOST_NODES]:
        free = ", ".join(f"{shown(device, room.free(device))} {device}" for device in waiting.devices) or "devices"
        amounts = f"{shown(name, obstacle.free)} of {shown(name, obstacle.offered)} {name} free"
        evidence.append(f"{room.node.subject}: {free} free, but only {amounts}; used by {_holders(room, name)}")
    look = kubectl("describe", lines[0][0].node.meta)
    remedy = (
        f"Find the users of {name} on the GPU nodes, and keep pods without GPUs off these nodes: {look}",
        f"Or request less {name} per GPU.",
    )
    return waiting.found(HOST_USED_UP, *evidence, subject=f"resource/{name}", remedy=remedy)


def _all_in_use(snapshot: Snapshot, waiting: Waiting, rooms: Sequence[NodeUse]) -> Iterator[FoundCause]:
    for name, asked in waiting.devices.items():
        free = [room.free(name) for room in rooms]
        if not free or max(free) >= asked:
            continue
        scattered = sum(free) >= asked
        lines = _by_node(name, sorted(rooms, key=lambda room: -room.free(name)) if scattered else rooms)
        messages = autoscaler.refusal_of(snapshot, waiting.pods)
        total = f"{shown(name, Decimal(sum(free)))} {name} free on {counted(len(rooms), 'eligible node')}"
        evidence = (f"one pod requests {shown(name, asked)}; {total}", *lines, *messages)
        if scattered:
            yield waiting.found(FRAGMENTED, *evidence, subject=f"resource/{name}", remedy=(_move(rooms, name),))
        else:
            yield waiting.found(IN_USE, *evidence, subject=f"resource/{name}", remedy=_free_some(name))


def _by_node(name: str, rooms: Sequence[NodeUse]) -> Iterator[str]:
    for room in rooms[:_MOST_NODES]:
        offered, free = shown(name, offers(room.node, name)), shown(name, room.free(name))
        yield f"{room.node.subject}: {offered} allocatable, {free} free, used by {_holders(room, name)}"
    if len(rooms) > _MOST_NODES:
        yield f"and {counted(len(rooms) - _MOST_NODES, 'more node')}"


def _holders(room: NodeUse, name: str) -> str:
    holders = room.holders(name)
    first = ", ".join(f"{pod.subject} ({shown(name, value)})" for value, pod in holders[:_MOST_HOLDERS])
    more = len(holders) - _MOST_HOLDERS
    return f"{first} and {more} more" if more > 0 else first or "no visible pod"


def _short(amounts: Amounts, room: NodeUse) -> list[Obstacle]:
    return list(shortages(amounts, room.node, room.held))


def _fewer(name: str, most: str) -> tuple[str, ...]:
    return (f"Request at most {most} {name} per pod, and let several pods share the work.",)


def _move(rooms: Iterable[NodeUse], name: str) -> str:
    last = (room.holders(name)[-1:] for room in rooms if room.free(name))
    small = min(((value, pod.subject) for some in last for value, pod in some), default=None)
    first = f"Move the smallest pods together, {small[1]} first" if small else "Move small pods together"
    return f"{first}, so that one node has enough free; or request fewer {name} per pod."


def _free_some(name: str) -> tuple[str, ...]:
    return (
        f"List the owners of {name}: {command('gpu-healthcheck', 'status', '--allocation')}",
        "Stop unneeded workloads, give the waiting pods a higher priority, or add nodes.",
    )
