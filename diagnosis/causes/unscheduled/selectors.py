"""Find a node selector or affinity that matches none of the nodes with the resource.

The failing part and the existing labels are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from diagnosis.causes.components import NOT_READY
from diagnosis.causes.node_labels import UNLABELLED
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.components import Role, components
from diagnosis.facts.placement import expression_takes
from diagnosis.facts.quantity import counted
from diagnosis.model import Family, FoundCause, Link, Origin, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import Expression, PodSpec

_scheduled = Family(Link.SCHEDULED)
UNMATCHED = _scheduled(
    "NodeSelectorMatchesNoNode",
    "A workload's node selector or required affinity excludes every node with its resources.",
    "Change the selector to labels that the nodes have, or label the nodes.",
)
CAUSES = (UNMATCHED,)

_NAME = "metadata.name"
_MOST = 4
_DISCOVERERS = (Role.GPU_FEATURES, Role.NODE_FEATURES)
_DISCOVERED = frozenset(
    f"nvidia.com/{one}"
    for one in (
        *("gpu.product", "gpu.memory", "gpu.count", "gpu.family", "gpu.machine", "gpu.present", "gpu.replicas"),
        *("gpu.compute.major", "gpu.compute.minor", "cuda.driver.major", "cuda.runtime.major", "mig.capable"),
    )
)


def find_unmatched(
    snapshot: Snapshot, waiting: Waiting, rooms: Sequence[NodeUse], others: Sequence[NodeUse]
) -> FoundCause:
    """Return the result for a selector that matches none of `rooms`, which have the requested resources.

    `others` are the remaining nodes.
    """
    wanted = list(_requirements(waiting.spec))
    failing = [each for each in wanted if not any(expression_takes(each, room.node) for room in rooms)]
    names = " and ".join(sorted(waiting.devices)) or "room"
    evidence = [f"{counted(len(rooms), 'node')} with {names}; the selector matches none of them"]
    remedy: list[str] = []
    for expression in failing:
        message, fix = _nearest(expression, rooms, others, names)
        evidence.append(message)
        remedy += fix
    if not failing:
        evidence.append(f"each part of it matches some of them, all parts together match none: {_expressions(wanted)}")
        remedy.append("Loosen the part of the selector that is not needed.")
    unlabelled = any(expression.key in _DISCOVERED and not _values(expression.key, rooms) for expression in failing)
    above = tuple(_why_unlabelled(snapshot, rooms)) if unlabelled else ()
    return waiting.found(UNMATCHED, *evidence, remedy=tuple(remedy), because_of=above)


def requirements(spec: PodSpec) -> Iterator[str]:
    """Yield the requirements of a selector as evidence."""
    return map(_shown, _requirements(spec))


def _why_unlabelled(snapshot: Snapshot, rooms: Iterable[NodeUse]) -> Iterator[Origin]:
    """Yield all possible reasons why feature discovery has written no labels."""
    for component in components(snapshot):
        if component.role in _DISCOVERERS:
            yield NOT_READY[component.role].name, component.subject
    for room in rooms:
        yield from origins((UNLABELLED, *(NOT_READY[role] for role in _DISCOVERERS)), room.node.subject)


def _requirements(spec: PodSpec) -> Iterator[Expression]:
    """Yield all requirements of the spec.

    One of several affinity terms is sufficient, but the terms are not separated here.
    """
    for key, value in spec.node_selector.items():
        yield Expression(key, "In", (value,))
    for term in spec.affinity or ():
        yield from term


def _nearest(
    wanted: Expression, rooms: Sequence[NodeUse], others: Sequence[NodeUse], names: str
) -> tuple[str, tuple[str, ...]]:
    """Return the existing values closest to the requirement, and the correction to make."""
    elsewhere = [room.node.name for room in others if expression_takes(wanted, room.node)]
    message = _shown(wanted)
    if elsewhere:
        there = f"{message}: only nodes without {names} match ({', '.join(elsewhere[:_MOST])})"
        return there, (
            f"Drop {wanted.key} from the selector, or select the nodes with {names} by a label that they have.",
        )
    values = _values(wanted.key, rooms)
    if not values:
        return _no_label(message, wanted, rooms)
    text = ", ".join(f"{value} ({nodes})" for value, nodes in values.most_common(_MOST))
    there = f"{message}: these nodes have {wanted.key}={text}"
    near = _near_value(wanted.values, values)
    if wanted.operator in ("In", "Gt", "Lt") and near:
        return there, (f"Set {wanted.key} to {near} in the selector, if that fits.", *_suffix(wanted.values, near))
    return there, (f"Change {wanted.key} in the selector to a value that the nodes have.",)


def _no_label(message: str, wanted: Expression, rooms: Sequence[NodeUse]) -> tuple[str, tuple[str, ...]]:
    keys = {key for room in rooms for key in room.node.meta.labels}
    # The labels of feature discovery have known names: an absent label is not a typing error.
    close = [] if wanted.key in _DISCOVERED else get_close_matches(wanted.key, keys, 1, 0.85)
    if close:
        return f"{message}: no node has the label {wanted.key}; they have {close[0]}", (
            f"Write {close[0]} instead of {wanted.key} in the selector.",
        )
    remedy = [f"Remove {wanted.key} from the selector."]
    if wanted.key.startswith("nvidia.com/"):
        pods = command("kubectl", "get", "pods", "-A", "-o", "wide", "-l", "app=gpu-feature-discovery")
        remedy.insert(0, f"GPU feature discovery writes such labels; check whether it runs: {pods}")
    elif wanted.values and rooms:
        label = kubectl("label", rooms[0].node.meta, f"{wanted.key}={wanted.values[0]}")
        remedy.append(f"Or label the intended nodes: {label}")
    return f"{message}: no node has the label {wanted.key}", tuple(remedy)


def _values(key: str, rooms: Iterable[NodeUse]) -> Counter[str]:
    nodes = [room.node for room in rooms]
    return Counter(
        node.name if key == _NAME else node.meta.labels[key] for node in nodes if _has(node.meta.labels, key)
    )


def _has(labels: object, key: str) -> bool:
    return key == _NAME or (isinstance(labels, dict) and key in labels)


def _near_value(wanted: tuple[str, ...], there: Iterable[str]) -> str:
    """Return the value that extends a requested one, as with `…-SHARED`; else a similar or the only value."""
    known = list(there)
    for text in wanted:
        added = [value for value in known if value.startswith(text) or text.startswith(value)]
        close = added or get_close_matches(text, known, 1, 0.7)
        if close:
            return close[0]
    return known[0] if len(known) == 1 else ""


def _suffix(wanted: tuple[str, ...], near: str) -> tuple[str, ...]:
    """Explain the suffix that GPU feature discovery adds to a product: it names the enabled feature."""
    added = next((near.removeprefix(text) for text in wanted if near != text and near.startswith(text)), "")
    if added.startswith("-SHARED"):
        return ("Since GPU sharing was turned on, feature discovery adds -SHARED to the product.",)
    if added.startswith("-MIG"):
        return ("Since MIG was turned on, feature discovery adds the profile to the product.",)
    return ()


def _expressions(wanted: Iterable[Expression]) -> str:
    return "; ".join(map(_shown, wanted))


def _shown(expression: Expression) -> str:
    values = ", ".join(expression.values[:_MOST])
    if expression.operator == "In" and len(expression.values) == 1:
        return f"{expression.key}={values}"
    return f"{expression.key} {expression.operator} {values}".rstrip()
