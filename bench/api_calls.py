"""Requests of a healthy node's agent in an hour, counted by its identity in the audit log of the API server."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from agent.cycle.runtime_class_lister import LISTED_AGAIN_SECONDS
from agent.node.node_update import _REWRITE_JITTER, _REWRITE_SECONDS  # no other interface has this value
from agent.node.own_slot import COUNTED_SECONDS, RECONCILE_SECONDS
from agent.process.schedule import _JITTER
from bench.outcome import CouldNotMeasure, Outcome, Row
from bench.stage import Stage
from bench.window import BUSY_INTERVAL_SECONDS, Request, Window, observe

AIM_WRITES, AIM_REQUESTS = 13, 16
_HOUR = 3600.0
_CYCLE_SECONDS = 300 * (1 + _JITTER / 2)
"""On average: APScheduler's jitter only ever delays."""
_COUNTED = ("api-calls: counted over a whole hour",)
_COMPUTED = (
    "api-calls: extrapolated to an hour (--hour counts a real one) from the writes per cycle, in many",
    f"           cycles of an agent at CHECK_INTERVAL={BUSY_INTERVAL_SECONDS}; the writes for an hour-old record,",
    "           simulated; the watch's timeoutSeconds; and the requests that its rules send once or twice an hour",
    "           (fleet budget, RuntimeClasses). An average: an hour may have one write more or less",
)


@dataclass(frozen=True)
class _Hour:
    lease_writes: float
    node_writes: float
    other_requests: float
    watches: float

    @property
    def writes(self) -> float:
        return self.lease_writes + self.node_writes

    @property
    def requests(self) -> float:
        return self.writes + self.other_requests


def measure(stage: Stage) -> Outcome:
    window = observe(stage)
    hour = _counted(window) if stage.length.hour else _computed(window)
    calls = stage.length.met(round(hour.writes) <= AIM_WRITES and round(hour.requests) <= AIM_REQUESTS)
    rows = (
        Row(
            "API calls of a healthy node in an hour",
            f"≤ {AIM_WRITES} writes, ≤ {AIM_REQUESTS} requests",
            f"{hour.writes:.1f} writes, {hour.requests:.1f} requests",
            calls,
        ),
        Row("watches in that hour", "1", f"{hour.watches:.2f}", stage.length.met(round(hour.watches) <= 1)),
    )
    raw = {
        "hour": asdict(hour),
        "seconds": round(window.seconds, 1),
        "counted": {agent: _count(asked) for agent, asked in window.requests.items()},
        "busy_cycles": window.busy_cycles,
        "after_an_hour": _count(window.rewrite),
        "watch_timeout_seconds": [_timeout_seconds(watch) for watch in window.watches],
    }
    return Outcome(rows, raw, _COUNTED if stage.length.hour else _COMPUTED)


def _counted(window: Window) -> _Hour:
    asked = window.requests["bare"]
    share = _HOUR / window.seconds  # the window may have waited some seconds for its last cycle
    leases = sum(request.is_write and request.resource == "leases" for request in asked)
    writes = sum(request.is_write for request in asked)
    watches = sum(request.verb == "watch" for request in asked)
    others = len(asked) - writes - watches
    # A watch that was open at the beginning of the hour counts too, unless it was replaced within the hour.
    return _Hour(leases * share, (writes - leases) * share, others * share, max(watches * share, 1))


def _computed(window: Window) -> _Hour:
    busy = window.requests["busy"]
    cycles_per_hour = _HOUR / _CYCLE_SECONDS
    # Rounded to one decimal: each end of the window may separate a cycle from its write.
    lease_writes = round(
        sum(request.is_write and request.resource == "leases" for request in busy) / window.busy_cycles, 1
    )
    other_writes = sum(request.is_write and request.resource != "leases" for request in busy) / window.busy_cycles
    # Requests that an agent sends once or twice an hour were sent at its start, and do not recur within the window.
    reads = sum(request.verb in ("get", "list") for request in busy) / window.busy_cycles
    now_and_then = sum(map(_per_hour, (RECONCILE_SECONDS, COUNTED_SECONDS))) + _HOUR / LISTED_AGAIN_SECONDS
    rewrites = [request for request in window.rewrite if request.is_write]
    if not rewrites:
        raise CouldNotMeasure("a record that is an hour old was not written again")
    return _Hour(
        cycles_per_hour * lease_writes,
        cycles_per_hour * other_writes + len(rewrites) * _rewrites_per_hour(),
        cycles_per_hour * reads + now_and_then + (len(window.rewrite) - len(rewrites)) * _rewrites_per_hour(),
        _HOUR / statistics.fmean(_timeout_seconds(watch) for watch in window.watches),
    )


def _per_hour(seconds: float) -> float:
    """Return how often per hour a cycle is the first one after so many seconds."""
    return _HOUR / (math.ceil(seconds / _CYCLE_SECONDS) * _CYCLE_SECONDS)


def _rewrites_per_hour() -> float:
    """Return the mean rewrites of the record: the first cycle after a random age, fixed per agent, rewrites it."""
    youngest, oldest = (round(_REWRITE_SECONDS * share) for share in _REWRITE_JITTER)
    ages = range(youngest, oldest + 1)
    return statistics.fmean(map(_per_hour, ages))


def _timeout_seconds(watch: Request) -> float:
    return float(parse_qs(urlsplit(watch.uri).query)["timeoutSeconds"][0])


def _count(asked: Sequence[Request]) -> dict[str, Any]:
    return dict(Counter(f"{request.verb} {request.resource} {request.code}" for request in asked))
