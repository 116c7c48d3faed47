"""The node's place in the fleet budget, taken and given back beside the verdict, which waits only a moment for it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import structlog

from agent.access import Access
from agent.outage import Outage
from agent.slots import Slots
from healthcheck.budget import HELD, Place
from healthcheck.cluster import ClusterError, Unavailable
from healthcheck.examine import failure
from healthcheck.node import NodeState

log = structlog.get_logger()

_MOMENT_SECONDS = 2.0
"""So long a verdict waits for a place: a thousand agents that ask at once get theirs in as much. Then it is written
without the taint, which follows."""
_FIRST_SECONDS, _AWAITED_SECONDS, _CAP_SECONDS = 0.1, 0.5, 30.0
"""Until it is asked for again: longer each time, but shorter while a verdict waits."""
_FORBIDDEN = Place(held=False, why="the cluster forbids to take a place in the fleet budget")


class Places(threading.Thread):
    """Told what the Node needs, it brings that about; where the verdict did not wait for it, `changed` hears of it."""

    def __init__(self, slots: Slots, access: Access, outage: Outage, changed: Callable[[], None]) -> None:
        super().__init__(name="place", daemon=True)
        self._slots = slots
        self._access = access
        self._outage = outage
        self._changed = changed
        self._condition = threading.Condition()
        self._node: NodeState | None = None
        self._percent: int | None = None
        """None: no place is needed."""
        self._due = False
        self._answer: Place | None = None
        """None: nobody knows, or it has been used."""
        self._awaited = False
        """Somebody waits for the answer now."""
        self._missed = False
        """Somebody went on without the answer."""
        self._trouble = "it has not answered yet"
        self._failures = 0
        self._stopping = False

    @property
    def is_owed(self) -> bool:
        """Whether a verdict went on without an answer that has not come yet."""
        return self._missed

    def hold(self, node: NodeState, percent: int) -> Place:
        """A place, once it is held; one that was refused is asked for again after the next look."""
        with self._condition:
            if self._percent is None or not self._is_still(node):
                self._answer = None
            self._node, self._percent = node, percent
            if node.tainted():
                # It only has to be there still; whoever took it away does not take the taint along.
                if self._answer is None or self._answer.held:
                    self._ask()
                return HELD
            if self._answer is None:
                self._ask()
                self._awaited = True
                self._condition.wait_for(lambda: self._answer is not None or self._stopping, _MOMENT_SECONDS)
                self._awaited = False
            answer = self._answer
            if answer is None:
                self._missed = True
                return Place(
                    held=False, why=f"the cluster does not say whether there is a place for it: {self._trouble}"
                )
            if answer.held:
                self._answer = None  # the next time it is looked whether it is still there
            return answer

    def free(self, node: NodeState) -> None:
        """Hold none."""
        with self._condition:
            self._node, self._percent, self._answer = node, None, None
            self._ask()

    def ask_again(self) -> None:
        """A look ended: what was refused is asked for again."""
        with self._condition:
            if self._answer is not None and not self._answer.held:
                self._answer = None

    def end(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def run(self) -> None:
        seconds: float | None = None
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._due or self._stopping, seconds)
                if self._stopping:
                    return
                node, percent = self._node, self._percent
                self._due = False
            seconds = self._bring_about(node, percent) if node is not None else None

    def _ask(self) -> None:
        self._due = True
        self._condition.notify_all()

    def _bring_about(self, node: NodeState, percent: int | None) -> float | None:
        """In how many seconds it has to be tried again; None: not at all."""
        try:
            place = self._give_back(node) if percent is None else self._take(node, percent)
        except ClusterError as error:
            return self._put_off(error)
        except Exception as error:  # noqa: BLE001 - whatever another's Lease holds, the agent lives
            log.error("a place can't be asked for", failure=failure(error))  # noqa: TRY400 - a line, no traceback
            return self._put_off(ClusterError(failure(error)))
        self._failures = 0
        self._outage.back("slots")
        with self._condition:
            if percent is not None and self._percent is not None and self._is_still(node):
                self._answer = place
            missed, self._missed = self._missed, place is _FORBIDDEN
            self._condition.notify_all()
        if missed:
            self._changed()
        return _CAP_SECONDS if place is _FORBIDDEN else None

    def _is_still(self, node: NodeState) -> bool:
        return self._node is not None and self._node.uid == node.uid

    def _take(self, node: NodeState, percent: int) -> Place:
        places: list[Place] = []
        taken = self._access.permitted("slots", lambda: places.append(self._slots.take(node, percent)))
        return places[0] if taken else _FORBIDDEN

    def _give_back(self, node: NodeState) -> Place:
        self._access.permitted("slots", partial(self._slots.give_back, node))
        return HELD

    def _put_off(self, error: ClusterError) -> float:
        longest = _AWAITED_SECONDS if self._awaited else _CAP_SECONDS
        seconds = min(_FIRST_SECONDS * 2.0**self._failures, longest) * random.uniform(0.5, 1)  # noqa: S311
        asked = (error.retry_after_seconds if isinstance(error, Unavailable) else None) or 0.0
        self._failures = min(self._failures + 1, 16)
        if isinstance(error, Unavailable):
            self._outage.away("slots", error)
        with self._condition:
            self._trouble = str(error)
        return max(seconds, min(asked, _CAP_SECONDS))
