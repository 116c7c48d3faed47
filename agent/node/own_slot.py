"""The node's own slot of the fleet budget: found again, acquired, released. Decides nothing."""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from msgspec import Struct
from msgspec.structs import replace

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError, Conflict, NotFound
from healthcheck.node.state import NodeState
from healthcheck.verdict.budget import HELD, Slot, SlotGrant, allowed, draw, draw_free, occupancy, oldest_first

log = structlog.get_logger()

COUNTED_SECONDS = 3600.0
"""Largest age of the number of nodes while less than half of the slots are in use: a fleet does not halve in this
time, so the taint need not wait for a new count."""
_SEEN_SECONDS = 2400.0
"""Largest age of the count of slots while less than half were in use: the first try then needs no new count."""
RECONCILE_SECONDS = 1700.0
"""Smallest age before a new count, so that cycles of a fleet do not each send one more request."""


class _Known(enum.Enum):
    """Whether the Node's own slot is known.

    NO -> YES by a lookup; YES -> NO if its Lease is gone, or if the answer to its creation is lost.
    UNVERIFIED instead of NO: it counts only after a check of the order of all slots.
    """

    NO = enum.auto()
    UNVERIFIED = enum.auto()
    YES = enum.auto()


class _Count(Struct, frozen=True):
    count: int = 0
    at: float = float("-inf")
    error: str = ""
    """Reason why a later count failed."""


class OwnSlot:
    """Owns at most one slot. A slot of a dead agent is looked up once for each UID of the Node."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._slot: Slot | None = None
        self._known = _Known.NO
        self._node_uid = ""
        self._nodes = self._in_use = _Count()
        self._used: int | None = None
        self.allowed_slots = 0
        """Number of slots of the fleet at the last request."""
        self._draw = random.Random()  # noqa: S311 - spreads the fleet over the slots, no secret

    def acquire(self, node: NodeState, percent: int, *, closely: bool = True) -> SlotGrant:
        """Acquire a slot. Raises ClusterError if the cluster does not answer.

        Only with `closely` a slot is found that is free because another node owns several; that lists all slots.
        """
        if self._holds_one(node) and self._known is _Known.YES:
            return HELD
        if self._slot is None and self._acquire_at_once(node, percent):
            return HELD
        used = self._count_slots()
        self._count_nodes(0.0 if 2 * used >= allowed(self._nodes.count, percent) else COUNTED_SECONDS)
        self.allowed_slots = allowed_slots = allowed(self._nodes.count, percent)
        if self._slot is not None:
            return self._verified(allowed_slots, node)
        if used < allowed_slots and self._acquire_one_of(draw(allowed_slots, self._draw), node):
            return HELD
        if not closely and (used >= allowed_slots or (used := self._count_slots()) >= allowed_slots):
            return _budget_used(used, allowed_slots)
        return self._acquire_free(allowed_slots, node)

    def reconcile(self, node: NodeState) -> None:
        """Refresh the facts for the next request: our own slot, the slots in use, and the number of nodes.

        Raises ClusterError.
        """
        self._find(node)
        self._count_nodes(COUNTED_SECONDS)
        if self._clock() - self._in_use.at >= RECONCILE_SECONDS:
            self._in_use = _Count(self._count_slots(), self._clock())

    def release(self, node: NodeState) -> None:
        """Release the slot. Raises ClusterError if the cluster does not answer."""
        self._find(node)
        self._release()

    def usage(self, percent: int) -> tuple[int, int] | None:
        """Return the number of slots in use and allowed, by the last counts; None before the first."""
        if self._used is None or not self._nodes.count:
            return None
        return self._used, allowed(self._nodes.count, percent)

    def _acquire_at_once(self, node: NodeState, percent: int) -> bool:
        """Acquire with one request if the last count showed free slots."""
        in_use, self._in_use = self._in_use, _Count()  # once: after a lost race the slots are listed
        allowed_slots = allowed(self._nodes.count, percent)
        is_free = self._clock() - in_use.at < _SEEN_SECONDS and 2 * in_use.count < allowed_slots
        return is_free and self._acquire_one_of(draw(allowed_slots, self._draw)[:1], node)

    def _acquire_free(self, allowed_slots: int, node: NodeState) -> SlotGrant:
        """List all slots if none was free at random. A node with several slots counts once."""
        in_use = occupancy(self._cluster.leases.slots())
        if len(in_use.since) >= allowed_slots:
            return _budget_used(len(in_use.since), allowed_slots)
        if in_use.surplus:
            self._known = _Known.UNVERIFIED
        if not self._acquire_one_of(draw_free(in_use, allowed_slots, node.name, self._draw), node):
            return SlotGrant(held=False, why=f"at most {allowed_slots} nodes may be tainted, and so many are")
        return self._verified(allowed_slots, node) if in_use.surplus else HELD

    def _verified(self, allowed_slots: int, node: NodeState) -> SlotGrant:
        """Check the order of all slots: a name beyond the allowed number could be acquired, too."""
        grant = HELD
        if occupancy(self._cluster.leases.slots()).before(node.name) >= allowed_slots:
            self._release()
            why = f"another node was just tainted as the last of at most {allowed_slots}"
            grant = SlotGrant(held=False, why=why)
        self._known = _Known.YES
        return grant

    def _acquire_one_of(self, names: Sequence[str], node: NodeState) -> bool:
        for name in names:
            try:
                self._slot = self._cluster.leases.create_slot(name, node)
            except Conflict:
                continue
            except ClusterError:
                if self._known is _Known.YES:
                    self._known = _Known.NO  # the slot may exist although the answer was lost
                raise
            log.info("acquired a slot of the fleet budget", slot=name)
            return True
        return False

    def _holds_one(self, node: NodeState) -> bool:
        """Whether the slot still exists: a person may have deleted its Lease."""
        if not self._find(node) and self._slot is not None:
            there = None
            with suppress(NotFound):
                there = self._cluster.leases.read_slot(self._slot.name)
            if there is None or there.uid != self._slot.uid:
                self._known = _Known.NO  # another slot of this node may exist
                self._find(node)
        return self._slot is not None

    def _find(self, node: NodeState) -> bool:
        """Find the slot of an earlier process of this node. Returns True if it was looked up just now."""
        if self._known is _Known.YES and self._node_uid == node.uid:
            return False
        ours = oldest_first(self._cluster.leases.slots(node.name))
        self._slot = next((slot for slot in ours if slot.node_uid == node.uid), None)
        for slot in ours:
            if slot is not self._slot:  # or of an earlier Node of the same name
                self._delete(slot)
        self._node_uid = node.uid
        if self._slot is None or self._known is _Known.NO:
            self._known = _Known.YES
        return True

    def _count_slots(self) -> int:
        self._used = self._cluster.leases.count_slots()
        return self._used

    def _count_nodes(self, longest_seconds: float) -> None:
        """Count the nodes by their heartbeats; without an answer, the last known number stays."""
        if self._clock() - self._nodes.at < longest_seconds:
            return
        try:
            self._nodes = _Count(self._cluster.leases.count_heartbeats(), self._clock())
        except ClusterError as error:
            if not self._nodes.error:
                log.warning("the number of nodes can't be read", error=str(error), last_known=self._nodes.count)
            self._nodes = replace(self._nodes, error=str(error))

    def _release(self) -> None:
        if self._slot is not None:
            self._delete(self._slot)
            log.info("released the slot of the fleet budget", slot=self._slot.name)
            self._slot = None

    def _delete(self, slot: Slot) -> None:
        with suppress(NotFound, Conflict):  # deleted, or owned by another node now
            self._cluster.leases.delete_slot(slot)


def _budget_used(used: int, allowed_slots: int) -> SlotGrant:
    return SlotGrant(held=False, why=f"{used} of at most {allowed_slots} nodes are tainted already")
