"""Active findings and their ends (docs/rules.md 3, 4, 5 and 12)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.memory.cycles import (
    CYCLES_TO_CONFIRM,
    MOST_UNOBSERVED_CYCLES,
    JudgedCycle,
    MemoryRules,
    after_cycle,
    without_checks,
)
from gpu_healthcheck.healthcheck.memory.exit_table import exit_words
from gpu_healthcheck.healthcheck.memory.exits import begin, expired
from gpu_healthcheck.healthcheck.memory.findings import Memory, Suspect
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.reason_names import SLOWER_THAN_SIBLINGS
from gpu_healthcheck.healthcheck.model import Finding, Nature, Outcome, Severity, TooEarly
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from tests.examples import (
    BOOT,
    GPU,
    MACHINE,
    MONOTONIC,
    NOW,
    UNOBSERVED,
    WALL,
    active_finding,
    fault,
    kernel_event,
    later,
    memory_with,
    outcome_with,
)

MONITOR, RESET, REBOOT, ISOLATE = (severity for severity in Severity if severity)
DAY = 86400.0
HOUR = 3600.0
LOW = fault("GpuCountLow", REBOOT, "node", detail="NVML lists 7, PCI 8", flickers=True)
PENDING = fault("RowRemapPending", RESET, detail="rows are remapped at the next reset of the GPU")
LOW_KEY = ("GpuCountLow", "node")
LOST = fault("GpuLost", REBOOT, detail="NVML error 15")


def reasons(memory: Memory) -> list[str]:
    return [finding.finding.reason for finding in memory.active]


def event(reason: str, severity: Severity, at: float = MONOTONIC, **more: str) -> Finding:
    return fault(reason, severity, at=at, **more)


def read(findings: Iterable[Finding]) -> list[Outcome]:
    """Return the outcome of the xid check for these findings."""
    return [Outcome("xid", "0-nvidia-smi", events=tuple(kernel_event(finding) for finding in findings))]


class TestLevels:
    def test_level_is_active_from_the_first_cycle_that_shows_it(self) -> None:
        after = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)

        assert after.active == (active_finding(LOST, Nature.LEVEL, check="gpu-count"),)

    def test_level_ends_when_a_cycle_no_longer_shows_it(self) -> None:
        before = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)

        assert reasons(after_cycle(before, JudgedCycle([outcome_with()]), later(10))) == []

    def test_level_stays_active_while_unobserved(self) -> None:
        before = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)

        assert after_cycle(before, JudgedCycle([outcome_with(unobserved=UNOBSERVED)]), later(10)) == before

    def test_a_level_stays_when_its_check_saw_only_a_part(self) -> None:
        before = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)
        other = fault("GpuLost", subject="gpu/0000:64:00.0", detail="NVML error 15")

        after = after_cycle(before, JudgedCycle([outcome_with(other, unobserved=UNOBSERVED)]), later(10))

        assert sorted(finding.finding.subject for finding in after.active) == ["gpu/0000:53:00.0", "gpu/0000:64:00.0"]

    def test_a_level_stays_active_while_only_its_fault_is_unobserved(self) -> None:
        before = after_cycle(
            memory_with(), JudgedCycle([outcome_with(LOST), outcome_with(PENDING, check="row-remap")]), NOW
        )
        untold = (TooEarly("not told in MIG mode", LOST.subject, ("GpuLost",)),)

        after = after_cycle(
            before,
            JudgedCycle([outcome_with(too_early=untold), outcome_with(check="row-remap", too_early=untold)]),
            later(10),
        )

        assert reasons(after) == ["GpuLost"]

    def test_gpu_without_a_driver_is_observed_on_pci(self) -> None:
        unbound = fault("GpuUnbound", MONITOR)
        known = memory_with(gpus={"0000:53:00.0": {"index": "0"}})
        before = after_cycle(known, JudgedCycle([outcome_with(unbound), outcome_with(LOST)]), NOW)

        assert reasons(after_cycle(before, JudgedCycle([outcome_with()]), later(10))) == ["GpuLost"]

    def test_another_checks_outcome_ends_nothing(self) -> None:
        before = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)

        assert reasons(after_cycle(before, JudgedCycle([outcome_with(check="efa-count")]), later(10))) == ["GpuLost"]

    def test_recurring_level_keeps_its_first_time(self) -> None:
        before = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)

        (again,) = after_cycle(before, JudgedCycle([outcome_with(LOST)]), later(300)).active

        assert (again.first_seen, again.last_seen) == (WALL, WALL + timedelta(seconds=300))

    def test_a_level_that_comes_back_is_a_new_one(self) -> None:
        memory = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)
        memory = after_cycle(memory, JudgedCycle([outcome_with()]), later(10))

        (again,) = after_cycle(memory, JudgedCycle([outcome_with(LOST)]), later(20)).active

        assert again.first_seen == WALL + timedelta(seconds=20)

    def test_level_survives_a_reboot_until_a_cycle_no_longer_shows_it(self) -> None:
        before = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)]), NOW)

        rebooted = begin(before, MACHINE, "another boot", NOW)

        assert reasons(rebooted) == ["GpuLost"]
        assert reasons(after_cycle(rebooted, JudgedCycle([outcome_with()]), later(200))) == []

    def test_a_level_never_leaves_by_time(self) -> None:
        minor = fault("EfaBelowProfile", MONITOR, "node")
        before = memory_with(active_finding(minor, Nature.LEVEL))

        assert expired(before, later(30 * DAY), DAY) == before

    def test_deselected_check_loses_its_levels_and_keeps_its_events(self) -> None:
        before = memory_with(active_finding(fault()), active_finding(LOW, Nature.LEVEL, check="gpu-count"))

        assert reasons(without_checks(before, ["efa-count"])) == ["Xid79"]
        assert without_checks(before, ["gpu-count"]) == before


class TestAFaultThatTheLogReportsToo:
    def test_event_that_a_cycle_shows_too_ends_by_the_events_exit(self) -> None:
        logged = active_finding(fault("GpuInitFailed", RESET), seq=7)
        shown = outcome_with(fault("GpuInitFailed", RESET, flickers=True))

        memory = after_cycle(memory_with(logged), JudgedCycle([shown]), later(10))
        assert memory.active == after_cycle(memory, JudgedCycle([outcome_with()]), later(20)).active == (logged,)

    def test_fault_that_a_cycle_shows_worse_is_a_level(self) -> None:
        logged = active_finding(fault("DriverLibraryMismatch", MONITOR, "driver"))
        shown = outcome_with(fault("DriverLibraryMismatch", RESET, "driver"))

        memory = after_cycle(memory_with(logged), JudgedCycle([shown]), later(10))
        assert [(finding.nature, finding.finding.severity, finding.first_seen) for finding in memory.active] == [
            (Nature.LEVEL, RESET, WALL)
        ]
        assert after_cycle(memory, JudgedCycle([outcome_with()]), later(20)).active == ()


class TestFlickering:
    def test_suspect_counts_only_after_three_more_cycles(self) -> None:
        memory, shown = memory_with(), []

        for look in range(6):
            memory = after_cycle(memory, JudgedCycle([outcome_with(LOW)]), later(10.0 * look))
            shown.append((reasons(memory), bool(memory.suspects)))

        assert CYCLES_TO_CONFIRM == 4
        assert shown == [([], True)] * 3 + [(["GpuCountLow"], False)] * 3

    def test_one_clean_cycle_restarts_the_count(self) -> None:
        memory = memory_with()
        for _ in range(3):
            memory = after_cycle(memory, JudgedCycle([outcome_with(LOW)]), NOW)

        memory = after_cycle(memory, JudgedCycle([outcome_with()]), NOW)
        assert memory.suspects == {}

        assert reasons(after_cycle(memory, JudgedCycle([outcome_with(LOW)]), NOW)) == []

    def test_unobserved_cycle_neither_counts_nor_forgets(self) -> None:
        memory = memory_with()
        for _ in range(3):
            memory = after_cycle(memory, JudgedCycle([outcome_with(LOW)]), NOW)
            memory = after_cycle(memory, JudgedCycle([outcome_with(unobserved=UNOBSERVED)]), NOW)

        assert reasons(memory) == []
        assert reasons(after_cycle(memory, JudgedCycle([outcome_with(LOW)]), NOW)) == ["GpuCountLow"]

    def test_suspect_that_stays_unobserved_is_dropped(self) -> None:
        memory, blind = memory_with(), []
        for look in range(2 + MOST_UNOBSERVED_CYCLES):
            memory = after_cycle(
                memory,
                JudgedCycle([outcome_with(LOW) if look < 2 else outcome_with(unobserved=UNOBSERVED)]),
                later(10.0 * look),
            )
            blind += [suspect.unobserved_cycles for suspect in memory.suspects.values()]

        assert blind == [0, 0, *range(1, MOST_UNOBSERVED_CYCLES)]
        assert after_cycle(memory, JudgedCycle([outcome_with(LOW)]), NOW).suspects == {
            ("gpu-count", LOW_KEY): Suspect(1)
        }

    def test_deselected_check_loses_its_suspects(self) -> None:
        memory = after_cycle(memory_with(), JudgedCycle([outcome_with(LOW)]), NOW)

        assert without_checks(memory, ["gpu-count"]) == memory
        assert without_checks(memory, ["efa-count"]).suspects == {}

    def test_confirmed_flickering_finding_ends_with_one_clean_cycle_and_is_confirmed_again(self) -> None:
        memory = memory_with()
        for _ in range(4):
            memory = after_cycle(memory, JudgedCycle([outcome_with(LOW)]), NOW)
        memory = after_cycle(memory, JudgedCycle([outcome_with()]), NOW)

        assert reasons(memory) == []
        assert reasons(after_cycle(memory, JudgedCycle([outcome_with(LOW)]), NOW)) == []

    def test_two_that_flicker_are_counted_apart(self) -> None:
        other = fault("EfaCountLow", REBOOT, "node", flickers=True)
        memory = memory_with()
        for _ in range(3):
            memory = after_cycle(memory, JudgedCycle([outcome_with(LOW), outcome_with(check="efa-count")]), NOW)
        memory = after_cycle(memory, JudgedCycle([outcome_with(LOW), outcome_with(other, check="efa-count")]), NOW)

        assert reasons(memory) == ["GpuCountLow"]
        assert list(memory.suspects.values()) == [Suspect(1)]

    def test_reboot_forgets_suspects(self) -> None:
        memory = after_cycle(memory_with(), JudgedCycle([outcome_with(LOW)]), NOW)

        assert begin(memory, MACHINE, "another boot", NOW).suspects == {}


class TestEvents:
    def test_event_has_the_time_of_its_record(self) -> None:
        (finding,) = after_kernel_log(memory_with(), read([event("Xid79", REBOOT, MONOTONIC - 90)]), NOW).active

        assert (finding.first_seen, finding.last_seen) == (WALL - timedelta(seconds=90),) * 2
        assert (finding.nature, finding.count, finding.boot_id, finding.last_at) == (
            Nature.EVENT,
            1,
            BOOT,
            MONOTONIC - 90,
        )

    def test_an_event_is_never_from_the_future(self) -> None:
        (finding,) = after_kernel_log(memory_with(), read([event("Xid79", REBOOT, MONOTONIC + 90)]), NOW).active

        assert finding.first_seen == WALL

    def test_the_same_event_again_is_counted_and_keeps_its_first_time(self) -> None:
        memory = after_kernel_log(memory_with(), read([event("Xid79", REBOOT)]), NOW)
        memory = after_kernel_log(memory, read([event("Xid79", REBOOT, MONOTONIC + 60)]), later(60))

        (finding,) = memory.active
        assert (finding.count, finding.first_seen, finding.last_seen) == (2, WALL, WALL + timedelta(seconds=60))

    def test_a_milder_event_of_the_same_reason_hides_no_worse_one(self) -> None:
        worse = event("Xid154", REBOOT, detail="to 0x2 (Node Reboot Required)")
        milder = event("Xid154", RESET, detail="to 0x1 (GPU Reset Required)")

        memory = after_kernel_log(after_kernel_log(memory_with(), read([worse]), NOW), read([milder]), later(5))

        (finding,) = memory.active
        assert (finding.finding.severity, finding.finding.detail, finding.count) == (
            REBOOT,
            "to 0x2 (Node Reboot Required)",
            2,
        )

    def test_worse_event_of_the_same_reason_replaces_it(self) -> None:
        milder, worse = event("Xid154", RESET), event("Xid154", REBOOT)

        memory = after_kernel_log(after_kernel_log(memory_with(), read([milder]), NOW), read([worse]), later(5))

        assert [finding.finding.severity for finding in memory.active] == [REBOOT]

    def test_events_of_two_gpus_are_separate_and_the_worst_is_first(self) -> None:
        found = [
            event("Xid13", MONITOR),
            event("Xid48", RESET),
            fault("Xid48", RESET, "gpu/0000:64:00.0"),
            event("Xid54", ISOLATE),
        ]

        memory = after_kernel_log(memory_with(), read(found), NOW)

        assert [(finding.finding.reason, finding.finding.subject) for finding in memory.active] == [
            ("Xid54", GPU),
            ("Xid48", GPU),
            ("Xid48", "gpu/0000:64:00.0"),
            ("Xid13", GPU),
        ]

    def test_clean_light_cycle_clears_no_event(self) -> None:
        memory = memory_with(active_finding(fault()))

        assert (
            after_cycle(
                memory,
                JudgedCycle([outcome_with(), outcome_with(check="xid"), outcome_with(check="driver")]),
                later(300),
            ).active
            == memory.active
        )

    @pytest.mark.parametrize(
        ("severity", "after_restart", "after_reboot"),
        [(MONITOR, True, False), (RESET, True, False), (REBOOT, True, False), (ISOLATE, True, True)],
    )
    def test_a_restart_ends_nothing_and_a_reboot_all_below_isolate(
        self, severity: Severity, after_restart: bool, after_reboot: bool
    ) -> None:
        memory = memory_with(active_finding(fault("Xid1", severity)), cursor=99, driver_loaded_at=5.0)

        restarted, rebooted = begin(memory, MACHINE, BOOT, NOW), begin(memory, MACHINE, "another boot", NOW)

        assert bool(restarted.active) is after_restart
        assert bool(rebooted.active) is after_reboot
        assert restarted == memory
        assert (rebooted.boot_id, rebooted.cursor, rebooted.driver_loaded_at) == ("another boot", None, None)

    def test_a_flood_of_events_is_bounded_and_keeps_the_worst(self) -> None:
        flood = [fault("Xid13", MONITOR, f"gpu/{number}", at=MONOTONIC) for number in range(2000)]

        memory = after_kernel_log(memory_with(), read([*flood, event("Xid79", REBOOT)]), NOW)

        assert len(memory.active) == 512
        assert memory.active[0].finding.reason == "Xid79"

    @pytest.mark.parametrize(
        ("nature", "severity", "words"),
        [
            (Nature.LEVEL, REBOOT, "a check cycle without it"),
            (Nature.EVENT, MONITOR, "time, reboot, release, another GPU in its place"),
            (
                Nature.EVENT,
                RESET,
                "reset of the GPU, reboot, a passed quarantine run, release, another GPU in its place",
            ),
            (Nature.EVENT, REBOOT, "reboot, a passed quarantine run, release, another GPU in its place"),
            (Nature.EVENT, ISOLATE, "a passed quarantine run, release, another GPU in its place"),
        ],
    )
    def test_finding_names_its_exit(self, nature: Nature, severity: Severity, words: str) -> None:
        assert exit_words(active_finding(fault("Xid1", severity), nature)) == words


class TestMachines:
    def test_another_machine_inherits_nothing(self) -> None:
        memory = memory_with(active_finding(fault("Xid54", ISOLATE)), active_finding(LOST, Nature.LEVEL), cursor=12)

        assert begin(memory, "another machine", "another boot", NOW) == Memory("another machine", "another boot")

    @pytest.mark.parametrize(("before", "now"), [("", MACHINE), (MACHINE, ""), ("", "")])
    def test_machine_without_a_name_counts_as_the_same(self, before: str, now: str) -> None:
        memory = Memory(before, BOOT, active=(active_finding(fault()),))

        after = begin(memory, now, BOOT, NOW)

        assert (after.machine, reasons(after)) == (before or now, ["Xid79"])

    def test_an_empty_memory_begins_on_this_machine_and_boot(self) -> None:
        assert begin(Memory(), MACHINE, BOOT, NOW) == Memory(MACHINE, BOOT)


class TestTime:
    @pytest.mark.parametrize("jump", [-HOUR, 0.0, HOUR, -10 * DAY, 10 * DAY])
    @pytest.mark.parametrize(("age", "stays"), [(0.0, True), (DAY - 1, True), (DAY, False), (DAY + HOUR, False)])
    def test_a_monitor_event_passes_by_the_monotonic_clock_alone(self, age: float, stays: bool, jump: float) -> None:
        memory = memory_with(active_finding(fault("Xid13", MONITOR)))

        assert bool(expired(memory, later(age, wall_jumps_by=jump), DAY).active) is stays

    @pytest.mark.parametrize("severity", [RESET, REBOOT, ISOLATE])
    @pytest.mark.parametrize("jump", [-HOUR, HOUR, 3650 * DAY])
    def test_nothing_worse_ever_passes_by_time(self, severity: Severity, jump: float) -> None:
        memory = memory_with(active_finding(fault("Xid1", severity)))

        assert expired(memory, later(365 * DAY, wall_jumps_by=jump), DAY) == memory

    def test_recurring_monitor_event_lives_from_its_last_time(self) -> None:
        memory = memory_with(active_finding(fault("Xid13", MONITOR)))
        memory = after_kernel_log(memory, read([event("Xid13", MONITOR, MONOTONIC + DAY - 10)]), later(DAY - 10))

        assert reasons(expired(memory, later(DAY + HOUR), DAY)) == ["Xid13"]
        assert reasons(expired(memory, later(2 * DAY - 10), DAY)) == []

    @pytest.mark.parametrize(("wall_age", "stays"), [(DAY - 1, True), (DAY, False), (-HOUR, True)])
    def test_a_monitor_event_of_another_boot_passes_by_the_wall_clock(self, wall_age: float, stays: bool) -> None:
        memory = memory_with(active_finding(fault("Xid13", MONITOR), boot_id="the boot before", at=1e9))

        assert bool(expired(memory, later(wall_age), DAY).active) is stays

    @pytest.mark.parametrize("jump", [-HOUR, HOUR])
    def test_clock_jump_keeps_the_first_time_of_an_active_event(self, jump: float) -> None:
        memory = after_kernel_log(memory_with(), read([event("Xid79", REBOOT)]), NOW)

        after = after_kernel_log(memory, read([event("Xid79", REBOOT, MONOTONIC + 5)]), later(5, wall_jumps_by=jump))

        (finding,) = after.active
        assert finding.first_seen == WALL
        assert finding.last_seen == max(WALL, WALL + timedelta(seconds=5 + jump))


class TestLook:
    """All that one look makes of the memory, in its order."""

    ADDRESS = "0000:53:00.0"

    def gpu(self, serial: str = "1", **more: Any) -> Gpu:
        return Gpu(0, 0, self.ADDRESS, f"GPU-{serial}", serial, **more)

    def test_another_gpu_in_place_of_a_failed_one_is_judged_alone(self) -> None:
        known = after_cycle(memory_with(active_finding(fault("Xid54", ISOLATE))), JudgedCycle([], [self.gpu("1")]), NOW)

        after = after_cycle(known, JudgedCycle([outcome_with(LOST)], [self.gpu("2")], MONOTONIC + 10), later(10))

        assert [(finding.finding.reason, finding.finding.about["serial"]) for finding in after.active] == [
            ("GpuLost", "2")
        ]

    @pytest.mark.parametrize(("answers", "left"), [(True, []), (False, ["GpuLost"])])
    def test_silent_gpu_keeps_its_findings(self, answers: bool, left: list[str]) -> None:
        before = after_cycle(memory_with(), JudgedCycle([outcome_with(LOST)], [self.gpu()]), NOW)

        look = JudgedCycle([outcome_with()], [self.gpu()] if answers else [], MONOTONIC + 10)

        assert reasons(after_cycle(before, look, later(10))) == left

    @pytest.mark.parametrize(("age", "left"), [(DAY - 1, ["Xid13"]), (DAY, [])])
    def test_time_ends_only_its_own_findings(self, age: float, left: list[str]) -> None:
        before = memory_with(active_finding(fault("Xid13", MONITOR)))

        after = after_cycle(before, JudgedCycle([outcome_with()]), later(age), MemoryRules(monitor_ttl_seconds=DAY))

        assert reasons(after) == left

    def test_memory_keeps_the_nodes_instance_type(self) -> None:
        assert (
            after_cycle(memory_with(), JudgedCycle([], instance_type="p5.48xlarge"), NOW).instance_type == "p5.48xlarge"
        )


def test_a_slow_gpu_that_is_idle_stays_for_a_day_and_ends_when_it_is_equal() -> None:
    slow = fault(SLOWER_THAN_SIBLINGS, Severity.MONITOR)
    idle = outcome_with(check="gpu-siblings", too_early=(TooEarly("idle", slow.subject),))
    rules = MemoryRules(monitor_ttl_seconds=86_400)
    memory = after_cycle(memory_with(), JudgedCycle([outcome_with(slow, check="gpu-siblings")]), NOW, rules)

    kept = after_cycle(memory, JudgedCycle([idle]), later(86_000), rules)
    again = after_cycle(kept, JudgedCycle([outcome_with(slow, check="gpu-siblings")]), later(86_300), rules)

    assert [finding.last_seen for finding in kept.active] == [NOW.wall]
    assert after_cycle(kept, JudgedCycle([idle]), later(86_400), rules).active == ()
    assert after_cycle(again, JudgedCycle([idle]), later(100_000), rules).active != ()
    assert after_cycle(kept, JudgedCycle([outcome_with(check="gpu-siblings")]), later(86_100), rules).active == ()
