"""Time of the last deep diagnostic of a node, its next one, and obstacles."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, acquire
from gpu_healthcheck.healthcheck.deep.due import (
    Attempt,
    DeepTest,
    is_due,
    is_overdue,
    keeping_verdict,
    last_attempt,
    last_deep_test,
    obstacle,
)
from gpu_healthcheck.healthcheck.node.devices import NodeDevices
from gpu_healthcheck.healthcheck.node.state import (
    CONDITION,
    DEEP_CHECK,
    QUARANTINE_RESULT,
    STATUS,
    SWEEP_RESULT,
    NodeState,
)
from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.healthcheck.verdict.record import RunRecord

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
WELL = {"type": CONDITION, "status": "True"}
NODE = NodeState("n", machine="m", labels={STATUS: "pass"}, conditions=(WELL,), gpus={"nvidia.com/gpu": 8})


def at(hours_ago: float) -> str:
    return (NOW - hours_ago * HOUR).isoformat()


def with_record(key: str = SWEEP_RESULT, hours_ago: float = 2, **record: Any) -> NodeState:
    return replace(NODE, annotations={key: json.dumps({"timestamp": at(hours_ago), "status": "pass", **record})})


def level_4(hours_ago: float, message: str = "pass", **more: Any) -> NodeState:
    return with_record(QUARANTINE_RESULT, hours_ago, checks=[{"check": "4-dcgm-diag-l4", "status": message}], **more)


KEPT = {"timestamp": at(5), "status": "fail", "by": "agent"}
"""What the record of a run without a verdict keeps of the last one with one."""


@pytest.mark.parametrize(
    ("node", "test"),
    [
        (NODE, None),
        (with_record(), DeepTest(NOW - 2 * HOUR, "pass", "sweep")),
        (with_record(by="agent", status="fail"), DeepTest(NOW - 2 * HOUR, "fail", "agent")),
        (with_record(status="unknown"), None),
        (with_record(status=["pass"]), None),
        (with_record(hours_ago=1, status="unknown", before=KEPT), DeepTest(NOW - 5 * HOUR, "fail", "agent")),
        (with_record(hours_ago=1, status="unknown", before={**KEPT, "machine": "another"}), None),
        (with_record(hours_ago=1, status="unknown", before={**KEPT, "status": "unknown"}), None),
        (with_record(hours_ago=1, status="unknown", before=[KEPT]), None),
        (with_record(before=KEPT), DeepTest(NOW - 2 * HOUR, "pass", "sweep")),
        (with_record(machine="m"), DeepTest(NOW - 2 * HOUR, "pass", "sweep")),
        (with_record(machine="another"), None),
        (replace(with_record(machine="ec2-0a"), machine="EC2-0A"), DeepTest(NOW - 2 * HOUR, "pass", "sweep")),
        (with_record(timestamp="yesterday"), None),
        (with_record(timestamp="2026-11-21T09:00:00"), None),
        (with_record(hours_ago=-1), None),
        (level_4(3), DeepTest(NOW - 3 * HOUR, "pass", "quarantine")),
        (level_4(3, "fail"), DeepTest(NOW - 3 * HOUR, "fail", "quarantine")),
        (level_4(3, "pass", status="fail"), DeepTest(NOW - 3 * HOUR, "pass", "quarantine")),
        (level_4(3, "unknown"), None),
        (level_4(3, "fail", machine="another"), None),
        (replace(NODE, annotations={SWEEP_RESULT: "[]", QUARANTINE_RESULT: "{"}), None),
    ],
)
def test_the_last_deep_test(node: NodeState, test: DeepTest | None) -> None:
    assert last_deep_test(node, NOW) == test


def test_a_run_without_a_verdict_hands_on_the_last_one() -> None:
    first = with_record(by="agent", machine="m", findings=[1])
    assert handed_on(first) == {"timestamp": at(2), "status": "pass", "by": "agent", "machine": "m"}
    assert handed_on(with_record(status="unknown", before=KEPT)) == KEPT
    assert [handed_on(node) for node in (NODE, with_record(status="unknown"))] == [{}, {}]
    assert keeping_verdict(RunRecord(status="pass"), first).before is None


def handed_on(node: NodeState) -> dict[str, Any]:
    before = keeping_verdict(RunRecord(status="unknown"), node).before
    return as_json(before) if before else {}


def test_the_newest_of_two_counts() -> None:
    both = replace(NODE, annotations={**with_record(hours_ago=5).annotations, **level_4(3).annotations})
    assert last_deep_test(both, NOW) == DeepTest(NOW - 3 * HOUR, "pass", "quarantine")


def test_a_run_that_could_not_test_is_an_attempt_and_no_test() -> None:
    assert last_attempt(with_record(status="unknown"), NOW) == Attempt(NOW - 2 * HOUR)
    rows = [{"cause": "A", "detail": "one"}, {"cause": "A", "detail": "two"}, {"cause": "B\n"}, 7, {}]
    blind = with_record(status="unknown", unobserved=rows)
    assert str(last_attempt(blind, NOW)) == "tried without a result at 2026-11-21T10:00:00Z: A: one; B\\n"
    assert last_attempt(with_record(status="unknown", unobserved=7), NOW) == Attempt(NOW - 2 * HOUR)
    assert last_attempt(with_record(), NOW) is None


def test_due_and_overdue() -> None:
    interval, test = 6 * HOUR, DeepTest(NOW - 6 * HOUR, "pass", "sweep")
    assert (is_due(test, interval, NOW), is_due(test, interval + HOUR, NOW), is_due(None, interval, NOW)) == (
        True,
        False,
        True,
    )
    assert not is_due(None, timedelta(0), NOW)
    old = DeepTest(NOW - 18.1 * HOUR, "pass", "sweep")
    assert (is_overdue(NODE, test, interval, NOW), is_overdue(NODE, old, interval, NOW)) == (False, True)
    young, aged = (replace(NODE, created=NOW - hours * HOUR) for hours in (17, 19))
    assert (is_overdue(young, None, interval, NOW), is_overdue(aged, None, interval, NOW)) == (False, True)
    assert not is_overdue(aged, None, timedelta(0), NOW)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (NODE, ""),
        (replace(NODE, labels={STATUS: "warn"}), ""),
        (replace(NODE, labels={}), ""),
        (replace(NODE, labels={STATUS: "fail"}), "its status is fail"),
        (replace(NODE, labels={STATUS: "unknown"}), "its status is unknown"),
        (replace(NODE, conditions=({**WELL, "status": "False"},)), "its condition GpuHealthy is False"),
        (replace(NODE, labels={}, conditions=()), "it has no verdict yet"),
        (replace(NODE, gpus={}), "offers no GPUs to pods"),
        (replace(NODE, gpus={}, devices=NodeDevices(8)), ""),
        (replace(NODE, gpus={}, devices=NodeDevices(8, "gives out others")), "gives out others"),
        (replace(NODE, devices=NodeDevices(8, "gives out others")), "gives out others"),
        (replace(NODE, cordoned=True), "is cordoned"),
        (replace(NODE, labels={**NODE.labels, DEEP_CHECK: "InProgress"}), "HyperPod tests it"),
        (
            replace(NODE, labels={**NODE.labels, "nvidia.com/mig.config.state": "pending"}),
            "its driver is being replaced: label nvidia.com/mig.config.state=pending",
        ),
    ],
)
def test_obstacles_of_a_test_on_the_node(node: NodeState, why: str) -> None:
    assert obstacle(node, NOW + HOUR, NOW) == why


@pytest.mark.parametrize("heard", [None, NOW - HOUR])
def test_a_node_with_a_silent_agent_is_not_tested(heard: datetime | None) -> None:
    assert obstacle(NODE, heard, NOW) == "its heartbeat is overdue"


def test_a_node_under_a_run_is_not_tested() -> None:
    patch = acquire(NODE, Claim(RunKind.L2, "agent", NOW + HOUR), NOW)
    assert patch is not None
    held = replace(NODE, annotations=patch["metadata"]["annotations"])
    assert obstacle(held, NOW + HOUR, NOW) == "a deep test (l2) uses it until 2026-11-21T13:00:00Z"
