"""Errors of the earlier bash suite about the kernel log; each case with the right verdict."""

from __future__ import annotations

import pytest

from healthcheck.checks import CHECKS
from healthcheck.checks.examine import judge
from healthcheck.checks.expectation import Expectation
from healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_look
from healthcheck.memory.kernel_events import after_kernel_log
from healthcheck.model import Evidence, Nature, Severity, Status
from healthcheck.probes.kernel_log import RING, Record
from healthcheck.verdict.verdict import Verdict, decide
from tests.examples import MONOTONIC, NOW, fault, remembers, says

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
    memory = after_kernel_log(remembers(), outcomes, NOW)
    level = says(*(() if persistence_mode else (PERSISTENCE_MODE_OFF,)))
    memory = after_look(memory, JudgedCycle([level]), NOW, MemoryRules(looks_to_confirm=1))
    return decide(memory, (*outcomes, level))


def test_xid_79_alone_is_a_reboot() -> None:
    assert verdict(XID_79).severity is Severity.REBOOT


def test_xid_79_stays_a_reboot_with_a_milder_fault() -> None:
    assert verdict(XID_79, persistence_mode=False).severity is Severity.REBOOT


@pytest.mark.parametrize("lines", [(XID_79, FATAL_SXID), (FATAL_SXID, XID_79)])
def test_xid_79_with_a_fatal_sxid_is_at_least_a_reboot(lines: tuple[str, str]) -> None:
    assert verdict(*lines).severity >= Severity.REBOOT


def test_a_fatal_sxid_alone_is_at_least_a_reset() -> None:
    assert verdict(FATAL_SXID).severity >= Severity.RESET


def test_xid_62_alone_is_a_reset() -> None:
    assert verdict(XID_62).severity is Severity.RESET


@pytest.mark.parametrize("code", [46, 62, 142])
def test_codes_that_the_seed_took_for_unknown_are_faults(code: int) -> None:
    assert verdict(XID.format(code, "x")).severity is Severity.RESET


@pytest.mark.parametrize(
    "lines", [(XID_79, MONITOR_XID), (MONITOR_XID, XID_79), (XID_79, XID.format(43, "x")), (XID_79, *[MONITOR_XID] * 9)]
)
def test_a_later_milder_line_hides_no_fault(lines: tuple[str, ...]) -> None:
    said = verdict(*lines)

    assert (said.status, said.severity) == (Status.FAIL, Severity.REBOOT)


def test_a_fault_counts_however_many_lines_came_after_it() -> None:
    assert verdict(XID_79, *["usb 1-1: new device"] * 5000).severity is Severity.REBOOT


def test_a_clean_log_is_a_pass_and_never_skip() -> None:
    said = verdict("Linux version 6.8", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20")

    assert (said.status, said.severity.name) == (Status.PASS, "PASS")
