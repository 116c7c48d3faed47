"""When a node was last tested deeply, when it is due again, and what on the node stands in the way. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from healthcheck.checks.driver import being_changed
from healthcheck.deep.claim import claim_on
from healthcheck.deep.record import is_of_another_machine
from healthcheck.model import Status
from healthcheck.node.state import QUARANTINE_RESULT, STATUS, SWEEP_RESULT, NodeState, is_tested
from healthcheck.text.moments import is_future, moment_or_none, timestamp
from healthcheck.text.printable import printable
from healthcheck.verdict import record as records
from healthcheck.verdict.events import CONDITION_STATUS
from healthcheck.verdict.record import RecordError

OVERDUE_INTERVALS = 3
_WELL = (Status.PASS.value, Status.WARN.value)
_TESTED = (*_WELL, Status.FAIL.value)
BEFORE = "before"
"""In the record of a run that came to no verdict: what the last one that did had said, and when."""
_KEPT = ("timestamp", "status", "by", "machine")
_LONGEST_KEPT, _LONGEST_CAUSES = 80, 200


@dataclass(frozen=True, slots=True)
class DeepTest:
    """A deep run that came to a verdict. `by` is who ran it: `agent`, `sweep` or `quarantine`."""

    at: datetime
    status: str
    by: str


def last_deep_test(node: NodeState, now: datetime) -> DeepTest | None:
    """The newest deep test of this machine, by anyone; None: never, or nobody can read when."""
    tests = [test for test in (_swept(node), _quarantined(node)) if test and not is_future(test.at, now)]
    return max(tests, key=lambda test: test.at, default=None)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A deep run that came to no verdict, and why, for a person."""

    at: datetime
    why: str = ""

    def __str__(self) -> str:
        return f"tried in vain at {timestamp(self.at)}" + (f": {self.why}" if self.why else "")


def last_attempt(node: NodeState, now: datetime) -> Attempt | None:
    """The deep run that last wrote that it could not test; None where its record says something else, or nothing."""
    record = _record(node, SWEEP_RESULT)
    at = _moment(record) if record.get("status") == Status.UNKNOWN.value else None
    return Attempt(at, _causes(record)) if at is not None and not is_future(at, now) else None


def _causes(record: Mapping[str, Any]) -> str:
    """Each cause with its first detail."""
    rows = record.get("unobserved")
    told: dict[str, str] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and row.get("cause"):
            told.setdefault(str(row["cause"]), str(row.get("detail") or ""))
    words = "; ".join(f"{cause}: {detail}" if detail else cause for cause, detail in told.items())
    return printable(words, _LONGEST_CAUSES)


def verdict_before(node: NodeState) -> dict[str, str]:
    """What the record of a run without a verdict keeps of the last one with one; {} where there is none."""
    record = _verdict(_record(node, SWEEP_RESULT))
    return {key: str(record[key])[:_LONGEST_KEPT] for key in _KEPT if key in record}


def keeping_verdict(record: Mapping[str, Any], node: NodeState) -> dict[str, Any]:
    """The record, with what it takes the place of on the Node where it comes to no verdict itself."""
    before = {} if is_verdict(record) else verdict_before(node)
    return records.within_limit({**record, BEFORE: before}) if before else dict(record)


def is_verdict(record: Mapping[str, Any]) -> bool:
    """Whether a deep run's record says how the node is."""
    return record.get("status") in _TESTED


def is_due(test: DeepTest | None, interval: timedelta, now: datetime) -> bool:
    """Whether the interval has passed; of no length, it means that there are no deep tests."""
    return bool(interval) and (test is None or now - test.at >= interval)


def is_overdue(node: NodeState, test: DeepTest | None, interval: timedelta, now: datetime) -> bool:
    """Whether three intervals have passed since the last deep test, or since the Node was made."""
    since = test.at if test else node.created
    return bool(interval) and since is not None and now - since > OVERDUE_INTERVALS * interval


def obstacle(node: NodeState, heard: datetime | None, now: datetime) -> str:
    """What on the node itself keeps a deep test away; '' where nothing does. Whether it is idle is not asked here.

    `heard`: until when its agent's heartbeat is good; None where there is none.
    """
    return next(_obstacles(node, heard, now), "")


def _obstacles(node: NodeState, heard: datetime | None, now: datetime) -> Iterator[str]:
    run = claim_on(node, now)
    if run is not None:
        yield f"a deep run ({run.kind.value}) uses it until {timestamp(run.until)}"
    if not node.gpus:
        yield "offers no GPUs to pods"
    if node.cordoned:
        yield "is cordoned"
    if is_tested(node):
        yield "HyperPod tests it"
    if changed := being_changed(node.labels):
        yield f"its driver is being changed: {changed}"
    if heard is None or heard < now:
        yield "its agent is silent"
    if ill := _unhealthy(node):
        yield ill


def _unhealthy(node: NodeState) -> str:
    """Both must say that it is well, where both are there: one can be late, and a label anybody can write."""
    label, condition = node.labels.get(STATUS), (node.condition() or {}).get("status")
    if label is None and condition is None:
        return "nobody has judged it yet"
    if label not in (None, *_WELL):
        return f"its status is {label}"
    if condition not in (None, CONDITION_STATUS[Status.PASS]):
        return f"its condition GpuHealthy is {condition}"
    return ""


def _swept(node: NodeState) -> DeepTest | None:
    record = _verdict(_record(node, SWEEP_RESULT))
    at = _moment(record)
    if at is None or is_of_another_machine(record, node):
        return None
    return DeepTest(at, str(record["status"]), "agent" if record.get("by") == "agent" else "sweep")


def _verdict(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record itself where it says how the node is, else what it keeps of the one before it; {}: neither."""
    kept = record if is_verdict(record) else record.get(BEFORE)
    return kept if isinstance(kept, Mapping) and is_verdict(kept) else {}


def _quarantined(node: NodeState) -> DeepTest | None:
    """By what its level 4 said: the rest tests no GPU, and without a verdict it may not have come to them."""
    record = _record(node, QUARANTINE_RESULT)
    status, at = records.level_4_status(record), _moment(record)
    if at is None or status not in _TESTED or is_of_another_machine(record, node):
        return None
    return DeepTest(at, status, "quarantine")


def _record(node: NodeState, key: str) -> dict[str, Any]:
    try:
        return records.load(node.annotations.get(key, "{}"))
    except RecordError:
        return {}


def _moment(record: Mapping[str, Any]) -> datetime | None:
    return moment_or_none(record.get("timestamp"))
