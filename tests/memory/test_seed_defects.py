"""Errors of the earlier bash suite about the kernel log; each case with the right verdict."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Evidence, Nature, Severity, Status
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide
from tests.examples import MONOTONIC, NOW, fault, memory_with, outcome_with

EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
XID = "NVRM: Xid (PCI:0000:53:00): {}, pid='<unknown>', name=<unknown>, {}"
XID_79 = XID.format(79, "GPU has fallen off the bus.")
XID_62 = XID.format(62, "0cb5(2d50) 8503d428 ffffff87")
FATAL_SXID = "nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
MONITOR_XID = XID.format(13, "Graphics Exception: ESR 0x50c730=0x1f")
PERSISTENCE_MODE_OFF = fault("PersistenceModeOff", Severity.MONITOR, "gpu/0000:64:00.0", detail="off")


def verdict(*texts: str, persistence_mode: bool = True) -> Verdict:
    ring = tuple(Record(seq, MONOTONIC - 60 + seq, 0, text) for seq, text in enumerate(texts))
    outcomes = judge(EVENT_CHECKS, Evidence({RING: ring}), Expectation())
    memory = after_kernel_log(memory_with(), outcomes, NOW)
    level = outcome_with(*(() if persistence_mode else (PERSISTENCE_MODE_OFF,)))
    memory = after_cycle(memory, JudgedCycle([level]), NOW, MemoryRules(cycles_to_confirm=1))
    return decide(memory, (*outcomes, level))


FAIL, PASS = Status.FAIL, Status.PASS
LINES: dict[str, tuple[tuple[str, ...], Status, Severity]] = {
    "xid 79": ((XID_79,), FAIL, Severity.REBOOT),
    "xid 79 before a fatal sxid": ((XID_79, FATAL_SXID), FAIL, Severity.REBOOT),
    "xid 79 after a fatal sxid": ((FATAL_SXID, XID_79), FAIL, Severity.REBOOT),
    "xid 79 before a milder line": ((XID_79, MONITOR_XID), FAIL, Severity.REBOOT),
    "xid 79 after a milder line": ((MONITOR_XID, XID_79), FAIL, Severity.REBOOT),
    "xid 79 before an application's error": ((XID_79, XID.format(43, "x")), FAIL, Severity.REBOOT),
    "xid 79 before many milder lines": ((XID_79, *[MONITOR_XID] * 9), FAIL, Severity.REBOOT),
    "xid 79 before thousands of other lines": ((XID_79, *["usb 1-1: new device"] * 5000), FAIL, Severity.REBOOT),
    "a fatal sxid": ((FATAL_SXID,), FAIL, Severity.RESET),
    "xid 62": ((XID_62,), FAIL, Severity.RESET),
    **{f"xid {code}": ((XID.format(code, "x"),), FAIL, Severity.RESET) for code in (46, 62, 142)},
    "a clean log": (("Linux version 6.8", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570"), PASS, Severity.PASS),
}


@pytest.mark.parametrize("case", LINES)
def test_lines_have_their_verdict(case: str) -> None:
    lines, status, severity = LINES[case]
    given = verdict(*lines)

    assert (given.status, given.severity) == (status, severity)


def test_xid_79_stays_a_reboot_with_a_milder_fault() -> None:
    assert verdict(XID_79, persistence_mode=False).severity is Severity.REBOOT
