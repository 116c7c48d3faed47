"""Find GPU pods that no scheduler binds to a node.

The scheduler's arithmetic is repeated, and the node or rule that prevents the binding is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from diagnosis.causes.hami import webhook as hami
from diagnosis.causes.unscheduled import (
    autoscaling,
    device_claims,
    held_gangs,
    kueue_replacement,
    queues,
    rdma_resources,
    refused,
    resources,
    selectors,
    unknown_resources,
    volcano_queues,
    volumes,
)
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting, is_stuck, rooms, unschedulable, without
from diagnosis.facts.fit_error import ReasonSubject
from diagnosis.facts.gpu_nodes import devices_in, has_nvidia
from diagnosis.facts.placement import ZERO, has, offers, selects
from diagnosis.model import Cause, Certainty, FoundCause, Origin, Search
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import PodSpec

_FULL = (resources.IN_USE, resources.FRAGMENTED)
_ENDED_BY_A_NODE = frozenset(
    (
        *(resources.IN_USE, resources.FRAGMENTED, resources.HOST_USED_UP, resources.TOO_MANY, resources.TOO_MUCH),
        *(resources.SHORT, unknown_resources.ABSENT, rdma_resources.ABSENT, selectors.UNMATCHED, refused.TAINTED),
    )
)
"""Causes that no longer apply once the node that the autoscaler wants has joined."""
_MOST = 4
_MOST_PAIRS, _PAIRS_OF_A_RESULT = 300_000, 10
"""Pods of different shapes times nodes or devices, for a runtime of some seconds; a result costs as much as 10.

Further shapes are explained by the scheduler's message alone.
"""
_LOOKS_AGAIN = timedelta(minutes=10)
WITHOUT_HOLDERS = frozenset(
    (
        *(
            unknown_resources.MISSPELLED,
            unknown_resources.RENAMED,
            unknown_resources.ONLY_MIG,
            resources.TOO_MANY,
            selectors.UNMATCHED,
        ),
        *(queues.KUEUE, queues.TOPOLOGY, queues.GATED, queues.ERROR),
        *(volumes.UNBOUND, volumes.MISSING, device_claims.NO_CLASS, device_claims.NO_CLAIM),
    )
)
"""Causes that the pod, its namespace and the nodes prove, regardless of the pods elsewhere."""
_RULES = {
    ReasonSubject.VOLUME_ELSEWHERE: volumes.ELSEWHERE,
    ReasonSubject.VOLUME_BUSY: volumes.BUSY,
    ReasonSubject.OTHER_PODS: volumes.OTHER_PODS,
    ReasonSubject.SPREAD: volumes.OTHER_PODS,
    ReasonSubject.PORTS: volumes.PORTS,
}
"""Causes by the scheduler's reason, of rules that only the scheduler can judge."""
_OF_NODES = {
    ReasonSubject.TAINT: refused.TAINTED,
    ReasonSubject.CORDON: refused.CORDONED,
    ReasonSubject.NOT_READY: refused.NOT_READY,
    ReasonSubject.SELECTOR: selectors.UNMATCHED,
    ReasonSubject.NODE_NAME: selectors.UNMATCHED,
}
"""Causes by the scheduler's reason, if the nodes are not visible."""
_BEFORE_NODES = (ReasonSubject.VOLUME_MISSING, ReasonSubject.VOLUME_UNBOUND)


class _Fit(Struct, frozen=True):
    """Fit of one shape of pods on all nodes: the causes of `waiting`, the first such pods, or `free` devices.

    `alike`: other waiting pods of this shape, to which the causes about other objects apply too.
    """

    waiting: Waiting
    found: tuple[FoundCause, ...] = ()
    elsewhere: tuple[FoundCause, ...] = ()
    """Volumes that no node with room can mount."""
    free: Decimal | None = None
    """Of the requested devices, on all eligible nodes; None if no node has room."""
    alike: list[Waiting] = field(default_factory=list)
    late: dict[Origin, None] = field(default_factory=dict)
    """Nodes of autoscalers for these pods that have not joined."""


class _Fits:
    """Fits of all shapes of pods on all nodes, each computed once. A limit bounds the work for a hostile tenant."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._left = _MOST_PAIRS
        self._of_shapes: dict[tuple[object, ...], _Fit] = {}
        self._coming: dict[str, int] = {}
        self.everywhere = rooms(snapshot) if snapshot.sees("Node") else ()
        self._going = _left(snapshot, self.everywhere)
        self._joining = [room.node for room in self.everywhere if _is_joining(snapshot, room.node)]

    def affords(self, pairs: int) -> bool:
        """Whether so many more nodes or devices may be compared with pods; if so, they count."""
        if pairs > self._left:
            return False
        self._left -= pairs
        return True

    def of(self, waiting: Waiting) -> _Fit | None:
        """Return the fit of such pods; None if the limit is reached."""
        key = (waiting.shape, waiting.hami)
        if key not in self._of_shapes:
            if not self.affords(len(self.everywhere)):
                return None
            self._of_shapes[key] = fit = _by_nodes(self._snapshot, waiting, self.everywhere)
            self.affords(len(fit.found) * _PAIRS_OF_A_RESULT)
        return self._of_shapes[key]

    def all(self) -> Iterable[_Fit]:
        return self._of_shapes.values()

    def is_made_room(self, waiting: Waiting) -> bool:
        """Whether all waiting pods fit once the terminating pods are gone, as in a rollout."""
        if not self._going or not waiting.counted or not waiting.reasons(ReasonSubject.SHORT):
            return False
        if waiting.shape not in self._coming and self.affords(len(self._going)):
            taking = [use for use in self._going if _takes(waiting.spec, use.node)]
            self._coming[waiting.shape] = _places(waiting, taking)
        return self._coming.get(waiting.shape, 0) >= len(waiting.pods)

    def is_joined(self, waiting: Waiting) -> bool:
        """Whether a suitable GPU node joined minutes ago and does not offer its GPUs yet, and the pods are young."""
        made = [pod.meta.created for pod in waiting.pods if pod.meta.created is not None]
        short = waiting.fit is None or bool(waiting.reasons(ReasonSubject.SHORT))
        if not short or not made or self._snapshot.now - min(made) > _LOOKS_AGAIN:
            return False
        return self.affords(len(self._joining)) and any(
            selects(waiting.spec, node) and refused.is_joining(self._snapshot, waiting.spec, node)
            for node in self._joining
        )


def find_unschedulable(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the causes for pods that a scheduler has judged and refused."""
    fits = _Fits(snapshot)
    for waiting in unschedulable(snapshot):
        if _is_fixed_since(snapshot, waiting) or fits.is_joined(waiting) or fits.is_made_room(waiting):
            continue
        found, fit = list(_apart_from_nodes(snapshot, waiting, fits)), None
        if not found and snapshot.sees("Node") and not queues.is_error(waiting):
            fit = fits.of(waiting)
            found = list(_by_fit(snapshot, waiting, fit)) if fit is not None else []
        shared = fit.found if fit is not None else ()
        if not found and not shared and not waiting.hami and _is_refused(snapshot, waiting, fits.everywhere):
            found = list(_by_text_alone(snapshot, waiting))
        late = list(autoscaling.find_no_node(snapshot, waiting))
        yield from late
        above = [(each.cause.name, each.subject) for each in late]
        yield from (_because_of(above, each) for each in found)
        if fit is not None:
            fit.alike.append(waiting)
            fit.late.update(dict.fromkeys(above))
    for fit in fits.all():
        names = tuple(name for waiting in fit.alike for name in waiting.names)
        for each in fit.found if names else ():
            if each.subject != fit.waiting.workload:
                affected = names if each.affected == fit.waiting.names else each.affected
                yield _because_of(fit.late, replace(each, affected=affected))


def _by_fit(snapshot: Snapshot, waiting: Waiting, fit: _Fit) -> Iterator[FoundCause]:
    """Yield the causes for which these pods have to be changed, and the rules that only the scheduler can judge."""
    own = (each for each in (*fit.found, *fit.elsewhere) if each.subject == fit.waiting.workload)
    yield from (_for_workload(each, fit.waiting, waiting) for each in own)
    if fit.free is not None:
        rules = _by_reasons(waiting, _RULES)
        yield from (rule for rule in rules if not fit.elsewhere or rule.cause is not volumes.ELSEWHERE)
        yield from queues.find_gang(snapshot, waiting, fit.free)


def _because_of(above: Iterable[Origin], found: FoundCause) -> FoundCause:
    """Return the result as a consequence of nodes that have not joined, if such a node would end it."""
    added = tuple(above) if found.cause in _ENDED_BY_A_NODE else ()
    return replace(found, because_of=(*found.because_of, *added)) if added else found


def _is_fixed_since(snapshot: Snapshot, waiting: Waiting) -> bool:
    return bool(waiting.reasons(*_BEFORE_NODES)) and (
        volumes.are_bound_now(snapshot, waiting) or volumes.are_being_created(snapshot, waiting)
    )


def _left(snapshot: Snapshot, everywhere: Iterable[NodeUse]) -> list[NodeUse]:
    """Return nodes with pods that are being deleted normally, as they will be without these pods."""
    deleted = (pod for pod in snapshot.pods if pod.spec.node and not pod.over and pod.meta.deleted is not None)
    going = grouped((pod.spec.node, pod) for pod in deleted if not is_stuck(snapshot, pod))
    return [without(room, going[room.node.name]) for room in everywhere if room.node.name in going]


def _takes(spec: PodSpec, node: Node) -> bool:
    return selects(spec, node) and not refused.closed_by(spec, node)


def _is_joining(snapshot: Snapshot, node: Node) -> bool:
    """Whether the GPU node is new and does not offer its GPUs yet."""
    return snapshot.is_new(node.meta, refused.SETTLES) and has_nvidia(node) and not devices_in(node.allocatable)


def _is_refused(snapshot: Snapshot, waiting: Waiting, everywhere: Sequence[NodeUse]) -> bool:
    """Whether the scheduler's refusal is still valid although the objects do not show the reason.

    A message of another format counts only if the pods are old.
    """
    if waiting.fit is None:
        flag_why = " " in waiting.message and not queues.is_error(waiting)
        return flag_why and not any(snapshot.is_new(pod.meta, queues.PATIENCE) for pod in waiting.pods)
    if not everywhere and all(snapshot.is_new(pod.meta, queues.PATIENCE) for pod in waiting.pods):
        return False  # recent pods, and nodes are not visible
    return not _is_next(snapshot, waiting, everywhere)


def _is_next(snapshot: Snapshot, waiting: Waiting, everywhere: Sequence[NodeUse]) -> bool:
    """Whether there is room by now, so that the scheduler's next retry, minutes later, will succeed.

    This is judged only if the pods of the whole cluster were listed, not those of one namespace.
    """
    newest = max((pod.meta.created for pod in waiting.pods if pod.meta.created is not None), default=None)
    young = newest is not None and snapshot.now - newest < _LOOKS_AGAIN
    return bool(everywhere) and young and snapshot.spans_namespaces and bool(waiting.reasons(ReasonSubject.SHORT))


def _for_workload(found: FoundCause, of: Waiting, to: Waiting) -> FoundCause:
    """Return the same result for another workload whose pods have the same requests.

    This way, many thousand nodes are judged once for both.
    """
    subject = to.workload if found.subject == of.workload else found.subject
    return replace(found, subject=subject, affected=to.names if found.affected == of.names else found.affected)


def _apart_from_nodes(snapshot: Snapshot, waiting: Waiting, fits: _Fits) -> Iterator[FoundCause]:
    """Yield obstacles that apply before any node is judged."""
    yield from queues.find_error(waiting)
    if waiting.reasons(*_BEFORE_NODES):
        yield from volumes.find_volumes(snapshot, waiting)
    elif device_claims.is_dra(waiting):
        yield from device_claims.find_claims(snapshot, waiting, fits.affords)


def _by_nodes(snapshot: Snapshot, waiting: Waiting, everywhere: Sequence[NodeUse]) -> _Fit:
    """Narrow the nodes step by step: with the resource, selected, large enough, with room, open."""
    suitable, silent, found = _suitable(snapshot, waiting, everywhere)
    if found:
        return _Fit(waiting, found)
    closed, opened = _parted(suitable, lambda room: bool(refused.closed_by(waiting.spec, room.node)))
    counted = waiting.counted
    if not any(room.fits(counted) for room in opened):
        return _Fit(waiting, tuple(_by_room(snapshot, waiting, closed, opened, silent)))
    elsewhere = tuple(volumes.find_elsewhere(snapshot, waiting, opened))
    name = next(iter(waiting.devices), "")
    free = sum((room.free(name) for room in opened), ZERO) if name else ZERO
    return _Fit(waiting, elsewhere=elsewhere, free=free)


def _suitable(
    snapshot: Snapshot, waiting: Waiting, everywhere: Sequence[NodeUse]
) -> tuple[Sequence[NodeUse], Sequence[NodeUse], tuple[FoundCause, ...]]:
    """Return the nodes that are large enough, and those that would be if they offered the GPUs that they have.

    If none is large enough, the causes are returned instead.
    """
    lacking = unknown_resources.absent(waiting, everywhere)
    if lacking:
        by_claim = {each.resource: each for each in snapshot.device_classes if each.resource}
        rest = [name for name in lacking if name not in by_claim]
        found = list(unknown_resources.find_absent(snapshot, waiting, rest, everywhere))
        for name in sorted(set(lacking) & set(by_claim)):
            found += device_claims.find_by_resource(snapshot, waiting, name, by_claim[name])
        return (), (), tuple(found)
    devices = waiting.devices
    if waiting.hami:
        # A node without HAMi cards can't run these pods, however much room it has.
        everywhere = [room for room in everywhere if room.node.hami.shared] or everywhere
    offering, others = _parted(everywhere, lambda room: all(has(room.node, name) for name in devices))
    if not offering:
        return (), (), (unknown_resources.find_apart(snapshot, waiting),)
    selected = [room for room in offering if selects(waiting.spec, room.node)]
    if not selected:
        return (), (), (selectors.find_unmatched(snapshot, waiting, offering, others),)
    large = [room for room in selected if all(has(room.node, name) >= asked for name, asked in devices.items())]
    if not large:
        return (), (), tuple(resources.find_too_many(waiting, selected))
    pages = waiting.huge_pages
    paged = [room for room in large if all(offers(room.node, page) >= asked for page, asked in pages.items())]
    if not paged:
        return (), (), tuple(resources.find_no_huge_pages(waiting, large))
    silent = [room for room in others if has_nvidia(room.node) and selects(waiting.spec, room.node)]
    return paged, silent, ()


def _parted(rooms: Iterable[NodeUse], is_report: Callable[[NodeUse], bool]) -> tuple[list[NodeUse], list[NodeUse]]:
    """Split the rooms into those that meet the condition and those that do not."""
    ones: list[NodeUse] = []
    others: list[NodeUse] = []
    for room in rooms:
        (ones if is_report(room) else others).append(room)
    return ones, others


def _by_room(
    snapshot: Snapshot,
    waiting: Waiting,
    closed: Sequence[NodeUse],
    opened: Sequence[NodeUse],
    silent: Sequence[NodeUse],
) -> Iterator[FoundCause]:
    """Yield shortages. `silent`: nodes that would fit if they offered the GPUs that they have."""
    counted = waiting.counted
    with_room = [room for use in closed if (room := _emptied(snapshot, use)).fits(counted)]
    for_others, ours_to_have = _parted(with_room, lambda room: refused.is_dedicated(waiting.spec, room))
    if ours_to_have:
        yield from refused.find_refused(snapshot, waiting, ours_to_have)
    elif not opened:
        yield from refused.find_refused(snapshot, waiting, with_room or closed)
    if opened and _places(waiting, ours_to_have) < len(waiting.pods):
        elsewhere = _room_for_others(for_others)
        for found in resources.find_shortages(snapshot, waiting, opened, silent):
            yield replace(found, evidence=(*found.evidence, *elsewhere)) if found.cause in _FULL else found


def _emptied(snapshot: Snapshot, room: NodeUse) -> NodeUse:
    """Return the room of the node without pods that should be gone."""
    going = [pod for pod in room.pods if is_stuck(snapshot, pod)]
    return without(room, going) if going else room


def _room_for_others(rooms: Iterable[NodeUse]) -> tuple[str, ...]:
    """Return the nodes with room that are reserved for other pods, as information and not as a cause."""
    named = [f"{room.node.subject} ({', '.join(map(str, room.node.taints))})" for room in islice(rooms, _MOST)]
    return (f"nodes reserved for other pods have room: {', '.join(named)}",) if named else ()


def _places(waiting: Waiting, free: Sequence[NodeUse]) -> int:
    """Return the number of pods for which these nodes have room."""
    counted = waiting.counted
    counts = [min(room.free(name) // asked for name, asked in counted.items()) for room in free]
    return int(sum(counts))


def _by_text_alone(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield results from the scheduler's text alone, if the objects do not show the reason.

    Reasons about nodes with the GPUs rank before reasons about other nodes.
    """
    short = list(resources.find_by_text(snapshot, waiting))
    found = short or list(_by_reasons(waiting, _OF_NODES | _RULES))
    yield from found
    if not found:
        message, above = f"the scheduler: {waiting.message}", hami.above(snapshot, waiting.pods[0])
        yield waiting.found(volumes.UNEXPLAINED, message, certainty=Certainty.LIKELY, because_of=above)


def _by_reasons(waiting: Waiting, causes: Mapping[ReasonSubject, Cause]) -> Iterator[FoundCause]:
    for reason in waiting.reasons(*causes):
        cause = causes[reason.says]
        own = selectors.requirements(waiting.spec) if cause is selectors.UNMATCHED else ()
        yield waiting.found(cause, waiting.quote(reason), *own, certainty=Certainty.LIKELY)


SEARCHES = (
    Search((*queues.CAUSES[:3],), ("Pod",), queues.find_gates),
    Search((queues.KUEUE,), (), queues.find_queued),
    Search((volcano_queues.HELD,), (), volcano_queues.find_groups),
    *held_gangs.SEARCHES,
    *kueue_replacement.SEARCHES,
    Search((device_claims.NO_CLAIM,), ("Pod",), device_claims.find_unlooked),
    Search((queues.NO_SCHEDULER, queues.GANG), ("Pod",), queues.find_unlooked),
    Search((resources.TERMINATING,), ("Pod",), resources.find_stuck),
    Search(
        (
            *(*unknown_resources.CAUSES, *selectors.CAUSES, *resources.CAUSES, *refused.CAUSES),
            *(*autoscaling.CAUSES, *volumes.CAUSES, *device_claims.CAUSES, queues.ERROR),
        ),
        ("Pod",),
        find_unschedulable,
    ),
)
