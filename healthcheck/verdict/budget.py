"""Fleet budget: the number of nodes that may be tainted, and the names of slots.

Pure functions (docs/rules.md 9). A slot is a Lease with the name slot-<i>. A node acquires a slot by creating the
Lease, which only one node can do, so no counter has to be correct. The number of holders is limited. Extra slots of
one holder do not reduce the slots of other nodes. The same limit holds for each group, the nodes with one value of the
label BUDGET_LABEL.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from msgspec import Struct

TRIES = 5
"""Most slots that one check cycle tries to acquire; the next cycle tries again."""
MOST_NUMBERS = 100_000
"""Most slot numbers: the admission policy allows five digits."""
_LONGEST_LABEL = 63


class Slot(Struct, frozen=True):
    """A slot that a node holds. `node_uid` is the UID of the Node that owns the Lease; `uid` is the Lease's UID."""

    name: str
    holder: str
    node_uid: str = ""
    uid: str = ""
    made: int = 0
    """Resource version of the Lease, which orders slots by creation: a slot's Lease is never changed."""
    created: datetime | None = None
    group: str = ""
    """Value of the node's label BUDGET_LABEL when it acquired the slot."""


class SlotGrant(Struct, frozen=True):
    """Whether this node has a slot of the budget, and the reason if not."""

    held: bool
    why: str = ""
    by_devices: bool = False
    """Device taints or cordons keep work off each faulty GPU, so the Node needs no taint."""
    cordons: frozenset[str] = frozenset()
    """UUIDs of the GPUs that HAMi must not give to new pods."""


HELD = SlotGrant(held=True)
BY_DEVICES = SlotGrant(held=True, by_devices=True)


class Occupancy(Struct, frozen=True):
    """The held slots, from one listing."""

    names: frozenset[str]
    since: Mapping[str, int]
    """Creation order of each holder's first slot, by holder."""

    @property
    def surplus(self) -> int:
        """Return the number of extra slots: all slots beyond the first of each holder."""
        return len(self.names) - len(self.since)

    def before(self, holder: str) -> int:
        """Return the number of other holders that had a slot when this holder acquired its first."""
        own_time = self.since.get(holder)
        return sum(1 for other, made in self.since.items() if other != holder and (own_time is None or made < own_time))


def occupancy(slots: Iterable[Slot], group: str = "") -> Occupancy:
    """Return the occupancy by all holders, or by those of a group. A holder belongs to the group of its first slot."""
    names: set[str] = set()
    first: dict[str, Slot] = {}
    for slot in slots:
        names.add(slot.name)
        first[slot.holder] = min(slot, first.get(slot.holder, slot), key=attrgetter("made"))
    since = {holder: slot.made for holder, slot in first.items() if group in ("", slot.group)}
    return Occupancy(frozenset(names), since)


def allowed(fleet: int | None, percent: int) -> int:
    """Return the number of nodes that may be tainted. A fleet of unknown size gets one slot."""
    return max(1, (fleet or 0) * percent // 100)


def size_for(holders: int, percent: int) -> int:
    """Return the smallest number of nodes of which one more than `holders` may be tainted."""
    return -(-(holders + 1) * 100 // percent)


def draw(allowed_slots: int, source: random.Random) -> Sequence[str]:
    """Return the slots to try, without repeats."""
    return [slot_name(index) for index in source.sample(range(allowed_slots), min(TRIES, allowed_slots))]


def draw_free(occupancy: Occupancy, allowed_slots: int, node_name: str, source: random.Random) -> Sequence[str]:
    """Return the slots to try, from a listing of the holders.

    Extra slots of a holder add to the available number. If every number is used, the node's own name is the last
    option: no other node may use it.
    """
    indexes = range(min(allowed_slots + occupancy.surplus, MOST_NUMBERS))
    free = [name for name in map(slot_name, indexes) if name not in occupancy.names]
    return source.sample(free, min(TRIES, len(free))) or [node_name]


def oldest_first(slots: Iterable[Slot]) -> list[Slot]:
    """Return the slots, oldest first.

    A holder with several slots keeps the first, regardless of which client removes the others.
    """
    return sorted(slots, key=lambda slot: (slot.made, slot.name))


def slot_name(index: int) -> str:
    return f"slot-{index}"


def holder_label(node_name: str) -> str:
    """Return the label value by which a node finds its slots; the admission policy computes it too.

    A node name that is too long for a label is cut. Nodes whose names begin alike then also list each other's slots.
    """
    return node_name if len(node_name) <= _LONGEST_LABEL else f"{node_name[: _LONGEST_LABEL - 1]}0"
