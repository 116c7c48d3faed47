"""Last deep test of a node, time of the next test, and obstacles on the Node. No side effects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.driver import being_changed
from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.model import Status
from gpu_healthcheck.healthcheck.node.state import (
    QUARANTINE_RESULT,
    RESULTS,
    STATUS,
    SWEEP_RESULT,
    NodeState,
    is_of_another_machine,
    is_tested,
)
from gpu_healthcheck.healthcheck.text.moments import is_future, moment_or_none, timestamp
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.node_events import CONDITION_STATUS
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, RunRecord, VerdictRow

OVERDUE_INTERVALS = 3
_WELL = (Status.PASS.value, Status.WARN.value)
_TESTED = (*_WELL, Status.FAIL.value)
_KEPT = ("timestamp", "status", "by", "machine")
_LONGEST_KEPT, _LONGEST_CAUSES = 80, 200


class DeepTest(Struct, frozen=True):
    """A deep diagnostic or quarantine with a verdict.

    `by` is its origin: `agent`, `sweep` or `quarantine`.
    """

    at: datetime
    status: str
    by: str


def last_deep_test(node: NodeState, now: datetime) -> DeepTest | None:
    """Return the newest deep test of this machine by any program.

    None if there is none with a readable time.
    """
    tests = [test for test in (_swept(node), _quarantined(node)) if test and not is_future(test.at, now)]
    return max(tests, key=lambda test: test.at, default=None)


class Attempt(Struct, frozen=True):
    """A deep diagnostic without a verdict, and the reason as text."""

    at: datetime
    why: str = ""

    def __str__(self) -> str:
        return f"tried without a result at {timestamp(self.at)}" + (f": {self.why}" if self.why else "")


def last_attempt(node: NodeState, now: datetime) -> Attempt | None:
    """Return the last deep diagnostic that was recorded as unable to test; None for any other record."""
    record = records.on_node(RunRecord, node, SWEEP_RESULT)
    at = records.time_of(record) if record.status == Status.UNKNOWN.value else None
    return Attempt(at, _causes(record)) if at is not None and not is_future(at, now) else None


def _causes(record: RunRecord) -> str:
    """Return the causes of a record as text, each with its first detail."""
    details: dict[str, str] = {}
    for row in record.unobserved or ():
        if row.cause:
            details.setdefault(row.cause, row.detail or "")
    words = "; ".join(f"{cause}: {detail}" if detail else cause for cause, detail in details.items())
    return printable(words, _LONGEST_CAUSES)


def keeping_verdict(record: RunRecord, node: NodeState) -> RunRecord:
    """Return the record; if it has no verdict, add the last verdict of the record that it replaces."""
    before = None if is_verdict(record) else _verdict(records.on_node(RunRecord, node, SWEEP_RESULT))
    return records.within_limit(replace(record, before=before)) if before else record


def is_verdict(record: RunRecord | VerdictRow) -> bool:
    """Whether the record of a run has a verdict on the node."""
    return record.status in _TESTED


def is_due(test: DeepTest | None, interval: timedelta, now: datetime) -> bool:
    """Whether the interval has passed. An interval of 0 means no deep tests."""
    return bool(interval) and (test is None or now - test.at >= interval)


def is_swept(node: NodeState) -> bool:
    """Whether sweeps test this Node: a sweep wrote its last level 2 record, and no DCGM engine prevents sweeps."""
    record = records.on_node(RunRecord, node, SWEEP_RESULT)
    return record.timestamp is not None and record.by != "agent" and not engine_obstacle(node)


def is_overdue(node: NodeState, test: DeepTest | None, interval: timedelta, now: datetime) -> bool:
    """Whether three intervals have passed since the last deep test, or since the Node was created."""
    since = test.at if test else node.created
    return bool(interval) and since is not None and now - since > OVERDUE_INTERVALS * interval


def obstacle(node: NodeState, heartbeat_valid_until: datetime | None, now: datetime) -> str:
    """Return the reason on the Node that prevents a deep test, or an empty string.

    It does not check whether the node is idle. `heartbeat_valid_until` is None if the agent has no heartbeat.
    """
    return next(_obstacles(node, heartbeat_valid_until, now), "")


def _obstacles(node: NodeState, heartbeat_valid_until: datetime | None, now: datetime) -> Iterator[str]:
    run = claim_on(node, now)
    if run is not None:
        yield f"a deep test ({run.kind.value}) uses it until {timestamp(run.until)}"
    if not node.gpus and node.devices is None:
        yield "offers no GPUs to pods"
    elif node.devices is not None and node.devices.why_not:
        yield node.devices.why_not
    if node.cordoned:
        yield "is cordoned"
    if is_tested(node):
        yield "HyperPod tests it"
    if changed := being_changed(node.labels):
        yield f"its driver is being replaced: {changed}"
    if heartbeat_valid_until is None or heartbeat_valid_until < now:
        yield "its heartbeat is overdue"
    if fault := _unhealthy(node):
        yield fault


def engine_obstacle(node: NodeState) -> str:
    """Return why the DCGM engine in the agent's record prevents sweeps of the node; '' without a reason."""
    inventory = records.on_node(AgentRecord, node, RESULTS).inventory
    engine = inventory.dcgm if inventory is not None else None
    if engine is None or not (engine.cause or engine.host):
        return ""
    if engine.cause:
        return f"its DCGM engine can't be used: {engine.cause}"
    return f"only an agent of the full image can verify its DCGM engine at {engine.host}; set DCGM_HOST for sweeps"


def _unhealthy(node: NodeState) -> str:
    """Return the reason why the node does not count as healthy, or an empty string.

    If both label and condition exist, both must show a healthy node. The condition can be late, and any client can
    write the label.
    """
    label, condition = node.labels.get(STATUS), (node.condition() or {}).get("status")
    if label is None and condition is None:
        return "it has no verdict yet"
    if label not in (None, *_WELL):
        return f"its status is {label}"
    if condition not in (None, CONDITION_STATUS[Status.PASS]):
        return f"its condition GpuHealthy is {condition}"
    return ""


def _swept(node: NodeState) -> DeepTest | None:
    row = _verdict(records.on_node(RunRecord, node, SWEEP_RESULT))
    at = moment_or_none(row.timestamp) if row else None
    if row is None or at is None or is_of_another_machine(row.machine, node):
        return None
    return DeepTest(at, str(row.status), "agent" if row.by == "agent" else "sweep")


def _verdict(record: RunRecord) -> VerdictRow | None:
    """Return the verdict of a record, or, if it has none, the earlier verdict that it keeps."""
    row = record.before
    if is_verdict(record):
        row = VerdictRow(record.timestamp, record.status, record.by, record.machine)
    if row is None or not is_verdict(row):
        return None
    bounded = {name: word[:_LONGEST_KEPT] for name in _KEPT if (word := getattr(row, name)) is not None}
    return VerdictRow(**bounded)


def _quarantined(node: NodeState) -> DeepTest | None:
    """Return the quarantine as a deep test, judged by its level 4.

    The other parts of a quarantine test no GPU, and a run without a verdict may not have reached level 4.
    """
    record = records.on_node(RunRecord, node, QUARANTINE_RESULT)
    status, at = records.level_4_status(record), records.time_of(record)
    if at is None or status not in _TESTED or is_of_another_machine(record.machine, node):
        return None
    return DeepTest(at, status, "quarantine")
