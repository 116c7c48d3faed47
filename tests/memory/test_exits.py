"""Each exit of a finding (docs/rules.md 4, 6, 7 and 12), and conditions that are none."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import (
    adopted,
    after_release,
    begin,
    escalated,
    expired,
    gpus_answered,
    is_acknowledged,
    passed,
    quarantined,
    recovered,
    within_log,
)
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, ActiveFinding, Memory, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Finding, Nature, Outcome, Severity
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu, RowRemap
from tests.examples import (
    BOOT,
    GPU,
    MACHINE,
    MONOTONIC,
    NOW,
    WALL,
    active_finding,
    fault,
    kernel_event,
    later,
    memory_with,
    outcome_with,
)

MONITOR, RESET, REBOOT, ISOLATE = (severity for severity in Severity if severity)
ADDRESS = GPU.removeprefix("gpu/")
ABOUT = {"index": "0", "uuid": "GPU-1", "serial": "1650001"}
OTHER = "gpu/0000:64:00.0"
MIG = f"{GPU}/gi5"


def gpu(**more: object) -> Gpu:
    known = {"index": 0, "address": ADDRESS, "uuid": "GPU-1", "serial": "1650001", **more}
    return Gpu(**known)  # type: ignore[arg-type]


def reasons(memory: Memory) -> list[str]:
    return [finding.finding.reason for finding in memory.active]


def comes(memory: Memory, finding: Finding, at: float = MONOTONIC, escalate_after: int = 2) -> Memory:
    """Return the memory after the log reported it."""
    read = Outcome("xid", "0-nvidia-smi", events=(kernel_event(replace(finding, at=at)),))
    return after_kernel_log(memory, [read], later(at - MONOTONIC), escalate_after)


def boots(memory: Memory, number: int) -> Memory:
    return begin(memory, MACHINE, f"boot {number}", later(60.0 * number))


class TestReset:
    @pytest.mark.parametrize(
        ("finding", "stays"),
        [
            (fault("Xid13", MONITOR), True),
            (fault("Xid95", RESET), False),
            (fault("Xid95", RESET, MIG), False),
            (fault("Xid95", RESET, OTHER), True),
            (fault("SXid20034", RESET, "nvswitch/0000:53:00.0"), True),
            (fault("Xid79", REBOOT), True),
            (fault("Xid54", ISOLATE), True),
            (fault("Xid154", RESET), False),
            (fault("Xid154", REBOOT), False),
        ],
    )
    def test_a_reset_of_a_gpu_ends_its_own_resets_and_nothing_worse(self, finding: Finding, stays: bool) -> None:
        after = recovered(memory_with(active_finding(finding)), ADDRESS, MONOTONIC + 1, later(1))

        assert bool(after.active) is stays

    def test_finding_after_the_reset_stays_active(self) -> None:
        memory = memory_with(active_finding(fault("Xid95", RESET), at=MONOTONIC + 5))

        assert recovered(memory, ADDRESS, MONOTONIC + 4, later(9)) == memory

    def test_level_ends_only_by_a_check_cycle(self) -> None:
        memory = memory_with(active_finding(fault("GpuResetRequired", RESET), Nature.LEVEL))

        assert recovered(memory, ADDRESS, MONOTONIC + 1, later(1)) == memory

    def test_return_of_the_recovery_action_to_none_is_evidence(self) -> None:
        memory = gpus_answered(
            memory_with(active_finding(fault("Xid95", RESET))), [gpu(recovery_action=1)], MONOTONIC + 1, later(1)
        )
        assert reasons(memory) == ["Xid95"]

        assert reasons(gpus_answered(memory, [gpu(recovery_action=0)], MONOTONIC + 9, later(9))) == []

    @pytest.mark.parametrize("action", [0, None])
    def test_an_action_of_none_that_was_never_another_proves_nothing(self, action: int | None) -> None:
        memory = memory_with(active_finding(fault("Xid95", RESET)))

        assert reasons(gpus_answered(memory, [gpu(recovery_action=action)], MONOTONIC + 9, later(9))) == ["Xid95"]

    def test_an_action_that_can_no_longer_be_read_proves_nothing(self) -> None:
        memory = gpus_answered(
            memory_with(active_finding(fault("Xid95", RESET))), [gpu(recovery_action=1)], MONOTONIC + 1, later(1)
        )
        memory = gpus_answered(memory, [gpu(recovery_action=None, recovery_error=999)], MONOTONIC + 2, later(2))

        assert reasons(memory) == ["Xid95"]
        assert reasons(gpus_answered(memory, [gpu(recovery_action=0)], MONOTONIC + 9, later(9))) == []

    @pytest.mark.parametrize(
        ("seen", "stays"),
        [
            ([gpu()], False),
            ([gpu(recovery_action=0)], False),
            ([gpu(recovery_action=2)], True),
            ([gpu(recovery_error=999)], True),
            ([gpu(error=15)], True),
            ([gpu(address="0000:64:00.0", serial="2", uuid="GPU-2")], True),
            ([], True),
        ],
    )
    def test_a_driver_loaded_anew_is_evidence_only_for_a_gpu_that_answers_after_it(
        self, seen: list[Gpu], stays: bool
    ) -> None:
        memory = memory_with(active_finding(fault("Xid95", RESET)), driver_loaded_at=MONOTONIC + 20)

        assert bool(gpus_answered(memory, seen, MONOTONIC + 30, later(30)).active) is stays

    def test_cycle_that_began_before_the_driver_load_proves_nothing(self) -> None:
        memory = memory_with(active_finding(fault("Xid95", RESET)), driver_loaded_at=MONOTONIC + 20)

        assert reasons(gpus_answered(memory, [gpu()], MONOTONIC + 19, later(30))) == ["Xid95"]

    def test_fault_after_the_driver_load_stays_active(self) -> None:
        memory = memory_with(active_finding(fault("Xid95", RESET)), driver_loaded_at=MONOTONIC - 20)

        assert reasons(gpus_answered(memory, [gpu()], MONOTONIC + 5, later(5))) == ["Xid95"]


class TestRowsThatWaitForAReset:
    """Xid 63 and 64 against NVML's row states: nvml.h, nvmlDeviceGetRemappedRows."""

    CLEAN = RowRemap(0, 1, pending=False, failed=False)
    LATEST = MONOTONIC + 300.0
    """The last look that saw rows wait."""

    def waits(self, *standing: ActiveFinding, boot_id: str = BOOT) -> Memory:
        pending = fault("RowRemapPending", RESET, about=ABOUT)
        level = active_finding(pending, Nature.LEVEL, check="row-remap", at=self.LATEST, boot_id=boot_id)
        return memory_with(level, *standing)

    def met_after(self, memory: Memory, remap: RowRemap | None, **more: object) -> set[str]:
        """Return the findings apart from the level, which a cycle ends."""
        after = gpus_answered(memory, [gpu(row_remap=remap, **more)], self.LATEST + 300, later(600))
        return {finding.finding.reason for finding in after.active} - {"RowRemapPending"}

    @pytest.mark.parametrize(
        ("finding", "stays"),
        [
            (fault("Xid64", RESET), False),
            (fault("Xid64", RESET, MIG), False),
            (fault("Xid63", RESET), False),
            (fault("Xid64", MONITOR), True),
            (fault("Xid64", REBOOT), True),
            (fault("Xid64", ISOLATE), True),
            (fault("Xid64", RESET, OTHER), True),
            (fault("Xid48", RESET), True),
            (fault("Xid95", RESET), True),
        ],
    )
    def test_cleared_row_wait_ends_the_logs_findings_about_it(self, finding: Finding, stays: bool) -> None:
        assert bool(self.met_after(self.waits(active_finding(finding)), self.CLEAN)) is stays

    def test_clean_rows_that_never_waited_prove_nothing(self) -> None:
        """The driver could not even record the row: it is bad, in use, and neither pending nor failed."""
        assert self.met_after(memory_with(active_finding(fault("Xid64", RESET))), self.CLEAN) == {"Xid64"}

    @pytest.mark.parametrize(
        "remap",
        [None, RowRemap(0, 1, pending=True, failed=False), RowRemap(0, 1, pending=False, failed=True)],
        ids=["not told", "still pending", "failed"],
    )
    def test_partly_read_rows_prove_nothing(self, remap: RowRemap | None) -> None:
        assert self.met_after(self.waits(active_finding(fault("Xid64", RESET))), remap) == {"Xid64"}

    @pytest.mark.parametrize("more", [{"error": 15}, {"address": "0000:64:00.0", "serial": "2", "uuid": "GPU-2"}])
    def test_another_or_silent_gpu_proves_nothing(self, more: dict[str, object]) -> None:
        assert self.met_after(self.waits(active_finding(fault("Xid64", RESET))), self.CLEAN, **more) == {"Xid64"}

    @pytest.mark.parametrize(("before", "stays"), [(60.0, False), (59.9, True), (-1.0, True)])
    def test_finding_that_may_be_after_the_reset_stays_active(self, before: float, stays: bool) -> None:
        memory = self.waits(active_finding(fault("Xid64", RESET), at=self.LATEST - before))

        assert bool(self.met_after(memory, self.CLEAN)) is stays

    def test_rows_that_waited_in_another_boot_prove_nothing(self) -> None:
        memory = self.waits(active_finding(fault("Xid64", RESET)), boot_id="the boot before")

        assert self.met_after(memory, self.CLEAN) == {"Xid64"}

    def test_it_counts_as_a_reset_for_a_fault_that_comes_back(self) -> None:
        memory = self.waits(active_finding(fault("Xid64", RESET, about=ABOUT)))

        after = gpus_answered(memory, [gpu(row_remap=self.CLEAN)], self.LATEST + 300, later(600))

        assert len(after.ended["Xid64", "1650001"]) == 1


class TestAnotherGpu:
    @pytest.mark.parametrize("severity", [MONITOR, RESET, REBOOT, ISOLATE])
    @pytest.mark.parametrize("other", [{"serial": "999"}, {"uuid": "GPU-999"}, {"serial": "", "uuid": "GPU-999"}])
    def test_another_serial_or_uuid_at_the_address_inherits_nothing(
        self, severity: Severity, other: dict[str, str]
    ) -> None:
        memory = memory_with(active_finding(fault("Xid1", severity, about=ABOUT)))

        assert reasons(gpus_answered(memory, [gpu(**other)], MONOTONIC + 1, later(1))) == []

    @pytest.mark.parametrize("same", [{}, {"index": 3}, {"serial": ""}, {"uuid": ""}, {"serial": "", "uuid": ""}])
    def test_same_gpu_with_another_index_or_fewer_names_keeps_its_findings(self, same: dict[str, object]) -> None:
        memory = memory_with(active_finding(fault("Xid54", ISOLATE, about=ABOUT)))

        assert reasons(gpus_answered(memory, [gpu(**same)], MONOTONIC + 1, later(1))) == ["Xid54"]

    @pytest.mark.parametrize("less", [{"serial": ""}, {"uuid": ""}, {"serial": "", "uuid": ""}])
    def test_a_gpu_with_fewer_readings_in_one_cycle_keeps_its_names(self, less: dict[str, str]) -> None:
        memory = memory_with(active_finding(fault("Xid54", ISOLATE, about=ABOUT)))

        memory = gpus_answered(memory, [gpu(**less)], MONOTONIC + 1, later(1))
        assert (memory.active[0].finding.about, reasons(memory)) == (ABOUT, ["Xid54"])

        assert reasons(gpus_answered(memory, [gpu(serial="999", uuid="GPU-999")], MONOTONIC + 2, later(2))) == []

    def test_a_gpu_that_does_not_answer_is_no_other(self) -> None:
        memory = memory_with(active_finding(fault("Xid79", REBOOT, about=ABOUT)))

        assert gpus_answered(memory, [Gpu(0, 15)], MONOTONIC + 1, later(1)) == memory

    def test_a_finding_learns_the_names_of_its_gpu(self) -> None:
        (finding,) = gpus_answered(memory_with(active_finding(fault())), [gpu()], MONOTONIC + 1, later(1)).active

        assert finding.finding.about == ABOUT

    def test_a_fault_of_a_missing_gpu_is_reported_with_its_former_names(self) -> None:
        memory = gpus_answered(memory_with(), [gpu()], MONOTONIC, NOW)

        (finding,) = comes(memory, fault("Xid79", REBOOT), MONOTONIC + 5).active

        assert finding.finding.about == ABOUT

    @pytest.mark.parametrize(
        ("instances", "stays"), [((5, 6), True), ((6,), False), ((), False), (None, True), ((55,), False)]
    )
    def test_a_mig_finding_leaves_with_its_instance(self, instances: tuple[int, ...] | None, stays: bool) -> None:
        memory = memory_with(active_finding(fault("Xid94", REBOOT, MIG)), active_finding(fault("Xid79", REBOOT)))

        after = gpus_answered(memory, [gpu(instances=instances)], MONOTONIC + 1, later(1))

        assert set(reasons(after)) == ({"Xid79", "Xid94"} if stays else {"Xid79"})

    def test_a_machine_with_other_gpus_inherits_nothing_from_another_boot(self) -> None:
        memory = gpus_answered(memory_with(), [gpu()], MONOTONIC, NOW)
        old = active_finding(fault("SXid20034", ISOLATE, "nvswitch/0000:85:00.0"), boot_id="the boot before")
        new = active_finding(fault("SXid11004", RESET, "nvswitch/0000:85:00.0"))

        after = gpus_answered(replace(memory, active=(old, new)), [gpu(serial="77", uuid="GPU-77")], MONOTONIC, NOW)

        assert reasons(after) == ["SXid11004"]

    def test_swapped_board_identifies_no_other_gpu(self) -> None:
        both = [gpu(), gpu(index=1, address="0000:64:00.0", serial="2", uuid="GPU-2")]
        old = active_finding(fault("Xid54", ISOLATE, OTHER, about={"serial": "2"}), boot_id="the boot before")
        memory = gpus_answered(memory_with(old), both, MONOTONIC, NOW)

        after = gpus_answered(memory, [gpu(serial="77", uuid="GPU-77")], MONOTONIC + 1, later(1))

        assert reasons(after) == ["Xid54"]

    def test_mismatch_after_the_cycles_start_stays_active(self) -> None:
        mismatch = active_finding(fault("DriverLibraryMismatch", MONITOR, "driver"), at=MONOTONIC + 2)

        assert reasons(gpus_answered(memory_with(mismatch), [gpu()], MONOTONIC + 1, later(3))) == [
            "DriverLibraryMismatch"
        ]

    def test_an_nvml_that_opens_ends_a_logged_mismatch(self) -> None:
        mismatch = active_finding(fault("DriverLibraryMismatch", MONITOR, "driver"))

        assert reasons(gpus_answered(memory_with(mismatch), [gpu()], MONOTONIC + 1, later(1))) == []


class TestEscalation:
    """Rule 6."""

    def again(self, finding: Finding, times: int, escalate_after: int = 2) -> Memory:
        """It came, the node rebooted, and so on; after the last boot it is there once more."""
        memory = gpus_answered(memory_with(), [gpu()], MONOTONIC, NOW)
        for number in range(times):
            memory = boots(comes(memory, finding, escalate_after=escalate_after), number)
        return comes(memory, finding, escalate_after=escalate_after)

    @pytest.mark.parametrize(("reboots", "severity"), [(0, REBOOT), (1, REBOOT), (2, ISOLATE), (3, ISOLATE)])
    def test_the_same_fault_of_a_gpu_after_two_reboots_is_isolated(self, reboots: int, severity: Severity) -> None:
        (finding,) = self.again(fault("Xid79", REBOOT), reboots).active

        assert finding.finding.severity is severity

    @pytest.mark.parametrize(
        "finding",
        [
            fault("Xid13", MONITOR),
            fault("Xid13", RESET, escalates=False),
            fault("SXid20034", RESET, "nvswitch/0000:85:00.0"),
            fault("Xid79", REBOOT, OTHER),
        ],
        ids=["milder", "an application's", "no GPU", "a GPU that nobody can tell from another"],
    )
    def test_reasons_that_never_escalate(self, finding: Finding) -> None:
        (active,) = self.again(finding, 5).active

        assert active.finding.severity is finding.severity

    @pytest.mark.parametrize("escalate_after", [0, 1, 2, 9])
    @pytest.mark.parametrize(("reboots", "severity"), [(0, RESET), (1, ISOLATE), (2, ISOLATE)])
    def test_a_failed_remap_that_a_reboot_did_not_repair_is_isolated(
        self, escalate_after: int, reboots: int, severity: Severity
    ) -> None:
        (finding,) = self.again(fault("Xid64", RESET), reboots, escalate_after).active

        assert finding.finding.severity is severity

    def test_several_lines_of_a_failed_remap_at_once_are_one(self) -> None:
        memory = gpus_answered(memory_with(), [gpu()], MONOTONIC, NOW)
        for number in range(5):
            memory = comes(memory, fault("Xid64", RESET), MONOTONIC + number)

        (finding,) = memory.active
        assert (finding.finding.severity, finding.count) == (RESET, 5)

    @pytest.mark.parametrize(
        ("reason", "subject", "severity"),
        [("RowRemapFailed", GPU, ISOLATE), ("RowRemapFailed", OTHER, RESET), ("RowRemapPending", GPU, RESET)],
    )
    def test_a_failed_remap_is_isolated_where_nvml_reports_it_too(
        self, reason: str, subject: str, severity: Severity
    ) -> None:
        memory = comes(
            memory_with(active_finding(fault(reason, ISOLATE, subject), Nature.LEVEL, check="row-remap")),
            fault("Xid64", RESET),
        )

        assert [finding.finding.severity for finding in memory.active if finding.finding.reason == "Xid64"] == [
            severity
        ]

    def test_it_can_be_switched_off_and_set(self) -> None:
        assert self.again(fault("Xid79", REBOOT), 5, escalate_after=0).active[0].finding.severity is REBOOT
        assert self.again(fault("Xid79", REBOOT), 3, escalate_after=4).active[0].finding.severity is REBOOT
        assert self.again(fault("Xid79", REBOOT), 4, escalate_after=4).active[0].finding.severity is ISOLATE

    def test_resets_count_as_reboots_do(self) -> None:
        memory = gpus_answered(memory_with(), [gpu()], MONOTONIC, NOW)
        for number in range(2):
            memory = comes(memory, fault("Xid95", RESET), MONOTONIC + 10 * number)
            memory = recovered(memory, ADDRESS, MONOTONIC + 10 * number + 5, later(10 * number + 5))
            assert reasons(memory) == []

        (finding,) = comes(memory, fault("Xid95", RESET), MONOTONIC + 50).active

        assert (finding.finding.severity, finding.finding.rule) == (ISOLATE, "ESCALATE_AFTER")
        assert "after 2 resets or reboots" in finding.finding.detail

    def test_end_of_more_than_seven_days_ago_is_not_counted(self) -> None:
        old = (WALL - timedelta(days=7, seconds=1), WALL - timedelta(days=6))
        finding = fault("Xid79", REBOOT, about=ABOUT)

        assert escalated(memory_with(ended={("Xid79", "1650001"): old}), finding, NOW, 2) == finding
        assert escalated(memory_with(ended={("Xid79", "1650001"): (*old, WALL)}), finding, NOW, 2).severity is ISOLATE

    def test_another_fault_of_the_same_gpu_has_its_own_count(self) -> None:
        memory = self.again(fault("Xid79", REBOOT), 2)

        assert comes(memory, fault("Xid95", RESET)).active[-1].finding.severity is RESET

    def test_level_that_recurs_after_reboots_is_isolated_until_it_ends(self) -> None:
        lost = fault("GpuLost", REBOOT)
        memory = gpus_answered(memory_with(), [gpu()], MONOTONIC, NOW)
        for number in range(2):
            memory = boots(
                after_cycle(memory, JudgedCycle([outcome_with(lost)]), NOW, MemoryRules(escalate_after=2)), number
            )
            memory = after_cycle(memory, JudgedCycle([outcome_with()], [gpu()]), NOW, MemoryRules(escalate_after=2))
        memory = after_cycle(memory, JudgedCycle([outcome_with(lost)]), NOW, MemoryRules(escalate_after=2))
        assert memory.active[0].finding.severity is ISOLATE

        eight_days = later(8 * 86400)
        memory = after_cycle(memory, JudgedCycle([outcome_with(lost)]), eight_days, MemoryRules(escalate_after=2))
        assert memory.active[0].finding.severity is ISOLATE
        assert (
            after_cycle(
                memory, JudgedCycle([outcome_with()], [gpu()]), eight_days, MemoryRules(escalate_after=2)
            ).active
            == ()
        )

    def test_a_release_clears_the_count(self) -> None:
        memory = self.again(fault("Xid79", REBOOT), 2)
        memory = after_release(memory, Release("ann", "seen to", WALL, ()), later(3600))
        memory = boots(memory, 9)

        assert memory.ended == {}

    def test_the_count_is_bounded(self) -> None:
        memory = memory_with()
        for number in range(2000):
            finding = fault(f"Xid{number % 400}", REBOOT, about={"serial": str(number % 7)})
            memory = begin(replace(memory, active=(active_finding(finding),)), MACHINE, f"boot {number}", NOW)

        assert len(memory.ended) == 256
        assert max(len(ends) for ends in memory.ended.values()) <= 16


class TestQuarantine:
    """A later quarantine run, with level 4 in it, passed."""

    @pytest.mark.parametrize("severity", [RESET, REBOOT, ISOLATE])
    def test_finding_before_it_ends(self, severity: Severity) -> None:
        memory = memory_with(active_finding(fault("Xid1", severity)))

        assert reasons(passed(memory, WALL + timedelta(hours=1))) == []

    def test_finding_after_the_start_stays_active(self) -> None:
        memory = memory_with(active_finding(fault("Xid54", ISOLATE)))

        assert passed(memory, WALL) == memory

    def test_what_is_only_watched_has_its_own_time(self) -> None:
        memory = memory_with(active_finding(fault("Xid13", MONITOR)))

        assert passed(memory, WALL + timedelta(hours=1)) == memory

    def test_level_ends_only_by_a_check_cycle(self) -> None:
        memory = memory_with(active_finding(fault("GpuLost"), Nature.LEVEL))

        assert passed(memory, WALL + timedelta(hours=1)) == memory

    @pytest.mark.parametrize(("severity", "stays"), [(RESET, True), (REBOOT, True), (ISOLATE, False)])
    def test_gpu_that_requests_recovery_is_not_healthy(self, severity: Severity, stays: bool) -> None:
        memory = memory_with(active_finding(fault("Xid1", severity)), recovery={ADDRESS: 2})

        assert bool(passed(memory, WALL + timedelta(hours=1)).active) is stays


class TestRelease:
    def word(self, *rows: Acknowledgement) -> Release:
        return Release("ann", "cable reseated", WALL, rows)

    def row(self, reason: str = "Xid79", boot_id: str = BOOT, cursor: int | None = 100) -> Acknowledgement:
        return Acknowledgement(reason, GPU, boot_id, cursor, WALL)

    def test_released_finding_stays_ended_when_the_log_is_read_again(self) -> None:
        memory = memory_with(active_finding(fault(), seq=90))

        after = after_release(memory, self.word(self.row()), later(3600))
        again = comes(after, fault(seq=90))

        assert (reasons(after), reasons(again)) == ([], [])
        assert after.released == replace(self.word(self.row()), findings=())

    def test_same_fault_after_it_stays_active(self) -> None:
        after = after_release(memory_with(active_finding(fault(), seq=90)), self.word(self.row()), later(3600))

        assert reasons(comes(after, fault(seq=101))) == ["Xid79"]

    def test_fault_at_the_same_moment_stays_active(self) -> None:
        memory = memory_with(active_finding(fault(), seq=101), active_finding(fault("Xid95", RESET), seq=99))

        assert reasons(after_release(memory, self.word(self.row(), self.row("Xid62")), later(3600))) == [
            "Xid79",
            "Xid95",
        ]

    def test_the_same_place_in_the_log_of_another_boot_is_another_event(self) -> None:
        memory = memory_with(active_finding(fault(), seq=90))

        assert reasons(after_release(memory, self.word(self.row(boot_id="the boot before")), later(3600))) == ["Xid79"]

    def test_a_level_is_not_released(self) -> None:
        memory = memory_with(active_finding(fault("GpuLost"), Nature.LEVEL))

        assert reasons(after_release(memory, self.word(self.row("GpuLost", cursor=None)), later(3600))) == ["GpuLost"]

    def test_records_without_a_sequence_number_are_distinguished_by_time(self) -> None:
        memory = memory_with(active_finding(fault("DcgmDiagMemory", ISOLATE)))
        row = self.row("DcgmDiagMemory", cursor=None)

        assert reasons(after_release(memory, self.word(row), later(3600))) == []
        earlier = replace(row, last_seen=WALL - timedelta(seconds=1))
        assert reasons(after_release(memory, self.word(earlier), later(3600))) == ["DcgmDiagMemory"]

    def test_the_same_release_again_changes_nothing(self) -> None:
        once = after_release(memory_with(active_finding(fault(), seq=90)), self.word(self.row()), later(3600))

        assert after_release(once, self.word(self.row()), later(3600)) == once

    def test_reboot_forgets_acknowledgements_of_the_old_log(self) -> None:
        memory = after_release(
            memory_with(), self.word(self.row(), self.row("DcgmDiagMemory", cursor=None)), later(3600)
        )

        assert [acknowledgement.reason for acknowledgement in begin(memory, MACHINE, "boot 2", NOW).acknowledged] == [
            "DcgmDiagMemory"
        ]

    def test_lost_file_learns_from_the_node_releases_and_active_findings(self) -> None:
        on_the_node = after_release(
            memory_with(active_finding(fault("Xid54", ISOLATE))), self.word(self.row()), later(3600)
        )
        ring_read_anew = memory_with(active_finding(fault(), seq=90), active_finding(fault("Xid95", RESET), seq=120))

        after = adopted(ring_read_anew, on_the_node, later(3600))

        assert reasons(after) == ["Xid54", "Xid95"]
        assert after.released == on_the_node.released

    def test_a_lost_file_learns_from_the_node_that_it_was_worse(self) -> None:
        """The log tells one event more than once, and not always as bad."""
        ring_read_anew = memory_with(active_finding(fault("Xid154", RESET), seq=90))

        after = adopted(ring_read_anew, memory_with(active_finding(fault("Xid154"), seq=80)), later(3600))

        assert [(finding.finding.severity, finding.seq) for finding in after.active] == [(REBOOT, 90)]

    def test_lost_file_learns_from_the_node_since_when_a_level_is_active(self) -> None:
        """Where the Node was read late, a look had seen it meanwhile."""
        (row,) = memory_with(active_finding(fault("RowRemapPending", RESET), nature=Nature.LEVEL)).active
        seen_anew = replace(row, first_seen=later(3600).wall)

        after = adopted(memory_with(seen_anew), memory_with(row), later(3600))

        assert [finding.first_seen for finding in after.active] == [row.first_seen]


class TestTheFuture:
    """No release or pass covers later findings, whatever its date."""

    AHEAD = WALL + timedelta(days=365 * 1000)

    def word(self, cursor: int | None) -> Release:
        return Release("x", "x", self.AHEAD, (Acknowledgement("Xid79", GPU, BOOT, cursor, self.AHEAD),))

    @pytest.mark.parametrize("cursor", [None, 10**15])
    def test_release_ends_active_findings_and_no_later_ones(self, cursor: int | None) -> None:
        before = memory_with(active_finding(fault(), seq=90 if cursor else -1), cursor=100)

        memory = within_log(after_release(before, self.word(cursor), NOW))
        again = comes(memory, fault(seq=101), MONOTONIC + 1)

        assert (reasons(memory), reasons(again)) == ([], ["Xid79"])
        assert memory.released is not None
        assert memory.released.at == WALL
        assert reasons(within_log(after_release(again, self.word(cursor), later(3)))) == ["Xid79"]

    def test_passed_run_ends_findings_active_at_its_first_observation(self) -> None:
        memory = quarantined(memory_with(active_finding(fault("Xid54", ISOLATE))), "run", self.AHEAD, later(1))
        found = replace(active_finding(fault("Xid79", ISOLATE)), last_seen=later(5).wall)
        again = replace(memory, active=(found,))

        assert reasons(memory) == []
        assert reasons(quarantined(again, "run", self.AHEAD, later(10))) == ["Xid79"]
        assert reasons(quarantined(again, "another run", later(6).wall, later(10))) == []

    def test_release_after_the_clock_was_set_back_ends_the_finding(self) -> None:
        seen = replace(active_finding(fault("DcgmDiagMemory", ISOLATE)), last_seen=later(3600).wall)
        row = Acknowledgement("DcgmDiagMemory", GPU, BOOT, None, later(3600).wall)

        memory = after_release(memory_with(seen), Release("x", "x", WALL, (row,)), NOW)

        assert reasons(memory) == []
        assert is_acknowledged(memory, seen.key, BOOT, -1, seen.last_seen)

    def test_a_place_in_the_log_is_bounded_by_its_end(self) -> None:
        row = Acknowledgement("Xid79", GPU, BOOT, 10**15, WALL)
        memory = memory_with(
            active_finding(fault("Xid62"), seq=10**12), cursor=7, acknowledged=(row, replace(row, boot_id="x"))
        )

        after = within_log(memory)

        assert [acknowledgement.cursor for acknowledgement in after.acknowledged] == [7, 10**15]
        assert [finding.seq for finding in after.active] == [7]
        assert [finding.seq for finding in within_log(replace(memory, cursor=None)).active] == [-1]


def test_findings_of_reset_or_worse_do_not_end_by_time() -> None:
    memory = memory_with(
        *(active_finding(fault(f"Xid{number}", severity)) for number, severity in enumerate(Severity) if number)
    )

    for jump in (-3600.0, 3600.0, 86400.0 * 3650):
        kept = expired(memory, later(10 * 86400, wall_jumps_by=jump), 86400).active
        assert [finding.finding.severity for finding in kept] == [RESET, REBOOT, ISOLATE]
