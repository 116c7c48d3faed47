"""Reporting: the heartbeat and the Events, beside the verdict and never in its way."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from agent.outage import Outage
from agent.permissions import Access
from healthcheck.checks.examine import failure
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError, NotFound, Unavailable
from healthcheck.model import Now
from healthcheck.node.state import NodeState
from healthcheck.text.printable import printable
from healthcheck.verdict.events import Event

log = structlog.get_logger()

_MOST_EVENTS_WAITING = 64
_FIRST_SECONDS, _CAP_SECONDS = 1.0, 60.0
_NODE_GONE_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 600.0
_LONGEST_DROPPED = 300


class Reporter(threading.Thread):
    """One thread that writes the heartbeat first, then Events, each put off by its own failures alone."""

    def __init__(
        self,
        cluster: Cluster,
        access: Access,
        outage: Outage,
        node: Callable[[], NodeState],
        clock: Callable[[], Now],
        heartbeat_seconds: Callable[[], float],
    ) -> None:
        super().__init__(name="report", daemon=True)
        self._cluster = cluster
        self._access = access
        self._outage = outage
        self._node = node
        self._clock = clock
        self._heartbeat_seconds = heartbeat_seconds
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._events: deque[_Waiting] = deque(maxlen=_MOST_EVENTS_WAITING)
        self._forbidden: deque[_Waiting] = deque(maxlen=_MOST_EVENTS_WAITING)
        self._told: _Waiting | None = None
        """The one that was last tried; another may stand before it by now."""
        self._beats_wanted = self._beats_told = 0
        self._heartbeat, self._telling = _Patience(), _Patience()

    @property
    def is_done(self) -> bool:
        """Whether the heartbeat stands, and each Event was told, or forbidden."""
        return not self._beat_due and not self._events

    @property
    def _beat_due(self) -> bool:
        return self._beats_told < self._beats_wanted

    def beat(self) -> None:
        """A look ended: renew the heartbeat, and try again what was forbidden."""
        self._beats_wanted += 1
        self._wake.set()

    def say(self, event: Event, *, first: bool = False) -> threading.Event:
        """Tell it as soon as the cluster takes it; the answer is set once it was told, or forbidden."""
        waiting = _Waiting(event)
        (self._events.appendleft if first else self._events.append)(waiting)
        self._wake.set()
        return waiting.done

    def hurry(self) -> None:
        """The Node came back: what waited only for that waits no longer."""
        self._heartbeat.hurry()
        self._telling.hurry()
        self._wake.set()

    def end(self) -> None:
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._seconds())
            self._wake.clear()
            while not self._stopping.is_set() and self._beat_or_tell():
                continue

    def _seconds(self) -> float | None:
        """How long nothing is due; None: until somebody says so."""
        waits = [self._heartbeat.seconds] * self._beat_due + [self._telling.seconds] * bool(self._events)
        return min(waits, default=None)

    def _beat_or_tell(self) -> bool:
        """Do the one thing that is due. Whether there was one."""
        if self._beat_due and not self._heartbeat.seconds:
            self._try(self._beat, self._heartbeat, "leases")
            return True
        if self._events and not self._telling.seconds:
            self._try(self._tell, self._telling, "events")
            return True
        return False

    def _try(self, write: Callable[[], None], patience: _Patience, what: str) -> None:
        try:
            write()
        except ClusterError as error:
            self._say_away(what, error, first=patience.failed(error))
        except Exception as error:  # noqa: BLE001 - an Event that nobody can write must not end the agent
            patience.failed(ClusterError(str(error)))
            self._drop(what, failure(error))
        else:
            patience.succeeded()
            self._outage.back(what)

    def _drop(self, what: str, why: str) -> None:
        event = None
        if what == "events" and (waiting := self._told) is not None:
            event = waiting.event
            self._take_off(waiting)
        told = printable(f"{event.reason}: {event.message}", _LONGEST_DROPPED) if event else ""
        log.error("a request failed before it was made", resource=what, dropped=told, failure=why)
        self._access.dropped("event" if event else "heartbeat")

    def _say_away(self, what: str, error: ClusterError, *, first: bool) -> None:
        # A server that takes no Events for now may well take all else.
        if what == "events" and first:
            log.warning("Events have to wait", error=str(error), waiting=len(self._events))
        elif what != "events" and isinstance(error, Unavailable):
            self._outage.away(what, error)

    def _beat(self) -> None:
        wanted = self._beats_wanted
        node, seconds = self._node(), 3 * self._heartbeat_seconds()
        self._access.write("leases", lambda: self._cluster.beat(node, self._clock().wall, seconds))
        self._beats_told = wanted
        self._events.extend(self._forbidden)
        self._forbidden.clear()

    def _tell(self) -> None:
        self._told = waiting = self._events[0]
        node = self._node()
        tell = partial(self._cluster.create_event, node, waiting.event, self._clock().wall)
        told = self._access.write("events", tell)
        if not told:
            self._forbidden.append(waiting)
        self._take_off(waiting)

    def _take_off(self, waiting: _Waiting) -> None:
        with suppress(ValueError):  # newer ones may have pushed it out meanwhile
            self._events.remove(waiting)
        waiting.done.set()


class _Waiting:
    def __init__(self, event: Event) -> None:
        self.event = event
        self.done = threading.Event()


class _Patience:
    """When one kind of request may be tried again."""

    def __init__(self) -> None:
        self._failures = 0
        self._again_at = self._not_before = 0.0

    @property
    def seconds(self) -> float:
        return max(self._again_at, self._not_before, now := time.monotonic()) - now

    def failed(self, error: ClusterError) -> bool:
        """Whether it is the first time in a row."""
        now = time.monotonic()
        longest = min(_FIRST_SECONDS * 2.0**self._failures, _CAP_SECONDS)
        seconds = _NODE_GONE_SECONDS if isinstance(error, NotFound) else random.uniform(0, longest)  # noqa: S311
        asked = (error.retry_after_seconds if isinstance(error, Unavailable) else None) or 0.0
        self._again_at = now + seconds
        self._not_before = now + min(asked, _LONGEST_ASKED_SECONDS)
        self._failures = min(self._failures + 1, 16)
        return self._failures == 1

    def succeeded(self) -> None:
        self._failures = 0

    def hurry(self) -> None:
        """But never sooner than the server asked for."""
        self._again_at = 0.0
