"""The node's own slot of the fleet budget: found again, acquired, released. Decides nothing.

The requests are made in a thread; the verdict waits only a moment for it.
"""

from __future__ import annotations

import enum
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, NotFound, Unavailable
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.verdict.budget import (
    HELD,
    Slot,
    SlotGrant,
    allowed,
    draw,
    draw_free,
    occupancy,
    oldest_first,
    size_for,
)

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
        self._group = self._group_text = ""
        """Value of the Node's label BUDGET_LABEL, and `label=value`; empty without a group."""
        self._group_nodes, self._group_grant = _Count(), HELD
        """Last complete count of the group's nodes, and the last grant by the group's limit."""
        self._verified_uid = ""
        """UID of the slot that is within the group's limit, or of which our taint is set already."""
        self.allowed_slots = 0
        """Number of slots of the fleet at the last request."""
        self._draw = random.Random()  # noqa: S311 - spreads the fleet over the slots, no secret

    def acquire(
        self, node: NodeState, percent: int, label: str = "", *, tainted: bool = False, closely: bool = True
    ) -> SlotGrant:
        """Acquire a slot of the fleet, within the limit of the Node's group. Raises ClusterError without an answer.

        The group are the nodes with this Node's value of `label`. A Node that is `tainted` keeps its slot.
        Only with `closely` a slot is found that is free because another node owns several; that lists all slots.
        """
        self._set_group(node, label)
        is_held = self._holds_one(node)
        if not (self._group_grant.held or is_held or tainted):
            grant = self._check_group(node, percent) if closely else self._group_grant
            if not grant.held:
                return grant
        grant = HELD if is_held and self._known is _Known.YES else self._acquire_of_fleet(node, percent, closely)
        return self._settle_group(node, percent, tainted) if grant.held and self._group else grant

    def _acquire_of_fleet(self, node: NodeState, percent: int, closely: bool) -> SlotGrant:
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

    def _set_group(self, node: NodeState, label: str) -> None:
        group = node.labels.get(label, "")
        text = f"{label}={group}" if group else ""
        if text != self._group_text:
            self._group, self._group_text = group, text
            self._group_nodes, self._group_grant = _Count(), HELD

    def _settle_group(self, node: NodeState, percent: int, tainted: bool) -> SlotGrant:
        """Count the slot in the Node's group, and release it if others of the group acquired all theirs earlier."""
        if (old := self._slot) is not None and old.group != self._group:
            # The Node's label or BUDGET_LABEL was changed. The fleet counts the holder throughout.
            names = draw(max(self.allowed_slots, 1), self._draw) if old.name == node.name else [node.name]
            if self._acquire_one_of(names, node):
                self._delete(old)
        uid = self._slot.uid if self._slot is not None else ""
        if tainted or uid == self._verified_uid:
            return HELD
        grant = self._check_group(node, percent)
        if grant.held:
            self._verified_uid = uid
        else:
            self._release()
        return grant

    def _check_group(self, node: NodeState, percent: int) -> SlotGrant:
        """Check that fewer other nodes of the group than allowed acquired their slot before this node.

        Only the first slot of a holder counts. The others show in the list of all slots, which is read if the group
        seems to be full.
        """
        for slots in (self._cluster.leases.slots(group=self._group), self._cluster.leases.slots()):
            holders = occupancy(slots, self._group).before(node.name)
            allowed_slots = self._allowed_in_group(holders, percent)
            if holders < allowed_slots:
                self._group_grant = HELD
                break
            self._group_grant = _budget_used(holders, allowed_slots, f"nodes with {self._group_text}")
        return self._group_grant

    def _allowed_in_group(self, holders: int, percent: int) -> int:
        """Return the allowed number of the group's slots, as far as it decides about one more than `holders`.

        A recent count can only refuse. Without an answer, the last known number stays.
        """
        known, enough = allowed(self._group_nodes.count, percent), size_for(holders, percent)
        is_recent = self._clock() - self._group_nodes.at < COUNTED_SECONDS
        if not holders or (is_recent and known <= holders):
            return known
        try:
            count = self._cluster.leases.count_group(self._group, enough)
        except ClusterError as error:
            log.warning("the nodes of the group can't be counted", group=self._group_text, error=str(error))
            return known
        if count < enough:
            self._group_nodes = _Count(count, self._clock())
        return allowed(count, percent)

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
                self._slot = self._cluster.leases.create_slot(name, node, self._group)
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


def _budget_used(used: int, allowed_slots: int, nodes: str = "nodes") -> SlotGrant:
    return SlotGrant(held=False, why=f"{used} of at most {allowed_slots} {nodes} are tainted already")


_MOMENT_SECONDS = 2.0
"""Longest wait of a verdict for a slot. After it, the verdict is written without the taint, which follows."""
_FIRST_SECONDS, _ACQUIRE_CAP_SECONDS, _CAP_SECONDS = 1.0, 5.0, 30.0
"""Retry delay: random, doubling up to a cap. The cap is short while a taint waits for a slot, long when a slot is
returned."""
_SPREAD_SECONDS_PER_SLOT = 0.25
"""Delay after a refused slot before all slots are listed for nodes with several. If a whole fleet fails, its nodes
must not list all slots at the same moment."""
_UNANSWERED = "it is unknown how many nodes are tainted already: "
_FORBIDDEN = SlotGrant(held=False, why="the agent may not write the Lease that counts tainted nodes")


class SlotState(enum.Enum):
    """State of the node's slot, with all transitions.

    request():  NONE, RELEASING -> REQUESTED
                HELD, REFUSED -> REQUESTED  after the next check cycle; HELD at each write of a tainted Node
    release():  all -> RELEASING            after a release, the slots are counted for the next request, now and then
    answer:     REQUESTED -> HELD, REFUSED
                REFUSED -> HELD, REFUSED    from one closer request, after a random delay
                RELEASING -> NONE
    A new Node of the same name begins as in NONE.
    """

    NONE = enum.auto()
    REQUESTED = enum.auto()
    HELD = enum.auto()
    REFUSED = enum.auto()
    RELEASING = enum.auto()


class SlotRequests(threading.Thread):
    """Acquires or releases the slot that the Node needs. Reports the answer if the verdict did not wait for it."""

    def __init__(self, api: ApiServer, state: AgentState, reporter: Reporter) -> None:
        super().__init__(name="slot-requests", daemon=True)
        self._slot = OwnSlot(api.cluster)
        self._api = api
        self._reporter = reporter
        self._news = state.news
        self._condition = threading.Condition()
        self._state = SlotState.NONE
        self._why = ""
        """Reason why no slot is held."""
        self._is_old = False
        """A check cycle has ended since the last answer."""
        self._node: NodeState | None = None
        self._percent, self._label = 0, ""
        self._is_tainted = False
        self._due_at = math.inf
        """Time of the next request (monotonic)."""
        self._failures = 0
        self._lacked: SlotState | None = None
        """State in which the verdict was written without its taint; None: the taint lacks no slot."""
        self._stopping = False

    @property
    def is_owed(self) -> bool:
        """Whether the current verdict was written without an answer."""
        return self._lacked is SlotState.REQUESTED

    @property
    def is_held(self) -> bool:
        """Whether the budget has a slot for a taint that the Node may not have yet."""
        return self._state is SlotState.HELD

    def request(self, node: NodeState, percent: int, label: str = "", *, tainted: bool) -> SlotGrant:
        """Return the slot once it is held. A refused one is requested again after the next cycle.

        `tainted`: our taint is on the Node already, or on a GPU of it. It stays without a slot.
        """
        answers = () if self._is_old else (SlotState.REFUSED, *(() if tainted else (SlotState.HELD,)))
        with self._condition:
            self._percent, self._label, self._is_tainted, self._lacked = percent, label, tainted, None
            self._begin(SlotState.REQUESTED, node, *answers)
            if tainted:
                return HELD
            self._condition.wait_for(lambda: self._state is not SlotState.REQUESTED or self._stopping, _MOMENT_SECONDS)
            if self.is_held:
                return HELD
            self._lacked = self._state
            return SlotGrant(held=False, why=self._why)

    def usage(self, percent: int) -> tuple[int, int] | None:
        """Return the number of slots in use and allowed, by the last counts; None before the first."""
        return self._slot.usage(percent)

    def release(self, node: NodeState) -> None:
        """Release the slot."""
        with self._condition:
            self._lacked = None
            self._begin(SlotState.RELEASING, node)

    def cycle_ended(self) -> None:
        """Let the next call of `request` request again."""
        self._is_old = True

    def end(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def run(self) -> None:
        while (request := self._next()) is not None:
            try:
                self._request(*request)
            except Exception as error:  # noqa: BLE001 - boundary of this loop
                self._reporter.report_defect("slot", error)

    def _begin(self, state: SlotState, node: NodeState, *answers: SlotState) -> None:
        """Begin a request for the Node, unless it is open, or one of `answers` is its answer."""
        if not self._is_for(node) or self._state not in (state, *answers):
            self._state, self._why = state, f"{_UNANSWERED}the API server has not answered yet"
            self._due_at, self._failures = 0.0, 0
            self._condition.notify_all()
        self._node = node

    def _is_for(self, node: NodeState) -> bool:
        return self._node is not None and self._node.uid == node.uid

    def _next(self) -> tuple[SlotState, NodeState] | None:
        """Wait until a request is due. None: the end."""
        with self._condition:
            while not self._stopping:
                left = self._due_at - time.monotonic()
                if left <= 0 and self._node is not None:
                    self._due_at = time.monotonic() + _CAP_SECONDS  # if it fails by a defect of this program
                    return self._state, self._node
                self._condition.wait(min(left, threading.TIMEOUT_MAX))
        return None

    def _request(self, asked: SlotState, node: NodeState) -> None:
        grants = [_FORBIDDEN]
        try:
            self._api.permissions.permitted("slots", lambda: grants.append(self._ask(asked, node)))
        except ClusterError as error:
            self._put_off(asked, node, error)
        else:
            self._api.outage.back("slots")
            self._apply_answer(asked, node, grants[-1])

    def _ask(self, asked: SlotState, node: NodeState) -> SlotGrant:
        if asked is not SlotState.RELEASING:
            closely = asked is SlotState.REFUSED
            return self._slot.acquire(node, self._percent, self._label, tainted=self._is_tainted, closely=closely)
        self._slot.release(node)
        with suppress(Unavailable):  # the next write counts again
            self._slot.reconcile(node)
        return HELD

    def _apply_answer(self, asked: SlotState, node: NodeState, grant: SlotGrant) -> None:
        with self._condition:
            if not self._is_open(asked, node):
                return
            answer = SlotState.HELD if grant.held else SlotState.REFUSED
            self._state = SlotState.NONE if asked is SlotState.RELEASING else answer
            self._why, self._is_old, self._due_at = grant.why, False, math.inf
            if (asked, answer) == (SlotState.REQUESTED, SlotState.REFUSED):
                spread = random.uniform(0, _SPREAD_SECONDS_PER_SLOT * self._slot.allowed_slots)  # noqa: S311
                self._due_at = time.monotonic() + (_CAP_SECONDS if grant is _FORBIDDEN else spread)
            if self._lacked not in (None, self._state):
                self._news.set()
            self._condition.notify_all()

    def _put_off(self, asked: SlotState, node: NodeState, error: ClusterError) -> None:
        """Repeat the request after a delay: the server's Retry-After up to the cap, plus a random time."""
        if isinstance(error, Unavailable):
            self._api.outage.away("slots", error)
        with self._condition:
            if not self._is_open(asked, node):
                return
            longest = _CAP_SECONDS if asked is SlotState.RELEASING else _ACQUIRE_CAP_SECONDS
            seconds = random.uniform(0, min(_FIRST_SECONDS * 2.0**self._failures, longest))  # noqa: S311
            self._failures = min(self._failures + 1, 16)
            self._due_at = time.monotonic() + min(error.retry_after_seconds or 0.0, longest) + seconds
            if self._state is SlotState.REQUESTED:
                self._why = f"{_UNANSWERED}{error}"

    def _is_open(self, asked: SlotState, node: NodeState) -> bool:
        """Whether this request is still the right one; if not, another is due already."""
        return self._is_for(node) and (self._state is SlotState.RELEASING) == (asked is SlotState.RELEASING)
