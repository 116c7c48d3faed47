"""The fleet budget: how many nodes may carry our taint, and the names of its places. Pure (contract, section 2 rule 9).

A place is a Lease called slot-<i>. It is taken by creating it, which only one can do, so that no count has to be right.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

TRIES = 5
"""At most so many places are tried in one go; the next cycle tries again."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that somebody holds. `node_uid` is the Node's that owns it; `uid` the Lease's own."""

    name: str
    holder: str
    node_uid: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Whether this node has a place in the budget, and if not, why."""

    held: bool
    why: str = ""


HELD = Place(held=True)


def allowed(fleet: int | None, percent: int) -> int:
    """How many nodes may be tainted. A fleet whose size was never known gets one place."""
    return max(1, (fleet or 0) * percent // 100)


def draw(places: int, source: random.Random) -> Sequence[str]:
    """The places to try, none twice."""
    return [slot_name(number) for number in source.sample(range(places), min(TRIES, places))]


def slot_name(number: int) -> str:
    return f"slot-{number}"


def holder_label(node_name: str) -> str:
    """A label's value by which a node finds its own places: a node's name can be too long for one."""
    return hashlib.blake2s(node_name.encode(), digest_size=16).hexdigest()
