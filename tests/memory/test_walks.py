"""Faults of a node, line by line and cycle by cycle, with the verdict of docs/rules.md at each step."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin, quarantined
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.memory.findings import Memory, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Nature,
    Now,
    Outcome,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu, RowRemap
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import MACHINE, WALL

if TYPE_CHECKING:
    from pathlib import Path

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
ADDRESSES = [f"0000:{bus:02x}:00" for bus in (0x53, 0x64, 0x75, 0x86)]
EVENT_CHECKS = [check for check in CHECKS if check.nature is Nature.EVENT]
BANNER = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30 06:41:59 UTC 2025"
DAY = 86400.0


class Node:
    """One machine through time. Every word about its state is the severity of its verdict."""

    def __init__(self) -> None:
        self.now = Now(WALL, 1000.0)
        self.memory = begin(Memory(), MACHINE, "boot 1", self.now)
        self.gpus = [Gpu(i, 0, f"{a}.0", f"GPU-{i}", f"165000{i}", instances=()) for i, a in enumerate(ADDRESSES)]
        self.boots, self.seq, self.blind = 1, 0, False
        self.look()

    def wait(self, seconds: float, wall_jumps_by: float = 0.0) -> Node:
        wall = self.now.wall + timedelta(seconds=seconds + wall_jumps_by)
        self.now = Now(wall, self.now.monotonic + seconds)
        return self

    def log(self, *texts: str, every: float = 0.001) -> Severity:
        """The kernel says these, one after the other."""
        records = []
        for text in texts:
            self.wait(every)
            records.append(Record(self.seq, self.now.monotonic, 0, text))
            self.seq += 1
        outcomes = judge(EVENT_CHECKS, Evidence({RING: tuple(records)}), Expectation())
        self.memory = after_kernel_log(self.memory, outcomes, self.now, 2)
        return self.severity

    def xid(self, gpu: int, code: int, text: str = "x", instance: str = "") -> Severity:
        return self.log(f"NVRM: Xid (PCI:{ADDRESSES[gpu]}{instance}): {code}, {text}")

    def look(self, *levels: Finding, blind: str = "") -> Severity:
        """Run a check cycle: the GPUs as they are, these levels; or the reason why they are unobserved."""
        self.wait(1)
        began = self.now.monotonic
        self.blind = bool(blind)
        cause = (Unobserved(UnobservedCause.named(blind), "x"),) if blind else ()
        outcome = Outcome("gpu-count", "0-nvidia-smi", findings=() if blind else levels, unobserved=cause)
        self.memory = after_cycle(
            self.memory,
            JudgedCycle([outcome], () if blind else self.gpus, began),
            self.now,
            MemoryRules(escalate_after=2, monitor_ttl_seconds=DAY, cycles_to_confirm=1),
        )
        return self.severity

    def reboot(self) -> Severity:
        self.boots += 1
        self.seq = 0
        self.now = Now(self.now.wall + timedelta(seconds=300), 20.0)
        self.memory = begin(self.memory, MACHINE, f"boot {self.boots}", self.now)
        return self.severity

    @property
    def severity(self) -> Severity:
        return decide(self.memory, ()).severity

    @property
    def status(self) -> str:
        blind = (Unobserved(UnobservedCause.named("x"), "x"),) if self.blind else ()
        return decide(self.memory, [Outcome("driver", "0-nvidia-smi", unobserved=blind)]).status.value

    @property
    def reasons(self) -> set[str]:
        return {finding.finding.reason for finding in self.memory.active}

    def swap(self, gpu: int, **other: Any) -> None:
        self.gpus[gpu] = replace(self.gpus[gpu], **other)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_driver_upgrade_by_the_gpu_operator(node: Node) -> None:
    assert node.xid(1, 95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No") is RESET
    assert node.look(blind="DriverBeingChanged") is RESET  # the operator paused its operands
    assert node.log(BANNER) is RESET  # loaded anew: of itself no evidence
    assert node.look(blind="DriverBeingChanged") is RESET
    assert node.status == "fail"
    assert node.look() is PASS
    assert node.status == "pass"


def test_a_driver_upgrade_that_leaves_one_gpu_behind(node: Node) -> None:
    assert node.xid(1, 95) is RESET
    assert node.xid(2, 95) is RESET
    node.log(BANNER)
    node.swap(2, error=15)

    assert node.look() is RESET
    assert {finding.finding.subject for finding in node.memory.active} == {f"gpu/{ADDRESSES[2]}.0"}


def test_a_boot_with_the_driver_still_installing(node: Node) -> None:
    assert node.xid(0, 79) is REBOOT
    assert node.reboot() is PASS
    assert node.look(blind="NvmlLibraryNotFound") is PASS
    assert node.status == "unknown"
    assert node.log(BANNER) is PASS
    assert node.look() is PASS
    assert node.status == "pass"


def test_a_mig_reconfiguration(node: Node) -> None:
    node.swap(0, instances=(3, 5))
    assert node.xid(0, 95, "pid=77, name=a, Uncontained: x", " GPU-I:05 GPU-CI:00") is RESET
    assert node.look() is RESET
    assert node.look(blind="DriverBeingChanged") is RESET  # nvidia.com/mig.config.state=pending
    node.swap(0, instances=(1, 2))
    assert node.look() is PASS


def test_a_gpu_reset_by_an_operator(node: Node) -> None:
    assert node.xid(3, 48, "An uncorrectable double bit error (DBE) has been detected") is RESET
    assert node.xid(3, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)") is RESET
    assert node.reasons == {"Xid48", "Xid154"}
    node.wait(600)
    assert node.xid(3, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)") is PASS
    assert node.look() is PASS


def test_a_gpu_reset_that_only_nvml_shows(node: Node) -> None:
    assert node.xid(3, 48) is RESET
    node.swap(3, recovery_action=1)
    assert node.look() is RESET
    node.swap(3, recovery_action=0)
    assert node.look() is PASS


def test_fault_between_a_reset_and_the_cycle_that_observes_it(node: Node) -> None:
    """The log has reported the reset: NVML's report of it is not a second one."""
    of = f"NVRM: Xid (PCI:{ADDRESSES[0]}): 154, GPU recovery action changed from"
    node.swap(0, recovery_action=0)
    node.look()
    assert node.xid(0, 95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No") is RESET
    assert node.log(f"{of} 0x0 (None) to 0x1 (GPU Reset Required)") is RESET
    node.swap(0, recovery_action=1)
    assert node.look() is RESET
    assert node.wait(60).log(f"{of} 0x1 (GPU Reset Required) to 0x0 (None)") is PASS
    assert node.wait(60).xid(0, 119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!") is RESET
    node.swap(0, recovery_action=0)

    assert node.wait(60).look() is RESET
    assert node.reasons == {"Xid119"}


def test_a_fault_that_came_back_too_often_behind_a_milder_line_of_the_same_code(node: Node) -> None:
    mild = "SOMETHING_NEW Nonfatal XC0 i0 Link 01 (0x0 0x80000000)"
    fatal = "NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x000001c6 0x00000000 0x0 0x0)"
    for _ in range(2):
        assert node.xid(0, 149, fatal) is RESET
        assert node.reboot() is PASS
        node.look()

    assert node.xid(0, 149, mild) is MONITOR
    assert node.xid(0, 149, fatal) is ISOLATE


def test_released_level_that_recurred_too_often_keeps_its_severity(node: Node) -> None:
    bad = Finding("RowRemapPending", RESET, f"gpu/{ADDRESSES[0]}.0", "x")
    for _ in range(2):
        assert node.look(bad) is RESET
        node.reboot()
        assert node.look() is PASS
    assert node.look(bad) is ISOLATE
    assert node.look(bad) is ISOLATE

    node.memory = after_release(node.memory, Release("somebody", "mended", node.now.wall, ()), node.now)
    assert node.look(bad) is RESET


def test_a_bad_row_that_a_reset_replaces(node: Node) -> None:
    subject = f"gpu/{ADDRESSES[3]}.0"
    waits = Finding("RowRemapPending", RESET, subject, "x")
    assert node.xid(3, 63, "Row Remapper: New row marked for remapping, reset gpu to activate.") is PASS
    node.swap(3, row_remap=RowRemap(0, 1, pending=True, failed=False))
    assert node.look(waits) is RESET
    assert node.xid(3, 64, "DRAM Retirement failed due to pending row remap at 0x0000000018f31d80") is RESET
    node.wait(300)
    assert node.look(waits) is RESET
    assert node.reasons == {"RowRemapPending", "Xid64"}
    node.wait(300)
    node.swap(3, row_remap=RowRemap(0, 1, pending=False, failed=False))
    assert node.look() is PASS


def test_a_bad_row_that_the_driver_could_not_even_record(node: Node) -> None:
    node.swap(3, row_remap=RowRemap(0, 0, pending=False, failed=False))
    assert node.xid(3, 64, "DRAM Retirement failed due to full inforom object at 0x0000000018f31d80") is RESET
    node.wait(3600)
    assert node.look() is RESET  # NVML knows nothing of it: the row is in use as it was
    assert node.reboot() is PASS


def test_a_gpu_that_needs_a_reset_a_third_time_is_sent_away(node: Node) -> None:
    for _ in range(2):
        assert node.xid(3, 95) is RESET
        assert node.xid(3, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)") is PASS
        node.wait(3600)
    assert node.xid(3, 95) is ISOLATE
    assert node.reboot() is ISOLATE
    node.swap(3, serial="1659999", uuid="GPU-new")
    assert node.look() is PASS


def test_an_agent_upgraded_during_a_fault(node: Node, tmp_path: Path) -> None:
    file = MemoryFile(tmp_path)
    file.acquire()
    assert node.xid(2, 79) is REBOOT
    file.write(node.memory)

    node.memory = begin(file.read() or Memory(), MACHINE, "boot 1", node.now)

    assert node.severity is REBOOT
    assert node.look() is REBOOT
    file.unlock()


def test_a_node_that_comes_back_under_its_name_on_other_hardware(node: Node) -> None:
    assert node.xid(2, 54) is ISOLATE

    node.memory = begin(node.memory, "another machine", "its boot", node.now)

    assert (node.severity, node.memory.active) == (PASS, ())


def test_a_board_that_was_swapped(node: Node) -> None:
    assert node.xid(2, 54) is ISOLATE
    assert node.xid(1, 54) is ISOLATE
    assert node.reboot() is ISOLATE
    node.swap(2, serial="1659999", uuid="GPU-new")

    assert node.look() is ISOLATE
    assert {finding.finding.subject for finding in node.memory.active} == {f"gpu/{ADDRESSES[1]}.0"}


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 400 * DAY, -400 * DAY])
def test_a_clock_that_jumps(node: Node, jump: float) -> None:
    assert node.xid(0, 79) is REBOOT
    assert node.xid(1, 13) is REBOOT
    node.wait(10, wall_jumps_by=jump)
    assert node.look() is REBOOT
    assert node.reasons == {"Xid79", "Xid13"}
    node.wait(DAY)
    assert node.look() is REBOOT
    assert node.reasons == {"Xid79"}
    assert all(finding.first_seen <= finding.last_seen for finding in node.memory.active)


@pytest.mark.parametrize("reboots", [False, True])
def test_a_clock_set_back_makes_no_fault_older_than_a_quarantine_that_passed(node: Node, reboots: bool) -> None:
    """Its record stands on the Node, and is read again at each write."""
    name, began = "run 1", node.now.wall - timedelta(minutes=30)
    node.memory = quarantined(node.memory, name, began, node.now)
    if reboots:
        node.reboot()
    node.wait(60, wall_jumps_by=-DAY)

    assert node.xid(0, 54) is ISOLATE
    node.memory = quarantined(node.memory, name, began, node.now)
    assert node.severity is ISOLATE
    later = node.wait(3600).now
    node.memory = quarantined(node.memory, "run 2", later.wall, later)
    assert node.severity is PASS


def test_a_storm_of_user_code(node: Node) -> None:
    text = "pid={}, name=train, Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): Out Of Range Address"
    for step in range(50):
        for gpu in range(4):
            node.xid(gpu, 13, text.format(1000 + 10 * step + gpu, step % 7, step % 9))

    assert node.severity is MONITOR
    assert node.reasons == {"Xid13"}
    assert {finding.count for finding in node.memory.active} == {50}


def test_a_gpu_on_which_every_program_fails(node: Node) -> None:
    text = "pid={}, name=train, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address"
    for pid in (11, 22):
        assert node.xid(2, 13, text.format(pid)) is MONITOR
    assert node.reasons == {"Xid13"}
    assert node.xid(2, 13, text.format(33)) is MONITOR
    assert node.reasons == {"Xid13", "Xid13Repeated"}


def test_a_teardown_storm(node: Node) -> None:
    cleanups = [
        f"NVRM: Xid (PCI:{address}): 45, pid=7, name=a, Ch {n:08x}" for n in range(250) for address in ADDRESSES
    ]
    assert node.log(*cleanups) is MONITOR
    assert {finding.count for finding in node.memory.active} == {250}
    for gpu in range(4):
        node.xid(gpu, 31, "pid=7, name=a, Ch 00000001, intr 00000000. MMU Fault")

    assert node.reasons == {"Xid31"}


def test_gpu_lost_in_every_way_and_fixed_by_a_reboot(node: Node) -> None:
    assert node.log(f"NVRM: GPU {ADDRESSES[1]}.0: GPU has fallen off the bus.") is REBOOT
    assert node.xid(1, 79, "GPU has fallen off the bus.") is REBOOT
    assert node.xid(1, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)") is REBOOT
    node.swap(1, error=15)
    assert node.look(Finding("GpuLost", REBOOT, f"gpu/{ADDRESSES[1]}.0", "x")) is REBOOT
    assert len(node.memory.active) == 3, "Xid 79 explains the line without a number"
    assert {finding.finding.about["serial"] for finding in node.memory.active} == {"1650001"}
    assert node.reboot() is REBOOT  # the level stays active until the next cycle
    node.swap(1, error=0)
    assert node.look() is PASS


def test_cleared_log_ends_nothing(node: Node) -> None:
    assert node.xid(1, 79) is REBOOT
    node.seq += 5000  # `dmesg -C` and five thousand records later
    assert node.log("systemd[1]: Started something.") is REBOOT
    assert node.look() is REBOOT
