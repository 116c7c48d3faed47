"""Every finding that 0.3.0 knows, in its memory file and in its records: none is lost, doubled, or of another tier."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.memory import content
from gpu_healthcheck.healthcheck.memory.exits import adopted, begin
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.severity_changes import in_force
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord
from tests.examples import BOOT, MACHINE, NOW
from tests.formats import FOLDER

SAVED: dict[str, Any] = json.loads((FOLDER / "0.3.0/every-finding.json").read_text())
OF_THE_FILE = {(row["reason"], row["subject"]): row for row in json.loads(SAVED["memory"].split("\n")[1])["findings"]}


def started(memory: Memory) -> Memory:
    """As the agent's start has it, with the overrides of a cluster that has none."""
    return in_force(begin(memory, MACHINE, BOOT, NOW), Policy())


NO_FAULT_SINCE = "Xid162"
"""An all-clear that 0.3.0 kept as a finding."""


def check(memory: Memory, rows: list[dict[str, Any]]) -> None:
    expected = {
        (row["reason"], row["subject"]): "PASS" if row["reason"] == NO_FAULT_SINCE else row["severity"] for row in rows
    }
    seen = {finding.key: finding.finding.severity.name for finding in memory.active}

    assert max(Counter(finding.key for finding in memory.active).values()) == 1
    assert {key: (seen.get(key), tier) for key, tier in expected.items() if seen.get(key) != tier} == {}
    assert seen.keys() == expected.keys()


def test_memory_file_is_read_whole() -> None:
    check(started(content.parse(SAVED["memory"].encode())), list(OF_THE_FILE.values()))


@pytest.mark.parametrize("text", SAVED["records"], ids=range(len(SAVED["records"])))
def test_records_rebuild_a_lost_memory_file(text: str) -> None:
    memory = adopted(Memory(MACHINE, BOOT), records.remembered(records.parse(AgentRecord, text)), NOW)

    check(started(memory), json.loads(text)["findings"])


def test_memory_file_written_again_is_the_same() -> None:
    once = started(content.parse(SAVED["memory"].encode()))

    assert started(content.parse(content.dump(once))) == once


def test_finding_hidden_by_an_override_returns_without_it() -> None:
    once = started(content.parse(SAVED["memory"].encode()))
    policy = Policy({finding.finding.reason: Severity.PASS for finding in once.active})

    hidden = content.parse(content.dump(in_force(once, policy)))

    assert {finding.finding.severity for finding in hidden.active} == {Severity.PASS}
    assert sorted(in_force(hidden, Policy()).active, key=lambda finding: finding.key) == sorted(
        once.active, key=lambda finding: finding.key
    )
