"""The log followed in two threads, and the content of the file at each moment: in this process, on a simulated node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.agent.deep.level_2 import DeepProcesses
from gpu_healthcheck.agent.events.kernel_log_follower import Follower
from gpu_healthcheck.agent.events.record_judge import GpuWatch, RecordJudge
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    KernelEvent,
    Nature,
    Now,
    Outcome,
    Severity,
)
from gpu_healthcheck.healthcheck.probes.kernel_log import RING
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.sim.kernel_log import monotonic_us
from gpu_healthcheck.sim.node import SimulatedNode
from tests.agent.parts import Reports
from tests.waiting import eventually

GPU = "gpu/0000:53:00.0"
EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
WALL = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[MemoryFile]:
    memory_file = MemoryFile(tmp_path / "state")
    memory_file.acquire()
    yield memory_file
    memory_file.unlock()


def counted(file: MemoryFile) -> int:
    memory = file.read()
    return sum(finding.count for finding in memory.active) if memory else 0


class TestTheFile:
    """News is on the disk before it is reported; a repeated count may wait a second."""

    @pytest.fixture
    def time(self) -> list[float]:
        return [1000.0]

    @pytest.fixture
    def state(self, time: list[float]) -> AgentState:
        return AgentState("n", Memory(boot_id="b"), lambda: Now(WALL, time[0]))

    @pytest.fixture
    def ledger(self, file: MemoryFile, state: AgentState) -> Ledger:
        return Ledger(state, file, Telemetry())

    def xid(self, ledger: Ledger, seq: int, code: int = 95, severity: Severity = Severity.RESET) -> None:
        finding = Finding(f"Xid{code}", severity, GPU, "x", seq=seq, at=1.0)
        line = KernelEvent(f"Xid{code}", GPU, seq, 1.0, finding)
        ledger.kernel_log_judged([Outcome("xid", "0-nvidia-smi", events=(line,))], seq)

    def test_new_finding_is_written_at_once(self, ledger: Ledger, file: MemoryFile) -> None:
        self.xid(ledger, 1)
        self.xid(ledger, 2, code=79)

        assert (counted(file), ledger.unsaved) == (2, False)

    def test_worse_finding_is_written_at_once(self, ledger: Ledger, file: MemoryFile) -> None:
        self.xid(ledger, 1)
        self.xid(ledger, 2, severity=Severity.REBOOT)

        assert (counted(file), ledger.unsaved) == (2, False)

    def test_repeated_counts_wait_for_the_next_save(self, ledger: Ledger, file: MemoryFile) -> None:
        self.xid(ledger, 1)
        self.xid(ledger, 2)

        assert (counted(file), ledger.unsaved) == (1, True)

        ledger.save()

        assert (counted(file), ledger.unsaved) == (2, False)

    def test_a_flood_that_does_not_end_is_written_every_second(
        self, ledger: Ledger, file: MemoryFile, time: list[float]
    ) -> None:
        self.xid(ledger, 1)
        for seq in range(2, 50):
            time[0] += 0.1
            self.xid(ledger, seq)

        assert counted(file) >= 49 - 11

    def test_a_program_that_begins_with_the_older_file_counts_the_same(
        self, ledger: Ledger, state: AgentState, file: MemoryFile
    ) -> None:
        for seq in range(1, 6):
            self.xid(ledger, seq)
        before = file.read()
        assert before
        assert before.cursor is not None
        again = AgentState("n", before, state.now)
        for seq in range(before.cursor + 1, 6):
            self.xid(Ledger(again, None, Telemetry()), seq)

        assert (
            [finding.count for finding in again.memory.active]
            == [finding.count for finding in state.memory.active]
            == [5]
        )


@dataclass
class _SlowFile(MemoryFile):
    """A disk that takes as long as it likes."""

    ready: threading.Event = field(default_factory=threading.Event)

    def write(self, memory: Memory) -> None:
        self.ready.wait()
        super().write(memory)


def selecting(selected: tuple[Check, ...]) -> Settings:
    """Settings that run these checks, as no list of names can select them."""

    class Selecting(NodeSettings, frozen=True):
        @property
        def checks(self) -> tuple[Check, ...]:
            return selected

    return Settings(Selecting())


class _Following:
    def __init__(self, node: SimulatedNode, file: MemoryFile, checks: tuple[Check, ...] = EVENT_CHECKS) -> None:
        self.telemetry = Telemetry()
        self.state = AgentState("n", Memory(boot_id=node.boot_id))
        self.ledger = Ledger(self.state, file, self.telemetry)
        self.ledger.configure(selecting(checks))
        self.reports = Reports(self.state)
        processes = DeepProcesses(node.root, self.state, self.reports.report_defect)
        gpu_watch = GpuWatch(self.state, lambda: None)
        judge = RecordJudge(node.root, self.state, self.ledger, self.reports, processes, self.telemetry, gpu_watch)
        self.follower = Follower(node.root, self.state.memory.cursor, judge)

    def metric(self, name: str = "") -> float:
        return self.telemetry.registry.get_sample_value(f"gpu_healthcheck_kernel_log_{name}records_total") or 0.0

    def has_lost(self, records: int) -> bool:
        return self.metric("lost_") == records

    def has_counted(self, times: int) -> bool:
        return [finding.count for finding in self.state.memory.active] == [times]


class TestFollowing:
    @pytest.fixture
    def slow(self, tmp_path: Path) -> Iterator[_SlowFile]:
        file = _SlowFile(tmp_path / "state")
        file.acquire()
        yield file
        file.ready.set()
        file.unlock()

    def test_log_is_read_while_the_disk_is_slow(self, node: SimulatedNode, slow: _SlowFile) -> None:
        following = _Following(node, slow)
        following.follower.start()
        for _ in range(100):
            last = node.xid(0, 95, "x")

        eventually(lambda: following.follower._cursor == last.sequence)
        assert not slow.path.exists()

        slow.ready.set()
        eventually(lambda: following.has_counted(100))
        eventually(lambda: counted(slow) == 100)
        following.follower.end()

    def test_repeatedly_overrun_log_is_reported_once(self, node: SimulatedNode, file: MemoryFile) -> None:
        following = _Following(node, file)
        following.follower.start()
        eventually(lambda: following.metric() > 0)
        for times in range(1, 4):
            node.kernel_log.overrun(17)
            node.kernel_log.write("after it")
            eventually(partial(following.has_lost, 17 * times))
        following.follower.end()

        lost = "17 kernel log records were overwritten before they were read"
        assert following.reports.warnings == [("KernelLogOverrun", lost)]

    def test_driver_error_without_a_check_is_counted_and_not_judged(
        self, node: SimulatedNode, file: MemoryFile
    ) -> None:
        following = _Following(node, file)
        following.follower.start()
        first = node.kernel_log.write("usb 1-1: reset")
        eventually(lambda: following.state.memory.cursor == first.sequence)
        before = following.metric()
        for _ in range(10):
            node.kernel_log.write("usb 1-1: reset")
        node.kernel_log.write("usb 1-1: reset", facility=3)
        last = node.kernel_log.write("usb 1-1: reset")

        eventually(lambda: following.state.memory.cursor == last.sequence)
        following.follower.end()
        assert (following.metric() - before, following.metric("refused_")) == (11, 1)
        assert following.state.memory.active == ()


class TestAProcess:
    def reasons(self, following: _Following, node: SimulatedNode) -> set[str]:
        """Return the findings after the whole log was judged."""
        last = node.xid(1, 95, "the last")
        eventually(lambda: following.state.memory.cursor == last.sequence)
        return {active.finding.reason for active in following.state.memory.active} - {"Xid95"}

    @pytest.mark.parametrize(
        ("processes", "expected"),
        [
            ([(900, "worker-1"), (900, "worker-2"), (900, "x, pid=7")], {"Xid31"}),
            ([(900, "python"), (901, "python"), (902, "python")], {"Xid31", "Xid31Repeated"}),
        ],
    )
    def test_is_its_pid_whatever_its_threads_are_called(
        self, node: SimulatedNode, file: MemoryFile, processes: list[tuple[int, str]], expected: set[str]
    ) -> None:
        following = _Following(node, file)
        following.follower.start()
        for process in processes:
            node.services.run(process[0], process[1], age_seconds=30)
            node.xid(0, 31, "channel 0x0000000a", process=process)

        assert self.reasons(following, node) == expected
        following.follower.end()

    @pytest.mark.parametrize(
        ("ages", "visible", "expected"),
        [
            ((110, 30, 5), True, {"Xid31", "Xid31Repeated"}),  # the pid was used again, twice
            ((110, 110, 110), True, {"Xid31"}),  # the same process
            ((110, 30, 110), True, {"Xid31"}),
            ((None, None, None), True, {"Xid31"}),  # already gone: in doubt, the same process
            ((20, 4, 30), True, {"Xid31"}),  # younger than the line: another process, which got the pid later
            ((110, 30, 5), False, {"Xid31"}),  # the pids that the agent sees are not those of the log
        ],
    )
    def test_with_the_pid_of_an_earlier_one_is_known_by_its_start(
        self, node: SimulatedNode, file: MemoryFile, ages: tuple[float | None, ...], visible: bool, expected: set[str]
    ) -> None:
        if not visible:
            node.hide_host_processes()
        following = _Following(node, file)
        following.follower.start()
        now = monotonic_us()
        for age, seconds_ago in zip(ages, (100, 20, 0), strict=True):
            if age is not None:
                node.services.run(900, "python", age)
            address = node.gpus[0].kernel_address
            line = node.kernel_log.write(
                f"NVRM: Xid (PCI:{address}): 31, pid=900, name=python, channel 0x0000000a",
                timestamp_us=now - seconds_ago * 1_000_000,
            )
            eventually(lambda sequence=line.sequence: following.state.memory.cursor == sequence)  # type: ignore[misc]

        assert self.reasons(following, node) == expected
        following.follower.end()


def _stumbling(check: Check, over: str) -> Check:
    """The same check with a fault of ours: it can't judge such a record."""

    def judge(seen: Evidence, expected: Any) -> Iterator[Judgement]:
        for record in seen[RING]:
            if over in record.text:
                raise ValueError(over)
            yield from check.judge(Evidence({RING: (record,)}), expected)

    return replace(check, judge=judge)


class TestARecordThatCannotBeTaken:
    def following(self, node: SimulatedNode, file: MemoryFile) -> _Following:
        """Return a follower that reads all records as one batch, with the invalid record between valid ones."""
        for gpu, text in ((0, "good"), (1, "poison"), (2, "good")):
            node.xid(gpu, 79, text)
        node.xid(3, 95, "the last")
        return _Following(node, file, tuple(_stumbling(check, "poison") for check in EVENT_CHECKS))

    def test_is_set_aside_by_name_and_the_others_count(self, node: SimulatedNode, file: MemoryFile) -> None:
        following = self.following(node, file)
        following.follower.start()
        eventually(lambda: len(following.state.memory.active) == 3)
        eventually(lambda: following.state.memory.cursor == following.follower._cursor)
        following.follower.end()

        assert {finding.finding.subject for finding in following.state.memory.active} == {
            f"gpu/{node.gpus[number].address}" for number in (0, 2, 3)
        }
        assert {reason for reason, _ in following.reports.warnings} == {"KernelLogRecordSetAside"}
        assert all(
            "ValueError: poison" in message and "79, poison" in message for _, message in following.reports.warnings
        )
        blind = following.state.known.judgement.verdict.unobserved
        assert {cause.cause.cause.name for cause in blind if cause.check == "0-nvidia-smi"} >= {
            "KernelLogRecordSetAside"
        }

    def test_still_blinds_its_check_after_the_next_good_one(self, node: SimulatedNode, file: MemoryFile) -> None:
        following = self.following(node, file)
        following.follower.start()
        eventually(lambda: len(following.state.memory.active) == 3)
        node.xid(4, 79, "good")
        eventually(lambda: len(following.state.memory.active) == 4)
        following.follower.end()

        causes = {cause.cause.cause.name for cause in following.state.known.judgement.verdict.unobserved}
        assert "KernelLogRecordSetAside" in causes

    def test_so_is_one_about_a_fault_that_no_rule_reads(self, node: SimulatedNode, file: MemoryFile) -> None:
        node.kernel_log.write("NVRM: Xid [79] on GPU 0000:3b:00.0")
        node.xid(0, 95, "the last")
        following = _Following(node, file, EVENT_CHECKS)
        following.follower.start()
        eventually(lambda: len(following.state.memory.active) == 1)
        eventually(lambda: following.state.memory.cursor == following.follower._cursor)
        following.follower.end()

        assert [reason for reason, _ in following.reports.warnings] == ["KernelLogRecordSetAside"]
        blind = following.state.known.judgement.verdict.unobserved
        assert "KernelLogRecordSetAside" in {cause.cause.cause.name for cause in blind}

    def test_an_error_that_no_rule_judges_is_counted_and_changes_no_check(
        self, node: SimulatedNode, file: MemoryFile
    ) -> None:
        node.kernel_log.write("NVRM: GPU0 kfspPollForResponse_IMPL: FSP command timed out")
        node.xid(0, 95, "the last")
        following = _Following(node, file, EVENT_CHECKS)
        following.follower.start()
        eventually(lambda: len(following.state.memory.active) == 1)
        eventually(lambda: following.state.memory.cursor == following.follower._cursor)
        following.follower.end()

        counted_lines = following.telemetry.registry.get_sample_value("gpu_healthcheck_unread_driver_lines_total")
        assert (counted_lines, following.reports.warnings) == (1, [])
        assert following.state.known.judgement.verdict.unobserved == ()

    def test_a_check_that_fails_without_a_record_is_unobserved_and_the_log_goes_on(
        self, node: SimulatedNode, file: MemoryFile
    ) -> None:
        def judge(*_: Any) -> Iterator[Judgement]:
            raise ValueError("always")
            yield

        node.xid(0, 79, "good")
        following = _Following(node, file, (replace(EVENT_CHECKS[0], judge=judge), *EVENT_CHECKS[1:]))
        following.follower.start()
        last = node.kernel_log.write("usb 1-1: reset")
        eventually(lambda: following.state.memory.cursor == last.sequence)
        following.follower.end()

        blind = following.state.known.judgement.verdict.unobserved
        assert {cause.cause.cause.name for cause in blind} >= {"CheckFailed"}

    def test_is_set_aside_too_where_it_is_the_memory_that_cannot_take_it(
        self, node: SimulatedNode, file: MemoryFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(memory: Memory, outcomes: list[Outcome], *rest: Any) -> Memory:
            if any("poison" in event.detail for outcome in outcomes for event in outcome.events):
                raise OverflowError("date value out of range")
            return after_kernel_log(memory, outcomes, *rest)

        monkeypatch.setattr("gpu_healthcheck.agent.state.ledger.after_kernel_log", fails)
        following = self.following(node, file)
        following.ledger.configure(selecting(EVENT_CHECKS))
        following.follower.start()
        eventually(lambda: len(following.state.memory.active) == 3)
        eventually(lambda: following.reports.warnings)
        following.follower.end()

        ((reason, message),) = following.reports.warnings
        assert reason == "KernelLogRecordSetAside"
        assert "OverflowError" in message


def test_unstorable_finding_never_becomes_the_memory(file: MemoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("year 1 is out of range")

    state = AgentState("n", Memory(boot_id="b"))
    ledger = Ledger(state, file, Telemetry())
    monkeypatch.setattr(file, "write", fails)
    line = KernelEvent("Xid79", GPU, 1, 1.0, Finding("Xid79", Severity.REBOOT, GPU, "x", seq=1, at=1.0))
    with pytest.raises(ValueError, match="year 1"):
        ledger.kernel_log_judged([Outcome("xid", "0-nvidia-smi", events=(line,))], 1)

    assert state.memory == Memory(boot_id="b")
