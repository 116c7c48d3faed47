"""Severities of active findings come from the tables and overrides in force, in both directions."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import OVERRIDDEN, Policy
from gpu_healthcheck.healthcheck.catalog.severities import ESCALATED
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.sxid import CHECK as SXID
from gpu_healthcheck.healthcheck.checks.xid import CHECK as XID
from gpu_healthcheck.healthcheck.memory.content import dump, parse
from gpu_healthcheck.healthcheck.memory.exits import begin, recovered
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.severity_changes import in_force
from gpu_healthcheck.healthcheck.model import Evidence, Severity, Status
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import GPU, MACHINE, MONOTONIC, NOW, active_finding, fault, later, memory_with, outcome_with

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
ADDRESS = GPU.removeprefix("gpu/")
NVLINK5 = "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00000013 0x00000001 0x0)"


def logged(text: str, policy: Policy, memory: Memory | None = None, at: float = 0.0) -> Memory:
    record = Record(1, MONOTONIC + at, 0, text)
    outcomes = judge((XID, SXID), Evidence({RING: (record,)}), Expectation(policy=policy))
    return after_kernel_log(memory or memory_with(), outcomes, later(at), 2)


def xid(code: int, text: str = "x") -> str:
    return f"NVRM: Xid (PCI:{ADDRESS[:-2]}): {code}, pid=1, name=x, {text}"


@pytest.mark.parametrize("severity", list(Severity))
@pytest.mark.parametrize(
    ("line", "own"),
    [
        (xid(62), RESET),
        (xid(79), REBOOT),
        (xid(54), ISOLATE),
        (xid(31), MONITOR),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", RESET),
    ],
)
def test_an_override_reaches_an_active_finding_and_taking_it_back_restores_it(
    line: str, own: Severity, severity: Severity
) -> None:
    before = logged(line, Policy())
    reason = before.active[0].finding.reason
    policy = Policy({reason: severity})

    overridden = in_force(before, policy)
    from_the_start = logged(line, policy)

    for memory in (overridden, from_the_start):
        assert [finding.finding.severity for finding in memory.active] == [severity]
        assert decide(memory, [outcome_with()]).severity is severity
        assert [finding.finding.rule for finding in memory.active] == [OVERRIDDEN]
        assert in_force(parse(dump(memory)), policy) == parse(dump(memory))
        restored = in_force(parse(dump(memory)), Policy())
        assert [(finding.finding.severity, finding.finding.rule) for finding in restored.active] == [
            (own, before.active[0].finding.rule)
        ]


def test_event_set_to_pass_is_no_part_of_the_verdict() -> None:
    verdict = decide(logged(xid(62), Policy({"Xid62": PASS})), [outcome_with()])

    assert (verdict.status, verdict.active) == (Status.PASS, ())


def test_event_set_to_pass_ends_by_its_own_exit() -> None:
    hidden = logged(xid(62), Policy({"Xid62": PASS}))

    assert recovered(hidden, ADDRESS, MONOTONIC + 5, later(5)).active == ()
    assert begin(hidden, MACHINE, "boot-2", later(5)).active == ()
    isolated = logged(xid(54), Policy({"Xid54": PASS}))
    assert begin(isolated, MACHINE, "boot-2", later(5)).active != ()


def test_a_code_that_nvidia_ignores_is_remembered_only_where_a_cluster_counts_it() -> None:
    assert logged(xid(43), Policy()).active == ()
    raised = logged(xid(43), Policy({"Xid43": RESET}))
    assert [finding.finding.severity for finding in raised.active] == [RESET]
    assert [finding.finding.severity for finding in in_force(raised, Policy()).active] == [PASS]


@pytest.mark.parametrize(
    ("line", "before", "after", "severity"),
    [
        (xid(163), Policy(), Policy(strict_pshc=True), RESET),
        (xid(163), Policy(strict_pshc=True), Policy(), MONITOR),
        (xid(144, NVLINK5), Policy(), Policy(nvlink5_default=RESET), RESET),
        (xid(144, NVLINK5), Policy(nvlink5_default=RESET), Policy(), MONITOR),
        (xid(74, "no words that decide"), Policy(), Policy(nvlink_default=MONITOR), MONITOR),
    ],
)
def test_the_clusters_defaults_reach_an_active_finding(
    line: str, before: Policy, after: Policy, severity: Severity
) -> None:
    memory = in_force(logged(line, before), after)

    assert [finding.finding.severity for finding in memory.active] == [severity]
    assert memory.active == in_force(logged(line, after), after).active


def test_an_escalated_finding_stays_isolate_unless_an_override_is_milder_than_reset() -> None:
    memory = memory_with(active_finding(replace(fault("Xid62", ISOLATE), rule=ESCALATED)))

    severities = {
        override: in_force(memory, Policy({"Xid62": override})).active[0].finding.severity for override in Severity
    }

    assert severities == {PASS: PASS, MONITOR: MONITOR, RESET: ISOLATE, REBOOT: ISOLATE, ISOLATE: ISOLATE}
    assert in_force(in_force(memory, Policy({"Xid62": MONITOR})), Policy()) == memory


def test_a_memory_of_0_3_0_takes_the_tables_severity_for_what_an_override_had_set() -> None:
    head, _, body = dump(memory_with(active_finding(replace(fault("Xid62", MONITOR), rule=OVERRIDDEN)))).partition(
        b"\n"
    )
    assert "catalogued" not in json.loads(body)["findings"][0]
    memory = parse(head + b"\n" + body)

    assert [finding.finding.severity for finding in in_force(memory, Policy({"Xid62": MONITOR})).active] == [MONITOR]
    assert [finding.finding.severity for finding in in_force(memory, Policy()).active] == [RESET]


def test_nothing_changes_where_nothing_is_overridden() -> None:
    memory = logged(xid(62), Policy())

    assert in_force(memory, Policy()) is memory
    assert in_force(Memory(), Policy({"Xid62": PASS})) == Memory()
    assert NOW.monotonic == MONOTONIC
