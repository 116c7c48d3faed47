"""Requests, free amounts and obstacles, computed from the objects."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.facts.placement import ObstacleKind, asked_by, held_on, refusals, shortages
from gpu_healthcheck.diagnosis.snapshot.nodes import read_node
from gpu_healthcheck.diagnosis.snapshot.pods import read_pod
from tests.diagnosis.states import GPU, container, node, pod

_UNHEALTHY = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}


def _why(a_pod: dict[str, Any], a_node: dict[str, Any], *others: dict[str, Any]) -> set[ObstacleKind]:
    held = held_on(read_pod(entry) for entry in others).get(a_node["metadata"]["name"], {})
    spec, there = read_pod(a_pod).spec, read_node(a_node)
    return {each.why for each in (*refusals(spec, there), *shortages(asked_by(spec), there, held))}


@pytest.mark.parametrize(
    ("inits", "mains", "gpus"),
    [
        ([], [2, 3], 5),
        ([4], [1], 4),
        ([4, 2], [5], 5),
        ([(1, "Always"), 2], [1], 3),
        ([2, (1, "Always")], [1], 2),
    ],
)
def test_requests_add_sidecars_and_not_init_containers(inits: list[Any], mains: list[int], gpus: int) -> None:
    pairs = [entries if isinstance(entries, tuple) else (entries, None) for entries in inits]
    init = [
        container(f"i{n}", count, **({"restartPolicy": how} if how else {})) for n, (count, how) in enumerate(pairs)
    ]
    raw = pod(
        "x", containers=[container(f"c{n}", count) for n, count in enumerate(mains)], spec={"initContainers": init}
    )
    assert asked_by(read_pod(raw).spec)[GPU] == gpus


@pytest.mark.parametrize(
    ("asks", "there", "others", "why"),
    [
        (8, 8, [], set()),
        (8, 8, [1], {ObstacleKind.IN_USE}),
        (9, 8, [], {ObstacleKind.TOO_SMALL}),
        (1, None, [], {ObstacleKind.ABSENT}),
        (4, 8, [4], set()),
    ],
)
def test_amounts_of_other_pods_are_not_free(
    asks: int, there: int | None, others: list[int], why: set[ObstacleKind]
) -> None:
    running = [pod(f"o{n}", count, on="a") for n, count in enumerate(others)]
    assert _why(pod("x", asks), node("a", there), *running) == why


def test_only_ended_pods_free_their_amounts() -> None:
    ended = pod("done", 8, on="a", phase="Succeeded")
    leaving = pod("going", 8, on="a", metadata={"deletionTimestamp": "2026-11-22T11:00:00Z"})
    assert _why(pod("x"), node("a"), ended) == set()
    assert _why(pod("x"), node("a"), leaving) == {ObstacleKind.IN_USE}


@pytest.mark.parametrize(
    ("tolerations", "why"),
    [
        ([], {ObstacleKind.TAINTED}),
        ([{"operator": "Exists"}], set()),
        ([{"key": _UNHEALTHY["key"], "operator": "Exists", "effect": "NoSchedule"}], set()),
        ([{"key": _UNHEALTHY["key"], "operator": "Exists", "effect": "NoExecute"}], {ObstacleKind.TAINTED}),
        ([{"key": _UNHEALTHY["key"], "value": "true"}], set()),
        ([{"key": _UNHEALTHY["key"], "value": "false"}], {ObstacleKind.TAINTED}),
    ],
)
def test_toleration_matches_key_value_and_effect(tolerations: list[Any], why: set[ObstacleKind]) -> None:
    assert _why(pod("x", spec={"tolerations": tolerations}), node("a", taints=[_UNHEALTHY])) == why


def test_preferred_taint_and_cordon() -> None:
    assert _why(pod("x"), node("a", taints=[_UNHEALTHY | {"effect": "PreferNoSchedule"}])) == set()
    assert _why(pod("x"), node("a", cordoned=True)) == {ObstacleKind.CORDONED}


@pytest.mark.parametrize(
    ("expression", "takes"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "other", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "memory", "operator": "Gt", "values": ["40000"]}, True),
        ({"key": "memory", "operator": "Lt", "values": ["40000"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["1"]}, False),
        ({"key": "zone", "operator": "Never", "values": []}, False),
    ],
)
def test_node_affinity_operators(expression: dict[str, Any], takes: bool) -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    there = node("a", labels={"zone": "a", "memory": "81920"})
    assert (ObstacleKind.UNSELECTED not in _why(pod("x", spec={"affinity": affinity}), there)) is takes


def test_affinity_terms_are_alternatives_and_empty_matches_none() -> None:
    def spec(*terms: dict[str, Any]) -> dict[str, Any]:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return {"affinity": {"nodeAffinity": required}}

    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    other = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    assert _why(pod("x", spec=spec(other, by_name)), node("a")) == set()
    assert _why(pod("x", spec=spec({})), node("a")) == {ObstacleKind.UNSELECTED}
