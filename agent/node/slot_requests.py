"""Acquire and release the node's slot of the fleet budget in a thread; the verdict waits only a moment for it."""

from __future__ import annotations

import enum
import math
import random
import threading
import time
from functools import partial

import structlog

from agent.node.api_server import ApiServer
from agent.node.own_slot import OwnSlot
from agent.state.agent_state import AgentState
from healthcheck.checks.examine import failure
from healthcheck.cluster.errors import ClusterError, Unavailable
from healthcheck.node.state import NodeState
from healthcheck.verdict.budget import HELD, SlotGrant

log = structlog.get_logger()

_MOMENT_SECONDS = 2.0
"""Longest wait of a verdict for a slot. After it, the verdict is written without the taint, which follows."""
_FIRST_SECONDS, _TAKE_CAP_SECONDS, _CAP_SECONDS = 1.0, 5.0, 30.0
"""Retry delay: random, doubling up to a cap. The cap is short while a taint waits for a slot, long when a slot is
returned."""
_SPREAD_SECONDS_PER_PLACE = 0.25
"""Delay after a refused slot before all slots are listed for nodes with several. If a whole fleet fails, its nodes
must not list all slots at the same moment."""
_FORBIDDEN = SlotGrant(held=False, why="the cluster forbids acquiring a slot of the fleet budget")


class _Turn(enum.Enum):
    REQUEST = enum.auto()
    RECONCILE = enum.auto()
    END = enum.auto()


class SlotRequests(threading.Thread):
    """Acquires or releases the slot that the Node needs. Reports the answer if the verdict did not wait for it."""

    def __init__(self, api: ApiServer, state: AgentState) -> None:
        super().__init__(name="slot-requests", daemon=True)
        self._slot = OwnSlot(api.cluster)
        self._api = api
        self._news = state.news
        self._condition = threading.Condition()
        self._node: NodeState | None = None
        self._percent: int | None = None
        """None: no slot is needed."""
        self._is_due = False
        self._answer: SlotGrant | None = None
        """Answer, valid until the next cycle, so that a repeated write does not wait; None: unknown."""
        self._under_way = False
        """A request is open; further requests do not speed it up."""
        self._was_missed = False
        """The caller continued without the answer, or without a slot because the cluster forbids it."""
        self._is_owed = False
        self._to_reconcile: NodeState | None = None
        """Node whose slots are counted in advance; None: not requested."""
        self._was_refused = False
        """The last request was refused: the next one lists all slots."""
        self._trouble = "the API server has not answered yet"
        self._failures = 0
        self._stopping = False

    @property
    def is_owed(self) -> bool:
        """Whether the current verdict was written without an answer."""
        return self._is_owed

    @property
    def is_held(self) -> bool:
        """Whether the budget has a slot for a taint that the Node may not have yet."""
        return self._answer is not None and self._answer.held

    def hold(self, node: NodeState, percent: int, *, tainted: bool) -> SlotGrant:
        """Return the slot once it is held. A refused one is requested again after the next cycle.

        `tainted`: our taint is on the Node already, or on a GPU of it.
        """
        with self._condition:
            if self._percent is None or not self._is_still(node):
                self._answer, self._under_way = None, False
            self._node, self._percent = node, percent
            self._is_owed = False
            if tainted:
                # Only its existence matters: a deleted Lease does not remove the taint.
                if self._answer is None or self._answer.held:
                    self._begin_request()
                return HELD
            if self._answer is None:
                self._begin_request()
                self._condition.wait_for(lambda: self._answer is not None or self._stopping, _MOMENT_SECONDS)
            answer = self._answer
            self._is_owed = answer is None
            if answer is None:
                self._was_missed = True
                return SlotGrant(held=False, why=f"it is unknown whether the budget has a free slot: {self._trouble}")
            return answer

    def free(self, node: NodeState) -> None:
        """Release the slot."""
        with self._condition:
            if self._percent is not None or self._node is None or not self._is_still(node):
                self._under_way = False
            self._node, self._percent, self._answer, self._is_owed = node, None, None, False
            self._begin_request()

    def look_ended(self) -> None:
        """Discard the answer, so that the next call requests again."""
        with self._condition:
            self._answer = None

    def reconcile(self, node: NodeState) -> None:
        """Check in advance whether a taint would get a slot, so that no verdict has to wait for it."""
        with self._condition:
            self._to_reconcile = node
            self._condition.notify_all()

    def end(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def run(self) -> None:
        again_at = math.inf
        while (turn := self._wait(again_at)) is not _Turn.END:
            if turn is _Turn.RECONCILE:
                self._reconcile_slots()
            else:
                again_at = time.monotonic() + self._request()

    def _wait(self, again_at: float) -> _Turn:
        """Wait for the next action. A request of a verdict comes first."""
        with self._condition:
            seconds = None if math.isinf(again_at) else max(again_at - time.monotonic(), 0.0)
            self._condition.wait_for(lambda: self._is_due or self._to_reconcile is not None or self._stopping, seconds)
            if self._stopping:
                return _Turn.END
            if self._is_due or time.monotonic() >= again_at:
                self._was_refused = self._was_refused and not self._is_due
                self._is_due = False
                return _Turn.REQUEST
            return _Turn.RECONCILE

    def _reconcile_slots(self) -> None:
        with self._condition:
            node, self._to_reconcile = self._to_reconcile, None
        if node is None:
            return
        try:
            self._api.permissions.permitted("slots", partial(self._slot.reconcile, node))
        except ClusterError as error:
            log.debug("the slots could not be counted in advance", error=str(error))
        except Exception as error:  # noqa: BLE001 - content of a foreign Lease must not end the agent
            log.error("the slots can't be read", failure=failure(error))  # noqa: TRY400 - a line, no traceback

    def _begin_request(self) -> None:
        if not self._under_way:
            self._is_due = self._under_way = True
            self._failures = 0
            self._condition.notify_all()

    def _request(self) -> float:
        """Return the seconds until the retry; infinity: no retry."""
        with self._condition:
            node, percent = self._node, self._percent
        if node is None:
            return math.inf
        try:
            grant = self._give_back(node) if percent is None else self._take(node, percent)
        except ClusterError as error:
            return self._put_off(error)
        except Exception as error:  # noqa: BLE001 - content of a foreign Lease must not end the agent
            log.error("a slot can't be requested", failure=failure(error))  # noqa: TRY400 - a line, no traceback
            return self._put_off(ClusterError(failure(error)))
        self._api.outage.back("slots")
        if self._take_answer(node, percent, grant):
            self._news.set()
        if grant is _FORBIDDEN:
            return _CAP_SECONDS
        return random.uniform(0, _SPREAD_SECONDS_PER_PLACE * self._slot.places) if self._was_refused else math.inf  # noqa: S311

    def _take_answer(self, node: NodeState, percent: int | None, grant: SlotGrant) -> bool:
        """Store the answer, and return whether it is new.

        It is new if the caller went on without it, or if a slot was acquired later.
        """
        with self._condition:
            self._under_way = self._is_due
            gained = False
            if percent is not None and self._percent is not None and self._is_still(node):
                gained = self._was_refused and grant.held
                self._answer = grant
            missed, self._was_missed = self._was_missed, grant is _FORBIDDEN
            self._was_refused = not (self._was_refused or grant.held or grant is _FORBIDDEN)
            self._condition.notify_all()
            return missed or gained

    def _is_still(self, node: NodeState) -> bool:
        return self._node is not None and self._node.uid == node.uid

    def _take(self, node: NodeState, percent: int) -> SlotGrant:
        grants: list[SlotGrant] = []
        closely = self._was_refused

        def take() -> None:
            grants.append(self._slot.take(node, percent, closely=closely))

        return grants[0] if self._api.permissions.permitted("slots", take) else _FORBIDDEN

    def _give_back(self, node: NodeState) -> SlotGrant:
        self._api.permissions.permitted("slots", partial(self._slot.give_back, node))
        return HELD

    def _put_off(self, error: ClusterError) -> float:
        asked = (error.retry_after_seconds if isinstance(error, Unavailable) else None) or 0.0
        if isinstance(error, Unavailable):
            self._api.outage.away("slots", error)
        with self._condition:
            self._trouble = str(error)
            longest = _CAP_SECONDS if self._percent is None else _TAKE_CAP_SECONDS
            seconds = random.uniform(0, min(_FIRST_SECONDS * 2.0**self._failures, longest))  # noqa: S311
            self._failures = min(self._failures + 1, 16)
        return min(asked, longest) + seconds
