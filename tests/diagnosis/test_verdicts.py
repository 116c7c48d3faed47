"""Nodes that this system itself keeps from work: a cause even when no pod waits, unless it is on its way."""

from __future__ import annotations

import json

import pytest

from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.healthcheck.node.state import (
    DEEP_CHECK,
    MAINTENANCE,
    RESET_COMMAND,
    RESET_RESULT,
    RESULTS,
    RUN,
    STARTUP,
    UNHEALTHY,
)
from tests.diagnosis.states import Object, ago, condition, event, judged, node, pod, results, snapshot


def tainted(key: str, value: str = "", **changes: object) -> Object:
    return node("a", taints=[{"key": key, "value": value, "effect": "NoSchedule"}], **changes)


def run(minutes: float) -> dict[str, str]:
    """The claim of a run that expired so long ago."""
    return {RUN: json.dumps({"kind": "l2", "holder": "agent", "until": ago(minutes)})}


FAULT = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0"}


def faulty(taint: str, **changes: object) -> Object:
    """Node with a fault; `taint`: state of the taint in the agent's record."""
    record = {"schema": 1, "status": "fail", "severity": "REBOOT", "findings": [FAULT], "taint": taint}
    return node("a", annotations={RESULTS: json.dumps(record)}, **changes)


TAINT = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("state", "causes", "closed"),
    [
        (faulty("withheld"), ["FaultyNodeAcceptsWork"], "faulty, without a taint"),
        (faulty("withheld", cordoned=True), ["NodeKeptFromWork"], "cordoned"),
        (faulty("withheld", taints=[TAINT]), ["NodeKeptFromWork"], "our taint unhealthy"),
        (faulty("set", taints=[TAINT]), ["NodeKeptFromWork"], "our taint unhealthy"),
        (faulty("withheld", labels={DEEP_CHECK: "InProgress"}), [], ""),
        (faulty("devices"), [], ""),
        (faulty("off"), [], ""),
        (node("a"), [], ""),
    ],
)
def test_a_faulty_node_that_the_budget_leaves_untainted_is_no_free_node(
    state: Object, causes: list[str], closed: str
) -> None:
    (usage,) = allocation(snapshot(state)).nodes

    assert results(judged(state)) == [(cause, "node/a") for cause in causes]
    assert (usage.closed, usage.pools[0].free) == (closed, 0 if closed else 8)


def test_a_faulty_node_that_accepts_work_comes_first_and_is_cordoned_first() -> None:
    work = [pod(f"w{number}", on="b") for number in range(3)]
    running = node("b", annotations={RESULTS: json.dumps({"schema": 1, "status": "fail", "findings": [FAULT]})})
    problems = judged(faulty("withheld"), running, *work).problems

    assert [problem.found.cause.name for problem in problems] == ["FaultyNodeAcceptsWork", "PodOnFaultyGpu"]
    assert problems[0].found.remedy[0] == "Keep new pods off the node: `kubectl cordon a`"
    assert problems[0].found.remedy[-1] == "Then let it accept work again: `kubectl uncordon a`"
    assert problems[0].found.evidence[0] == "Xid79 REBOOT on gpu/0000:18:00.0"


@pytest.mark.parametrize(
    ("state", "causes"),
    [
        (tainted(UNHEALTHY, "true", conditions=[condition("GpuHealthy", "False", "Xid79")]), "NodeKeptFromWork"),
        (tainted(MAINTENANCE, "l2"), "NodeUnderDiagnosis"),
        (tainted(MAINTENANCE, "l2", annotations=run(5)), "NodeUnderDiagnosis"),
        (tainted(MAINTENANCE, "l2", annotations={RUN: "nonsense"}), "NodeUnderDiagnosis"),
        (tainted(STARTUP), "NodeAwaitsFirstLook"),
    ],
)
def test_taint_of_a_node_is_reported(state: Object, causes: str) -> None:
    assert results(judged(state)) == [(causes, "node/a")]


@pytest.mark.parametrize("state", [tainted(MAINTENANCE, "l2", annotations=run(-20)), tainted(STARTUP, age=4)])
def test_active_run_or_first_check_cycle_is_no_fault(state: Object) -> None:
    assert results(judged(state)) == []


def test_pods_that_the_gate_refused_are_evidence() -> None:
    refused = (
        "the gate refused 1 pod (Xid79): a: Xid79 on GPU 3",
        "the gate refused 30 pods (Xid79): a: Xid79 on GPU 3",
        "the gate refused 2 pods (EfaCountLow): a: EfaCountLow on node",
        "the gate refused 99999999 pods (Xid79): x",
    )
    state = tainted(UNHEALTHY, "true", conditions=[condition("GpuHealthy", "False", "Xid79")])
    events = [event(state, "GateRefused", text) for text in refused]
    (problem,) = judged(state, *events).problems

    assert problem.found.evidence[-2:] == (
        "the gate refused 31 pods for Xid79",
        "the gate refused 2 pods for EfaCountLow",
    )


@pytest.mark.parametrize(
    ("running", "minutes", "found"),
    [("reboot", None, True), ("reboot", 5, True), ("reboot", -5, False), ("drain the node", None, False)],
)
def test_reboot_requested_by_an_ended_reset_is_reported(running: str, minutes: float | None, found: bool) -> None:
    annotations = {RESET_RESULT: json.dumps({"running": running})}
    annotations |= run(minutes) if minutes is not None else {}

    assert results(judged(node("a", annotations=annotations))) == [("ResetLeftOffAtReboot", "node/a")] * found


DCGM = "nvidia.com/gpu.deploy.dcgm"


@pytest.mark.parametrize(
    ("label", "operands", "minutes", "found"),
    [
        ("false", {DCGM: "true"}, None, True),
        ("false", {DCGM: "true"}, 5, True),
        ("false", {DCGM: "true"}, -5, False),
        ("true", {DCGM: "true"}, None, False),
        ("paused-for-driver-upgrade", {DCGM: "true"}, None, False),
        ("false", {}, None, False),
        ("false", {DCGM: "false"}, None, False),
        ("false", "nonsense", None, False),
    ],
)
def test_operands_switched_off_by_an_ended_reset_are_reported(
    label: str, operands: object, minutes: float | None, found: bool
) -> None:
    annotations = {RESET_COMMAND: json.dumps({"holder": "x", "operands": operands, "renewed": "x"})}
    annotations |= run(minutes) if minutes is not None else {}

    causes = results(judged(node("a", labels={DCGM: label}, annotations=annotations)))

    assert causes == [("OperandsSwitchedOff", "node/a")] * found
