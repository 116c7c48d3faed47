"""Several log records together: NVIDIA's workflows, judged over a window (docs/rules.md 17)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.driver_reasons import PROBE_FAILED
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.xid import CHECK as XID
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import gpus_answered, passed
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Evidence, Finding, KernelEvent, Nature, Outcome, Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import functions
from tests.examples import GPU, MONOTONIC, NOW, WALL, fault, later, memory_with

MONITOR, RESET, REBOOT, ISOLATE = (severity for severity in Severity if severity)
OTHER = "gpu/0000:64:00.0"
ADDRESS = GPU.removeprefix("gpu/")


def line(
    reason: str,
    severity: Severity | None = RESET,
    at: float = 0.0,
    subject: str = GPU,
    seq: int | None = None,
    **more: Any,
) -> KernelEvent:
    """A record `at` seconds after NOW; no severity: NVIDIA says to ignore it."""
    seq = round(at * 1000) if seq is None else seq
    found = Finding(reason, severity, subject, "x", seq=seq, at=MONOTONIC + at) if severity else None
    return KernelEvent(reason, subject, seq, MONOTONIC + at, found, **more)


def reads(memory: Memory, *lines: KernelEvent, after: float = 0.0) -> Memory:
    return after_kernel_log(memory, [Outcome("xid", "0-nvidia-smi", events=lines)], later(after))


def observed(memory: Memory) -> list[tuple[str, int]]:
    return [(finding.finding.reason, finding.count) for finding in memory.active]


class TestCleanup:
    """Xid 45: preemptive cleanup."""

    def cleanup(self, at: float = 0.0, severity: Severity = MONITOR, **more: Any) -> KernelEvent:
        return line("Xid45", severity, at, **more)

    def test_alone_it_is_watched(self) -> None:
        assert observed(reads(memory_with(), self.cleanup())) == [("Xid45", 1)]

    @pytest.mark.parametrize("other", [line("Xid48", RESET, 5), line("Xid31", MONITOR, 5), line("Xid43", None, 5)])
    @pytest.mark.parametrize("cleanup_at", [4.0, 6.0, -54.0, 64.0])
    def test_with_another_xid_it_is_a_consequence(self, other: KernelEvent, cleanup_at: float) -> None:
        after = reads(memory_with(), *sorted([other, self.cleanup(cleanup_at)], key=lambda event: event.at), after=70)

        assert "Xid45" not in [finding.finding.reason for finding in after.active]

    @pytest.mark.parametrize("cleanup_at", [-56.0, 66.0])
    def test_further_away_it_stands_for_itself(self, cleanup_at: float) -> None:
        lines = sorted([line("Xid48", RESET, 5), self.cleanup(cleanup_at)], key=lambda event: event.at)

        assert set(observed(reads(memory_with(), *lines, after=70))) == {("Xid48", 1), ("Xid45", 1)}

    def test_a_reported_finding_is_withdrawn_when_its_cause_is_found_later(self) -> None:
        memory = reads(memory_with(), self.cleanup(), self.cleanup(1.0), after=1)
        assert observed(memory) == [("Xid45", 2)]

        assert observed(reads(memory, line("Xid79", REBOOT, 20), after=20)) == [("Xid79", 1)]

    def test_symptom_without_a_cause_for_long_is_not_withdrawn(self) -> None:
        memory = reads(memory_with(), self.cleanup(), self.cleanup(300.0), after=300)

        assert observed(reads(memory, line("Xid79", REBOOT, 310), after=310)) == [("Xid79", 1), ("Xid45", 2)]

    def test_another_gpus_xid_explains_nothing(self) -> None:
        after = reads(memory_with(), line("Xid48", RESET, subject=OTHER), self.cleanup(1.0), after=1)

        assert set(observed(after)) == {("Xid48", 1), ("Xid45", 1)}

    def test_a_mig_instance_is_a_part_of_its_gpu(self) -> None:
        after = reads(memory_with(), line("Xid94", MONITOR, subject=f"{GPU}/gi5"), self.cleanup(1.0), after=1)

        assert observed(after) == [("Xid94", 1)]

    def test_consequence_by_the_drivers_text_is_one(self) -> None:
        assert observed(reads(memory_with(), self.cleanup(follows=True))) == []

    def test_where_a_cluster_made_it_worse_it_counts(self) -> None:
        after = reads(memory_with(), line("Xid48", RESET), self.cleanup(1.0, RESET, follows=True), after=1)

        assert set(observed(after)) == {("Xid48", 1), ("Xid45", 1)}

    def test_storm_is_one_finding_with_a_count(self) -> None:
        after = reads(memory_with(), *(self.cleanup(number / 100) for number in range(3000)), after=30)

        assert observed(after) == [("Xid45", 3000)]


class TestRecovery:
    """Xid 154 names the state of the GPU, and can take it back."""

    def test_return_to_none_ends_findings_of_reset(self) -> None:
        lines = [
            line("Xid95", RESET),
            line("Xid154", RESET, 0.1),
            line("Xid13", MONITOR, 70),
            line("Xid154", None, 79, recovery_action=0),
        ]

        assert observed(reads(memory_with(), *lines, after=80)) == [("Xid13", 1)]

    def test_finding_after_it_stays_active(self) -> None:
        lines = [line("Xid154", None, 9, recovery_action=0), line("Xid95", RESET, 9.5)]

        assert observed(reads(memory_with(), *lines, after=10)) == [("Xid95", 1)]

    def test_a_reboot_that_is_needed_for_another_reason_stays(self) -> None:
        lines = [line("Xid79", REBOOT), line("Xid154", REBOOT, 0.1), line("Xid154", None, 9, recovery_action=0)]

        assert observed(reads(memory_with(), *lines, after=10)) == [("Xid79", 1)]

    def test_of_another_gpu_it_ends_nothing(self) -> None:
        lines = [line("Xid95", RESET), line("Xid154", None, 9, subject=OTHER, recovery_action=0)]

        assert observed(reads(memory_with(), *lines, after=10)) == [("Xid95", 1)]


class TestAPendingActionByTheText:
    """A GPU fails and is reset between two reads of NVML, which then shows None both times."""

    ADDRESS = GPU.removeprefix("gpu/")
    TO_RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"

    def failed(self) -> Memory:
        memory = gpus_answered(memory_with(), [self.gpu(0)], MONOTONIC - 100, later(-100))
        for seq, (code, text) in enumerate(((62, "0x1 0x2"), (154, self.TO_RESET)), 1):
            record = Record(seq, MONOTONIC + seq, 0, f"NVRM: Xid (PCI:{self.ADDRESS}): {code}, pid=1, name=x, {text}")
            outcomes = judge((XID,), Evidence({RING: (record,)}), Expectation())
            memory = after_kernel_log(memory, outcomes, later(seq))
        return memory

    def gpu(self, action: int | None, address: str = ADDRESS, **more: Any) -> Gpu:
        serial = "1" if address == self.ADDRESS else "2"
        return Gpu(0, address=address, serial=serial, recovery_action=action, **more)

    @pytest.mark.parametrize(
        ("action", "began", "left"),
        [
            (0, 300.0, set()),
            (1, 300.0, {"Xid62", "Xid154"}),
            (0, 1.5, {"Xid62", "Xid154"}),
            (None, 300.0, {"Xid62", "Xid154"}),
        ],
        ids=["reset since", "not reset yet", "NVML answered before the line", "a driver without recovery actions"],
    )
    def test_ends_when_nvml_shows_none_after_it(self, action: int | None, began: float, left: set[str]) -> None:
        memory = gpus_answered(self.failed(), [self.gpu(action)], MONOTONIC + began, later(began))

        assert {finding.finding.reason for finding in memory.active} == left

    def test_the_next_read_ends_it_where_one_came_too_early(self) -> None:
        early = gpus_answered(self.failed(), [self.gpu(0)], MONOTONIC + 1.5, later(2))

        assert gpus_answered(early, [self.gpu(0)], MONOTONIC + 12, later(12)).active == ()

    def test_another_gpu_ends_nothing(self) -> None:
        other = self.gpu(0, "0000:64:00.0")

        assert len(gpus_answered(self.failed(), [other], MONOTONIC + 300, later(300)).active) == 2

    def test_the_reset_counts_for_escalation(self) -> None:
        memory = self.failed()
        for at in (300.0, 600.0):
            memory = gpus_answered(memory, [self.gpu(0)], MONOTONIC + at, later(at))
            record = Record(9, MONOTONIC + at + 1, 0, f"NVRM: Xid (PCI:{self.ADDRESS}): 62, pid=1, name=x, 0x1")
            text = Record(10, MONOTONIC + at + 2, 0, f"NVRM: Xid (PCI:{self.ADDRESS}): 154, {self.TO_RESET}")
            outcomes = judge((XID,), Evidence({RING: (record, text)}), Expectation())
            memory = after_kernel_log(memory, outcomes, later(at + 2), 2)

        assert {finding.finding.reason: finding.finding.severity.name for finding in memory.active}[
            "Xid62"
        ] == "ISOLATE"

    def test_a_quarantine_that_passed_ends_it_where_the_driver_has_no_recovery_action(self) -> None:
        memory = gpus_answered(self.failed(), [self.gpu(None)], MONOTONIC + 300, later(300))

        assert passed(memory, WALL + timedelta(hours=1)).active == ()
        assert len(passed(self.failed(), WALL + timedelta(hours=1)).active) > 0


class TestRepeats:
    """Xid 13 on one TPC and Xid 31: from three processes on one GPU, and on no other."""

    def hit(self, number: int, reason: str = "Xid13", **more: Any) -> KernelEvent:
        known = {"process": f"{number} python", "place": "GPC 1, TPC 3" if reason == "Xid13" else "", **more}
        return line(reason, MONITOR, float(number), **known)

    @pytest.mark.parametrize("reason", ["Xid13", "Xid31"])
    def test_the_third_process_makes_it_the_hardwares_fault(self, reason: str) -> None:
        two = reads(memory_with(), self.hit(1, reason), self.hit(2, reason), after=2)
        assert observed(two) == [(reason, 2)]

        three = reads(two, self.hit(3, reason), after=3)

        repeated = next(finding for finding in three.active if finding.finding.reason == f"{reason}Repeated")
        assert (repeated.finding.severity, repeated.finding.subject, repeated.nature) == (MONITOR, GPU, Nature.EVENT)
        assert "quarantine" in repeated.finding.detail

    def test_the_same_process_over_and_over_is_a_bug_of_its_own(self) -> None:
        after = reads(memory_with(), *(self.hit(number, process="7 python") for number in range(500)), after=500)

        assert observed(after) == [("Xid13", 500)]

    def test_processes_without_a_name_are_indistinguishable(self) -> None:
        after = reads(memory_with(), *(self.hit(number, process="") for number in range(9)), after=9)

        assert observed(after) == [("Xid13", 9)]

    def test_on_several_tpcs_it_is_the_programs(self) -> None:
        after = reads(memory_with(), *(self.hit(number, place=f"GPC 0, TPC {number}") for number in range(9)), after=9)

        assert observed(after) == [("Xid13", 9)]

    def test_without_a_place_it_is_not_on_one_tpc(self) -> None:
        after = reads(memory_with(), *(self.hit(number, place="") for number in range(9)), after=9)

        assert observed(after) == [("Xid13", 9)]

    @pytest.mark.parametrize(
        ("places", "pause", "expected"),
        [
            (["GPC 1, TPC 4"], 0.0, {"Xid13", "Xid13Repeated"}),
            (["GPC 1, TPC 4", "GPC 0, TPC 4"], 0.0, {"Xid13"}),
            (["GPC 1, TPC 4"], 5.0, {"Xid13"}),
        ],
        ids=["one TPC", "a program on two TPCs", "the lines are of two exceptions"],
    )
    def test_the_place_and_the_process_are_in_different_lines(
        self, places: list[str], pause: float, expected: set[str]
    ) -> None:
        """The lines of driver 580.159.04 on an H200."""
        records: list[Record] = []
        at = MONOTONIC
        for number in range(3):
            at += 20
            texts = [
                *((0.0, f"Graphics SM Warp Exception on ({place}, SM 0): Misaligned Address") for place in places),
                (0.001, "Graphics Exception: ESR 0x519730=0x501000f 0x519734=0x0 0x519728=0x1f81fb60 0x51972c=0x1174"),
                (
                    0.003 + pause,
                    f"pid={683 + number}, name=train, Graphics Exception: channel 0x0000000a, Class 0000cbc0",
                ),
            ]
            for delay, text in texts:
                record = Record(len(records), at + delay, 0, f"NVRM: Xid (PCI:0000:00:06): 13, {text}")
                records.append(record)
        outcomes = judge((XID,), Evidence({RING: tuple(records)}), Expectation())

        memory = after_kernel_log(memory_with(), outcomes, later(80))

        assert {finding.finding.reason for finding in memory.active} == expected

    def test_on_two_gpus_it_is_the_programs(self) -> None:
        lines = [self.hit(0, subject=OTHER), *(self.hit(number) for number in range(1, 9))]

        assert {reason for reason, _ in observed(reads(memory_with(), *lines, after=9))} == {"Xid13"}

    def test_event_of_yesterday_does_not_count(self) -> None:
        memory = reads(memory_with(), self.hit(1), self.hit(2), after=2)

        assert observed(reads(memory, self.hit(86403), after=86403)) == [("Xid13", 3)]

    def test_memory_is_bounded(self) -> None:
        lines = [self.hit(number, subject=f"gpu/0000:{number % 200:02x}:00.0") for number in range(4000)]

        memory = reads(memory_with(), *lines, after=4000)

        assert len(memory.hits) == 64
        assert max(len(hits) for hits in memory.hits.values()) <= 16
        assert len(memory.last_xid) <= 64


class TestAGpuThatTheDriverCouldNotTake:
    def failed(self, at: float, subject: str = "driver") -> KernelEvent:
        found = line("GpuInitFailed", RESET, at, subject)
        assert found.finding
        return replace(found, finding=replace(found.finding, rule=PROBE_FAILED))

    def loaded(self, at: float) -> KernelEvent:
        return line("DriverLoaded", None, at, subject="driver", driver_loaded=True)

    def test_a_load_that_reports_it_ends_nothing(self) -> None:
        """A BAR is read while the GPUs are probed, one after the other; the sum of failures stands before the end."""
        memory = reads(memory_with(), self.failed(0, GPU), self.failed(8), self.loaded(8.5), after=9)

        assert observed(memory) == [("GpuInitFailed", 1), ("GpuInitFailed", 1)]

    def test_a_later_load_without_a_failure_ends_it(self) -> None:
        memory = reads(memory_with(), self.failed(0, GPU), self.failed(8), self.loaded(8.5), after=9)

        assert observed(reads(memory, self.loaded(600), after=600)) == []

    def test_a_later_load_with_the_same_failure_does_not(self) -> None:
        memory = reads(memory_with(), self.failed(8), self.loaded(8.5), after=9)

        assert observed(reads(memory, self.failed(600), self.loaded(600.2), after=601)) == [("GpuInitFailed", 2)]

    def test_driver_load_ends_no_start_failure_of_an_initialised_gpu(self) -> None:
        memory = reads(memory_with(), line("GpuInitFailed", RESET, 0), self.loaded(600), after=600)

        assert observed(memory) == [("GpuInitFailed", 1)]

    @pytest.mark.parametrize(
        ("driver", "error", "ends"),
        [("nvidia", 0, True), ("vfio-pci", 15, True), ("", 15, False), ("nvidia", 15, False)],
    )
    def test_cycle_in_which_every_gpu_of_the_driver_answers_ends_it(self, driver: str, error: int, ends: bool) -> None:
        memory = reads(memory_with(), self.failed(0), after=1)
        seen = Evidence({FUNCTIONS: (*functions(ADDRESS), *functions("0000:64:00.0", driver=driver))})
        gpus = [Gpu(0, 0, ADDRESS), Gpu(1, error, "0000:64:00.0")]

        after = after_cycle(memory, JudgedCycle((), gpus, MONOTONIC + 60, seen), later(60))
        before = after_cycle(memory, JudgedCycle((), gpus, MONOTONIC - 1, seen), later(1))
        assert (observed(after) == [], observed(before)) == (ends, [("GpuInitFailed", 1)])


class TestWhatIsNoFault:
    def test_the_drivers_load_is_remembered(self) -> None:
        loads = line("DriverLoaded", None, 3, subject="driver", driver_loaded=True)

        assert reads(memory_with(), loads, after=3).driver_loaded_at == MONOTONIC + 3

    def test_the_uuid_that_the_driver_tells_names_the_finding(self) -> None:
        memory = reads(memory_with(), line("GpuNamed", None, 1, uuid="GPU-7"), line("Xid79", REBOOT, 2), after=2)

        assert memory.active[0].finding.about == {"uuid": "GPU-7"}

    def test_a_uuid_that_nvml_reports_too_removes_nothing(self) -> None:
        about = {"index": "3", "uuid": "GPU-7", "serial": "165"}

        assert reads(memory_with(gpus={ADDRESS: about}), line("GpuNamed", None, uuid="GPU-7")).gpus == {ADDRESS: about}

    def test_another_uuid_is_another_gpu(self) -> None:
        about = {"index": "3", "uuid": "GPU-7", "serial": "165"}

        after = reads(memory_with(gpus={ADDRESS: about}), line("GpuNamed", None, uuid="GPU-8"))

        assert after.gpus == {ADDRESS: {"uuid": "GPU-8"}}

    def test_ignored_code_gives_no_finding(self) -> None:
        assert observed(reads(memory_with(), line("Xid43", None))) == []


def test_records_of_several_checks_are_applied_in_log_order() -> None:
    loads = Outcome("driver-messages", "0", events=(line("Xid154", None, 5, recovery_action=0),))
    fault_before = Outcome("xid", "0", events=(line("Xid95", RESET, 1), line("Xid62", RESET, 6)))

    assert observed(after_kernel_log(memory_with(), [loads, fault_before], later(6))) == [("Xid62", 1)]


def test_a_flood_of_many_faults_is_bounded_and_keeps_the_worst() -> None:
    lines = [line(f"Xid{number}", MONITOR, number / 1000, f"gpu/{number:04x}:00:00.0") for number in range(1000)]

    memory = reads(memory_with(), *lines, line("Xid79", REBOOT, 2), after=3)

    assert (len(memory.active), memory.active[0].finding.reason) == (512, "Xid79")


def test_nothing_read_changes_nothing() -> None:
    memory = memory_with()

    assert after_kernel_log(memory, [Outcome("xid", "0")], NOW) is memory
    assert fault() not in [finding.finding for finding in memory.active]


def test_fault_of_a_deep_tests_process_is_no_sign() -> None:
    """It is no fault, no cause of another fault, and no part of a joint one."""
    of_tests = [line("Xid13", None, at, process=f"{at} nvvs", place="GPC 1", of_a_test=True) for at in range(5)]
    after = reads(memory_with(), *of_tests, line("Xid45", MONITOR, 5), after=10)

    assert observed(after) == [("Xid45", 1)]
    assert (after.hits, list(after.last_xid)) == ({}, [])
