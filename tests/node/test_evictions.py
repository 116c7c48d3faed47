"""The annotation of the evict program, read from a Node on which any client may have written it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.healthcheck.node.evictions import EvictionState, evictions_on
from gpu_healthcheck.healthcheck.node.state import EVICT, NodeState
from tests.evicting import BUDGET_ANSWER, STALE, annotation, eviction
from tests.hostile import HOSTILE

NOW = datetime(2026, 11, 28, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("why", "budget"),
    [
        (BUDGET_ANSWER.format("train"), "PodDisruptionBudget team/train"),
        ("refused by PodDisruptionBudget other/train.v1: needs 2", "PodDisruptionBudget team/train.v1"),
        (BUDGET_ANSWER.format("a-long-name")[:125], ""),  # cut within the name
        ("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.", ""),
        ("Cannot evict pod as it would violate the pod's disruption budget.", ""),
        ("admission webhook denied the request", ""),
        (None, ""),
    ],
)
def test_obstacle_is_the_budget_or_the_answer(why: str | None, budget: str) -> None:
    refused = eviction("p", "refused", why=why)

    assert (refused.budget, refused.obstacle) == (budget, budget or why or "the API server")


@pytest.mark.parametrize(("age", "count"), [(timedelta(0), 1), (STALE, 0), (timedelta(hours=-2), 0)])
def test_evictions_end_with_their_time(age: timedelta, count: int) -> None:
    node = NodeState("a", annotations=annotation(eviction("p", "refused"), age=age, now=NOW))

    assert len(evictions_on(node, NOW).in_state(EvictionState.REFUSED)) == count


@pytest.mark.parametrize("name", [*HOSTILE, "Upper", "-n", "a b", "`reboot`", "x" * 254, ""])
def test_evictions_with_names_of_no_pod_are_left_out(name: str) -> None:
    written = json.loads(annotation(eviction("p", "refused"), eviction("q", "refused"), now=NOW)[EVICT])
    written["pods"][0]["name"] = name
    both = evictions_on(NodeState("a", annotations={EVICT: json.dumps(written)}), NOW)

    assert [pod.name for pod in both.pods] == ["q"]
    assert "\x1b" not in eviction("p", "refused", why=f"\x1b[31m{name}" * 400).obstacle
    assert len(eviction("p", "refused", why=name * 4000).obstacle) <= 600
