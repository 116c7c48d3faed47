"""Which nodes a look from within may tell something of."""

from __future__ import annotations

import json

from gpu_healthcheck.diagnosis.answers.suspects import suspects
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from tests.diagnosis.states import Object, ago, node, pod, snapshot

UNHEALTHY = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}
RECORD = {"schema": 1, "timestamp": ago(2), "status": "pass", "severity": "PASS", "findings": []}


def named(*objects: Object) -> list[str]:
    seen = snapshot(*objects)
    return [suspect.name for suspect in suspects(seen, diagnose(seen))]


def test_suspects_omit_healthy_nodes() -> None:
    assert named(node("a"), pod("x", on="a")) == []


def test_suspects_are_nodes_with_a_problem_by_name() -> None:
    assert named(node("b", taints=[UNHEALTHY]), node("a", taints=[UNHEALTHY]), node("c")) == ["a", "b"]


def test_suspects_omit_nodes_with_a_record() -> None:
    fields = {"gpu-healthcheck.aws-samples.io/results": json.dumps(RECORD)}

    assert named(node("a", taints=[UNHEALTHY], annotations=fields)) == []


def test_suspects_omit_nodes_with_a_silent_kubelet() -> None:
    assert named(node("a", taints=[UNHEALTHY], ready="Unknown")) == []


def test_suspects_omit_nodes_without_gpus() -> None:
    assert named(node("a", None, taints=[UNHEALTHY])) == []


def test_suspects_include_nodes_that_report_not_ready() -> None:
    """Without a network a pod on the host's own runs nevertheless."""
    assert named(node("a", taints=[UNHEALTHY], ready="False")) == ["a"]
