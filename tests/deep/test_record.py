"""A deep run's record becomes the agent's own: the adopted parts, their end, and each adoption once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.deep_record import CompletedRun, after_deep_record, records_to_adopt, render
from gpu_healthcheck.healthcheck.memory import exits
from gpu_healthcheck.healthcheck.memory import file as memory_file
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.exit_table import exit_words
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Nature,
    Now,
    Outcome,
    Passed,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, RESET_RESULT, RESULTS, SWEEP_RESULT, NodeState
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import (
    UNEXPLAINED,
    faults_on,
    other_severities,
    read_release,
    release_of,
)
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import (
    BOOT,
    GPU,
    IDENTITY,
    MONOTONIC,
    NOW,
    WALL,
    active_finding,
    fault,
    kernel_event,
    later,
    memory_with,
    node,
    outcome_with,
)

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
ADDRESS = GPU.removeprefix("gpu/")
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1650003"}
OTHER = {"index": "4", "uuid": "GPU-4", "serial": "1650004"}
KNOWN = {ADDRESS: ABOUT, "0000:64:00.0": OTHER}
EARLIER_BOOT = "0b0a6c5e-0000-4000-8000-00000000000b"
MEMORY, PCIE, SLOW = "DcgmDiagMemory", "DcgmDiagPcie", "GpuComputeSlow"


def moment(minutes: float = 0) -> str:
    return timestamp(WALL + timedelta(minutes=minutes))


def at(minutes: float) -> Now:
    return later(60 * minutes)


def row(reason: str = MEMORY, severity: str = "RESET", subject: str = GPU, **more: Any) -> dict[str, Any]:
    return {"reason": reason, "severity": severity, "subject": subject, "detail": "bits flipped", **more}


def run(*rows: Any, minutes: float = 0, **more: Any) -> str:
    """Return a record as a deep diagnostic that ended at that time wrote it."""
    known = [row["severity"] for row in rows if isinstance(row, dict) and row.get("severity") in Severity.__members__]
    worst = max((Severity[entry] for entry in known), default=PASS)
    status = "fail" if worst >= RESET else "warn" if worst else "pass"
    record = {"schema": 1, "timestamp": moment(minutes), "status": status, "severity": worst.name, "findings": rows}
    checks = [{"check": "1-dcgm-diag-l2", "status": status, "severity": worst.name}]
    return json.dumps(record | {"checks": checks} | more)


def after(memory: Memory, now: Now = NOW, escalate_after: int = 0, **annotations: str) -> Memory:
    """Return the memory after the agent has read these records from the Node."""
    keys = {"sweep": SWEEP_RESULT, "quarantine": QUARANTINE_RESULT, "reset": RESET_RESULT}
    state = node(annotations={keys[kind]: text for kind, text in annotations.items()})
    for record in records_to_adopt(state, memory.adopted_records):
        memory = after_deep_record(memory, record, now, escalate_after)
    return memory


def reasons(memory: Memory) -> set[tuple[str, str]]:
    return {finding.key for finding in memory.active}


def knows(*standing: Any, **more: Any) -> Memory:
    return memory_with(*standing, gpus=KNOWN, **more)


class TestTaking:
    def test_makes_the_findings_events_of_our_own(self) -> None:
        memory = after(knows(), at(5), sweep=run(row(last_seen=moment(-1)), minutes=0))

        (finding,) = memory.active
        assert (finding.check, finding.nature, finding.boot_id, finding.last_at) == (
            "dcgm-diag-l2",
            Nature.EVENT,
            BOOT,
            NOW.monotonic - 60,
        )
        assert (finding.finding.severity, finding.finding.subject, finding.finding.about) == (RESET, GPU, ABOUT)
        assert (finding.finding.detail, finding.finding.source) == ("bits flipped", "sweep-result")
        assert "a later level 2 in which the same test passes" in exit_words(finding)
        assert memory.adopted_records == {"sweep-result": moment()}

    @pytest.mark.parametrize(
        ("subject", "about", "wanted"),
        [
            (GPU, {}, GPU),
            ("gpu/00000000:53:00.0", {}, GPU),
            ("gpu/0000:53:00.0/gi5", {}, f"{GPU}/gi5"),
            ("gpu/3", {}, GPU),
            ("gpu/GPU-3", {}, GPU),
            ("gpu/9", {"uuid": "GPU-3"}, GPU),
            ("gpu/9", {"serial": "1650003"}, GPU),
            ("gpu/4", {"uuid": "GPU-3"}, GPU),
            ("gpu/3", {"serial": "1659999"}, "gpu/3"),
            ("gpu/3", {"uuid": "GPU-9"}, "gpu/3"),
            ("gpu/9", {"uuid": "GPU-3", "serial": "1650004"}, "gpu/9"),
            ("gpu/7", {}, "gpu/7"),
            ("gpu/x", {"index": 3}, GPU),
            ("nvswitch/3", {"index": 3}, "nvswitch/3"),
            ("node", {}, "node"),
        ],
    )
    def test_names_a_gpu_by_its_address(self, subject: str, about: dict[str, Any], wanted: str) -> None:
        (finding,) = after(knows(), sweep=run(row(subject=subject, about=about))).active

        assert finding.finding.subject == wanted
        assert (finding.finding.about == ABOUT) is wanted.startswith(GPU)

    def test_index_of_two_gpus_identifies_none(self) -> None:
        twice = memory_with(gpus={ADDRESS: ABOUT, "0000:64:00.0": OTHER | {"index": "3"}})

        assert reasons(after(twice, sweep=run(row(subject="gpu/3")))) == {(MEMORY, "gpu/3")}

    def test_record_is_adopted_once(self) -> None:
        text = run(row())
        memory = after(knows(), sweep=text)

        assert after(memory, at(60), sweep=text) == memory

    def test_a_severity_without_a_finding_names_its_record_and_time(self) -> None:
        (found,) = after(knows(), sweep=run({"reason": PCIE}, severity="ISOLATE")).active

        assert found.finding.detail == f"sweep-result of {moment()} has severity ISOLATE"

    def test_records_of_each_kind_are_adopted_separately(self) -> None:
        memory = after(knows(), sweep=run(row()), quarantine=run(row(PCIE)))

        assert reasons(memory) == {(MEMORY, GPU), (PCIE, GPU)}
        assert memory.adopted_records == {"sweep-result": moment(), "quarantine-result": moment()}

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            (run(row(), 7, {"reason": PCIE}, row(severity="AWFUL")), {(MEMORY, GPU)}),
            (run({"reason": PCIE}, severity="ISOLATE"), {(UNEXPLAINED, "node")}),
            (run(row("not a name")), {(UNEXPLAINED, GPU)}),
            (run(row(subject="GPU 3")), {(MEMORY, "node")}),
            (run(row(subject="")), {(MEMORY, "node")}),
            (run(row(severity="PASS")), set()),
            (run(row(), severity="PASS"), set()),
            (run(row(about=7, detail=None, rule=[1])), {(MEMORY, GPU)}),
            (run(row(), passed=[3], unobserved=9, checks="x"), {(MEMORY, GPU)}),
        ],
    )
    def test_readable_part_of_a_damaged_record_counts(self, text: str, wanted: set[tuple[str, str]]) -> None:
        memory = after(knows(), sweep=text)

        assert (reasons(memory), memory.adopted_records) == (wanted, {"sweep-result": moment()})

    @pytest.mark.parametrize(
        "text",
        [
            "no JSON",
            "[]",
            json.dumps({"schema": 1, "severity": "ISOLATE"}),
            run(row(), timestamp="yesterday"),
            run(row(), timestamp=7),
            run(row(), timestamp="2026-11-21T01:02:03"),
            run(row(), severity="AWFUL"),
            "x" * 100_000,
        ],
    )
    def test_unreadable_or_undated_record_stays_unchanged(self, text: str) -> None:
        assert after(knows(), sweep=text) == knows()

    def test_bounds_foreign_text(self) -> None:
        long = "x" * 5000
        (finding,) = after(knows(), sweep=run(row(subject=f"gpu/{long}", detail=long, about={"uuid": long}))).active

        assert max(len(finding.finding.subject), len(finding.finding.detail), len(finding.finding.about["uuid"])) <= 500

    def test_adopted_finding_is_no_worse_than_its_run(self) -> None:
        (finding,) = after(knows(), sweep=run(row(severity="ISOLATE"), severity="MONITOR")).active

        assert finding.finding.severity is MONITOR

    def test_puts_nothing_into_the_future(self) -> None:
        (finding,) = after(knows(), sweep=run(row(), minutes=9000)).active

        assert (finding.last_seen, finding.last_at) == (WALL, NOW.monotonic)

    def test_level_is_left_to_the_check_cycles(self) -> None:
        lost = active_finding(fault("GpuLost", REBOOT), Nature.LEVEL, check="gpu-count")

        assert after(knows(lost), sweep=run(row("GpuLost", "REBOOT"))).active == (lost,)

    def test_counts_a_fault_that_the_next_run_finds_again(self) -> None:
        memory = after(knows(), sweep=run(row()))
        (finding,) = after(memory, at(60), sweep=run(row(detail="again"), minutes=60)).active

        assert (finding.count, finding.first_seen, finding.last_seen) == (2, WALL, WALL + timedelta(minutes=60))
        assert finding.finding.detail == "again"


class TestTheMerge:
    def test_adopted_record_is_left_out(self) -> None:
        deep = {SWEEP_RESULT: run(row(severity="ISOLATE")), QUARANTINE_RESULT: run(row(PCIE))}
        memory = after(knows(), sweep=deep[SWEEP_RESULT])
        own = records.dump(records.render(decide(memory, [outcome_with()]), memory, IDENTITY, WALL))
        state = node(annotations={**deep, RESULTS: own})

        # A reader with only the Node, and the agent with an older record there.
        assert other_severities(state, ()) == ([RESET], ())
        assert other_severities(node(annotations=deep), (), memory.adopted_records) == ([RESET], ())
        assert [fault.reason for fault in faults_on(state)] == [MEMORY, PCIE]

    def test_counts_a_newer_record_of_the_same_kind(self) -> None:
        state = node(annotations={SWEEP_RESULT: run(row(), minutes=60)})

        assert other_severities(state, (), {"sweep-result": moment()}) == ([RESET], ())

    @pytest.mark.parametrize("taken", ["x", 7, None, {"sweep-result": 7}, {"other": "x"}])
    def test_damaged_list_of_adopted_records_is_ignored(self, taken: Any) -> None:
        state = node(annotations={SWEEP_RESULT: run(row()), RESULTS: json.dumps({"schema": 1, "taken": taken})})

        assert other_severities(state, ()) == ([RESET], ())


class TestItsExits:
    @pytest.mark.parametrize(
        ("text", "kind", "stays"),
        [
            (run(minutes=60), "sweep", set()),
            (run(minutes=60), "quarantine", set()),
            (run(minutes=60, passed={MEMORY: [GPU]}, status="unknown"), "sweep", {(PCIE, GPU)}),
            (run(minutes=60, passed={MEMORY: ["gpu/3"]}, status="unknown"), "sweep", {(PCIE, GPU)}),
            (run(minutes=60, passed={MEMORY: ["gpu/4"]}, status="unknown"), "sweep", {(MEMORY, GPU), (PCIE, GPU)}),
            (run(minutes=60, status="unknown"), "sweep", {(MEMORY, GPU), (PCIE, GPU)}),
            (run(minutes=60, checks=[]), "sweep", {(MEMORY, GPU), (PCIE, GPU)}),
            (run(minutes=60, unobserved=[{"cause": "DcgmBusy"}]), "sweep", {(MEMORY, GPU), (PCIE, GPU)}),
            (run(row(PCIE), minutes=60, passed={MEMORY: [GPU]}), "sweep", {(PCIE, GPU)}),
            (run(minutes=-60), "sweep", {(MEMORY, GPU), (PCIE, GPU)}),
        ],
    )
    def test_a_later_run_in_which_the_same_test_passed(self, text: str, kind: str, stays: set[tuple[str, str]]) -> None:
        memory = after(knows(), sweep=run(row(severity="ISOLATE"), row(PCIE)))

        later_run = after(memory, at(60), sweep=text) if kind == "sweep" else after(memory, at(60), quarantine=text)
        assert reasons(later_run) == stays

    def test_passed_level_2_does_not_end_findings_of_a_quarantine_run(self) -> None:
        memory = after(knows(), quarantine=run(row(severity="ISOLATE")))

        assert reasons(after(memory, at(60), sweep=run(minutes=60))) == {(MEMORY, GPU)}

    def test_a_passed_level_2_ends_nothing_but_deep_findings(self) -> None:
        xid = active_finding(fault("Xid79", REBOOT))

        assert after(knows(xid), at(60), sweep=run(minutes=60)).active == (xid,)

    def test_a_quarantine_run_that_passed(self) -> None:
        memory = after(knows(), sweep=run(row(severity="ISOLATE")))

        assert exits.passed(memory, WALL + timedelta(seconds=1)).active == ()

    def test_1_light_cycle_clears_no_deep_verdict(self) -> None:
        memory = after(knows(), sweep=run(row(), row(UNEXPLAINED, "MONITOR", "node")))
        for minutes in range(5, 300, 5):
            memory = exits.gpus_answered(memory, [_gpu()], at(minutes).monotonic, at(minutes))
            memory = after_cycle(
                memory,
                JudgedCycle([outcome_with(check=name) for name in ("dcgm-diag-l2", "ecc", "gpu-count")]),
                at(minutes),
            )

        assert reasons(memory) == {(MEMORY, GPU), (UNEXPLAINED, "node")}

    def test_the_reset_of_its_gpu(self) -> None:
        memory = after(knows(), sweep=run(row(), row(PCIE, "REBOOT"), row(subject="gpu/4")))

        assert reasons(exits.recovered(memory, ADDRESS, NOW.monotonic + 1, at(1))) == {
            (PCIE, GPU),
            (MEMORY, "gpu/0000:64:00.0"),
        }

    def test_another_gpu_in_its_place(self) -> None:
        memory = after(knows(), sweep=run(row(severity="ISOLATE")))

        assert exits.gpus_answered(memory, [_gpu(uuid="GPU-9", serial="1659999"), *_others()], 1.0, NOW).active == ()

    def test_another_gpu_that_is_there_already(self) -> None:
        memory = after(knows(), sweep=run(row(severity="ISOLATE", about={"uuid": "GPU-8"})))

        assert exits.gpus_answered(memory, [_gpu(), *_others()], 1.0, NOW).active == ()
        fewer = exits.gpus_answered(memory, [_gpu()], 1.0, NOW)
        assert [finding.finding.subject for finding in fewer.active] == ["gpu/GPU-8"]

    @pytest.mark.parametrize(("severity", "stays"), [("MONITOR", 0), ("RESET", 0), ("REBOOT", 0), ("ISOLATE", 1)])
    def test_a_reboot(self, severity: str, stays: int) -> None:
        memory = after(knows(), sweep=run(row(severity=severity)))
        rebooted = exits.begin(memory, memory.machine, EARLIER_BOOT, at(60))

        assert len(rebooted.active) == stays
        assert after(rebooted, at(61), sweep=run(row(severity=severity))) == rebooted

    @pytest.mark.parametrize(("severity", "stays"), [("RESET", 0), ("REBOOT", 0), ("ISOLATE", 1)])
    def test_reboot_before_the_record_was_adopted(self, severity: str, stays: int) -> None:
        memory = after(knows(), sweep=run(row(severity=severity), boot_id=EARLIER_BOOT))

        assert len(memory.active) == stays

    def test_time_for_the_mildest(self) -> None:
        memory = after(knows(), sweep=run(row(severity="MONITOR"), row(PCIE)))

        assert reasons(exits.expired(memory, at(1441), 86400)) == {(PCIE, GPU)}

    @pytest.mark.parametrize("severity", ["MONITOR", "RESET"])
    def test_of_a_slow_gpu_only_its_later_measurement(self, severity: str) -> None:
        memory = after(knows(), quarantine=run(row(SLOW, severity), boot_id=BOOT))
        key = {(SLOW, GPU)}
        fit = {SLOW: [GPU]}

        assert exit_words(memory.active[0]) == (
            "a later quarantine run that measures a sufficient speed, release, another GPU in its place"
        )
        rebooted = exits.begin(memory, memory.machine, EARLIER_BOOT, at(60))
        for same in (
            exits.expired(memory, at(100_000), 86400),
            exits.recovered(memory, ADDRESS, NOW.monotonic + 1, at(1)),
            exits.passed(memory, WALL + timedelta(hours=1)),
            rebooted,
            after(memory, at(60), sweep=run(minutes=60)),
            after(memory, at(60), sweep=run(minutes=60, passed=fit)),
            after(memory, at(60), reset=run(minutes=60, passed=fit)),
            after(memory, at(60), quarantine=run(minutes=60)),
            after(memory, at(60), quarantine=run(minutes=60, passed={"GpuCopySlow": [GPU]})),
            after(memory, at(60), quarantine=run(minutes=60, passed={SLOW: ["gpu/0000:64:00.0"]})),
            after(memory, at(60), quarantine=run(minutes=-60, passed=fit)),
        ):
            assert reasons(same) == key

        for ended in (memory, rebooted):
            assert after(ended, at(60), quarantine=run(minutes=60, passed=fit, status="unknown")).active == ()
        assert reasons(after(knows(), quarantine=run(row(SLOW, severity), boot_id=EARLIER_BOOT))) == key

    def test_another_machine_inherits_neither_the_findings_nor_the_records(self) -> None:
        text = run(row(severity="ISOLATE"))
        memory = exits.begin(after(knows(), sweep=text), "another", EARLIER_BOOT, at(60))

        assert after(memory, at(61), sweep=text).active == ()

    def test_finding_that_recurs_after_two_resets_is_isolated(self) -> None:
        memory = knows()
        for minutes in (0, 60, 120):
            memory = after(memory, at(minutes), 2, sweep=run(row(), minutes=minutes))
            severity = memory.active[0].finding.severity
            memory = exits.recovered(memory, ADDRESS, at(minutes + 1).monotonic, at(minutes + 1))

        assert severity is ISOLATE


class TestARelease:
    @pytest.mark.parametrize("subject", [GPU, "gpu/3"])
    def test_before_it_was_taken(self, subject: str) -> None:
        text = run(row(severity="ISOLATE", subject=subject))
        state = node(annotations={SWEEP_RESULT: text})
        memory = exits.after_release(
            knows(), release_of(state, "mia", "swapped", WALL + timedelta(minutes=5)), later(3600)
        )

        memory = after(memory, at(6), sweep=text)
        assert (memory.active, memory.adopted_records) == ((), {"sweep-result": moment()})

    @pytest.mark.parametrize("subject", [GPU, "gpu/3"])
    def test_of_the_node_as_it_was_before_it_was_taken(self, subject: str) -> None:
        text = run(row(severity="ISOLATE", subject=subject))
        state = node(annotations={SWEEP_RESULT: text})
        word = release_of(state, "mia", "swapped", WALL + timedelta(minutes=5))

        memory = exits.after_release(after(knows(), sweep=text), word, later(3600))
        assert (memory.active, after(memory, at(6), sweep=text)) == ((), memory)

    def test_after_its_adoption_lasts_until_a_later_run_finds_it_again(self) -> None:
        text = run(row(severity="ISOLATE", subject="gpu/3"))
        memory = after(knows(), sweep=text)
        word = release_of(_recorded(memory, text), "mia", "swapped", WALL + timedelta(minutes=5))

        memory = exits.after_release(memory, word, later(3600))
        assert after(memory, at(6), sweep=text).active == ()
        again = run(row(severity="ISOLATE", subject="gpu/3"), minutes=60)
        assert reasons(after(memory, at(60), sweep=again)) == {(MEMORY, GPU)}

    def test_by_the_label_speaks_of_a_taken_record_once(self) -> None:
        memory = after(knows(), sweep=(text := run(row(severity="ISOLATE", subject="gpu/3"))))
        state = _recorded(memory, text)

        word = release_of(state, "mia", "swapped", WALL)
        assert [(finding.reason, finding.subject) for finding in word.findings] == [(MEMORY, GPU)]
        assert read_release(state, by_label=True) == (None, ())


class TestTheMemory:
    def test_is_the_same_from_its_file(self, tmp_path: Any) -> None:
        memory = after(knows(), sweep=run(row()), quarantine=run(row(PCIE)))
        file = memory_file.MemoryFile(tmp_path)
        assert file.acquire()
        file.write(memory)

        read = file.read()
        assert read is not None
        assert (read.adopted_records, reasons(read)) == (memory.adopted_records, reasons(memory))

    def test_is_rebuilt_from_the_node(self) -> None:
        text = run(row(severity="ISOLATE"))
        memory = after(knows(), sweep=text)
        lost = records.remembered(records.parse(AgentRecord, _recorded(memory, text).annotations[RESULTS]))

        rebuilt = exits.adopted(knows(), lost, later(3600))
        assert (rebuilt.adopted_records, reasons(rebuilt)) == (memory.adopted_records, {(MEMORY, GPU)})
        assert after(rebuilt, at(5), sweep=text) == rebuilt

    def test_that_knows_more_than_the_node_keeps_it(self) -> None:
        newer = knows(adopted_records={"sweep-result": moment(60)})

        assert (
            exits.adopted(newer, knows(adopted_records={"sweep-result": moment()}), later(3600)).adopted_records
            == newer.adopted_records
        )


def _gpu(uuid: str = "GPU-3", serial: str = "1650003") -> Gpu:
    return Gpu(3, address=ADDRESS, uuid=uuid, serial=serial)


def _others() -> list[Gpu]:
    return [
        Gpu(int(about.get("index", "0")), address=at, uuid=about.get("uuid", ""), serial=about.get("serial", ""))
        for at, about in KNOWN.items()
        if at != ADDRESS
    ]


def _recorded(memory: Memory, text: str) -> NodeState:
    """Return the Node after the agent wrote that memory."""
    own = records.dump(records.render(decide(memory, [outcome_with()]), memory, IDENTITY, WALL))
    return node(annotations={SWEEP_RESULT: text, RESULTS: own})


class TestWritingOne:
    RAN = CompletedRun("gpu-node-1", "agent", WALL, WALL + timedelta(minutes=3), "", BOOT)

    def outcome(self, *findings: Finding, **more: Any) -> Outcome:
        return Outcome("dcgm-diag-l2", "1-dcgm-diag-l2", findings, **more)

    def written(self, outcome: Outcome) -> str:
        return records.dump(render(outcome, self.RAN))

    def test_findings_and_passes_round_trip(self) -> None:
        memory = after(knows(), sweep=run(row(severity="ISOLATE"), row(PCIE), minutes=-60))
        found = fault(PCIE, RESET, "gpu/3", about={"serial": "1650003"}, detail="slow")
        outcome = self.outcome(found, passed=(Passed(MEMORY, "gpu/3"),))

        (finding,) = after(memory, at(5), sweep=self.written(outcome)).active
        assert (finding.key, finding.finding.detail, finding.count) == ((PCIE, GPU), "slow", 2)

    @pytest.mark.parametrize(
        ("severities", "blind", "status"),
        [((), (), "pass"), ((MONITOR,), (), "warn"), ((MONITOR, RESET), (), "fail"), ((), ("DcgmBusy",), "unknown")],
    )
    def test_its_status_is_that_of_its_worst(
        self, severities: tuple[Severity, ...], blind: tuple[str, ...], status: str
    ) -> None:
        findings = [fault(f"Dcgm{severity.name}", severity) for severity in severities]
        outcome = self.outcome(
            *findings, unobserved=tuple(Unobserved(UnobservedCause.named(cause), "x") for cause in blind)
        )
        record = records.load(self.written(outcome))

        assert (record["status"], record["severity"]) == (status, max(severities, default=PASS).name)
        assert record["checks"] == [{"check": "1-dcgm-diag-l2", "status": status, "severity": record["severity"]}]
        assert (record["started"], record["timestamp"]) == (moment(), moment(3))

    def test_is_never_longer_than_a_record_may_be(self) -> None:
        found = [
            fault(f"DcgmDiag{number}", RESET, f"gpu/0000:{bus:02x}:00.0", detail="x" * 400, about=ABOUT)
            for number in range(8)
            for bus in range(16)
        ]
        text = self.written(
            self.outcome(
                *found, unobserved=tuple(Unobserved(UnobservedCause.named("DcgmBusy"), "y" * 400) for _ in range(99))
            )
        )

        assert len(text.encode()) <= records.LONGEST
        assert records.load(text)["cut"]["details"] == len(found)

    def test_file_of_another_machine_is_read_without_its_findings(self) -> None:
        text = run(row(severity="ISOLATE"), machine="another")

        memory = after(knows(), sweep=text)
        assert (memory.active, memory.adopted_records) == ((), {"sweep-result": moment()})


class TestReset:
    """A reset's record: the GPUs that it names, and the findings on them that a reset ends."""

    def took(self, memory: Memory, **more: Any) -> Memory:
        fields = {"boot_id": BOOT, "reset_at": MONOTONIC + 60, "gpus": [{"uuid": "GPU-3", "address": ADDRESS}]}
        text = run(minutes=5, **{**fields, "checks": [], **more})
        return after(memory, at(6), reset=text)

    def test_ends_the_findings_of_these_gpus_and_counts_it(self) -> None:
        xid = active_finding(fault("Xid62", RESET, about=ABOUT))
        other = active_finding(fault("Xid62", RESET, "gpu/0000:64:00.0"))
        isolated = active_finding(fault("Xid64", ISOLATE))
        memory = self.took(knows(xid, other, isolated))

        assert reasons(memory) == {other.key, isolated.key}
        assert memory.ended
        assert memory.adopted_records == {"reset-result": moment(5)}

    @pytest.mark.parametrize(
        "fields",
        [
            {"reset_at": None},
            {"reset_at": "soon"},
            {"reset_at": MONOTONIC + 1e6},
            {"reset_at": MONOTONIC - 1},
            {"boot_id": EARLIER_BOOT},
            {"boot_id": ""},
            {"gpus": []},
            {"gpus": [{"uuid": "GPU-9"}]},
            {"gpus": [{"uuid": ""}]},
            {"gpus": "GPU-3"},
            {"machine": "another"},
        ],
    )
    def test_of_anything_else_ends_nothing(self, fields: dict[str, Any]) -> None:
        memory = knows(active_finding(fault("Xid62", RESET)))
        assert reasons(self.took(memory, **fields)) == {("Xid62", GPU)}

    @pytest.mark.parametrize(
        ("ends", "severity"),
        [
            ([(0, 3, "reset")], RESET),
            ([(0, 3, "reset"), (1, 3, "reset")], ISOLATE),
            ([(0, 3, "reset"), (1, 3, "boot")], ISOLATE),
            ([(0, 3, "boot"), (6.9, 3, "reset")], ISOLATE),
            ([(0, 3, "boot"), (1, 3, "boot")], ISOLATE),
            ([(0, 4, "reset"), (1, 3, "reset")], RESET),
            ([(0, 4, "boot"), (1, 4, "boot")], RESET),
            ([(-0.2, 3, "reset"), (6.9, 3, "reset")], RESET),
            ([(-0.2, 3, "boot"), (0, 4, "reset"), (1, 3, "reset")], RESET),
        ],
    )
    def test_a_fault_that_returns_after_two_ends_on_its_gpu_within_a_week_escalates(
        self, ends: list[tuple[float, int, str]], severity: Severity
    ) -> None:
        """Each row: days, the GPU with the fault, and how it ends; a week after the first day GPU 3 has it again."""
        memory, gpus = knows(), {3: (ADDRESS, ABOUT), 4: ("0000:64:00.0", OTHER)}
        for number, (days, index, how) in enumerate(ends):
            address, about = gpus[index]
            start = 1440 * days
            memory = self.logged(memory, address, about, at(start))
            assert [finding.finding.severity for finding in memory.active] == [RESET]
            if how == "boot":
                memory = exits.begin(memory, memory.machine, f"boot {number}", at(start + 5))
            else:
                row = {"boot_id": memory.boot_id, "gpus": [{"uuid": about["uuid"], "address": address}]}
                text = run(minutes=start + 5, reset_at=at(start + 4).monotonic, checks=[], **row)
                memory = after(memory, at(start + 6), reset=text)
            assert memory.active == ()

        (finding,) = self.logged(memory, ADDRESS, ABOUT, at(1440 * 7 - 5)).active
        assert finding.finding.severity is severity

    def logged(self, memory: Memory, address: str, about: dict[str, str], now: Now) -> Memory:
        """Return the memory after the driver has logged Xid 62 on this GPU."""
        found = fault("Xid62", RESET, f"gpu/{address}", about=about, at=now.monotonic)
        return after_kernel_log(memory, [Outcome("xid", "0-nvidia-smi", events=(kernel_event(found),))], now, 2)

    def test_an_event_after_it_stays(self) -> None:
        memory = knows(active_finding(fault("Xid62", RESET), at=MONOTONIC + 61))
        assert reasons(self.took(memory)) == {("Xid62", GPU)}

    def test_only_a_reset_has_such_fields(self) -> None:
        memory = knows(active_finding(fault("Xid62", RESET)))
        text = run(minutes=5, boot_id=BOOT, reset_at=MONOTONIC + 60, gpus=[{"uuid": "GPU-3"}], checks=[])
        assert reasons(after(memory, at(6), sweep=text, quarantine=text)) == {("Xid62", GPU)}

    def test_twice_is_once(self) -> None:
        memory = self.took(knows(active_finding(fault("Xid62", RESET))))
        again = replace(memory, active=(active_finding(fault("Xid62", RESET)),))
        assert reasons(self.took(again)) == {("Xid62", GPU)}

    def test_a_fault_under_load_ends_by_the_next_reset_and_by_no_level_2(self) -> None:
        memory = self.took(knows(), findings=[row("GpuLoadFailed")], status="fail", severity="RESET")
        assert exit_words(memory.active[0]) == (
            "reset of the GPU, reboot, a passed quarantine run, release, another GPU in its place"
        )

    def test_faults_of_its_level_2_are_adopted(self) -> None:
        memory = self.took(knows(), findings=[row(PCIE)], severity="RESET", status="fail")
        assert reasons(memory) == {(PCIE, GPU)}
