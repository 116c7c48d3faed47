"""Whatever stands in a Node's annotations: the next run's record is a record, within its limit, and loses no fault."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.checks import gpu_load
from gpu_healthcheck.healthcheck.model import Finding, Outcome, Passed, Severity
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, RELEASE, RESULTS, NodeState
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RunRecord
from gpu_healthcheck.quarantine.quarantine_record import (
    MOST_FINDINGS,
    MOST_RUNS,
    TESTS,
    QuarantineProgress,
    QuarantineTestResult,
    RunStart,
    carried_by,
    history_of,
    render,
)
from gpu_healthcheck.quarantine.recommendation import Recommendation, Returned

AT = datetime(2026, 11, 21, 1, 0, 0, tzinfo=UTC)
TEXT = st.text(max_size=20)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.just("2026-11-20T00:00:00Z")
OF_A_RECORD = ("timestamp", "machine", "boot_id", "status", "checks", "unobserved", "acknowledged", "taken", "released")
OF_A_RUN = ("findings", "history", "returned", "at", "recommendation")
OF_A_FINDING = ("reason", "severity", "subject", "detail", "about", "nature")
KEYS = st.sampled_from((*OF_A_RECORD, *OF_A_RUN, *OF_A_FINDING))
VALUES = st.recursive(
    LEAVES | st.sampled_from(["ISOLATE", "RESET", "fail", "event"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=8),
    max_leaves=25,
)
ANNOTATION = st.dictionaries(KEYS, VALUES, max_size=10).map(json.dumps) | VALUES.map(json.dumps) | TEXT


def rendered(node: NodeState, progress: QuarantineProgress) -> RunRecord:
    begun = RunStart("n", "pod", AT, "machine", "boot", carried_by(node, "machine", "boot"), history_of(node, AT))
    return render(begun, progress, node, AT)


@given(ANNOTATION, ANNOTATION, ANNOTATION)
def test_no_annotation_keeps_a_run_from_its_record(quarantine: str, results: str, release: str) -> None:
    node = NodeState("n", annotations={QUARANTINE_RESULT: quarantine, RESULTS: results, RELEASE: release})
    progress = QuarantineProgress(
        {TESTS[0].group: QuarantineTestResult(Outcome(TESTS[0].name, TESTS[0].group))}, TESTS[1].group
    )

    record = rendered(node, progress)

    assert len(records.dump(record).encode()) <= records.LONGEST
    assert record.recommendation in set(Recommendation)
    assert (record.status != "pass", records.passed_since(record)) == (True, None)
    assert len(record.history or ()) <= MOST_RUNS
    assert all(len(row.findings or ()) <= MOST_FINDINGS for row in record.history or ())


@given(st.sampled_from([Severity.RESET, Severity.REBOOT, Severity.ISOLATE]), st.integers(0, 2))
def test_a_fault_outlives_any_number_of_runs_that_came_to_nothing(severity: Severity, killed: int) -> None:
    check = TESTS[0]
    found = Outcome(check.name, check.group, (Finding("DcgmDiagMemory", severity, "gpu/0", "x"),))
    record = rendered(NodeState("n"), QuarantineProgress({check.group: QuarantineTestResult(found)}))
    for _ in range(killed):
        node = NodeState("n", annotations={QUARANTINE_RESULT: records.dump(record)})
        record = rendered(node, QuarantineProgress(stopped="killed"))

    assert [(finding.reason, finding.severity) for finding in record.findings or ()] == [("DcgmDiagMemory", severity)]
    assert (record.status, record.severity) == ("fail", severity.name)


def test_what_a_reboot_has_ended_is_not_carried_on() -> None:
    check = TESTS[0]
    for severity, expected in ((Severity.RESET, []), (Severity.REBOOT, []), (Severity.ISOLATE, ["DcgmDiagMemory"])):
        found = Outcome(check.name, check.group, (Finding("DcgmDiagMemory", severity, "gpu/0", "x"),))
        record = rendered(NodeState("n"), QuarantineProgress({check.group: QuarantineTestResult(found)}))
        node = NodeState("n", annotations={QUARANTINE_RESULT: records.dump(record)})

        assert [row.reason for row in carried_by(node, "machine", "boot")] == ["DcgmDiagMemory"]
        assert [row.reason for row in carried_by(node, "machine", "another boot")] == expected
        assert carried_by(node, "another machine", "boot") == ()


def test_a_slow_gpu_is_carried_on_until_it_is_measured() -> None:
    check, subject = gpu_load.CHECK, "gpu/0000:18:00.0"
    slow = Outcome(check.name, check.group, (gpu_load.COMPUTE_SLOW.on(subject, "x"),))
    record = rendered(NodeState("n"), QuarantineProgress({check.group: QuarantineTestResult(slow)}))
    node = NodeState("n", annotations={QUARANTINE_RESULT: records.dump(record)})
    assert [row.reason for row in carried_by(node, "machine", "another boot")] == ["GpuComputeSlow"]

    passed = {test.group: QuarantineTestResult(Outcome(test.name, test.group)) for test in TESTS}
    for reason, expected in (("GpuCopySlow", ["GpuComputeSlow"]), ("GpuComputeSlow", [])):
        measured = Outcome(check.name, check.group, passed=(Passed(reason, subject),))
        later = rendered(node, QuarantineProgress({**passed, check.group: QuarantineTestResult(measured)}))
        assert [finding.reason for finding in later.findings or ()] == expected


def test_what_the_agent_has_taken_is_the_agents() -> None:
    check = TESTS[0]
    found = Outcome(check.name, check.group, (Finding("DcgmDiagMemory", Severity.ISOLATE, "gpu/0", "x"),))
    record = rendered(NodeState("n"), QuarantineProgress({check.group: QuarantineTestResult(found)}))
    taken = json.dumps({"schema": 1, "taken": {"quarantine-result": record.timestamp}})
    node = NodeState("n", annotations={QUARANTINE_RESULT: records.dump(record), RESULTS: taken})

    assert carried_by(node, "machine", "boot") == ()


def test_a_history_of_another_machine_is_none_of_this_ones() -> None:
    fault = {"reason": "NcclFailed", "subject": "node", "severity": "RESET"}
    record = {"timestamp": "2026-11-20T00:00:00Z", "recommendation": "reset", "findings": [fault], "machine": "m"}
    texts = {QUARANTINE_RESULT: json.dumps(record)}

    assert [row.findings for row in history_of(NodeState("n", machine="m", annotations=texts), AT).rows] == [
        ("NcclFailed node",)
    ]
    assert history_of(NodeState("n", machine="other", annotations=texts), AT).rows == ()


def test_a_release_is_a_return_to_work_too() -> None:
    fault = {"reason": "NcclFailed", "subject": "node", "severity": "RESET"}
    record = {"timestamp": "2026-11-20T00:00:00Z", "recommendation": "reset", "findings": [fault]}
    for at, returned in (("2026-11-19T00:00:00Z", ()), ("2026-11-20T01:00:00Z", (Returned("NcclFailed", "node"),))):
        texts = {QUARANTINE_RESULT: json.dumps(record), RELEASE: json.dumps({"at": at})}
        assert history_of(NodeState("n", annotations=texts), AT).returned_with == returned


def test_a_release_of_a_time_to_come_hides_none_that_was() -> None:
    fault = {"reason": "NcclFailed", "subject": "node", "severity": "RESET"}
    record = {"timestamp": "2026-11-20T00:00:00Z", "recommendation": "reset", "findings": [fault]}
    taken = {"schema": 1, "released": {"by": "p", "reason": "r", "at": "2026-11-20T01:00:00Z"}}
    texts = {QUARANTINE_RESULT: json.dumps(record), RESULTS: json.dumps(taken)}
    for waiting in ("2026-11-21T00:30:00Z", "2026-11-21T01:30:00Z", "9998-01-01T00:00:00Z"):
        node = NodeState("n", annotations={**texts, RELEASE: json.dumps({"at": waiting})})
        assert history_of(node, AT).returned_with == (Returned("NcclFailed", "node"),)


@pytest.mark.parametrize(
    ("about", "found_at", "days", "is_replaced"),
    [
        ({"serial": "A"}, "gpu/0000:18:00.0", 5, True),
        ({"serial": "A"}, "gpu/0000:9a:00.0", 5, True),
        ({"serial": "B"}, "gpu/0000:18:00.0", 5, False),
        ({"uuid": "GPU-a"}, "gpu/0000:18:00.0", 5, True),
        ({}, "gpu/0000:18:00.0", 5, True),
        ({"serial": "A"}, "gpu/0000:18:00.0", 8, False),
    ],
    ids=["same GPU", "moved GPU", "another GPU in its slot", "serial unknown now", "names unknown now", "after 8 days"],
)
def test_history_knows_a_gpu_by_its_serial_and_for_seven_days(
    about: dict[str, str], found_at: str, days: int, *, is_replaced: bool
) -> None:
    def record_of(about: dict[str, str], subject: str, node: NodeState, at: datetime) -> RunRecord:
        found = Finding("DcgmDiagPcie", Severity.RESET, subject, "x", about)
        ended = {
            check.group: QuarantineTestResult(Outcome(check.name, check.group, configured=False)) for check in TESTS
        }
        ended[TESTS[0].group] = QuarantineTestResult(Outcome(TESTS[0].name, TESTS[0].group, findings=(found,)))
        return render(RunStart("n", "pod", at, history=history_of(node, at)), QuarantineProgress(ended), node, at)

    first = record_of({"serial": "A"}, "gpu/0000:18:00.0", NodeState("n"), AT)
    word = json.dumps({"by": "me", "reason": "tested", "at": "2026-11-21T02:00:00Z", "findings": []})
    released = NodeState("n", annotations={QUARANTINE_RESULT: records.dump(first), RELEASE: word})
    second = record_of(about, found_at, released, AT + timedelta(days=days))

    assert first.recommendation == "reset"
    assert second.recommendation == ("replace" if is_replaced else "reset")
    assert record_of({"serial": "A"}, found_at, NodeState("n"), AT).recommendation == "reset"
