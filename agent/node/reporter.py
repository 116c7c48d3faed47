"""Write the heartbeat and the Events in a thread of their own, so that they never delay the verdict."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks.examine import failure
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound, Refused, Unavailable
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict.node_events import InvolvedPod, NodeEvent, cut, event_name

log = structlog.get_logger()

_MOST_EVENTS_WAITING = 64
_FIRST_SECONDS, _CAP_SECONDS = 1.0, 60.0
_NODE_GONE_SECONDS = 30.0
_LONGEST_DROPPED = 300
_BEATS_MISSED = 3
"""Check intervals after which a heartbeat expires."""
MOST_PER_HOUR, _HOUR_SECONDS = 32, 3600.0
"""Events of one reason within one hour: twice as many as a node has GPUs."""
_LAST_OF_THE_HOUR = "for an hour, further Events of this kind are only in the agent's log"


class Reporter(threading.Thread):
    """One thread that writes the heartbeat first, then Events. A failure of one kind does not delay the other."""

    def __init__(self, api: ApiServer, state: AgentState, telemetry: Telemetry) -> None:
        super().__init__(name="reporter", daemon=True)
        self._api = api
        self._state = state
        self._telemetry = telemetry
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._shares: defaultdict[str, _Share] = defaultdict(_Share)
        self._events: deque[_Waiting] = deque(maxlen=_MOST_EVENTS_WAITING)
        self._forbidden: deque[_Waiting] = deque(maxlen=_MOST_EVENTS_WAITING)
        self._tried: _Waiting | None = None
        """The Event that was last tried; another Event may now be first in the queue."""
        self._beats_wanted = self._beats_written = 0
        self._heartbeat_retry, self._event_retry = _RetryState(), _RetryState()
        self._complaints: tuple[str, ...] = ()
        """Unreadable annotations that were reported last."""
        self._defects: dict[str, str] = {}
        """Unexpected error that was reported last, by part."""

    @property
    def is_done(self) -> bool:
        """Whether the heartbeat is current, and each Event was written or forbidden."""
        return not self._beat_due and not self._events

    @property
    def _beat_due(self) -> bool:
        return self._beats_written < self._beats_wanted

    def renew_heartbeat(self) -> None:
        """Renew the heartbeat after a cycle, and retry forbidden requests."""
        self._beats_wanted += 1
        self._wake.set()

    def warn(self, reason: str, message: str) -> None:
        """Queue an Event about the node that belongs to no finding."""
        name = event_name(self._state.node_name, reason, message, f"{random.getrandbits(32)}")
        self.queue(NodeEvent(name, "Warning", reason, cut(message)))

    def complain(self, complaints: tuple[str, ...]) -> None:
        """Report the unreadable annotations of the Node, once until they change."""
        if complaints and complaints != self._complaints:
            self._complaints = complaints
            self._telemetry.bad_annotations.inc()
            for complaint in complaints:
                log.warning("an annotation on the node is not a valid record", complaint=complaint)
                self.warn("BadAnnotation", complaint)

    def report_defect(self, part: str, error: Exception) -> None:
        """Count an unexpected error, after which a part of the agent continues; report it unless it is the last one."""
        self._telemetry.set_aside.labels(part).inc()
        why = failure(error)
        if self._defects.get(part) != why:
            self._defects[part] = why
            log.error("unexpected error; the agent continues", part=part, failure=why)
            self.warn("InternalError", f"{part}: {why}; the agent continues")

    def queue(self, event: NodeEvent, *, first: bool = False) -> threading.Event:
        """Queue an Event; the answer is set once it was written, forbidden or left out.

        The last Event of a reason in an hour mentions the limit, and later ones are left out. Other clients trigger
        many Events by writing to the Node, and could trigger any number. Owners of pods cannot read that log.
        """
        left = self._shares[event.reason].take()
        is_last = left == 0 and event.pod is None
        waiting = _Waiting(replace(event, message=cut(f"{_LAST_OF_THE_HOUR}: {event.message}")) if is_last else event)
        if left < 0:
            waiting.done.set()
            return waiting.done
        (self._events.appendleft if first else self._events.append)(waiting)
        self._wake.set()
        return waiting.done

    def may_queue(self, reason: str) -> bool:
        """Whether another Event of this reason may be written within the hour."""
        return self._shares[reason].left > 0

    def retry_now(self) -> None:
        """Retry at once, because the Node exists again."""
        self._heartbeat_retry.end()
        self._event_retry.end()
        self._wake.set()

    def end(self) -> None:
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._seconds())
            self._wake.clear()
            while not self._stopping.is_set() and self._write_next():
                continue

    def _seconds(self) -> float | None:
        """Return the time until the next retry, in seconds; None if nothing is due."""
        due = ((self._heartbeat_retry, self._beat_due), (self._event_retry, bool(self._events)))
        return min((retry.seconds for retry, is_due in due if is_due), default=None)

    def _write_next(self) -> bool:
        """Write the heartbeat or the next Event if it is due, and return whether a write was due."""
        if self._beat_due and not self._heartbeat_retry.seconds:
            self._try(self._write_heartbeat, self._heartbeat_retry, "leases")
            return True
        if self._events and not self._event_retry.seconds:
            self._try(self._write_event, self._event_retry, "events")
            return True
        return False

    def _try(self, write: Callable[[], None], retry: _RetryState, what: str) -> None:
        try:
            write()
        except ClusterError as error:
            self._account_for(what, error, first=retry.failed(error))
        except Exception as error:  # noqa: BLE001 - an Event that can't be written must not end the agent
            retry.failed(ClusterError(str(error)))
            self._drop(what, failure(error))
        else:
            retry.succeeded()
            self._api.outage.back(what)

    def _drop(self, what: str, why: str) -> None:
        event = None
        if what == "events" and (waiting := self._tried) is not None:
            event = waiting.event
            self._take_off(waiting)
        dropped = printable(f"{event.reason}: {event.message}", _LONGEST_DROPPED) if event else ""
        log.error("a request failed before it was sent", resource=what, dropped=dropped, failure=why)
        self._telemetry.set_aside.labels("event" if event else "heartbeat").inc()

    def _account_for(self, what: str, error: ClusterError, *, first: bool) -> None:
        # A server that rejects Events now may accept everything else.
        if what == "events" and first:
            log.warning("Events are delayed", error=str(error), waiting=len(self._events))
        elif what != "events" and isinstance(error, Unavailable):
            self._api.outage.away(what, error)

    def _write_heartbeat(self) -> None:
        wanted, node, now = self._beats_wanted, self._node(), self._state.now
        values = self._state.settings.values
        seconds, group = _BEATS_MISSED * values.check_interval_seconds, node.labels.get(values.budget_label, "")
        self._api.permissions.write(
            "leases", lambda: self._api.cluster.leases.renew_heartbeat(node, now().wall, seconds, group)
        )
        self._beats_written = wanted
        self._events.extend(self._forbidden)
        self._forbidden.clear()

    def _write_event(self) -> None:
        self._tried = waiting = self._events[0]
        create = partial(self._api.cluster.events.create, self._node(), waiting.event, self._state.now().wall)
        if waiting.event.pod is not None:
            self._write_about_pod(create, waiting.event.pod)
        elif not self._api.permissions.write("events", create):
            self._forbidden.append(waiting)
        self._take_off(waiting)

    @staticmethod
    def _write_about_pod(create: Callable[[], None], pod: InvolvedPod) -> None:
        """Write the Event once. A namespace that ends, or that has a quota for Events, accepts none."""
        try:
            create()
        except (Forbidden, NotFound, Refused) as error:
            log.warning("an Event about a pod is not accepted", pod=f"{pod.namespace}/{pod.name}", answer=str(error))

    def _node(self) -> NodeState:
        return self._state.node or self._api.cluster.nodes.read(self._state.node_name)

    def _take_off(self, waiting: _Waiting) -> None:
        with suppress(ValueError):  # newer Events may have displaced it meanwhile
            self._events.remove(waiting)
        waiting.done.set()


class _Share:
    """Number of Events of one reason that may still be written within the hour."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = -math.inf
        self._taken = 0

    @property
    def left(self) -> int:
        is_over = time.monotonic() - self._began >= _HOUR_SECONDS
        return MOST_PER_HOUR if is_over else MOST_PER_HOUR - self._taken

    def take(self) -> int:
        """Count an Event, and return how many more may be written; negative: this Event is too many."""
        with self._lock:
            if (now := time.monotonic()) - self._began >= _HOUR_SECONDS:
                self._began, self._taken = now, 0
            self._taken += 1
            return MOST_PER_HOUR - self._taken


class _Waiting:
    def __init__(self, event: NodeEvent) -> None:
        self.event = event
        self.done = threading.Event()


class _RetryState:
    """Retry times of one kind of request."""

    def __init__(self) -> None:
        self._failures = 0
        self._again_at = self._not_before = 0.0

    @property
    def seconds(self) -> float:
        return max(self._again_at, self._not_before, now := time.monotonic()) - now

    def failed(self, error: ClusterError) -> bool:
        """Count a failure, and return whether it is the first in a row."""
        now = time.monotonic()
        longest = min(_FIRST_SECONDS * 2.0**self._failures, _CAP_SECONDS)
        seconds = _NODE_GONE_SECONDS if isinstance(error, NotFound) else random.uniform(0, longest)  # noqa: S311
        self._again_at = now + seconds
        self._not_before = now + (error.retry_after_seconds or 0.0)
        self._failures = min(self._failures + 1, 16)
        return self._failures == 1

    def succeeded(self) -> None:
        self._failures = 0

    def end(self) -> None:
        """End the wait, except for the pause that the server requested."""
        self._again_at = 0.0
