"""Three truths: pass, fault, could not check."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Nature, Outcome, Severity, Status, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.verdict.verdict import CheckCause, GroupVerdict, Verdict, decide, merge, status_of
from tests.examples import UNOBSERVED, active_finding, fault, memory_after_cycle, memory_with, outcome_with

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity


def verdict_of(severity: Severity, blind: Unobserved | None = None) -> Verdict:
    memory = memory_with(active_finding(fault("Xid1", severity))) if severity else memory_with()
    return decide(memory, [outcome_with(unobserved=blind)])


@pytest.mark.parametrize(
    ("severity", "looked", "blind"),
    [
        (PASS, Status.PASS, Status.UNKNOWN),
        (MONITOR, Status.WARN, Status.UNKNOWN),
        (RESET, Status.FAIL, Status.FAIL),
        (REBOOT, Status.FAIL, Status.FAIL),
        (ISOLATE, Status.FAIL, Status.FAIL),
    ],
)
def test_status_of_each_severity_with_and_without_an_unobserved_check(
    severity: Severity, looked: Status, blind: Status
) -> None:
    assert status_of(severity, could_not_check=False) is looked
    assert status_of(severity, could_not_check=True) is blind
    assert verdict_of(severity).status is looked
    assert verdict_of(severity, UNOBSERVED).status is blind


def test_the_severity_is_the_worst_one_standing() -> None:
    memory = memory_with(
        active_finding(fault("Xid54", ISOLATE)),
        active_finding(fault("Xid48", RESET)),
        active_finding(fault("Xid13", MONITOR)),
    )

    assert decide(memory, [outcome_with()]).severity is ISOLATE


# seed-defects.md 15: the later, milder finding overwrote the earlier one.
@pytest.mark.parametrize(
    ("standing", "severity"),
    [
        ([("Xid79", REBOOT)], REBOOT),
        ([("Xid79", REBOOT), ("PersistenceModeOff", MONITOR)], REBOOT),
        ([("PersistenceModeOff", MONITOR), ("Xid79", REBOOT)], REBOOT),
        ([("Xid79", REBOOT), ("SXid20034", RESET)], REBOOT),
        ([("SXid20034", RESET)], RESET),
        ([("Xid62", RESET)], RESET),
    ],
)
def test_no_finding_hides_another(standing: list[tuple[str, Severity]], severity: Severity) -> None:
    memory = memory_with(*(active_finding(fault(reason, tier)) for reason, tier in standing))
    verdict = decide(memory, [outcome_with()])

    assert (verdict.status, verdict.severity) == (Status.FAIL, severity)
    assert [finding.finding.reason for finding in verdict.active] == [reason for reason, _ in standing]


def test_each_group_shows_its_own_worst_finding() -> None:
    memory = memory_with(
        active_finding(fault("Xid79", REBOOT), check="xid"),
        active_finding(fault("EfaBelowProfile", MONITOR, "node"), Nature.LEVEL, check="efa-count"),
    )
    outcomes = [
        outcome_with(check="driver"),
        outcome_with(check="xid"),
        outcome_with(check="efa-count", group="2-efa-enumeration"),
        outcome_with(check="runtime", group="7-container-runtime", unobserved=UNOBSERVED),
        outcome_with(check="hami", group="8-hami", configured=False),
    ]

    assert decide(memory, outcomes).groups == (
        GroupVerdict("0-nvidia-smi", Status.FAIL, REBOOT),
        GroupVerdict("2-efa-enumeration", Status.WARN, MONITOR),
        GroupVerdict("7-container-runtime", Status.UNKNOWN, PASS),
        GroupVerdict("8-hami", Status.NOT_CONFIGURED, PASS),
    )


def test_a_group_of_which_one_check_belongs_here_is_configured() -> None:
    outcomes = [outcome_with(check="a", configured=False), outcome_with(check="b")]

    assert decide(Memory(), outcomes).groups == (GroupVerdict("0-nvidia-smi", Status.PASS, PASS),)


def test_check_that_does_not_apply_is_neither_pass_nor_unknown() -> None:
    verdict = decide(Memory(), [outcome_with(configured=False)])

    assert (verdict.status, verdict.groups[0].status) == (Status.PASS, Status.NOT_CONFIGURED)


@pytest.mark.parametrize("severity", Severity)
def test_without_a_single_check_nothing_passed(severity: Severity) -> None:
    memory = memory_with(active_finding(fault("Xid1", severity))) if severity else Memory()
    verdict = decide(memory, [])

    assert verdict.status is (Status.FAIL if severity >= RESET else Status.UNKNOWN)
    assert merge(verdict, [PASS])[0] is verdict.status


def test_one_cause_is_reported_once_per_group() -> None:
    outcomes = [
        outcome_with(check="driver", unobserved=UNOBSERVED),
        outcome_with(check="gpu-count", unobserved=UNOBSERVED),
        outcome_with(check="topology", group="3-topology-check", unobserved=UNOBSERVED),
    ]

    assert decide(Memory(), outcomes).unobserved == (
        CheckCause("0-nvidia-smi", UNOBSERVED),
        CheckCause("3-topology-check", UNOBSERVED),
    )


def test_two_causes_of_one_group_are_both_reported() -> None:
    other = Unobserved(UnobservedCause.named("ProbeFailed"), "pci: no such directory")
    outcome = Outcome("gpu-count", "0-nvidia-smi", unobserved=(UNOBSERVED, other))

    assert [row.cause for row in decide(Memory(), [outcome]).unobserved] == [UNOBSERVED, other]


def test_verdict_is_marked_as_settling() -> None:
    flickering = fault("GpuCountLow", REBOOT, "node", flickers=True)

    assert decide(memory_after_cycle(flickering), [outcome_with()]).settling is True
    assert decide(Memory(), [outcome_with()]).settling is False


@pytest.mark.parametrize(
    ("own", "blind", "others", "status", "severity"),
    [
        (PASS, False, [], Status.PASS, PASS),
        (PASS, False, [PASS, PASS], Status.PASS, PASS),
        (PASS, False, [MONITOR], Status.WARN, MONITOR),
        (PASS, False, [RESET, ISOLATE], Status.FAIL, ISOLATE),
        (REBOOT, False, [MONITOR], Status.FAIL, REBOOT),
        (PASS, True, [], Status.UNKNOWN, PASS),
        (PASS, True, [MONITOR], Status.UNKNOWN, MONITOR),
        (PASS, True, [RESET], Status.FAIL, RESET),
        (MONITOR, True, [PASS], Status.UNKNOWN, MONITOR),
        (REBOOT, True, [PASS], Status.FAIL, REBOOT),
    ],
)
def test_the_merge_is_the_worst_of_all_records(
    own: Severity, blind: bool, others: list[Severity], status: Status, severity: Severity
) -> None:
    assert merge(verdict_of(own, UNOBSERVED if blind else None), others) == (status, severity)
