"""Conditions for repair controllers: their status for each verdict, their owner, and times without a write."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from gpu_healthcheck.healthcheck.catalog.eks_reasons import eks_reason
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.memory.findings import Memory, Suspect
from gpu_healthcheck.healthcheck.model import Severity, Unobserved
from gpu_healthcheck.healthcheck.node.state import (
    HARDWARE_READY,
    OUR_WORD,
    REBOOT_REQUIRED,
    REPAIR_CONDITIONS,
    REPLACEMENT_REQUIRED,
    TAINT,
    FieldManager,
    NodeState,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.acknowledgement import UNEXPLAINED
from gpu_healthcheck.healthcheck.verdict.budget import HELD, SlotGrant
from gpu_healthcheck.healthcheck.verdict.node_patch import NodePatch
from gpu_healthcheck.healthcheck.verdict.repair_conditions import NO_REPAIR, RepairPolicy
from gpu_healthcheck.healthcheck.verdict.taint_decision import Rules
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import UNOBSERVED, WALL, active_finding, fault, memory_with, node, outcome_with, planned

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
ALL = Rules(repair=RepairPolicy(REPAIR_CONDITIONS))
FULL = SlotGrant(held=False, why="3 of at most 3 nodes are tainted already")
LATER = WALL + timedelta(hours=1)
THEIRS = {"type": HARDWARE_READY, "status": "True", "reason": "NvidiaAcceleratedHardwareIsReady", "message": "GPU"}
Json = dict[str, Any]


def memory_of(severity: Severity) -> Memory:
    return memory_with(active_finding(fault(f"Xid{int(severity)}", severity))) if severity else memory_with()


def plan_for(
    state: NodeState,
    memory: Memory,
    *,
    rules: Rules = ALL,
    blind: Unobserved | None = None,
    grant: SlotGrant = HELD,
    now: datetime = WALL,
    work: str = "",
) -> NodePatch:
    verdict = decide(memory, [outcome_with(unobserved=blind)])
    return planned(verdict, memory, state, rules, now, grant, work)


def conditions(change: NodePatch) -> dict[str, Json]:
    return {condition["type"]: dict(condition) for condition in change.repair.conditions}


def words(change: NodePatch) -> tuple[str, ...]:
    """The three statuses; `-` where nothing is written."""
    return tuple(conditions(change).get(kind, {"status": "-"})["status"] for kind in REPAIR_CONDITIONS)


def with_conditions(change: NodePatch, **about: Any) -> NodeState:
    return node(conditions=list(conditions(change).values()), **about)


# Verdict, could not check → reboot required, replacement required, hardware ready.
SAID = [
    (PASS, False, ("False", "False", "True")),
    (PASS, True, ("False", "False", "Unknown")),
    (MONITOR, False, ("False", "False", "True")),
    (MONITOR, True, ("False", "False", "Unknown")),
    (RESET, False, ("False", "False", "Unknown")),
    (RESET, True, ("False", "False", "Unknown")),
    (REBOOT, False, ("True", "False", "Unknown")),
    (REBOOT, True, ("True", "False", "Unknown")),
    (ISOLATE, False, ("False", "True", "False")),
    (ISOLATE, True, ("False", "True", "False")),
]


@pytest.mark.parametrize(("severity", "blind", "messages"), SAID)
def test_each_tier_has_its_own_condition(severity: Severity, blind: bool, messages: tuple[str, ...]) -> None:
    change = plan_for(node(), memory_of(severity), blind=UNOBSERVED if blind else None)

    assert words(change) == messages
    for entry in conditions(change).values():
        assert entry["message"].startswith(OUR_WORD)
        assert entry["lastTransitionTime"] == entry["lastHeartbeatTime"] == timestamp(WALL)


@pytest.mark.parametrize("severity", [REBOOT, ISOLATE])
def test_no_repair_is_requested_while_a_quarantine_uses_the_node(severity: Severity) -> None:
    rules = Rules(repair=RepairPolicy(REPAIR_CONDITIONS, REBOOT))
    before = with_conditions(plan_for(node(), memory_of(severity), rules=rules), taints=[TAINT])
    change = plan_for(before, memory_of(severity), rules=rules, now=LATER, work="a quarantine uses the node")

    withheld = {kind: entry for kind, entry in conditions(change).items() if entry["reason"] == "RepairWithheld"}
    tier = REBOOT_REQUIRED if severity is REBOOT else REPLACEMENT_REQUIRED
    assert {kind: entry["status"] for kind, entry in withheld.items()} == {tier: "False", HARDWARE_READY: "Unknown"}
    assert {entry["message"] for entry in withheld.values()} == {
        f"{OUR_WORD}no repair is requested: a quarantine uses the node"
    }
    after = {entry["type"]: entry for entry in (*before.conditions, *conditions(change).values())}
    again = plan_for(node(conditions=[*after.values()], taints=[TAINT]), memory_of(severity), rules=rules, now=LATER)
    assert {kind: entry["status"] for kind, entry in conditions(again).items()} == {
        tier: "True",
        HARDWARE_READY: "False",
    }
    assert {entry["lastTransitionTime"] for entry in conditions(again).values()} == {timestamp(LATER)}


@pytest.mark.parametrize(
    ("threshold", "severity", "message"),
    [
        (REBOOT, RESET, "Unknown"),
        (REBOOT, REBOOT, "False"),
        (REBOOT, ISOLATE, "False"),
        (ISOLATE, REBOOT, "Unknown"),
    ],
)
def test_severity_for_hardware_ready_comes_from_the_cluster(
    threshold: Severity, severity: Severity, message: str
) -> None:
    rules = Rules(repair=RepairPolicy((HARDWARE_READY,), threshold))

    assert conditions(plan_for(node(), memory_of(severity), rules=rules))[HARDWARE_READY]["status"] == message


@pytest.mark.parametrize(
    ("rules", "grant", "labels"),
    [
        (ALL, FULL, {}),
        (Rules(enable_taint=False, repair=ALL.repair), HELD, {}),
        (ALL, HELD, {"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"}),
    ],
    ids=["no place in the budget", "taints are off", "HyperPod tests the node"],
)
def test_a_node_without_our_taint_is_not_given_to_repair(
    rules: Rules, grant: SlotGrant, labels: dict[str, str]
) -> None:
    change = plan_for(node(labels=labels), memory_of(ISOLATE), rules=rules, grant=grant)

    assert words(change) == ("False", "True", "Unknown")
    assert conditions(change)[HARDWARE_READY]["reason"] == "RepairWithheld"


def test_a_taint_that_was_there_before_is_enough() -> None:
    change = plan_for(node(taints=[TAINT]), memory_of(ISOLATE), grant=FULL)

    assert conditions(change)[HARDWARE_READY]["status"] == "False"


def test_settling_hardware_is_not_ready() -> None:
    flickers = memory_with(suspects={("gpu-count", ("GpuLost", "gpu/0")): Suspect(1)})

    assert words(plan_for(node(), flickers)) == ("False", "False", "-")


@pytest.mark.parametrize("blind", [None, UNOBSERVED])
def test_unobserved_verdict_withdraws_nothing(blind: Unobserved | None) -> None:
    before = plan_for(node(), memory_of(ISOLATE))

    after = plan_for(with_conditions(before, taints=[TAINT]), memory_of(ISOLATE), blind=blind, now=LATER)

    entries = {(condition["status"], condition["lastTransitionTime"]) for condition in after.repair.conditions}
    assert entries <= {("True", timestamp(WALL)), ("False", timestamp(WALL))}


def test_reported_line_is_not_reported_again() -> None:
    before = plan_for(node(), memory_of(REBOOT))

    assert plan_for(with_conditions(before), memory_of(REBOOT), now=LATER).repair == NO_REPAIR


def test_the_time_of_the_transition_moves_with_the_status_alone() -> None:
    first = memory_with(active_finding(fault("Xid54", ISOLATE)))
    other = memory_with(active_finding(fault("RowRemapFailed", ISOLATE)))
    state = with_conditions(plan_for(node(), first), taints=[TAINT])

    again = conditions(plan_for(state, other, now=LATER))

    assert {kind: entry["lastTransitionTime"] for kind, entry in again.items()} == {
        REPLACEMENT_REQUIRED: timestamp(WALL),
        HARDWARE_READY: timestamp(WALL),
    }
    assert again[HARDWARE_READY]["reason"] == "NvidiaDoubleBitError"
    well = conditions(plan_for(state, memory_with(), now=LATER))
    assert {entry["lastTransitionTime"] for entry in well.values()} == {timestamp(LATER)}
    assert (well[REPLACEMENT_REQUIRED]["status"], well[HARDWARE_READY]["status"]) == ("False", "True")


def test_a_worse_verdict_moves_the_node_from_one_tier_to_the_other() -> None:
    state = with_conditions(plan_for(node(), memory_of(REBOOT)), taints=[TAINT])

    after = plan_for(state, memory_of(ISOLATE), now=LATER)

    assert words(after) == ("False", "True", "False")


class TestOthers:
    """A condition of another writer."""

    def test_is_left_alone_and_said_so(self) -> None:
        managers = {HARDWARE_READY: (FieldManager("eks-node-monitoring-agent", WALL),)}

        change = plan_for(node(conditions=[THEIRS], repair_managers=managers), memory_of(ISOLATE))

        assert words(change) == ("False", "True", "-")
        (event,) = change.repair.events
        assert (event.type, event.reason) == ("Warning", "ConditionOwnedByOther")
        assert (
            "the agent does not write AcceleratedHardwareReady: it belongs to eks-node-monitoring-agent"
            in event.message
        )

    def test_that_nobody_is_noted_for_is_another_s_all_the_same(self) -> None:
        change = plan_for(node(conditions=[THEIRS]), memory_of(ISOLATE))

        assert HARDWARE_READY not in conditions(change)
        assert "not named in managedFields" in change.repair.events[0].message

    def test_foreign_mark_stays_when_ours_are_disabled(self) -> None:
        assert plan_for(node(conditions=[THEIRS]), memory_of(ISOLATE), rules=Rules()).repair == NO_REPAIR

    def test_copy_of_ours_is_ours(self) -> None:
        stale = conditions(plan_for(node(), memory_with()))[HARDWARE_READY]
        managers = {HARDWARE_READY: (FieldManager("eks-node-monitoring-agent", WALL),)}

        change = plan_for(node(conditions=[stale], repair_managers=managers), memory_of(ISOLATE), now=LATER)

        assert (words(change), change.repair.events) == (("False", "True", "False"), ())


def test_without_the_setting_nothing_is_written_or_reported() -> None:
    for severity in Severity:
        assert plan_for(node(), memory_of(severity), rules=Rules()).repair == NO_REPAIR


def test_switched_off_again_ours_are_taken_away_once_and_it_is_said() -> None:
    state = with_conditions(plan_for(node(), memory_of(REBOOT)))
    fewer = Rules(repair=RepairPolicy((REBOOT_REQUIRED,)))

    change = plan_for(state, memory_of(REBOOT), rules=fewer)

    assert list(change.repair.conditions) == [
        {"type": REPLACEMENT_REQUIRED, "$patch": "delete"},
        {"type": HARDWARE_READY, "$patch": "delete"},
    ]
    (event,) = change.repair.events
    assert event.message == (
        "removed the agent's GpuReplacementRequired and AcceleratedHardwareReady: not in REPAIR_CONDITIONS"
    )
    assert plan_for(node(), memory_of(REBOOT), rules=Rules()).repair == NO_REPAIR


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("Xid79", "NvidiaXID79Error"),
        ("SXid11004", "NvidiaNVLinkError"),
        ("DcgmDiagMemory", "DCGMDiagnosticFailure"),
        ("DeepDiagnosticFailed", "DCGMDiagnosticFailure"),
        ("GpuCountLow", "NvidiaDeviceCountMismatch"),
        ("FabricError", "NvidiaFabricError"),
        ("FabricManagerNotRunning", "FabricManagerNotRunning"),
        ("DriverUnresponsive", "DriverUnresponsive"),
    ],
)
def test_a_reason_in_the_eks_agents_words(ours: str, theirs: str) -> None:
    assert eks_reason(ours) == theirs


def test_every_reason_that_has_a_row_is_one_of_ours() -> None:
    known = {reason.name for check in CHECKS for reason in check.reasons}
    assert {row["reason"] for _, row in read_rows("eks_reasons.csv")} - known == {UNEXPLAINED}


@pytest.mark.parametrize("severity", [PASS, RESET, REBOOT])
def test_a_reset_that_waits_for_a_reboot_requests_it_whatever_the_severity(severity: Severity) -> None:
    memory = memory_of(severity)
    verdict = decide(memory, [outcome_with()])
    change = planned(verdict, memory, node(), ALL, work="a reset uses the node", awaits_reboot=True)

    assert conditions(change)[REBOOT_REQUIRED]["status"] == "True"
    assert conditions(change)[REBOOT_REQUIRED]["reason"] == "ResetAwaitsReboot"
    assert words(plan_for(with_conditions(change), memory, work="a reset uses the node"))[0] == "False"
