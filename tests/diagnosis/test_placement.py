"""The scheduler's arithmetic, done again from the objects."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosis.facts.placement import NodeUse, ObstacleKind, asked_by, held_on
from diagnosis.snapshot.nodes import read_node
from diagnosis.snapshot.pods import read_pod
from tests.diagnosis.states import GPU, container, node, pod

_UNHEALTHY = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}


def _why(a_pod: dict[str, Any], a_node: dict[str, Any], *others: dict[str, Any]) -> set[ObstacleKind]:
    held = held_on(read_pod(entry) for entry in others).get(a_node["metadata"]["name"], {})
    spec = read_pod(a_pod).spec
    return {each.why for each in NodeUse(read_node(a_node), held).obstacles(spec, asked_by(spec))}


def _init(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    return container(name, gpus, **more)


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
def test_init_containers_run_alone_and_sidecars_in_parallel(inits: list[Any], mains: list[int], gpus: int) -> None:
    pairs = [entries if isinstance(entries, tuple) else (entries, None) for entries in inits]
    init = [_init(f"i{n}", count, **({"restartPolicy": how} if how else {})) for n, (count, how) in enumerate(pairs)]
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
def test_what_others_hold_is_not_there(asks: int, there: int | None, others: list[int], why: set[ObstacleKind]) -> None:
    running = [pod(f"o{n}", count, on="a") for n, count in enumerate(others)]
    assert _why(pod("x", asks), node("a", there), *running) == why


def test_a_pod_that_ended_holds_nothing_and_one_that_is_asked_to_go_still_does() -> None:
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
def test_a_toleration_is_matched_by_key_value_and_effect(tolerations: list[Any], why: set[ObstacleKind]) -> None:
    assert _why(pod("x", spec={"tolerations": tolerations}), node("a", taints=[_UNHEALTHY])) == why


def test_a_preference_blocks_nothing_and_a_cordon_is_reported_once() -> None:
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
def test_a_node_affinity_is_read_as_the_scheduler_reads_it(expression: dict[str, Any], takes: bool) -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    there = node("a", labels={"zone": "a", "memory": "81920"})
    assert (ObstacleKind.UNSELECTED not in _why(pod("x", spec={"affinity": affinity}), there)) is takes


def test_one_term_is_enough_and_an_empty_one_takes_nothing() -> None:
    def spec(*terms: dict[str, Any]) -> dict[str, Any]:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return {"affinity": {"nodeAffinity": required}}

    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    other = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    assert _why(pod("x", spec=spec(other, by_name)), node("a")) == set()
    assert _why(pod("x", spec=spec({})), node("a")) == {ObstacleKind.UNSELECTED}
