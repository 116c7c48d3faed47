"""Following the advice of a finding ends it; where nothing on the node can prove that, the advice says `release`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from healthcheck.catalog.policy import Policy
from healthcheck.catalog.profiles import find_profile
from healthcheck.catalog.sxid import rule_by_table, sxid_table
from healthcheck.catalog.xid import RECOVERY_CODE, actions, fixed_ruling, xid_table
from healthcheck.checks import CHECKS, driver_messages, sxid
from healthcheck.checks.driver_reasons import INIT_FAILED, LIBRARY_MISMATCH
from healthcheck.checks.examine import judge, look
from healthcheck.checks.expectation import Expectation
from healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_look
from healthcheck.memory.exits import begin, gpus_answered, passed, release
from healthcheck.memory.findings import Acknowledgement, Memory, Release
from healthcheck.memory.kernel_events import after_kernel_log
from healthcheck.model import Evidence, Host, Nature, Severity
from healthcheck.probes.kernel_log import RING, Record
from healthcheck.probes.nvml.driver import Driver
from healthcheck.probes.nvml.gpus import NVML, Gpu, Gpus
from healthcheck.settings.reading import packaged_profiles
from sim.node import SimulatedNode
from sim.scenarios import Scenario, scenarios
from tests.examples import GPU, MACHINE, MONOTONIC, WALL, later, remembers

ADDRESS = GPU.removeprefix("gpu/")
TO_RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
LINES_OF_THE_DRIVER = {
    driver_messages.FELL_OFF_BUS: f"NVRM: GPU {ADDRESS}: GPU has fallen off the bus.",
    INIT_FAILED: f"NVRM: GPU {ADDRESS}: RmInitAdapter failed! (0x24:0xffff:1436)",
    driver_messages.RESET_REQUIRED: "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required "
    "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from x @ y.c:1",
    driver_messages.REBOOT_REQUIRED: "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, "
    "requiring os reboot to recover.",
}
LINES_OF_A_LOAD = (
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    "NVRM: None of the NVIDIA devices were initialized.",
    f"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:{ADDRESS})",
)


def gpu(action: int = 0) -> Gpu:
    return Gpu(0, address=ADDRESS, serial="1", uuid="GPU-1", recovery_action=action)


def heard(memory: Memory, line: str, at: float) -> Memory:
    checks = [check for check in CHECKS if check.nature is Nature.EVENT]
    record = Record(int(at) + 1, MONOTONIC + at, 0, line)
    return after_kernel_log(memory, judge(checks, Evidence({RING: (record,)}), Expectation()), later(at))


def read(memory: Memory, at: float, action: int = 0) -> Memory:
    return gpus_answered(memory, [gpu(action)], MONOTONIC + at, later(at))


def reset(memory: Memory) -> Memory:
    """`nvidia-smi --gpu-reset`: the driver had a recovery action pending, and has none now."""
    return read(read(memory, 100, 1), 200)


def reload(memory: Memory) -> Memory:
    return read(heard(memory, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06", 150), 200)


def reboot(memory: Memory) -> Memory:
    return begin(memory, MACHINE, "boot-2", later(200))


def released(memory: Memory) -> Memory:
    rows = [
        Acknowledgement(
            finding.finding.reason, finding.finding.subject, finding.boot_id, None, WALL + timedelta(hours=1)
        )
        for finding in memory.standing
    ]
    return release(memory, Release("ops", "reset", WALL, tuple(rows)), later(300))


def quarantined(memory: Memory) -> Memory:
    return passed(memory, WALL + timedelta(hours=1))


WAYS: dict[str, Callable[[Memory], Memory]] = {
    "reload": reload,
    "reboot": reboot,
    "restart the virtual machine": reboot,
    "quarantine": quarantined,
    "reset": reset,
}
"""By the word of the advice. A `release` in an advice comes last: it acknowledges what nothing proves."""


def events() -> Iterator[tuple[str, str, str]]:
    """Name, line and advice of every event of RESET or worse."""
    for code, row in xid_table().items():
        ruling = fixed_ruling(code, Policy())
        if ruling is not None and ruling.severity >= Severity.RESET and code != RECOVERY_CODE:
            line = f"NVRM: Xid (PCI:{ADDRESS}): {code}, pid=1, name=x, text"
            yield f"Xid{code}", line, f"{actions()[row.immediate_action].says} {row.why}"
    for code in sxid_table():
        if rule_by_table(code, "Fatal").severity >= Severity.RESET:
            yield f"SXid{code}", f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, Fatal, x", sxid.FAMILY.action
    for reason, line in LINES_OF_THE_DRIVER.items():
        yield reason.name, line, reason.action
    for line in LINES_OF_A_LOAD:
        yield INIT_FAILED.name, line, INIT_FAILED.action


@pytest.mark.parametrize(("name", "line", "advice"), list(events()), ids=lambda value: str(value)[:20])
def test_every_way_that_the_advice_names_ends_the_event(name: str, line: str, advice: str) -> None:
    memory = heard(read(remembers(), -10), line, 10)
    assert [finding.finding.reason for finding in memory.standing] == [name]
    ways = [word for word in WAYS if word in advice.lower()]

    assert ways or "release" in advice
    for word in ways:
        after = WAYS[word](memory)
        assert after.standing == () or "release" in advice, word
    assert released(memory).standing == ()


def test_every_event_of_the_driver_that_is_reset_or_worse_has_its_line_here() -> None:
    """But `DriverLibraryMismatch`: its line is MONITOR, and its level is among those below."""
    serious = {reason for reason in driver_messages.CHECK.reasons if reason.severity >= Severity.RESET}
    assert serious - {LIBRARY_MISMATCH} == set(LINES_OF_THE_DRIVER)


LEVELS = {
    reason.name: reason
    for check in CHECKS
    for reason in check.reasons
    if check.nature is Nature.LEVEL and reason.severity >= Severity.RESET
}
MISSED_DEADLINES = "DriverUnresponsive"
"""Two looks of a driver that hangs: tests/agent/cycle/test_cycle.py."""
FAULTS = [
    one
    for one in scenarios()
    if one.stands_for in LEVELS.keys() - {MISSED_DEADLINES}
    and one.is_seen_by_check
    and not (one.from_within or one.kernel_log)
]


def seen(folder: Path, scenario: Scenario, *, faulty: bool) -> Evidence:
    with SimulatedNode.create(folder, scenario.instance_type) as node:
        if faulty:
            scenario.befall(node)
        driver = Driver(node.root, use_loader=False)
        driver.deadline_seconds = 5.0
        evidence = look(Host(node.root, driver.look), [check for check in CHECKS if check.nature is Nature.LEVEL])
        driver.end()
        return evidence


def after(memory: Memory, evidence: Evidence, scenario: Scenario, at: float) -> Memory:
    checks = [check for check in CHECKS if check.nature is Nature.LEVEL]
    profile = find_profile(packaged_profiles(), scenario.instance_type)
    outcomes = judge(checks, evidence, Expectation(profile, scenario.instance_type, first=memory.first))
    answer = evidence[NVML].answer if evidence.unread(NVML) is None else None
    gpus = answer.gpus if isinstance(answer, Gpus) else ()
    judged = JudgedCycle(outcomes, gpus, MONOTONIC + at, evidence, scenario.instance_type)
    return after_look(memory, judged, later(at), MemoryRules(looks_to_confirm=1))


@pytest.mark.parametrize("scenario", FAULTS, ids=lambda scenario: scenario.name)
def test_a_level_ends_with_the_check_that_meets_the_node_as_the_advice_leaves_it(
    scenario: Scenario, tmp_path: Path
) -> None:
    memory = after(remembers(), seen(tmp_path / "faulty", scenario, faulty=True), scenario, 0)
    reasons = {finding.finding.reason for finding in memory.standing}
    assert scenario.stands_for in reasons

    memory = after(memory, seen(tmp_path / "fixed", scenario, faulty=False), scenario, 60)

    assert scenario.stands_for not in {finding.finding.reason for finding in memory.standing}
    assert any(word in LEVELS[scenario.stands_for].action.lower() for word in ("reset", "reboot", "replace", "start"))
