"""A simulated month of sweeps over a busy fleet: the product's own selection on nodes with changing jobs.

There is no cluster and no real waiting: a sweep starts every ten minutes, a test takes four.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from bench.outcome import Outcome, Row, percentile
from bench.stage import INSTANCE_TYPE, Stage
from healthcheck.deep.due import Attempt, DeepTest
from healthcheck.settings.declaration import NodeSettings
from sweeper.select import Candidate, SweepLimits, select

AIM_SHARE, INTERVALS = 0.99, 2
BUSY = 0.7
_JOB_HOURS = 8.0
"""Mean length of a job; exponentially distributed, as with independent arrivals."""
_SWEEP, _TEST = timedelta(minutes=10), timedelta(minutes=4)
_BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
_NOTES = (
    "sweep-month: 10 nodes per sweep and 20 % of a type are the defaults; jobs of 8 h on average, exponential, on each",
    "             node independently; a node waits from being both idle and due until it is tested or used",
)


@dataclass
class _Node:
    """Month of one node. Waits in hours: `waits` ended with a test, `unserved` ended with a job."""

    facts: Candidate
    changes_at: datetime
    busy: bool
    idle_since: datetime = _BEGIN
    waits: list[float] = field(default_factory=list)
    unserved: list[float] = field(default_factory=list)

    def live(self, now: datetime, interval: timedelta, chance: random.Random) -> None:
        """Advance the node to this time: jobs end and start."""
        while self.changes_at <= now:
            if self.busy:
                self.idle_since = self.changes_at
            elif (waited := self.waited(self.changes_at, interval)) > 0:
                self.unserved.append(waited)
            self.busy = not self.busy
            mean = _JOB_HOURS if self.busy else _JOB_HOURS * (1 - BUSY) / BUSY
            self.changes_at += timedelta(hours=chance.expovariate(1 / mean))

    def waited(self, now: datetime, interval: timedelta) -> float:
        """Return the hours for which the node has been idle and due."""
        due = self.facts.tested.at + interval if self.facts.tested else _BEGIN
        return (now - max(due, self.idle_since)) / timedelta(hours=1)

    def test(self, now: datetime, interval: timedelta) -> None:
        """Test the node; a job that arrives ends the test."""
        if self.changes_at >= now + _TEST:
            self.waits.append(self.waited(now, interval))
            self.facts = replace(self.facts, tested=DeepTest(now + _TEST, "pass", "sweep"), tried=None)
        else:
            self.facts = replace(self.facts, tried=Attempt(now))


def measure(stage: Stage) -> Outcome:
    values = NodeSettings()
    limits = SweepLimits(
        values.max_nodes_per_sweep, values.max_sweep_percent, timedelta(seconds=values.dcgm_l2_interval_seconds)
    )
    nodes = list(_month(stage.length.sweep_month_nodes, stage.length.sweep_month_days, limits))
    end = _BEGIN + timedelta(days=stage.length.sweep_month_days)
    enough = INTERVALS * limits.interval / timedelta(hours=1)
    waits = [wait for node in nodes for wait in node.waits]
    # A wait is late if it lasted that long, whether a test or a job ended it or the node still waits.
    still = [node.waited(end, limits.interval) for node in nodes if not node.busy]
    late = [wait for wait in (*waits, *(w for node in nodes for w in node.unserved), *still) if wait > enough]
    share = 1 - len(late) / max(len(waits) + len(late), 1)
    never = sum(node.facts.tested is None for node in nodes)
    oldest = max((end - node.facts.tested.at for node in nodes if node.facts.tested), default=timedelta(0))
    rows = (
        Row(
            f"{len(nodes)} nodes, {BUSY:.0%} busy, a month: tested within {INTERVALS} intervals of being idle and due",
            f"≥ {AIM_SHARE:.0%}",
            f"{share:.2%} of {len(waits)} tests",
            stage.length.met(share >= AIM_SHARE and not never),
        ),
        Row(
            "the longest wait of an idle node; nodes never tested",
            f"≤ {enough:g} h; 0",
            f"{max((*waits, *still)):.1f} h; {never}",
            stage.length.met(max((*waits, *still)) <= enough and not never),
        ),
        Row("the oldest test at the end of the month", "-", f"{oldest / timedelta(hours=1):.0f} h"),
    )
    raw = {
        "tests": len(waits),
        "wait_hours": {f"p{p}": round(percentile(waits, p / 100), 2) for p in (50, 90, 99, 100)},
        "taken_by_a_job_before": sum(len(node.unserved) for node in nodes),
    }
    return Outcome(rows, raw, _NOTES)


def _month(size: int, days: int, limits: SweepLimits) -> Iterator[_Node]:
    chance, now = random.Random(1), _BEGIN
    nodes = {name: _Node(_facts(name), _BEGIN, busy=chance.random() < BUSY) for name in map(str, range(size))}
    while now < _BEGIN + timedelta(days=days):
        for node in nodes.values():
            node.live(now, limits.interval, chance)
        busy = {name: "a job" for name, node in nodes.items() if node.busy}
        for decision in select([node.facts for node in nodes.values()], busy, {}, limits.nodes, limits, now):
            if not decision.why:
                nodes[decision.node.name].test(now, limits.interval)
        now += _SWEEP
    yield from nodes.values()


def _facts(name: str) -> Candidate:
    return Candidate(name, name, INSTANCE_TYPE, {"nvidia.com/gpu": 8}, None, None, "", under_run=False, overdue=False)
