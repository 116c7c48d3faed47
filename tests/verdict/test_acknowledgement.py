"""A person's releases: the annotation, the plain gesture, and the covered parts of a Node's records."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.exits import after_release
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory, Release
from gpu_healthcheck.healthcheck.model import PREFIX, Nature, Severity
from gpu_healthcheck.healthcheck.node.state import (
    QUARANTINE_RESULT,
    RELEASE,
    RESULTS,
    STATUS,
    SWEEP_RESULT,
    TAINT,
    FieldManager,
    NodeState,
)
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import (
    LABEL_RELEASE,
    UNEXPLAINED,
    acknowledgements,
    dump_release,
    faults_on,
    has_adopted,
    other_severities,
    parse_release,
    read_release,
    release_of,
)
from gpu_healthcheck.healthcheck.verdict.record import RecordError
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import BOOT, GPU, IDENTITY, WALL, active_finding, fault, later, memory_with, node, outcome_with

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
EARLIER_BOOT = "0b0a6c5e-0000-4000-8000-00000000000b"
PERSON = FieldManager("kubectl-label", WALL + timedelta(minutes=5))
LATER = WALL + timedelta(hours=1)
WORD = Release(
    "mia", "board swapped", LATER, (Acknowledgement("Xid79", GPU, BOOT, 900, WALL.replace(microsecond=999_999)),)
)


def recorded(memory: Memory) -> str:
    """The agent's own record of that memory."""
    return records.dump(records.render(decide(memory, [outcome_with()]), memory, IDENTITY, WALL))


def deep(*rows: dict[str, Any], **more: Any) -> str:
    """The record of a deep run that ended when the others were written."""
    severity = max((Severity[row["severity"]] for row in rows), default=PASS)
    return json.dumps(
        {"schema": 1, "timestamp": "2026-11-21T01:02:03Z", "severity": severity.name, "findings": rows, **more}
    )


def deep_row(reason: str = "DcgmDiagMemory", severity: Severity = ISOLATE, **more: Any) -> dict[str, Any]:
    return {
        "reason": reason,
        "subject": GPU,
        "severity": severity.name,
        "last_seen": "2026-11-21T01:00:00Z",
        "nature": "event",
        **more,
    }


def xid79(seq: int = 900, **more: Any) -> Any:
    return replace(active_finding(fault("Xid79", REBOOT), **more), seq=seq)


def gestured(memory: Memory, annotations: dict[str, str] | None = None, by: FieldManager = PERSON) -> NodeState:
    """The label is `pass`, written by a person."""
    return node(
        labels={STATUS: "pass"},
        annotations={RESULTS: recorded(memory), **(annotations or {})},
        status_managers=(by,),
    )


class TestTheAnnotation:
    def test_survives_the_way_onto_the_node_and_back(self) -> None:
        assert parse_release(dump_release(WORD)) == WORD

    def test_names_exactly_the_event_findings_of_all_records(self) -> None:
        memory = memory_with(xid79(), active_finding(fault("GpuLost"), Nature.LEVEL, check="gpu-count"), cursor=1200)
        state = node(annotations={RESULTS: recorded(memory), SWEEP_RESULT: deep(deep_row())})

        word = parse_release(dump_release(release_of(state, "mia", "swapped", LATER)))

        assert {(finding.reason, finding.boot_id, finding.cursor) for finding in word.findings} == {
            ("Xid79", BOOT, 1200),
            ("DcgmDiagMemory", "", None),
        }

    def test_acknowledgement_of_an_earlier_boot_covers_that_boots_log(self) -> None:
        memory = memory_with(xid79(5000, boot_id=EARLIER_BOOT), cursor=12)
        state = node(annotations={RESULTS: recorded(memory)})

        word = parse_release(dump_release(release_of(state, "mia", "swapped", LATER)))

        assert [(finding.boot_id, finding.cursor) for finding in word.findings] == [(EARLIER_BOOT, 5000)]
        assert after_release(memory, word, later(3600)).active == ()

    def test_ends_what_it_names_though_the_record_cuts_its_times_to_the_second(self) -> None:
        seen = WALL.replace(microsecond=654_321)
        memory = memory_with(replace(xid79(-1), first_seen=seen, last_seen=seen))
        state = node(annotations={RESULTS: recorded(memory)})

        word = parse_release(dump_release(release_of(state, "mia", "swapped", LATER)))

        assert after_release(memory, word, later(3600)).active == ()

    # A fault that arrives at the same moment is another one.
    @pytest.mark.parametrize(("seq", "stays"), [(900, False), (1200, False), (1201, True)])
    def test_finding_after_the_record_stays(self, seq: int, stays: bool) -> None:
        state = node(annotations={RESULTS: recorded(memory_with(xid79(), cursor=1200))})
        word = release_of(state, "mia", "swapped", LATER)

        assert bool(after_release(memory_with(xid79(seq), cursor=seq), word, later(3600)).active) is stays

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "please",
            "[]",
            "{}",
            '{"by":"x"}',
            '{"by":"x","reason":"y","at":"2026-11-21T01:02:03Z"}',
            '{"by":"x","reason":"y","at":"2026-11-21T01:02:03","findings":[]}',
            '{"by":"x","reason":"y","at":7,"findings":[]}',
            '{"by":"x","reason":"y","at":"2026-11-21T01:02:03Z","findings":{}}',
            '{"by":"x","reason":"y","at":"2026-11-21T01:02:03Z","findings":[7]}',
            '{"by":"x","reason":"y","at":"2026-11-21T01:02:03Z","findings":[{"reason":"Xid79"}]}',
            dump_release(WORD).replace("900", "[]"),
            dump_release(WORD).replace("900", '"x"'),
            "[" * 50_000,
            "x" * 300_000,
        ],
    )
    def test_unreadable_release_is_none_and_is_reported(self, text: str) -> None:
        with pytest.raises(RecordError):
            parse_release(text)
        found, complaints = read_release(node(annotations={RELEASE: text}), by_label=True)

        assert found is None
        assert [complaint.startswith(f"annotation {RELEASE}: ") for complaint in complaints] == [True]

    @pytest.mark.parametrize("by_label", [True, False])
    def test_counts_with_and_without_labels(self, by_label: bool) -> None:
        assert read_release(node(annotations={RELEASE: dump_release(WORD)}), by_label=by_label) == (WORD, ())

    def test_of_a_whole_machine_can_be_read_back(self) -> None:
        standing = (replace(active_finding(fault(f"Xid{n}", REBOOT, f"gpu/{n}")), seq=n) for n in range(1000))
        rows = [deep_row(f"DcgmDiag{n}") for n in range(60)]
        own = recorded(memory_with(*standing, cursor=2000))
        state = node(annotations={RESULTS: own, SWEEP_RESULT: deep(*rows), QUARANTINE_RESULT: deep(*rows)})

        word = release_of(state, "mia", "swapped", LATER)

        assert parse_release(dump_release(word)).findings
        assert len(parse_release(dump_release(word)).findings) == len(word.findings)


class TestTheGesture:
    def test_release_covers_the_records_on_the_same_object(self) -> None:
        word, complaints = read_release(gestured(memory_with(xid79(), cursor=1200)), by_label=True)

        assert complaints == ()
        assert word is not None
        assert (word.by, word.at, word.reason) == (PERSON.name, PERSON.at, LABEL_RELEASE)
        assert [(finding.reason, finding.cursor) for finding in word.findings] == [("Xid79", 1200)]

    def test_is_none_where_labels_are_switched_off(self) -> None:
        assert read_release(gestured(memory_with(xid79())), by_label=False) == (None, ())

    @pytest.mark.parametrize("status", ["fail", "warn", "unknown", "Pass", ""])
    def test_is_the_word_pass_and_no_other(self, status: str) -> None:
        state = replace(gestured(memory_with(xid79())), labels={STATUS: status})

        assert read_release(state, by_label=True) == (None, ())

    @pytest.mark.parametrize(
        ("managers", "by"),
        [
            ((FieldManager("gpu-healthcheck", LATER),), "a person"),
            ((PERSON, FieldManager("gpu-healthcheck", LATER)), PERSON.name),
            ((FieldManager("kubectl-edit", WALL), PERSON), PERSON.name),
            ((), "a person"),
        ],
    )
    def test_is_one_whoever_is_noted_and_names_the_person_who_is(
        self, managers: tuple[FieldManager, ...], by: str
    ) -> None:
        word, _ = read_release(replace(gestured(memory_with(xid79())), status_managers=managers), by_label=True)

        assert word is not None
        assert (word.by, [finding.reason for finding in word.findings]) == (by, ["Xid79"])
        assert word.at >= WALL

    def test_is_the_same_whenever_it_is_read(self) -> None:
        state = replace(gestured(memory_with(xid79())), status_managers=())

        assert read_release(state, by_label=True) == read_release(state, by_label=True)

    @pytest.mark.parametrize("status", ["pass", "", 7, None, "PASS", "FAIL"])
    def test_label_release_needs_a_worse_record_of_ours(self, status: Any) -> None:
        text = json.dumps({**json.loads(recorded(memory_with(xid79()))), "status": status})

        assert read_release(gestured(memory_with(), {RESULTS: text}), by_label=True) == (None, ())

    def test_is_none_over_a_record_of_the_bash_suite(self) -> None:
        own = json.loads(recorded(memory_with(xid79())))
        del own["schema"]

        assert read_release(gestured(memory_with(), {RESULTS: json.dumps(own)}), by_label=True) == (None, ())

    def test_is_none_where_nothing_is_worse_than_pass(self) -> None:
        assert read_release(gestured(memory_with()), by_label=True) == (None, ())

    def test_cannot_release_a_level(self) -> None:
        level = active_finding(fault("GpuLost"), Nature.LEVEL, check="gpu-count")

        assert read_release(gestured(memory_with(level)), by_label=True) == (None, ())

    def test_means_nothing_that_a_deep_run_wrote_by_itself(self) -> None:
        fields = {SWEEP_RESULT: deep(deep_row())}
        alone, _ = read_release(gestured(memory_with(), fields), by_label=True)
        word, _ = read_release(gestured(memory_with(xid79()), fields), by_label=True)

        assert alone is None
        assert word is not None
        assert [finding.reason for finding in word.findings] == ["Xid79"]

    @pytest.mark.parametrize("own", ["", "no JSON", "[]", '{"released":7}', '{"released":{"at":7}}'])
    def test_an_unreadable_record_is_treated_as_absent(self, own: str) -> None:
        state = gestured(memory_with(), {RESULTS: own, SWEEP_RESULT: deep(deep_row())})

        assert read_release(state, by_label=True) == (None, ())


class TestTheDeepRecords:
    def test_count_no_more_once_released(self) -> None:
        state = node(annotations={SWEEP_RESULT: deep(deep_row()), QUARANTINE_RESULT: deep(deep_row("X", RESET))})
        acknowledged = acknowledgements(faults_on(state))

        assert other_severities(state, ()) == ([ISOLATE, RESET], ())
        assert other_severities(state, acknowledged) == ([PASS, PASS], ())
        assert other_severities(
            state, [acknowledgement for acknowledgement in acknowledged if acknowledgement.reason == "X"]
        ) == ([ISOLATE, PASS], ())

    def test_count_again_when_a_later_run_finds_the_same(self) -> None:
        acknowledged = acknowledgements(faults_on(node(annotations={SWEEP_RESULT: deep(deep_row())})))
        again = deep(deep_row(last_seen="2026-11-22T01:00:00Z"), timestamp="2026-11-22T01:02:03Z")

        assert other_severities(node(annotations={SWEEP_RESULT: again}), acknowledged) == ([ISOLATE], ())

    def test_records_with_an_unexplained_severity_are_released_as_a_whole(self) -> None:
        state = node(annotations={SWEEP_RESULT: '{"schema":1,"severity":"ISOLATE","timestamp":"2026-11-21T01:02:03Z"}'})
        acknowledged = acknowledgements(faults_on(state))

        assert [(acknowledgement.reason, acknowledgement.subject) for acknowledgement in acknowledged] == [
            (UNEXPLAINED, "node")
        ]
        assert other_severities(state, acknowledged) == ([PASS], ())

    def test_undated_findings_cannot_be_ordered_and_stay(self) -> None:
        state = node(annotations={SWEEP_RESULT: '{"schema":1,"severity":"ISOLATE"}'})

        assert acknowledgements(faults_on(state)) == ()
        assert other_severities(state, [Acknowledgement(UNEXPLAINED, "node", "", None, LATER)]) == (
            [ISOLATE],
            (),
        )

    def test_of_a_level_are_not_a_persons_to_release(self) -> None:
        state = node(annotations={SWEEP_RESULT: deep(deep_row(nature="level"))})

        assert acknowledgements(faults_on(state)) == ()
        assert other_severities(state, [Acknowledgement("DcgmDiagMemory", GPU, "", None, LATER)]) == ([ISOLATE], ())

    @pytest.mark.parametrize(
        "row",
        [
            {},
            {"reason": "X"},
            deep_row() | {"severity": "AWFUL"},
            deep_row() | {"nature": []},
            deep_row() | {"last_seen": 7},
            deep_row() | {"seq": "x", "boot_id": {}},
        ],
    )
    def test_with_rows_of_another_shape_still_count(self, row: dict[str, Any]) -> None:
        text = json.dumps({"schema": 1, "severity": "ISOLATE", "findings": [row, 7], "cursor": "x"})

        assert other_severities(node(annotations={SWEEP_RESULT: text}), ()) == ([ISOLATE], ())


class TestARecordOfTheBashSuite:
    """It has no schema, and speaks of the node only while its taint is there."""

    OLD = json.dumps(
        {
            "timestamp": "2025-01-02T03:04:05Z",
            "node": "n",
            "suite": "quarantine",
            "status": "FAIL",
            "severity": "ISOLATE",
            "recommendation": "investigate",
        }
    )

    @pytest.mark.parametrize(("taints", "severities"), [((TAINT,), [ISOLATE]), ((), [])])
    def test_counts_while_its_taint_stands(self, taints: tuple[Any, ...], severities: list[Severity]) -> None:
        state = node(annotations={QUARANTINE_RESULT: self.OLD}, taints=taints)

        assert other_severities(state, ()) == (severities, ())
        assert [fault.severity for fault in faults_on(state)] == severities

    @pytest.mark.parametrize(
        "text", ['{"severity":"ISOLATE"}', '{"severity":"ISOLATE","timestamp":"0001-01-01T00:00:00+23:59"}']
    )
    @pytest.mark.parametrize("taints", [(TAINT,), ()])
    def test_without_a_time_is_passed_over_and_complained_of(self, taints: tuple[Any, ...], text: str) -> None:
        severities, complaints = other_severities(node(annotations={SWEEP_RESULT: text}, taints=taints), ())

        assert severities == []
        assert [complaint.endswith("; it is ignored") for complaint in complaints] == [True]


@pytest.mark.parametrize("at", ["1969-12-31T23:59:59Z", "9999-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", 7, {}])
def test_a_deep_record_with_an_unrepresentable_time_counts_and_is_reported(at: Any) -> None:
    severities, complaints = other_severities(node(annotations={SWEEP_RESULT: deep(deep_row(), timestamp=at)}), ())

    assert severities == [ISOLATE]
    assert [complaint.startswith(f"annotation {SWEEP_RESULT}: timestamp: ") for complaint in complaints] == [True]


@pytest.mark.parametrize(
    ("own", "taints", "taken"),
    [
        ({"taint": "set"}, (TAINT,), True),
        ({"taint": "withheld"}, (), False),
        ({"taint": "withheld"}, (TAINT,), True),
        ({"taint": "off"}, (), True),
        ({}, (), True),
        ({"taken": {"sweep-result": "2026-11-21T00:00:00Z"}}, (), False),
        ({"taken": {"quarantine-result": "2026-11-21T01:02:03Z"}}, (), False),
        ({"taken": None}, (), False),
    ],
)
def test_deep_record_is_adopted_once_the_requested_taint_is_set(
    own: dict[str, Any], taints: tuple[Any, ...], taken: bool
) -> None:
    record = {"schema": 1, "taken": {"sweep-result": "2026-11-21T01:02:03Z"}, **own}
    state = node(annotations={RESULTS: json.dumps(record)}, taints=taints)

    assert has_adopted(state, "sweep-result", "2026-11-21T01:02:03Z") is taken


def test_the_prefix_of_the_annotation_is_the_documented_one() -> None:
    assert f"{PREFIX}/release" == RELEASE


def test_a_time_without_a_zone_is_no_time() -> None:
    naive = deep(deep_row(last_seen=datetime(2026, 11, 21, tzinfo=UTC).replace(tzinfo=None).isoformat()))

    assert [fault.seen for fault in faults_on(node(annotations={SWEEP_RESULT: naive}))] == [None]
