"""Find GPU pods that no scheduler binds to a node, and what prevents it.

The scheduler's message names the reason. Objects are read to name the particular: the taint, the nodes, the key of the
selector, the misspelled resource. Room is computed only for pods that a scheduler finds no room for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.hami import webhook as hami
from gpu_healthcheck.diagnosis.causes.unscheduled import (
    autoscaling,
    device_claims,
    queues,
    quotas,
    refused,
    resources,
    schedulers,
    shared_gpus,
    sharing,
    unknown_resources,
    volumes,
)
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting, is_about_gpus, is_stuck, unschedulable
from gpu_healthcheck.diagnosis.causes.verdicts import KEPT_FROM_WORK, NOT_LOOKED
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject, UnfitReason, parse
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia
from gpu_healthcheck.diagnosis.facts.gpu_requests import is_accelerator
from gpu_healthcheck.diagnosis.facts.placement import ZERO, NodeUse, has, node_uses, nodes_with, selects
from gpu_healthcheck.diagnosis.model import Cause, Certainty, FoundCause, Search
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.moments import EARLIEST

_BY_REASON = {
    ReasonSubject.CORDON: refused.CORDONED,
    ReasonSubject.NOT_READY: refused.NOT_READY,
    ReasonSubject.SELECTOR: refused.UNMATCHED,
    ReasonSubject.NODE_NAME: refused.UNMATCHED,
    ReasonSubject.VOLUME_ELSEWHERE: volumes.ELSEWHERE,
    ReasonSubject.VOLUME_BUSY: volumes.BUSY,
    ReasonSubject.OTHER_PODS: volumes.OTHER_PODS,
    ReasonSubject.SPREAD: volumes.OTHER_PODS,
    ReasonSubject.PORTS: volumes.PORTS,
}
"""Causes by the scheduler's reason, if no object shows more; a taint has its owner's."""
_RULES = tuple(reason for reason in _BY_REASON if _BY_REASON[reason] in volumes.CAUSES)
"""Reasons that only the scheduler can judge: nodes with room do not contradict them."""
_BEFORE_NODES = (ReasonSubject.VOLUME_MISSING, ReasonSubject.VOLUME_UNBOUND)
_ENDED_BY_A_NODE = frozenset(
    (
        *(resources.IN_USE, resources.FRAGMENTED, resources.HOST_USED_UP, resources.TOO_MANY, resources.TOO_MUCH),
        *(resources.SHORT, unknown_resources.ABSENT, unknown_resources.RDMA_ABSENT, refused.UNMATCHED, refused.TAINTED),
    )
)
"""Causes that no longer apply once the node that the autoscaler wants has joined."""
WITHOUT_HOLDERS = frozenset(
    (
        *(unknown_resources.MISSPELLED, unknown_resources.RENAMED, unknown_resources.ONLY_MIG),
        *(resources.TOO_MANY, refused.UNMATCHED, queues.KUEUE, queues.TOPOLOGY, queues.GATED, schedulers.ERROR),
        *(*quotas.CAUSES, shared_gpus.UNLABELLED),
        *(volumes.UNBOUND, volumes.MISSING, device_claims.NO_CLASS, device_claims.NO_CLAIM),
    )
)
"""Causes that the pod, its namespace and the nodes prove, regardless of the pods elsewhere."""
_MOST_PAIRS = 300_000
"""Pods of different shapes times nodes or devices, for a runtime of some seconds.

Further shapes are explained by the scheduler's message alone.
"""
_REFUSAL = re.compile(r"\d/\d{1,6} nodes are (?:un)?available|node\(s\) didn't have enough", re.ASCII)
_OF_GPUS = re.compile(r"\{.{0,300}(?:gpu|nvidia|accelerator).{0,100}\}", re.IGNORECASE)
_RETRIES = timedelta(minutes=10)
"""Time in which the scheduler tries a pod again for which there is room by now."""
_MOST_NODES = 4


class _Outlook(Struct, frozen=True):
    """What nodes offer to pods of one shape: the causes why none takes them, or the open nodes, some with room."""

    causes: Sequence[FoundCause] = ()
    open_nodes: Sequence[NodeUse] = ()


def find_unschedulable(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the causes for pods that a scheduler has judged and refused."""
    nodes = node_uses(snapshot) if snapshot.sees("Node") else ()
    shapes = grouped((waiting.shape, waiting) for waiting in unschedulable(snapshot)).values()
    left, devices = _MOST_PAIRS, len(device_claims.published_devices(snapshot))
    for alike in shapes:
        pairs = max(len(nodes), device_claims.open_requests(snapshot, alike) * devices, 1)
        compares = pairs <= left and not _lacks_nodes(snapshot, alike)
        left -= pairs if compares else 0
        yield from _explain(snapshot, alike, nodes, compares=compares)


def _lacks_nodes(snapshot: Snapshot, alike: Iterable[Waiting]) -> bool:
    """Whether a text describes fewer nodes than the scheduler knows, so that the others are unknown."""
    known = max((waiting.fit.nodes or 0 for waiting in alike if waiting.fit is not None), default=0)
    return bool(snapshot.recognised) and known > len(snapshot.nodes)


def _explain(
    snapshot: Snapshot, every: Sequence[Waiting], nodes: Sequence[NodeUse], *, compares: bool
) -> Iterator[FoundCause]:
    """Yield why pods of one shape wait. `compares`: with each node and device; otherwise the message is quoted."""
    alike = []
    for waiting in every:
        obstacles = list(_before_nodes(snapshot, waiting, compares=compares))
        yield from obstacles
        if obstacles:
            yield from autoscaling.find_no_node(snapshot, waiting)
        elif not waiting.is_judged:
            yield from _quoted(snapshot, waiting)
        elif not waiting.reasons(*_BEFORE_NODES) and not schedulers.is_error(waiting):
            alike.append(waiting)
    if not alike or (compares and snapshot.sees_all_pods and _is_room_coming(snapshot, alike, nodes)):
        return
    late = [found for waiting in alike for found in autoscaling.find_no_node(snapshot, waiting)]
    yield from late
    above = [(found.cause.name, found.subject) for found in late]
    outlook = _judge_nodes(snapshot, alike[0], nodes) if compares and snapshot.sees("Node") else _Outlook()
    if not snapshot.sees_all_pods:
        outlook = _Outlook([found for found in outlook.causes if found.cause in WITHOUT_HOLDERS])
    for found in _for_each(snapshot, alike, outlook, nodes):
        added = above if found.cause in _ENDED_BY_A_NODE else ()
        yield replace(found, because_of=(*found.because_of, *added)) if added else found


def _before_nodes(snapshot: Snapshot, waiting: Waiting, *, compares: bool) -> Iterator[FoundCause]:
    """Yield obstacles of the pods as such: the scheduler has not judged any node."""
    yield from schedulers.find_error(waiting)
    yield from quotas.find_refused(waiting)
    yield from shared_gpus.find_unbound(snapshot, waiting)
    if waiting.reasons(*_BEFORE_NODES):
        yield from () if volumes.are_settled(snapshot, waiting) else volumes.find_unbound(snapshot, waiting)
    elif device_claims.is_about_claims(waiting):
        found = list(device_claims.find_claims(snapshot, waiting)) if compares else []
        yield from found or device_claims.find_by_text(snapshot, waiting)


def _is_room_coming(snapshot: Snapshot, alike: Sequence[Waiting], nodes: Sequence[NodeUse]) -> bool:
    """Whether the scheduler can place the pods of each workload soon, without help.

    A GPU node has joined after they were created, or pods that are being deleted leave enough room, as in a rollout.
    """
    first = alike[0]
    pods = [pod for waiting in alike for pod in waiting.pods]
    if any(waiting.fit is not None and not waiting.reasons(ReasonSubject.SHORT) for waiting in alike):
        return False
    if all(snapshot.is_new(pod.meta, _RETRIES) for pod in pods) and any(
        refused.is_joining(snapshot, first.spec, use.node) for use in nodes
    ):
        return True
    if first.fit is None:
        return False
    leaving = _leaving_pods(snapshot)
    freed = (use.without(leaving[use.node.name]) for use in nodes if use.node.name in leaving)
    able = (use for use in freed if selects(first.spec, use.node) and not refused.closed_by(first.spec, use.node))
    asked, most = first.counted, max(len(waiting.pods) for waiting in alike)
    return bool(asked) and sum(use.places(asked) for use in able) >= most


@lru_cache(maxsize=1)
def _leaving_pods(snapshot: Snapshot) -> Mapping[str, Sequence[Pod]]:
    """Return the pods that are being deleted in time, by node."""
    deleted = (pod for pod in snapshot.pods if pod.spec.node and not pod.over and pod.meta.deleted is not None)
    return grouped((pod.spec.node, pod) for pod in deleted if not is_stuck(snapshot, pod))


def _judge_nodes(snapshot: Snapshot, waiting: Waiting, every: Sequence[NodeUse]) -> _Outlook:
    """Narrow the nodes step by step: with the devices, selected, large enough, open, with room."""
    devices, asked = waiting.devices, waiting.counted
    if absent := [name for name in devices if not nodes_with(snapshot)[name]]:
        return _Outlook([found for name in absent for found in _absent(snapshot, waiting, name)])
    # A node without HAMi cards can't run HAMi's pods, however much room it has.
    eligible = [use for use in every if use.node.hami.shared] if waiting.hami else []
    offering, others = _parted(eligible or every, lambda use: all(has(use.node, name) for name in devices))
    if not offering:
        return _Outlook([unknown_resources.find_apart(snapshot, waiting)])
    selected = [use for use in offering if selects(waiting.spec, use.node)]
    if not selected:
        nodes, rest = [use.node for use in offering], [use.node for use in others]
        return _Outlook([refused.find_unmatched(snapshot, waiting, nodes, rest)])
    large, too_large = _large_enough(waiting, selected)
    if too_large:
        return _Outlook(too_large)
    closed, opened = _parted(large, lambda use: bool(refused.closed_by(waiting.spec, use.node)))
    if any(use.fits(asked) or shared_gpus.has_room(use, waiting) for use in opened):
        return _Outlook(open_nodes=opened)
    silent = [use for use in others if has_nvidia(use.node) and selects(waiting.spec, use.node)]
    return _Outlook(list(_without_room(snapshot, waiting, closed, opened, silent)))


def _large_enough(waiting: Waiting, nodes: Sequence[NodeUse]) -> tuple[Sequence[NodeUse], Sequence[FoundCause]]:
    """Return the nodes whose total suffices, and the memory of their GPUs, or what all of them lack."""
    known = shared_gpus.with_memory(waiting, nodes)
    if not known:
        unlabelled = list(shared_gpus.find_unlabelled(waiting, (use.node for use in nodes)))
        return (), unlabelled or [resources.too_much_memory(waiting, nodes)]
    large, too_large = resources.large_enough(waiting, known)
    return large, () if too_large is None else (too_large,)


def _parted(nodes: Iterable[NodeUse], condition: Callable[[NodeUse], bool]) -> tuple[list[NodeUse], list[NodeUse]]:
    """Return the nodes that meet the condition, and the others."""
    parts: tuple[list[NodeUse], list[NodeUse]] = ([], [])
    for use in nodes:
        parts[0 if condition(use) else 1].append(use)
    return parts


def _absent(snapshot: Snapshot, waiting: Waiting, name: str) -> Iterator[FoundCause]:
    """Yield why no node has the resource; a DeviceClass may provide it instead of a device plugin."""
    classes = (each for each in snapshot.device_classes if each.resource == name)
    # Of several classes, Kubernetes uses the newest one.
    device_class = max(classes, key=lambda each: each.meta.created or EARLIEST, default=None)
    if device_class is None:
        yield from unknown_resources.find_absent(snapshot, waiting, name)
    else:
        yield from device_claims.find_by_resource(snapshot, waiting, name, device_class)


def _without_room(
    snapshot: Snapshot,
    waiting: Waiting,
    closed: Sequence[NodeUse],
    opened: Sequence[NodeUse],
    silent: Sequence[NodeUse],
) -> Iterator[FoundCause]:
    """Yield what to open or to free. `silent`: nodes that would fit if they offered the GPUs that they have."""
    asked = waiting.counted
    emptied = [use.without([pod for pod in use.pods if is_stuck(snapshot, pod)]) for use in closed]
    fitting = [use for use in emptied if use.fits(asked)]
    reserved, openable = _parted(fitting, lambda use: refused.is_dedicated(waiting.spec, use.node))
    if openable or not opened:
        yield from refused.find_closed(snapshot, waiting, [use.node for use in openable or fitting or closed])
    if opened and sum(use.places(asked) for use in openable) < len(waiting.pods):
        taints = [f"{use.node.subject} ({', '.join(map(str, use.node.taints))})" for use in reserved[:_MOST_NODES]]
        note = (f"nodes reserved for other pods have room: {', '.join(taints)}",) if taints else ()
        for found in resources.find_shortages(snapshot, waiting, opened, silent):
            full = found.cause in (resources.IN_USE, resources.FRAGMENTED)
            yield replace(found, evidence=(*found.evidence, *note)) if full else found


def _for_each(
    snapshot: Snapshot, alike: Sequence[Waiting], outlook: _Outlook, nodes: Sequence[NodeUse]
) -> Iterator[FoundCause]:
    """Yield the causes of the nodes once, and those of each workload; if there is none, quote the scheduler."""
    first, names = alike[0], tuple(name for waiting in alike for name in waiting.names)
    for found in outlook.causes:
        if found.subject != first.workload:
            yield replace(found, affected=names if found.affected == first.names else found.affected)
    for waiting in alike:
        own = [
            replace(found, subject=waiting.workload, affected=waiting.names)
            for found in outlook.causes
            if found.subject == first.workload
        ]
        if outlook.open_nodes:
            own += _beside_room(snapshot, waiting, outlook.open_nodes)
        yield from own
        if not own and not outlook.causes and not _is_outdated(snapshot, waiting, nodes):
            yield from _quoted(snapshot, waiting)


def _beside_room(snapshot: Snapshot, waiting: Waiting, nodes: Sequence[NodeUse]) -> Iterator[FoundCause]:
    """Yield the rules that keep the pods off although nodes have room."""
    asked = waiting.counted
    free = [use.node for use in nodes if use.fits(asked)]
    elsewhere = list(volumes.find_elsewhere(snapshot, waiting, free))
    yield from elsewhere
    for found in _by_reasons(waiting, waiting.reasons(*_RULES)):
        if found.cause is not volumes.ELSEWHERE or not elsewhere:
            yield found
    name = next(iter(waiting.devices), "")
    free_devices = sum((use.free(name) for use in nodes), ZERO) if name else ZERO
    yield from schedulers.find_gang(snapshot, waiting, free_devices)
    yield from shared_gpus.find_unlabelled(waiting, (use.node for use in nodes))


def _is_outdated(snapshot: Snapshot, waiting: Waiting, nodes: Sequence[NodeUse]) -> bool:
    """Whether the message may no longer apply, as no object shows its reason. HAMi's have a family of their own."""
    new = [pod for pod in waiting.pods if snapshot.is_new(pod.meta, schedulers.PATIENCE)]
    if waiting.hami or waiting.fit is None:
        return waiting.hami or bool(new) or " " not in waiting.message
    if not nodes:
        return len(new) == len(waiting.pods)
    # There is room by now, and the next retry succeeds: certain only if the pods of all namespaces are visible.
    retried = any(snapshot.is_new(pod.meta, _RETRIES) for pod in waiting.pods)
    return retried and snapshot.spans_namespaces and bool(waiting.reasons(ReasonSubject.SHORT))


def _quoted(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield results from the scheduler's text alone.

    Reasons about nodes with the GPUs rank before reasons about other nodes.
    """
    judged = waiting.is_judged and waiting.share is None
    taints = waiting.reasons(ReasonSubject.TAINT)
    closed = any(map(_keeps_off_gpus, taints))
    found = list(resources.find_by_text(snapshot, waiting)) if judged and not closed else []
    if found:
        found += _by_reasons(waiting, filter(refused.is_ours, taints))
    else:
        found += _by_reasons(waiting, taints if closed else waiting.reasons(ReasonSubject.TAINT, *_BY_REASON))
    yield from found
    if not found:
        yield schedulers.unexplained(snapshot, waiting, hami.above(snapshot, waiting.pods[0]))


def _keeps_off_gpus(reason: UnfitReason) -> bool:
    """Whether the reason is a taint of GPU nodes: then the nodes with too few GPUs are those without any."""
    return reason.about is ReasonSubject.TAINT and not refused.is_ours(reason) and bool(_OF_GPUS.search(reason.text))


def _by_reasons(waiting: Waiting, reasons: Iterable[UnfitReason]) -> Iterator[FoundCause]:
    for reason in reasons:
        cause, remedy = _cause_of(reason)
        selector = refused.requirements(waiting.spec) if cause is refused.UNMATCHED else ()
        yield waiting.found(cause, waiting.quote(reason), *selector, remedy=remedy, certainty=Certainty.LIKELY)


def _cause_of(reason: UnfitReason) -> tuple[Cause, tuple[str, ...]]:
    """Return the cause for a reason, and its steps; () for those of the cause."""
    if reason.about is ReasonSubject.TAINT:
        return refused.by_taint(reason)
    return _BY_REASON.get(reason.about, resources.SHORT), ()


def refusals_in(log: str) -> list[UnfitReason]:
    """Return the reasons in the last text of a scheduler that a copied log has, if the text is about GPUs."""
    line = next((line for line in reversed(log.splitlines()) if _REFUSAL.search(line)), "")
    fit = parse(line) if is_about_gpus(line) else None
    reasons = fit.of(ReasonSubject.SHORT, ReasonSubject.TAINT, *_BY_REASON) if fit is not None else ()
    reasons = tuple(filter(_keeps_off_gpus, reasons)) or reasons
    return [reason for reason in reasons if reason.about is not ReasonSubject.SHORT or is_accelerator(reason.what)]


def find_in_logs(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield why a pod waits by the scheduler's text alone, if the pod is unknown."""
    for subject, log in snapshot.other_logs.items() if not snapshot.pods else ():
        for reason in refusals_in(log):
            cause, remedy = _cause_of(reason)
            evidence = f"the scheduler: {reason.nodes or 'some'} nodes: {reason.text}"
            yield FoundCause(cause, subject, (evidence,), remedy, certainty=Certainty.LIKELY)


SEARCHES = (
    *queues.SEARCHES,
    *schedulers.SEARCHES,
    Search((device_claims.NO_CLAIM,), ("Pod",), device_claims.find_missing),
    Search((resources.TERMINATING,), ("Pod",), resources.find_stuck),
    Search(
        (
            *(*unknown_resources.CAUSES, *refused.CAUSES, *resources.CAUSES, *shared_gpus.CAUSES, *sharing.CAUSES),
            *(*autoscaling.CAUSES, *volumes.CAUSES, *device_claims.CAUSES, schedulers.ERROR),
            *(schedulers.UNEXPLAINED, KEPT_FROM_WORK, NOT_LOOKED, *quotas.CAUSES),
        ),
        ("Pod",),
        find_unschedulable,
    ),
    Search((resources.SHORT, KEPT_FROM_WORK, NOT_LOOKED, *refused.CAUSES, *_BY_REASON.values()), (), find_in_logs),
)
