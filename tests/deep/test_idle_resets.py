"""Choice of a node for an automatic reset: a table of reasons against it, each with its healthy twin."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.node.state import TAINT, NodeState
from gpu_healthcheck.healthcheck.operations.reset_job import is_left_off, is_reset_now, why_not_automatic
from gpu_healthcheck.healthcheck.text.moments import timestamp

P = "gpu-healthcheck.aws-samples.io"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
LATER = NOW + timedelta(minutes=5)


def row(severity: str = "RESET", gpu: str = "0000:18:00.0", **more: Any) -> dict[str, Any]:
    return {"reason": "Xid62", "severity": severity, "subject": f"gpu/{gpu}", "nature": "event", **more}


def node(*rows: dict[str, Any], **records: Any) -> NodeState:
    texts = {"results": {"schema": 1, "findings": rows or (row(),)}, **records}
    annotations = {f"{P}/{key.replace('_', '-')}": json.dumps(value) for key, value in texts.items()}
    return NodeState(
        "n", annotations=annotations, taints=(TAINT,), has_device_plugin=True, labels={DEPLOY: "true"}, uid="u"
    )


def last(hours: float) -> dict[str, Any]:
    return {"schema": 1, "timestamp": timestamp(NOW - timedelta(hours=hours)), "holder": "gpu-reset-n", "gpus": []}


RUN = {"kind": "reset", "holder": "gpu-reset-n", "until": timestamp(LATER)}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (node(), ""),
        (node(row(), row("MONITOR", "0000:19:00.0")), ""),
        (node(reset_result=last(25)), ""),
        (node(reset_result=last(23)), "less than 24 h ago"),
        (node(row(), row("REBOOT", "0000:19:00.0")), "needs more than a reset"),
        (node(row("ISOLATE", rule="ESCALATE_AFTER")), "needs more than a reset"),
        (node(row("MONITOR")), "no finding on it ends"),
        (node(row(subject="node")), "no reset of a GPU ends"),
        (node(run=RUN | {"kind": "quarantine", "holder": "q"}), "quarantine q uses it"),
        (replace(node(), taints=()), "the limit of tainted nodes is reached"),
        (replace(node(), cordoned=True), "it is cordoned"),
        (replace(node(), labels={}), "does not run its device plugin"),
        (replace(node(), labels={}, has_device_plugin=False), ""),
        (replace(node(), provider_id="aws:///us-east-1a/i-0123"), "EC2's hypervisor refuses"),
    ],
)
def test_a_node_is_reset_unless(state: NodeState, why: str) -> None:
    found = why_not_automatic(state, NOW)
    assert (why in found) if why else (found == "")


def test_operands_that_a_dead_reset_left_off_are_found_once_its_claim_has_ended() -> None:
    record, command = last(1), {"holder": "gpu-reset-n", "operands": {DEPLOY: "true"}, "renewed": "x"}
    off = replace(node(reset_result=record, reset_command=command), labels={DEPLOY: "false"})
    claimed = replace(off, annotations={**off.annotations, f"{P}/run": json.dumps(RUN)})
    touched = {"reset_result": record | {"reset_at": 5.0}, "reset_command": command}
    again = replace(node(**touched), labels={DEPLOY: "false"})
    returned = replace(node(row("MONITOR"), **touched), labels={DEPLOY: "false"})
    by_a_person = replace(node(reset_result=last(1)), labels={DEPLOY: "false"})
    states = (off, returned, claimed, again, by_a_person, node())
    assert [is_left_off(state, NOW) for state in states] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("run", "is_active"),
    [
        (RUN, True),
        (RUN | {"until": timestamp(NOW + timedelta(hours=3))}, True),
        (RUN | {"until": timestamp(NOW)}, False),
        (RUN | {"until": timestamp(NOW + timedelta(days=3))}, False),
        (RUN | {"until": "9999-12-31T23:59:59Z"}, False),
        (RUN | {"until": "-0001-01-01T00:00:00Z"}, False),
        (RUN | {"until": "soon"}, False),
        (RUN | {"holder": "gpu-reset-m"}, False),
        (RUN | {"kind": "l2"}, False),
    ],
)
def test_only_a_possible_claim_of_a_reset_keeps_the_other_nodes_waiting(run: dict[str, Any], is_active: bool) -> None:
    assert is_reset_now(node(run=run), NOW) is is_active
    assert not is_reset_now(node(), NOW)
