"""Compute the bars of the allocation per node, in units of the picture. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct

from gpu_healthcheck.diagnosis.answers.allocation import Allocation, NodeAllocation, Pool

WIDTH = 480
_MOST_BOXES = 64
_GAP = 2.0
COLOURS = 7
"""Number of namespaces with their own colour, those with the most devices; the others share a colour."""
OTHERS = "others"


class Box(Struct, frozen=True):
    """Part of a bar. `fill` names a colour: `ns0`, `others`, `free`, `lost`, `unknown`. `title` is shown on it."""

    x: float
    width: float
    fill: str
    title: str


class Bar(Struct, frozen=True):
    """Bar for one pool of one node. `label` is the text next to it."""

    node: str
    closed: str
    """Why the node takes no new pods; '' if it does."""
    label: str
    used: str
    """Utilization of the node's cards, set in its first bar."""
    boxes: tuple[Box, ...]


def colours(allocation: Allocation) -> dict[str, str]:
    """Return the colour name of each namespace, those with the most devices first."""
    held = Counter(
        {each.namespace: sum(each.devices.values()) for each in allocation.namespaces if any(each.devices.values())}
    )
    ranked = sorted(held, key=lambda name: (-held[name], name))
    return {name: f"ns{place}" if place < COLOURS else OTHERS for place, name in enumerate(ranked)}


def bars(allocation: Allocation, most: int) -> Iterator[Bar]:
    """Yield the bars of at most `most` nodes, those with a problem first.

    A problem is a node that is not usable, or a device that is not offered.
    """
    fills = colours(allocation)
    ordered = sorted(
        allocation.nodes,
        key=lambda node_allocation: (node_allocation.usable and not _amiss(node_allocation), node_allocation.node),
    )
    for node in ordered[:most]:
        used = "" if node.percent is None else f"{node.percent:.0f} %"
        if not node.pools:
            yield Bar(node.node, node.closed, "none offered", used, ())
        for place, pool in enumerate(node.pools):
            free = f"{pool.free} of {pool.total} free" if allocation.pods_seen else f"{pool.total}"
            boxes = tuple(_boxes(pool, fills, allocation.pods_seen))
            yield Bar(node.node, node.closed, f"{free}, {pool.kind} {pool.resource}", "" if place else used, boxes)


def _amiss(node: NodeAllocation) -> bool:
    return not node.pools or any(pool.total < pool.capacity for pool in node.pools)


def _boxes(pool: Pool, fills: Mapping[str, str], pods_seen: bool) -> Iterator[Box]:
    parts = [
        (each.amount, fills.get(each.pod.split("/")[1], OTHERS), f"{each.pod}: {each.amount}") for each in pool.holders
    ]
    left = f"{pool.idle} not in use; the node takes no new pods" if pool.closed else f"{pool.free} free"
    fill = "unknown" if pool.closed or not pods_seen else "free"
    parts.append((pool.idle, fill, left if pods_seen else "not visible"))
    parts.append((max(pool.capacity - pool.total, 0), "lost", "present, but not offered"))
    whole = sum(number for number, _, _ in parts)
    single = whole <= _MOST_BOXES
    x, unit = 0.0, WIDTH / max(whole, 1)
    for number, fill, title in parts:
        for width in [unit] * number if single else [unit * number] * bool(number):
            yield Box(round(x, 2), round(max(width - _GAP, 0.5), 2), fill, title)
            x += width
