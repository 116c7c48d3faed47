"""State that 0.1.0 left on a node and on its Node, as read by this version: all findings stay active."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from healthcheck.deep.claim import RunKind, claim_on
from healthcheck.deep.deep_record import untaken
from healthcheck.memory import exits
from healthcheck.model import PREFIX, Severity
from healthcheck.node.state import QUARANTINE_RESULT, RESULTS
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import other_severities, read_release
from healthcheck.verdict.budget import former_holder_label
from healthcheck.verdict.record import AgentRecord, RunRecord, passed_since
from tests.formats.saved import saved

if TYPE_CHECKING:
    from healthcheck.memory.findings import Memory

VERSION = "0.1.0"
STOOD = [
    "ISOLATE DcgmDiagMemory gpu/0000:64:00.0 event, 1 by dcgm-diag-l2",
    "REBOOT Xid79 gpu/0000:86:00.0 event, 1 by xid",
    "RESET RowRemapPending gpu/0000:b9:00.0 level, 1 by row-remap",
    "MONITOR Xid31 gpu/0000:75:00.0 event, 2 by xid",
]
RELEASED = ["Xid48 gpu/0000:a8:00.0"]
TAKEN = {"sweep-result": "2026-11-23T01:29:42Z"}


def standing(memory: Memory) -> list[str]:
    return [
        f"{finding.finding.severity.name} {finding.finding.reason} {finding.finding.subject} {finding.nature.value}, "
        f"{finding.count} by "
        f"{finding.check}"
        for finding in memory.standing
    ]


def acknowledged(memory: Memory) -> list[str]:
    return [f"{acknowledgement.reason} {acknowledgement.subject}" for acknowledgement in memory.acknowledged]


@pytest.mark.parametrize(
    ("situation", "stands", "released", "ended", "hits"),
    [
        ("healthy", [], [], {}, []),
        ("faults", STOOD, RELEASED, {("Xid95", "1062780597000"): 1}, ["7 python", "8 trainer"]),
    ],
)
def test_its_memory_file_has_all(
    situation: str, stands: list[str], released: list[str], ended: dict[tuple[str, str], int], hits: list[str]
) -> None:
    memory = saved(VERSION, situation).memory

    assert standing(memory) == stands
    assert acknowledged(memory) == released
    assert {key: len(ends) for key, ends in memory.ended.items()} == ended
    assert [hit.process for some in memory.hits.values() for hit in some] == hits
    assert (len(memory.gpus), len(memory.first.places), memory.first.efa) == (8, 8, 0)
    assert (memory.instance_type, memory.machine[:5], memory.cursor) == (
        "p5.48xlarge",
        "ec26d",
        {"healthy": 1, "faults": 13}[situation],
    )


@pytest.mark.parametrize(
    ("situation", "stands", "released", "taken"), [("healthy", [], [], {}), ("faults", STOOD, RELEASED, TAKEN)]
)
def test_a_lost_file_is_rebuilt_from_its_record(
    situation: str, stands: list[str], released: list[str], taken: dict[str, str]
) -> None:
    one = saved(VERSION, situation)
    memory = records.remembered(records.parse(AgentRecord, one.node.annotations[RESULTS]))

    assert (standing(memory), acknowledged(memory), memory.taken) == (stands, released, taken)
    assert (memory.machine, memory.boot_id, memory.cursor) == (
        one.memory.machine,
        one.memory.boot_id,
        one.memory.cursor,
    )


def test_deep_records_that_nobody_has_taken_are_taken() -> None:
    """They have no schema, as those of the bash suite, which count while our taint stands and no longer."""
    one = saved(VERSION, "failed-run")
    untainted = replace(one.node, taints=())
    taken = list(untaken(untainted, one.memory.taken))

    assert [(deep.kind, deep.void) for deep in taken] == [("sweep-result", ""), ("quarantine-result", "")]
    found = [finding for deep in taken for finding in deep.result.found]
    assert [(deep_finding.finding.severity.name, deep_finding.finding.subject) for deep_finding in found] == [
        ("ISOLATE", "gpu/0000:97:00.0"),
        ("ISOLATE", "gpu/0000:75:00.0"),
    ]
    assert other_severities(untainted, ()) == ([Severity.ISOLATE] * 2, ())


def test_a_run_that_passed_ends_what_stood_before_it() -> None:
    one = saved(VERSION, "passed-run")
    began = passed_since(records.on_node(RunRecord, one.node, QUARANTINE_RESULT))

    assert began == datetime(2026, 11, 23, 1, 31, 18, tzinfo=UTC)
    assert standing(exits.passed(one.memory, began)) == STOOD[2:]  # a level, and severities below RESET


def test_a_run_in_flight_holds_the_node() -> None:
    one = saved(VERSION, "run-in-flight")
    began = datetime(2026, 11, 23, 1, 31, 20, tzinfo=UTC)
    claim = claim_on(one.node, began)

    assert claim is not None
    assert claim.kind is RunKind.QUARANTINE
    assert passed_since(records.on_node(RunRecord, one.node, QUARANTINE_RESULT)) is None


def test_a_release_that_waits_is_read() -> None:
    release, complaints = read_release(saved(VERSION, "run-in-flight").node, gestures=True)

    assert complaints == ()
    assert release is not None
    assert (release.by, release.reason) == ("sim", "board swapped")
    assert sorted(f"{finding.reason} {finding.subject}" for finding in release.findings) == [
        "DcgmDiagMemory gpu/0000:64:00.0",
        "DcgmDiagMemory gpu/0000:97:00.0",
        "Xid31 gpu/0000:75:00.0",
        "Xid79 gpu/0000:86:00.0",
    ]


def test_its_place_in_the_fleet_budget_is_found_by_its_label() -> None:
    heartbeat, place = saved(VERSION, "faults").leases

    assert place["metadata"]["labels"] == {f"{PREFIX}/holder": former_holder_label("upgraded-1")}
    assert place["spec"] == {"holderIdentity": "upgraded-1"}
    assert heartbeat["spec"]["leaseDurationSeconds"] == 30
