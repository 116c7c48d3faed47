"""The record on the Node: small when healthy, always bounded, read back exactly, and safe against foreign content."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import astuple, replace

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.healthcheck.memory import rows
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory, Release
from gpu_healthcheck.healthcheck.model import Nature, Outcome, Severity, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.text.boundary import as_json, read_row
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.inventory import Inventory
from gpu_healthcheck.healthcheck.verdict.record import (
    LONGEST,
    AgentRecord,
    Identity,
    RecordError,
    RunRecord,
    passed_since,
)
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from gpu_healthcheck.healthcheck.verdict.work import Work, WorkRow
from tests.examples import (
    BOOT,
    IDENTITY,
    MACHINE,
    NODE,
    UNOBSERVED,
    WALL,
    active_finding,
    fault,
    memory_with,
    outcome_with,
)

_SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "docs/record.schema.json").read_text())
)
FINDING = as_json(rows.finding_row(active_finding(fault())))
ALL_GROUPS = [
    outcome_with(check="driver"),
    outcome_with(check="gpu-count"),
    outcome_with(check="xid"),
    outcome_with(check="efa-count", group="2-efa-enumeration"),
    outcome_with(check="nvlink", group="3-topology-check"),
    outcome_with(check="runtime", group="7-container-runtime"),
    outcome_with(check="hami", group="8-hami", configured=False),
]


def render(memory: Memory, outcomes: list[Outcome] | None = None, **more: Any) -> dict[str, Any]:
    return as_json(records.render(decide(memory, outcomes or ALL_GROUPS), memory, IDENTITY, WALL, **more))


def read(record: dict[str, Any]) -> AgentRecord:
    return read_row(AgentRecord, record)


def size(record: dict[str, Any]) -> int:
    return len(records.dump(read(record)).encode())


def flood(count: int, detail: str) -> Memory:
    return memory_with(
        active_finding(fault("Xid79", Severity.REBOOT, detail=detail)),
        *(
            active_finding(fault("Xid13", Severity.MONITOR, f"gpu/0000:{number:02x}:00.0", detail=detail))
            for number in range(count)
        ),
    )


def test_a_healthy_record_has_the_keys_of_the_bash_suite_and_ours() -> None:
    record = render(memory_with(cursor=1234))

    assert record == {
        "schema": 1,
        "timestamp": "2026-11-21T01:02:03Z",
        "hostname": NODE,
        "instance_type": "p5.48xlarge",
        "status": "pass",
        "severity": "PASS",
        "checks": [
            {"check": "0-nvidia-smi", "status": "pass", "severity": "PASS"},
            {"check": "2-efa-enumeration", "status": "pass", "severity": "PASS"},
            {"check": "3-topology-check", "status": "pass", "severity": "PASS"},
            {"check": "7-container-runtime", "status": "pass", "severity": "PASS"},
            {"check": "8-hami", "status": "not-configured", "severity": "PASS"},
        ],
        "findings": [],
        "unobserved": [],
        "agent_version": __version__,
        "node_uid": "0d4f5a5e-uid",
        "machine": MACHINE,
        "boot_id": BOOT,
        "cursor": 1234,
    }


def test_a_healthy_record_is_at_most_2_kib() -> None:
    assert size(render(memory_with(cursor=2**63))) <= 2048


def test_a_finding_is_reported_with_all_names_of_its_subject() -> None:
    about = {"index": "0", "uuid": "GPU-1", "serial": "165"}
    finding = fault(about=about, rule="xid.csv:79", source="dmesg.txt:4")

    (row,) = render(memory_with(active_finding(finding, at=12.34567)))["findings"]

    assert row == {
        "reason": "Xid79",
        "severity": "REBOOT",
        "subject": "gpu/0000:53:00.0",
        "detail": "GPU has fallen off the bus.",
        "first_seen": "2026-11-21T01:02:03Z",
        "last_seen": "2026-11-21T01:02:03Z",
        "count": 1,
        "exit": "reboot, a passed quarantine run, release, another GPU in its place",
        "check": "xid",
        "nature": "event",
        "at": 12.346,
        "about": about,
        "rule": "xid.csv:79",
        "source": "dmesg.txt:4",
    }


def test_a_check_that_could_not_run_is_recorded_with_its_cause() -> None:
    record = render(
        memory_with(), [outcome_with(unobserved=Unobserved(UnobservedCause.named("ProbeFailed"), "x" * 5000))]
    )

    assert record["status"] == "unknown"
    assert record["unobserved"] == [{"check": "0-nvidia-smi", "cause": "ProbeFailed", "detail": "x" * 300}]


@pytest.mark.parametrize("taint", ["set", "withheld", "off"])
def test_the_taint_is_shown_only_if_set_or_withheld(taint: str) -> None:
    assert render(memory_with(), taint=taint)["taint"] == taint
    assert "taint" not in render(memory_with())


@pytest.mark.parametrize("count", [1, 40, 100, 500])
@pytest.mark.parametrize("detail", ["short", "x" * 200, "\N{FIRE}" * 200, '\\"' * 105])
def test_record_of_many_findings_is_at_most_16_kib_and_counts_dropped_rows(count: int, detail: str) -> None:
    record = render(flood(count, detail))

    assert size(record) <= LONGEST
    assert record["findings"][0]["reason"] == "Xid79"
    gone = record.get("cut", {"details": 0, "findings": 0})
    assert len(record["findings"]) + gone["findings"] == count + 1
    if gone["details"] == 0:
        assert {entry["detail"] for entry in record["findings"]} == {detail}
    else:
        assert gone["details"] == count + 1
        assert {entry["detail"] for entry in record["findings"]} == {detail[:40]}


@pytest.mark.parametrize("detail", ["short", "x" * 200])
def test_record_of_an_unobserved_node_is_at_most_16_kib_and_keeps_active_findings(detail: str) -> None:
    causes = tuple(
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"gpu/{n}: ecc mode: NVML error 999", f"gpu/{n}")
        for n in range(600)
    )
    memory = memory_with(*(active_finding(fault("GpuLost", subject=f"gpu/{n}", detail=detail)) for n in range(8)))

    record = render(memory, [Outcome("ecc", "0-nvidia-smi", unobserved=causes)])

    assert size(record) <= LONGEST
    assert len(record["findings"]) == 8
    assert record["unobserved"][0]["detail"] == causes[0].detail
    assert len(record["unobserved"]) + record["cut"]["unobserved"] == len(causes)


def test_one_enormous_finding_does_not_make_an_enormous_record() -> None:
    record = render(memory_with(active_finding(fault(subject="gpu/" + "\N{FIRE}" * LONGEST))))

    assert size(record) <= LONGEST
    assert (record["severity"], record["cut"]) == ("REBOOT", {"details": 0, "findings": 1})


def test_a_memory_is_rebuilt_from_the_record_that_was_written() -> None:
    memory = memory_with(
        active_finding(fault(about={"serial": "165"}, rule="xid.csv:79")),
        active_finding(fault("GpuCountLow", subject="node"), Nature.LEVEL, check="gpu-count"),
        cursor=77,
    )

    assert records.remembered(records.parse(AgentRecord, records.dump(read(render(memory))))) == memory


def test_half_a_surrogate_pair_from_a_foreign_annotation_can_be_written_again() -> None:
    foreign = json.dumps(render(memory_with(active_finding(fault(detail="half \ud83d of a pair")))))
    memory = records.remembered(records.parse(AgentRecord, foreign))

    assert r"half \\ud83d of a pair" in records.dump(read(render(memory)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("pass:SKIP", "not JSON"),
        ('{"status":', "not JSON"),
        ("[" * 50_000, "not JSON"),
        ('{"a": [NaN]}', "not JSON: NaN is not a number"),
        ('{"a": -Infinity}', "not JSON: -Infinity is not a number"),
        ('{"a": 1e999}', "not JSON: 1e999 is not a number"),
        ("[]", "a JSON list; a record is an object"),
        ('"pass"', "a JSON str"),
        ("null", "a JSON NoneType"),
        ("{}" + " " * 4 * LONGEST, "65538 characters; a record has at most 16384"),
    ],
)
def test_an_annotation_that_is_no_record_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        records.load(text)


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": None, "machine": None},
        {"findings": [{"reason": "Xid79"}]},
        {"findings": [FINDING | {"severity": "BAD"}]},
        {"findings": [FINDING | {"first_seen": "2026-11-21T01:02:03"}]},
        {"findings": [FINDING | {"count": "many"}]},
        {"findings": [FINDING | {"about": 7}]},
        {"findings": [FINDING | {"nature": "human"}]},
    ],
)
def test_a_record_of_another_shape_is_no_memory(change: dict[str, Any]) -> None:
    record = render(memory_with()) | change

    with pytest.raises(RecordError, match="not a record of schema 1"):
        records.remembered(read(record))


@pytest.mark.parametrize("key", ["machine", "boot_id"])
def test_a_record_of_the_bash_suite_is_no_memory(key: str) -> None:
    record = render(memory_with())
    del record[key]

    with pytest.raises(RecordError, match=key):
        records.remembered(read(record))


@pytest.mark.parametrize(("cursor", "remembered"), [(5, 5), (None, None), ("5", None), (5.5, None)])
def test_an_invalid_cursor_is_none(cursor: Any, remembered: int | None) -> None:
    assert records.remembered(read(render(memory_with()) | {"cursor": cursor})).cursor == remembered


@pytest.mark.parametrize("findings", [None, "x", 7, {"reason": "Xid79"}, ["x", None, 7]])
def test_invalid_findings_are_left_out(findings: Any) -> None:
    assert not read({"findings": findings}).findings


@pytest.mark.parametrize("severity", Severity)
def test_another_programs_severity_is_read(severity: Severity) -> None:
    assert records.severity_of(read({"severity": severity.name})) is severity


def test_a_record_without_a_severity_states_none() -> None:
    assert records.severity_of(read({})) is Severity.PASS


@pytest.mark.parametrize("word", ["SKIP", "reset", "", 4, None, [], {"a": 1}])
def test_invalid_severity_is_refused_with_the_allowed_ones(word: Any) -> None:
    with pytest.raises(RecordError, match="allowed are PASS, MONITOR, RESET, REBOOT, ISOLATE"):
        records.severity_of(read({"severity": word}))


WORK = {
    f"GPU-00000000-51e0-4000-8000-00000000000{index}": WorkRow(state=state, since=WALL.replace(microsecond=0), pod=pod)
    for index, (state, pod) in enumerate([(Work.WAITING, "0d4f5a5e"), (Work.WAITING, None), (Work.IDLE, "1f2e3d4c")])
}


def test_gpus_that_wait_are_read_back_and_are_part_of_the_signature() -> None:
    memory = memory_with()
    record, text = astuple(records.render_text(decide(memory, ALL_GROUPS), memory, replace(IDENTITY, work=WORK), WALL))
    plain = json.loads(text)

    _SCHEMA.validate(plain)
    assert records.parse(AgentRecord, text).work == WORK
    assert records.is_whole(text)
    assert records.signature(records.parse(AgentRecord, text)) == records.signature(record)
    assert records.signature(record) != records.signature(read(render(memory)))
    assert plain == render(memory) | {"work": plain["work"]}
    assert list(plain["work"].values())[:2] == [
        {"state": "waiting", "since": "2026-11-21T01:02:03Z", "pod": "0d4f5a5e"},
        {"state": "waiting", "since": "2026-11-21T01:02:03Z"},
    ]


def test_gpus_that_wait_are_left_out_after_the_inventory_and_before_findings() -> None:
    whole = replace(IDENTITY, inventory=Inventory(driver="570.133.20"), work=WORK)
    memory = flood(40, "d" * 50)

    def rendered(identity: Identity, padding: int = 0) -> AgentRecord:
        padded = replace(memory, machine="m" * (1 + padding))
        return records.render(decide(padded, ()), padded, identity, WALL)

    def room(identity: Identity) -> int:
        return LONGEST - len(records.dump(rendered(identity)).encode())

    rooms = [room(whole), room(replace(whole, inventory=None)), room(replace(whole, inventory=None, work={}))]
    assert 0 < rooms[0] < rooms[1] < rooms[2]
    kept = [rendered(whole, padding) for at in rooms for padding in (at, at + 1)]
    parts = [(record.inventory is not None, record.work is not None, record.cut is not None) for record in kept]
    assert parts == [
        (True, True, False),
        (False, True, False),
        (False, True, False),
        (False, False, False),
        (False, False, False),
        (False, False, True),
    ]


@pytest.mark.parametrize(
    ("change", "news"),
    [
        ({"timestamp": "2027-01-01T00:00:00Z"}, False),
        ({"cursor": 99}, False),
        ({"status": "warn"}, True),
        ({"boot_id": "another"}, True),
        ({"agent_version": "9.9"}, True),
        ({"taint": "set"}, True),
    ],
)
def test_times_and_the_cursor_do_not_change_the_signature(change: dict[str, Any], news: bool) -> None:
    record = render(memory_with(active_finding(fault())))

    assert (records.signature(read(record | change)) != records.signature(read(record))) is news


@pytest.mark.parametrize("nature", Nature)
@pytest.mark.parametrize(
    ("key", "news", "news_in_time"),
    [
        ("last_seen", False, False),
        ("at", False, False),
        ("seq", False, False),
        ("count", False, True),
        ("detail", None, True),
        ("severity", True, False),
    ],
)
def test_a_repeated_event_changes_the_recurrence_and_not_the_signature(
    nature: Nature, key: str, news: bool | None, news_in_time: bool
) -> None:
    record = render(memory_with(active_finding(fault(), nature)))
    other = record | {"findings": [record["findings"][0] | {key: "something else"}]}
    news = (
        nature is Nature.LEVEL if news is None else news
    )  # a level's detail is its observation, an event's its last line

    assert (records.signature(read(other)) != records.signature(read(record))) is news
    assert (records.recurrence(read(other)) != records.recurrence(read(record))) is news_in_time


def test_unobserved_check_keeps_a_healthy_record_short() -> None:
    outcomes = [outcome_with(check=group.check, group=group.group, unobserved=UNOBSERVED) for group in ALL_GROUPS]

    assert size(render(memory_with(), outcomes)) <= 2048


LEVEL_4 = {"check": "4-dcgm-diag-l4", "status": "pass", "severity": "PASS"}
RUN = {
    "schema": 1,
    "timestamp": "2026-11-21T03:00:00Z",
    "started": "2026-11-21T02:00:00Z",
    "status": "pass",
    "checks": [LEVEL_4],
}


def test_a_passed_quarantine_run_counts_from_its_start() -> None:
    assert passed_since(read_row(RunRecord, RUN)) == datetime(2026, 11, 21, 2, tzinfo=UTC)
    unsaid = {key: RUN[key] for key in RUN if key != "started"}
    assert passed_since(read_row(RunRecord, unsaid)) == datetime(2026, 11, 21, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fail"},
        {"checks": []},
        {"checks": ["x", {"check": "1-dcgm-diag-l2", "status": "pass"}]},
        {"checks": [LEVEL_4 | {"status": "unknown"}]},
        {"started": "yesterday"},
        {"started": None},
        {"started": "9999-01-01T00:00:00Z"},
        {"schema": None},
    ],
)
def test_any_other_record_is_no_passed_quarantine_run(change: dict[str, object]) -> None:
    assert passed_since(read_row(RunRecord, RUN | change)) is None


def test_release_is_read_back_within_its_limits() -> None:
    later = WALL + timedelta(seconds=9)
    acknowledged = (
        Acknowledgement("Xid79", "gpu/0000:53:00.0", BOOT, 100, WALL),
        Acknowledgement("Xid95", "gpu/0000:53:00.0/gi5", BOOT, 100, later),
        Acknowledgement("Xid54", "gpu/0000:53:00.0", "the boot before", 7, WALL),
        Acknowledgement("DcgmDiagMemory", "dcgm", BOOT, None, WALL),
    )

    text = records.dump(read(render(memory_with(acknowledged=acknowledged))))
    acknowledgements = records.remembered(records.parse(AgentRecord, text)).acknowledged

    asked = [
        (boot_id, seq, seen)
        for boot_id in (BOOT, "the boot before")
        for seq in (-1, 7, 8, 100, 101)
        for seen in (WALL, later)
    ]
    for acknowledgement in acknowledged:
        (same,) = [other for other in acknowledgements if other.key == acknowledgement.key]
        # A logged event has a position in the log, other findings have none.
        places = [place for place in asked if (place[1] < 0) is (acknowledgement.cursor is None)]
        assert [same.covers(*place) for place in places] == [acknowledgement.covers(*place) for place in places]


def test_many_acknowledgements_leave_the_record_of_a_healthy_node_small() -> None:
    acknowledged = tuple(
        Acknowledgement(f"Xid{code}", f"gpu/0000:{bus:02x}:00.0", BOOT, 100, WALL + timedelta(seconds=code))
        for code in (79, 95, 154)
        for bus in range(8)
    )

    record = render(memory_with(acknowledged=acknowledged, released=Release("ann", "board swapped", WALL, ())))

    assert size(record) <= 2048
