"""The fleet budget: how many nodes may carry our taint, and the names of its places. Pure (docs/rules.md 9).

A place is a Lease called slot-<i>. It is taken by creating it, which only one can do, so that no count has to be right.
What is limited is the number of holders: who takes more places than one takes them from nobody.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

TRIES = 5
"""At most so many places are tried in one go; the next cycle tries again."""
MOST_NUMBERS = 100_000
"""Of five digits, as the admission policy allows them."""
_LONGEST_LABEL = 63


class Slot(Struct, frozen=True):
    """A place that somebody holds. `node_uid` is the Node's that owns it; `uid` the Lease's own."""

    name: str
    holder: str
    node_uid: str = ""
    uid: str = ""
    made: int = 0
    """Where its making stands in the order of all: a place is never changed, so its version is that of its making."""
    created: datetime | None = None


class Grant(Struct, frozen=True):
    """Whether this node has a place in the budget, and if not, why."""

    held: bool
    why: str = ""
    by_devices: bool = False
    """It is for device taints, which stand: they keep work off each bad GPU, and the Node needs no taint."""


HELD = Grant(held=True)
BY_DEVICES = Grant(held=True, by_devices=True)


class Occupancy(Struct, frozen=True):
    """The places that are held, as one listing showed them."""

    names: frozenset[str]
    since: Mapping[str, int]
    """By holder, when it took its first."""

    @property
    def surplus(self) -> int:
        """How many places are held by somebody who has another one."""
        return len(self.names) - len(self.since)

    def before(self, holder: str) -> int:
        """How many others had a place when this one took its own."""
        mine = self.since.get(holder)
        return sum(1 for other, made in self.since.items() if other != holder and (mine is None or made < mine))


def occupancy(slots: Iterable[Slot]) -> Occupancy:
    names: set[str] = set()
    since: dict[str, int] = {}
    for slot in slots:
        names.add(slot.name)
        since[slot.holder] = min(slot.made, since.get(slot.holder, slot.made))
    return Occupancy(frozenset(names), since)


def allowed(fleet: int | None, percent: int) -> int:
    """How many nodes may be tainted. A fleet whose size was never known gets one place."""
    return max(1, (fleet or 0) * percent // 100)


def draw(places: int, source: random.Random) -> Sequence[str]:
    """The places to try, none twice."""
    return [slot_name(number) for number in source.sample(range(places), min(TRIES, places))]


def draw_free(taken: Occupancy, places: int, node_name: str, source: random.Random) -> Sequence[str]:
    """The places to try where a listing shows who holds which: one more for each that a holder has beyond its first.

    Its own name is left to a node where every number is taken: nobody else may use it.
    """
    numbers = range(min(places + taken.surplus, MOST_NUMBERS))
    free = [name for name in map(slot_name, numbers) if name not in taken.names]
    return source.sample(free, min(TRIES, len(free))) or [node_name]


def oldest_first(slots: Iterable[Slot]) -> list[Slot]:
    """Of several places of one holder the first is the one that it keeps, whoever takes the others away."""
    return sorted(slots, key=lambda slot: (slot.made, slot.name))


def slot_name(number: int) -> str:
    return f"slot-{number}"


def holder_label(node_name: str) -> str:
    """A label's value by which a node finds its own places, as the admission policy makes it too.

    A node's name can be too long for a label; two that begin alike then look at more than their own.
    """
    return node_name if len(node_name) <= _LONGEST_LABEL else f"{node_name[: _LONGEST_LABEL - 1]}0"


def former_holder_label(node_name: str) -> str:
    """What the label said before: a place that was taken then is found again, and given back."""
    return hashlib.blake2s(node_name.encode(), digest_size=16).hexdigest()
