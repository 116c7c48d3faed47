"""Leftovers of earlier sweeps: running Jobs, marks and Jobs without an owner, and slots of the fleet budget. Pure.

A slot is in use while its Node has our taint, by any writer and with or without an agent that could lift it: the budget
limits the nodes out of service. Without the taint, the agent releases it, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from msgspec import Struct

from gpu_healthcheck.healthcheck.deep.claim import RunKind, claim_on, clear
from gpu_healthcheck.healthcheck.deep.job import JobState
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.verdict.budget import Slot, oldest_first


class Leftovers(Struct, frozen=True):
    """Leftovers at the start of a sweep. All except `alive` are read again before they are changed."""

    alive: tuple[JobState, ...]
    """Running Jobs with the claim of their node: an earlier sweep ended before them."""
    stray: tuple[JobState, ...]
    """Running Jobs without a claim on their node."""
    marked: tuple[str, ...]
    """Names of nodes with marks of an ended run, of a run with an ended Job, or with unreadable marks."""


def find_leftovers(marked: Sequence[NodeState], jobs: Iterable[JobState], now: datetime) -> Leftovers:
    """Return the leftovers. `marked` are the nodes with any mark of a deep run, listed before the Jobs."""
    working = {(job.node, job.name): job for job in jobs if is_working(job)}
    runs = {node.name: run for node in marked if (run := claim_on(node, now)) is not None}
    held = {(name, run.holder) for name, run in runs.items() if run.kind is RunKind.SWEEP}
    over = {name for name, holder in held if (name, holder) not in working}
    return Leftovers(
        alive=tuple(job for key, job in working.items() if key in held),
        stray=tuple(job for key, job in working.items() if key not in held),
        marked=tuple(node.name for node in marked if node.name in over or clear(node, now) is not None),
    )


def is_working(job: JobState) -> bool:
    """Whether the Job may have pods on the node."""
    return not job.outcome


_YOUNG = timedelta(hours=1)
"""Grace time of a new slot: a starting agent acquires it before its first heartbeat and its taint."""


class SlotOwner(Struct, frozen=True):
    """Facts of a Node that decide whether its slot is in use."""

    uid: str
    tainted: bool
    heartbeat_valid_until: datetime | None
    """None: no agent of the Node has a heartbeat."""

    def is_silent(self, now: datetime) -> bool:
        return self.heartbeat_valid_until is None or self.heartbeat_valid_until < now


class FreedSlot(Struct, frozen=True):
    """A slot without an owner, and the reason."""

    slot: Slot
    why: str


def unowned(slots: Iterable[Slot], nodes: Mapping[str, SlotOwner], now: datetime) -> list[FreedSlot]:
    """Return the slots without an owner; they were listed before the Nodes. An owner keeps its oldest slot."""
    by_holder = groupby(sorted(slots, key=attrgetter("holder")), key=attrgetter("holder"))
    return [freed for holder, held in by_holder for freed in _unowned_of(list(held), nodes.get(holder), now)]


def _unowned_of(slots: list[Slot], node: SlotOwner | None, now: datetime) -> Iterator[FreedSlot]:
    if node is None:
        yield from (FreedSlot(slot, "its node is gone") for slot in slots)
        return
    for slot in slots:
        if slot.node_uid not in ("", node.uid):
            yield FreedSlot(slot, "it belongs to an earlier node of this name")
    own = oldest_first(slot for slot in slots if slot.node_uid in ("", node.uid))
    yield from (FreedSlot(slot, "its node is counted by another Lease") for slot in own[1:])
    is_young = own and own[0].created is not None and now - own[0].created < _YOUNG
    if own and not node.tainted and node.is_silent(now) and not is_young:
        yield FreedSlot(own[0], "its node has no taint of ours, and no agent with a valid heartbeat")


def kept_without_agent(slots: Iterable[Slot], nodes: Mapping[str, SlotOwner], now: datetime) -> list[str]:
    """Return the names of tainted nodes without an agent's heartbeat: only a person can return them to service."""
    names = sorted({slot.holder for slot in slots})
    return [name for name in names if (node := nodes.get(name)) and node.tainted and node.is_silent(now)]
