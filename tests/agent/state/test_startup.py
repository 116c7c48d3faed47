"""Start with a memory file that this program can read and not use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.agent.process import wiring
from gpu_healthcheck.agent.process.wiring import start_from
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.memory.exits import begin
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Shortage
from tests.examples import active_finding, fault, memory_with


@pytest.fixture
def file(tmp_path: Path) -> MemoryFile:
    file = MemoryFile(tmp_path)
    file.acquire()
    file.write(memory_with(active_finding(fault())))
    return file


def test_a_memory_that_triggers_a_defect_is_renamed_and_reported(
    file: MemoryFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(memory: Memory, *rest: Any) -> Memory:
        if memory.active:
            raise OverflowError("date value out of range")
        return begin(memory, *rest)

    monkeypatch.setattr(wiring, "begin", fails)
    start = start_from(file, tmp_path, Telemetry())

    assert (start.memory.active, start.was_lost, file.path.exists()) == ((), True, False)
    assert "OverflowError: date value out of range" in start.unreadable
    assert start.unreadable.endswith("renamed to memory.unreadable")


def test_a_shortage_renames_nothing(file: MemoryFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Memory:
        raise Shortage("EMFILE")

    monkeypatch.setattr(file, "read", fails)
    with pytest.raises(Shortage):
        start_from(file, tmp_path, Telemetry())

    assert file.path.exists()
