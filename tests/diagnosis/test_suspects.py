"""Which nodes a look from within may tell something of."""

from __future__ import annotations

import json

from diagnosis.answers.suspects import suspects
from diagnosis.causes.diagnose import diagnose
from tests.diagnosis.states import Object, ago, node, pod, snapshot

UNHEALTHY = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}
RECORD = {"schema": 1, "timestamp": ago(2), "status": "pass", "severity": "PASS", "findings": []}


def named(*objects: Object) -> list[str]:
    seen = snapshot(*objects)
    return [suspect.name for suspect in suspects(seen, diagnose(seen))]


def test_nodes_that_nothing_is_wrong_with_are_not() -> None:
    assert named(node("a"), pod("x", on="a")) == []


def test_those_that_a_problem_names_are_by_name() -> None:
    assert named(node("b", taints=[UNHEALTHY]), node("a", taints=[UNHEALTHY]), node("c")) == ["a", "b"]


def test_a_value_reported_by_an_agent_is_known() -> None:
    fields = {"gpu-healthcheck.aws-samples.io/results": json.dumps(RECORD)}

    assert named(node("a", taints=[UNHEALTHY], annotations=fields)) == []


def test_a_node_with_a_silent_kubelet_would_not_answer() -> None:
    assert named(node("a", taints=[UNHEALTHY], ready="Unknown")) == []


def test_a_node_without_gpus_is_none_of_ours() -> None:
    assert named(node("a", None, taints=[UNHEALTHY])) == []


def test_one_that_is_not_ready_and_says_so_would_answer() -> None:
    """Without a network a pod on the host's own runs nevertheless."""
    assert named(node("a", taints=[UNHEALTHY], ready="False")) == ["a"]
