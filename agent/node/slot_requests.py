"""Acquire and release the node's slot of the fleet budget in a thread; the verdict waits only a moment for it."""

from __future__ import annotations

import enum
import math
import random
import threading
import time
from contextlib import suppress

import structlog

from agent.node.api_server import ApiServer
from agent.node.own_slot import OwnSlot
from agent.node.reporter import Reporter
from agent.state.agent_state import AgentState
from healthcheck.cluster.errors import ClusterError, Unavailable
from healthcheck.node.state import NodeState
from healthcheck.verdict.budget import HELD, SlotGrant

log = structlog.get_logger()

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
        self._percent = 0
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

    def request(self, node: NodeState, percent: int, *, tainted: bool) -> SlotGrant:
        """Return the slot once it is held. A refused one is requested again after the next cycle.

        `tainted`: our taint is on the Node already, or on a GPU of it. It stays without a slot.
        """
        answers = () if self._is_old else (SlotState.REFUSED, *(() if tainted else (SlotState.HELD,)))
        with self._condition:
            self._percent, self._lacked = percent, None
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
            return self._slot.acquire(node, self._percent, closely=asked is SlotState.REFUSED)
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
