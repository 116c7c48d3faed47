"""Metrics and Events about the pods that asked the gate: each pod counts once for each decision and finding."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from agent.node.reporter import Reporter
from agent.telemetry import Telemetry
from healthcheck.verdict.gate import Decision, GateAnswer
from healthcheck.verdict.gate_refusals import EVENT, refused_message

MOST_EVENTS, HOUR_SECONDS = 16, 3600.0
"""Events within one hour, one for each refused pod. Further pods share one Event per finding when the hour has passed.
"""
_MOST_COUNTED = 2048
"""Most pods, with decision and finding, that are remembered: more than a kubelet runs."""


class GateCounts:
    """Counts pods that the kubelet of this node has. Runs in the event loop of the HTTP server."""

    def __init__(self, reporter: Reporter, telemetry: Telemetry) -> None:
        self._reporter = reporter
        self._telemetry = telemetry
        self._counted: dict[tuple[str, str, str], None] = {}
        """UID, decision and reason, oldest first."""
        self._refused: dict[str, tuple[int, str]] = {}
        """Number of refused pods without an Event, and the last answer, by reason."""
        self._events_at: deque[float] = deque(maxlen=MOST_EVENTS)
        self._timer: asyncio.TimerHandle | None = None

    def count(self, uid: str, answer: GateAnswer) -> None:
        key = (uid, answer.decision, answer.reason)
        if key in self._counted:
            return
        self._counted[key] = None
        if len(self._counted) > _MOST_COUNTED:
            del self._counted[next(iter(self._counted))]
        self._telemetry.gate_answers.labels(answer.decision).inc()
        if answer.decision == Decision.OPEN:
            self._telemetry.gate_failed_open.inc()
        if answer.decision == Decision.REFUSE:
            self._refused[answer.reason] = (self._refused.get(answer.reason, (0, ""))[0] + 1, answer.message)
            self._report()

    def _report(self) -> None:
        """Write the Events that the hour allows, and the others later."""
        while self._refused and not self._wait_seconds():
            reason, (pods, message) = self._refused.popitem()
            self._events_at.append(time.monotonic())
            self._reporter.warn(EVENT, refused_message(pods, reason, message))
        if self._refused and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_seconds(), self._report_later)

    def _report_later(self) -> None:
        self._timer = None
        self._report()

    def _wait_seconds(self) -> float:
        """Return the time until the next Event is allowed."""
        if len(self._events_at) < MOST_EVENTS:
            return 0.0
        return max(self._events_at[0] + HOUR_SECONDS - time.monotonic(), 0.0)
