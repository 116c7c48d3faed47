"""The node's own slot of the fleet budget: found again, acquired, released. Decides nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import structlog

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


class OwnSlot:
    """Owns at most one slot. A slot of a dead agent is looked up once for each UID of the Node."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._slot: Slot | None = None
        self._unsure = False
        """Whether the slot may exceed the allowed number."""
        self._known_for = ""
        """UID of the Node whose slots were looked up."""
        self._fleet: int | None = None
        self._size_known = True
        self.places = 0
        """Number of slots of the fleet at the last request."""
        self._counted_at = float("-inf")
        self._taken = 0
        self._seen_at = float("-inf")
        """Time of the last count of slots in use."""
        self._draw = random.Random()  # noqa: S311 - spreads the fleet over the slots, no secret

    def take(self, node: NodeState, percent: int, *, closely: bool = True) -> SlotGrant:
        """Acquire a slot. Raises ClusterError if the cluster does not answer.

        Only with `closely` a slot is found that is free because another node owns several; that lists all slots.
        """
        if self._holds_one(node) and not self._unsure:
            return HELD
        if self._take_at_once(node, percent):
            return HELD
        held = self._cluster.leases.count_slots()
        self._count()
        if 2 * held >= allowed(self._fleet, percent):
            self._fleet_size()
        self.places = places = allowed(self._fleet, percent)
        if self._slot is not None:
            return self._made_sure_of(places, node)
        self._unsure = False
        if held < places and self._take_one_of(draw(places, self._draw), node):
            return HELD
        if not closely and (held >= places or (held := self._cluster.leases.count_slots()) >= places):
            return SlotGrant(held=False, why=f"{held} of the fleet's {places} slots for tainted nodes are in use")
        return self._take_free(places, node)

    def reconcile(self, node: NodeState) -> None:
        """Refresh the facts for the next request: our own slot, the slots in use, and the number of nodes.

        Raises ClusterError.
        """
        self._find(node)
        self._count()
        if self._clock() - self._seen_at >= RECONCILE_SECONDS:
            self._taken, self._seen_at = self._cluster.leases.count_slots(), self._clock()

    def _take_at_once(self, node: NodeState, percent: int) -> bool:
        """Acquire with one request if the last count showed free slots."""
        places = allowed(self._fleet, percent)
        if self._slot is not None or self._unsure or self._clock() - self._seen_at >= _SEEN_SECONDS:
            return False
        self._seen_at = float("-inf")  # once: after a lost race the slots are listed
        return 2 * self._taken < places and self._take_one_of(draw(places, self._draw)[:1], node)

    def _count(self) -> None:
        if self._clock() - self._counted_at >= COUNTED_SECONDS:
            self._fleet_size()

    def give_back(self, node: NodeState) -> None:
        """Release the slot. Raises ClusterError if the cluster does not answer."""
        self._find(node)
        if self._slot is not None:
            self._delete(self._slot)
            log.info("released the slot of the fleet budget", slot=self._slot.name)
            self._slot = None

    def _take_free(self, places: int, node: NodeState) -> SlotGrant:
        """List all slots if none was free at random. A node with several slots counts once."""
        taken = occupancy(self._cluster.leases.slots())
        if len(taken.since) >= places:
            return SlotGrant(
                held=False, why=f"{len(taken.since)} of the fleet's {places} slots for tainted nodes are in use"
            )
        self._unsure = taken.surplus > 0
        if not self._take_one_of(draw_free(taken, places, node.name, self._draw), node):
            return SlotGrant(held=False, why=f"no free slot was found among the fleet's {places} for tainted nodes")
        return self._made_sure_of(places, node) if self._unsure else HELD

    def _made_sure_of(self, places: int, node: NodeState) -> SlotGrant:
        """Check the order of all slots: a name beyond the allowed number could be acquired, too."""
        if occupancy(self._cluster.leases.slots()).before(node.name) >= places:
            self.give_back(node)
            return SlotGrant(
                held=False, why=f"another node just acquired the last of the fleet's {places} slots for tainted nodes"
            )
        self._unsure = False
        return HELD

    def _take_one_of(self, names: Sequence[str], node: NodeState) -> bool:
        for name in names:
            try:
                self._slot = self._create(name, node)
            except Conflict:
                continue
            log.info("acquired a slot of the fleet budget", slot=name)
            return True
        return False

    def _holds_one(self, node: NodeState) -> bool:
        """Whether the slot still exists: a person may have deleted its Lease."""
        if self._find(node) or self._slot is None:
            return self._slot is not None
        try:
            there = self._cluster.leases.read_slot(self._slot.name)
        except NotFound:
            there = None
        if there is None or there.uid != self._slot.uid:
            # Another slot of this node may exist.
            self._known_for = ""
            self._find(node)
        return self._slot is not None

    def _find(self, node: NodeState) -> bool:
        """Find the slot of an earlier process of this node. Returns True if it was looked up just now."""
        if self._known_for == node.uid:
            return False
        ours = oldest_first(self._cluster.leases.slots(node.name))
        # A slot of an earlier Node of the same name is deleted: its owner no longer exists.
        kept = [slot for slot in ours if slot.node_uid == node.uid][:1]
        for slot in ours:
            if slot not in kept:
                self._delete(slot)
        self._slot = kept[0] if kept else None
        self._known_for = node.uid
        return True

    def _fleet_size(self) -> None:
        """Count the nodes by their heartbeats; without an answer, the last known number stays."""
        try:
            self._fleet = self._cluster.leases.count_heartbeats()
            self._counted_at = self._clock()
            self._size_known = True
        except ClusterError as error:
            if self._size_known:
                log.warning("the number of nodes can't be read", error=str(error), last_known=self._fleet)
            self._size_known = False

    def _create(self, name: str, node: NodeState) -> Slot:
        try:
            return self._cluster.leases.create_slot(name, node)
        except Conflict:
            raise
        except ClusterError:
            self._known_for = ""  # the slot may exist although the answer was lost
            raise

    def _delete(self, slot: Slot) -> None:
        try:
            self._cluster.leases.delete_slot(slot)
        except (NotFound, Conflict):
            return  # deleted, or owned by another node now
