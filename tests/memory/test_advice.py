"""Following the advice of a finding ends it; where nothing on the node can prove that, the advice says `release`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpu_healthcheck.cli.catalogue import Explanation, explain_sxid, explain_xid
from gpu_healthcheck.cli.node_step import node_step
from gpu_healthcheck.healthcheck.catalog.policy import Policy, step_for
from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.catalog.sxid import sxid_table
from gpu_healthcheck.healthcheck.catalog.xid import RECOVERY_CODE, actions, recovery_actions, xid_table
from gpu_healthcheck.healthcheck.checks import CHECKS, driver_messages, sxid
from gpu_healthcheck.healthcheck.checks.driver_reasons import INIT_FAILED, LIBRARY_MISMATCH
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle
from gpu_healthcheck.healthcheck.memory.exit_table import exit_words
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin, expired, gpus_answered, passed
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.rows import finding_row
from gpu_healthcheck.healthcheck.model import Evidence, Host, Nature, Severity
from gpu_healthcheck.healthcheck.node.state import RESULTS, SEVERITY, STATUS, NodeState
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, Gpus
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles
from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.healthcheck.verdict.node_events import new_findings
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, StandingRecord
from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.scenarios import Scenario, scenarios
from tests.examples import GPU, MACHINE, MONOTONIC, WALL, later, memory_with

ADDRESS = GPU.removeprefix("gpu/")
TO_RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
LINES_OF_THE_DRIVER = {
    driver_messages.FELL_OFF_BUS: f"NVRM: GPU {ADDRESS}: GPU has fallen off the bus.",
    INIT_FAILED: f"NVRM: GPU {ADDRESS}: RmInitAdapter failed! (0x24:0xffff:1436)",
    driver_messages.RESET_REQUIRED: "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required "
    "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from x @ y.c:1",
    driver_messages.REBOOT_REQUIRED: "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, "
    "requiring os reboot to recover.",
    driver_messages.PCIE_ERROR: "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:00:02.0\v"
    f"nvidia {ADDRESS}: AER: can't recover (no error_detected callback)",
}
"""Lines that have to come together are separated by a vertical tab."""
LINES_OF_A_LOAD = (
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    "NVRM: None of the NVIDIA devices were initialized.",
    f"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:{ADDRESS})",
)


def gpu(action: int = 0) -> Gpu:
    return Gpu(0, address=ADDRESS, serial="1", uuid="GPU-1", recovery_action=action)


def heard(memory: Memory, line: str, at: float, policy: Policy | None = None) -> Memory:
    checks = [check for check in CHECKS if check.nature is Nature.EVENT]
    ring = tuple(
        Record(int(at) + number, MONOTONIC + at, 0, text) for number, text in enumerate(line.split("\v"), start=1)
    )
    expected = Expectation(policy=policy or Policy())
    return after_kernel_log(memory, judge(checks, Evidence({RING: ring}), expected), later(at))


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
        for finding in memory.active
    ]
    return after_release(memory, Release("ops", "reset", WALL, tuple(rows)), later(300))


def quarantined(memory: Memory) -> Memory:
    return passed(memory, WALL + timedelta(hours=1))


def replaced(memory: Memory) -> Memory:
    return begin(memory, "another machine", "boot-2", later(200))


def after_a_day(memory: Memory) -> Memory:
    return expired(memory, later(DAY + 10), DAY)


DAY = 86_400.0
WAYS: dict[str, Callable[[Memory], Memory]] = {
    "nothing now": after_a_day,
    "reload": reload,
    "reboot": reboot,
    "restart the virtual machine": reboot,
    "quarantine": quarantined,
    "replace": replaced,
    "reset": reset,
}
"""By the word of the advice. A `release` in an advice comes last: it acknowledges what nothing proves."""


def ways_in(text: str) -> list[str]:
    return [word for word in WAYS if word in text.lower()]


def driver_lines() -> Iterator[tuple[str, str, str]]:
    """Name, line and advice of every event of the driver without a number."""
    for reason, line in LINES_OF_THE_DRIVER.items():
        yield reason.name, line, reason.action
    for line in LINES_OF_A_LOAD:
        yield INIT_FAILED.name, line, INIT_FAILED.action


@pytest.mark.parametrize(("name", "line", "advice"), list(driver_lines()), ids=lambda value: str(value)[:20])
def test_every_way_that_the_advice_names_ends_the_event(name: str, line: str, advice: str) -> None:
    memory = heard(read(memory_with(), -10), line, 10)
    assert [finding.finding.reason for finding in memory.active] == [name]

    assert_followed(memory, advice)
    assert ways_in(advice)
    assert released(memory).active == ()


def assert_followed(memory: Memory, advice: str) -> None:
    """Each way in the text ends all findings, or the text names the release that does so afterwards."""
    for way in ways_in(advice):
        after = WAYS[way](memory)
        assert after.active == () or ("release" in advice and released(after).active == ()), (way, advice)


def next_step_of(memory: Memory) -> NextStep:
    """The next step in `status NODE`, from the record that the agent writes."""
    record = AgentRecord(findings=tuple(map(finding_row, memory.active)))
    severity = memory.active[0].finding.severity
    status = "fail" if severity >= Severity.RESET else "warn"
    results = json.dumps({"schema": 1, "findings": [as_json(row) for row in record.findings or ()]})
    node = NodeState("n", labels={STATUS: status, SEVERITY: severity.name}, annotations={RESULTS: results})
    [event] = new_findings(record, None, node)
    assert f" ({severity.name}, {memory.active[0].finding.subject}): " in event.message
    return node_step(node, StandingRecord(findings=record.findings), silent=False, now=WALL)


def assert_one_step(memory: Memory, explanation: Explanation) -> None:
    """`explain`, `status NODE` and the record's exit name steps that end the only finding."""
    [standing] = memory.active
    severity, step = standing.finding.severity, step_for(standing.finding.severity, (standing.finding.subject,))
    shown = next_step_of(memory)

    assert ways_in(step)
    assert all(WAYS[way](memory).active == () for way in ways_in(step)), step
    if explanation.here.severity is severity and standing.finding.subject != "node":  # an IMEX domain of Xid 154
        assert explanation.step == step
    assert shown.note.lower().startswith("nothing now" if severity is Severity.MONITOR else step.lower())
    if severity in (Severity.RESET, Severity.REBOOT):
        assert WAYS["reboot" if "--reboot" in shown.commands[0] else "reset"](memory).active == ()
    assert all(words in exit_words(standing) for way, words in EXITS_OF_WAYS.items() if way in ways_in(step))


EXITS_OF_WAYS = {"nothing now": "time", "reload": "a reload of the driver", "reboot": "reboot", "reset": "reset"}
"""Words of the record's `exit` by the way in a step. A replaced machine inherits no findings."""
SERIOUS = (Severity.MONITOR, Severity.RESET, Severity.REBOOT, Severity.ISOLATE)


@pytest.mark.parametrize("text", ["Fatal, x", "Non-fatal, x", "Correctable, x", "x"])
@pytest.mark.parametrize("override", [None, *SERIOUS])
def test_the_step_for_every_sxid_is_the_same_everywhere_and_ends_it(text: str, override: Severity | None) -> None:
    page = (Path(__file__).parents[2] / "docs/checks.md").read_text(encoding="utf-8")
    assert f"| {sxid.FAMILY.action} |" in page
    for code in (*sxid_table(), 99999):
        policy = Policy({f"SXid{code}": override} if override else {})
        memory = heard(
            read(memory_with(), -10), f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, {text}", 10, policy
        )
        explanation = explain_sxid(code, policy)

        assert_one_step(memory, explanation)
        assert explanation.advice == ("do", sxid.FAMILY.action)
        advice = dict(zip(("RESET", "MONITOR"), sxid.FAMILY.action.split(" MONITOR: "), strict=True))
        assert_followed(memory, advice.get(memory.active[0].finding.severity.name, ""))


def xid_lines() -> Iterator[tuple[int, str]]:
    """Code and text of a line for each Xid, and for each recovery action of Xid 154."""
    yield from ((code, "text") for code in (*xid_table(), 178, 999))
    for action in recovery_actions():
        yield RECOVERY_CODE, f"GPU recovery action changed from 0x0 (None) to {action.number:#x} ({action.name})"


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(strict_pshc=True, nvlink_default=Severity.MONITOR, nvlink5_default=Severity.RESET),
        *(Policy({f"Xid{code}": severity for code in (*xid_table(), 178, 999)}) for severity in SERIOUS),
    ],
    ids=["default", "strict", *(severity.name for severity in SERIOUS)],
)
def test_the_step_for_every_xid_is_the_same_everywhere_and_ends_it(policy: Policy) -> None:
    for code, text in xid_lines():
        memory = heard(
            read(memory_with(), -10), f"NVRM: Xid (PCI:{ADDRESS}): {code}, pid=1, name=x, {text}", 10, policy
        )
        row = xid_table().get(code)
        if not memory.active:
            is_ignored = explain_xid(code, (), policy).here.severity is Severity.PASS
            assert is_ignored or "(None)" in text.rpartition(" to ")[2]
            continue

        assert_one_step(memory, explain_xid(code, (), policy))
        if row and not policy.overrides:
            assert_followed(memory, f"{actions()[row.immediate_action].meaning} {row.why}")


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
            scenario.apply_to(node)
        driver = Driver(node.root, use_loader=False)
        driver.deadline_seconds = 5.0
        evidence = read_probes(
            Host(node.root, driver.read), [check for check in CHECKS if check.nature is Nature.LEVEL]
        )
        driver.end()
        return evidence


def after(memory: Memory, evidence: Evidence, scenario: Scenario, at: float) -> Memory:
    checks = [check for check in CHECKS if check.nature is Nature.LEVEL]
    profile = find_profile(packaged_profiles(), scenario.instance_type)
    outcomes = judge(checks, evidence, Expectation(profile, scenario.instance_type, first=memory.first))
    answer = evidence[NVML].answer if evidence.unread(NVML) is None else None
    gpus = answer.gpus if isinstance(answer, Gpus) else ()
    judged = JudgedCycle(outcomes, gpus, MONOTONIC + at, evidence, scenario.instance_type)
    return after_cycle(memory, judged, later(at), MemoryRules(cycles_to_confirm=1))


@pytest.mark.parametrize("scenario", FAULTS, ids=lambda scenario: scenario.name)
def test_a_level_ends_with_the_check_that_meets_the_node_as_the_advice_leaves_it(
    scenario: Scenario, tmp_path: Path
) -> None:
    memory = after(memory_with(), seen(tmp_path / "faulty", scenario, faulty=True), scenario, 0)
    reasons = {finding.finding.reason for finding in memory.active}
    assert scenario.stands_for in reasons

    memory = after(memory, seen(tmp_path / "fixed", scenario, faulty=False), scenario, 60)

    assert scenario.stands_for not in {finding.finding.reason for finding in memory.active}
    assert any(word in LEVELS[scenario.stands_for].action.lower() for word in ("reset", "reboot", "replace", "start"))
