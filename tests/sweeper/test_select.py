"""Nodes that a sweep selects: table by table, and properties of any fleet."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, acquire
from gpu_healthcheck.healthcheck.deep.due import Attempt, DeepTest
from gpu_healthcheck.healthcheck.node.devices import NodeDevices
from gpu_healthcheck.healthcheck.node.gpu_resources import GpuPod
from gpu_healthcheck.healthcheck.node.state import (
    CONDITION,
    INSTANCE_TYPE,
    MAINTENANCE,
    RESULTS,
    STATUS,
    SWEEP_RESULT,
    NodeState,
)
from gpu_healthcheck.sweeper.select import Candidate, SweepLimits, busy_nodes, candidate, select

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LIMITS = SweepLimits(10, 100)
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TOLERATED = ({"key": "nvidia.com/gpu", "operator": "Exists"},)


def one(name: str, hours_ago: float | None = None, kind: str = "p5.48xlarge", **more: Any) -> Candidate:
    tested = None if hours_ago is None else DeepTest(NOW - hours_ago * HOUR, "pass", "sweep")
    facts = {"tried": None, "obstacle": "", "under_run": False, "overdue": False, "interval": 6 * HOUR, **more}
    return Candidate(name, f"uid-{name}", kind, {"nvidia.com/gpu": 8}, tested, **facts)


def selected(*nodes: Candidate, limits: SweepLimits = LIMITS, most_nodes: int | None = None, **more: Any) -> list[str]:
    facts = {"busy": {}, "tried": {}, **more}
    most_nodes = limits.nodes if most_nodes is None else most_nodes
    decisions = select(nodes, most_nodes=most_nodes, limits=limits, now=NOW, **facts)
    return [decision.node.name for decision in decisions if not decision.why]


def why_not(node: Candidate, limits: SweepLimits = LIMITS, **more: Any) -> str:
    (decision,) = select([node], **{"busy": {}, "tried": {}, "most_nodes": 10, **more}, limits=limits, now=NOW)
    return decision.why


def test_6_node_tested_longest_ago_comes_first_after_nodes_never_tested() -> None:
    """Defect 6: the first ten in the order of the list, always the same."""
    nodes = [one("a", 7), one("b", 9), one("c"), one("d", 8), one("e", 5)]

    assert selected(*nodes) == ["c", "b", "d", "a"]
    assert selected(*nodes, most_nodes=2) == ["c", "b"]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (one("n", 7), ""),
        (one("n", 6), ""),
        (one("n", 5), "tested at 2026-11-21T07:00:00Z"),
        (one("n", 7, obstacle="is cordoned"), "is cordoned"),
        (one("n", 5, obstacle="is cordoned"), "tested at 2026-11-21T07:00:00Z"),
        (one("n", tried=Attempt(NOW - HOUR)), "tried without a result at 2026-11-21T11:00:00Z"),
        (one("n", tried=Attempt(NOW - HOUR, "x: y")), "tried without a result at 2026-11-21T11:00:00Z: x: y"),
        (one("n", 7, tried=Attempt(NOW - HOUR)), "tried without a result at 2026-11-21T11:00:00Z"),
        (one("n", 7, tried=Attempt(NOW - 2 * HOUR)), ""),
    ],
)
def test_reasons_why_a_node_is_not_selected(node: Candidate, why: str) -> None:
    assert why_not(node) == why


def test_an_interval_of_zero_means_that_nothing_is_due() -> None:
    nodes = [one("off", interval=timedelta(0)), one("n")]

    assert why_not(nodes[0]) == "DCGM_L2_INTERVAL is 0 for it: it has no deep tests"
    assert selected(*nodes) == ["n"]


def test_node_in_use_is_not_selected() -> None:
    assert why_not(one("n"), busy={"n": "ns/p holds 1 nvidia.com/gpu"}) == "in use: ns/p holds 1 nvidia.com/gpu"


def test_a_claim_keeps_a_node_busy_by_what_it_holds_or_where_nobody_can_see_that_by_itself() -> None:
    pods = [GpuPod("ns", "nic", name, {"DRA claim": 1}) for name in ("n", "elsewhere")]
    pods.append(GpuPod("ns", "gpus", "m", {"nvidia.com/gpu": 8}))
    claim = "ns/nic holds 1 DRA claim"

    seen = busy_nodes(pods, {"k": "ns/train holds 2 gpu.nvidia.com"}, ("n", "m", "k"))

    assert seen == {
        "k": "ns/train holds 2 gpu.nvidia.com",
        "m": "ns/gpus holds 8 nvidia.com/gpu",
        "elsewhere": claim,
    }
    assert busy_nodes(pods, None, ("n", "m", "k")) == {**dict.fromkeys(("n", "elsewhere"), claim), "m": seen["m"]}


def test_a_job_that_came_to_no_verdict_is_waited_for_and_one_that_did_is_not() -> None:
    job = {"n": Attempt(NOW - HOUR)}
    assert why_not(one("n"), tried=job) == "tried without a result at 2026-11-21T11:00:00Z"
    assert why_not(one("n", 0.9, interval=HOUR / 2), tried=job) == ""


def test_a_job_with_a_rejected_pod_is_reported_with_the_kubelets_message() -> None:
    """Time-slicing with `failRequestsGreaterThanOne`: a pod gets one replica, which no scheduler knows."""
    words = "maximum request size for shared resources is 1; found 32"
    assert why_not(one("n"), tried={"n": Attempt(NOW - HOUR, words)}).endswith(f"11:00:00Z: {words}")
    assert why_not(one("n"), tried={"n": Attempt(NOW - 2 * HOUR, words)}) == ""


def test_a_node_that_was_tried_in_vain_goes_behind_those_that_wait_longer() -> None:
    assert selected(one("broken"), one("patient", 8), tried={"broken": Attempt(NOW - 3 * HOUR)}, most_nodes=1) == [
        "patient"
    ]


@pytest.mark.parametrize(("nodes", "percent", "allowed"), [(10, 20, 2), (9, 20, 1), (1, 1, 1), (3, 100, 3), (10, 1, 1)])
def test_no_more_than_a_share_of_each_instance_type(nodes: int, percent: int, allowed: int) -> None:
    fleet = [one(f"{kind}-{number}", kind=kind) for kind in ("p4d", "p5") for number in range(nodes)]

    names = selected(*fleet, limits=SweepLimits(100, percent))

    assert Counter(name.partition("-")[0] for name in names) == {"p4d": allowed, "p5": allowed}


def test_nodes_under_a_run_count_against_their_types_share() -> None:
    held = one("held", obstacle="a deep run (l2) uses it", under_run=True)
    others = [one(f"n-{number}") for number in range(9)]

    assert len(selected(held, *others, limits=SweepLimits(10, 20))) == 1
    assert selected(held, *others, limits=SweepLimits(10, 10)) == []


def test_every_waiting_node_has_its_reason() -> None:
    fleet = [one("a"), one("b"), one("c", kind="")]
    fields = {each.node.name: each.why for each in select(fleet, {}, {}, 1, SweepLimits(1, 50), NOW)}

    assert fields == {
        "a": "",
        "b": "1 of 2 nodes (p5.48xlarge) have a deep test",
        "c": "it is tested later: MAX_NODES_PER_SWEEP is 1",
    }


def node(**more: Any) -> NodeState:
    facts = {
        "labels": {STATUS: "pass", INSTANCE_TYPE: "p5.48xlarge"},
        "conditions": ({"type": CONDITION, "status": "True"},),
        "gpus": {"nvidia.com/gpu": 8},
        "created": NOW - 100 * HOUR,
        **more,
    }
    return NodeState("n", uid="u", **facts)


def reduced(state: NodeState) -> Candidate:
    found = candidate(state, NOW + HOUR, TOLERATED, 6 * HOUR, NOW)
    assert found is not None
    return found


def test_a_node_is_reduced_to_what_the_selection_needs() -> None:
    found = reduced(node(taints=(GPU_TAINT,)))
    assert (found.name, found.uid, found.instance_type, found.gpus) == ("n", "u", "p5.48xlarge", {"nvidia.com/gpu": 8})
    assert (found.tested, found.obstacle, found.under_run, found.overdue) == (None, "", False, True)
    assert found.devices == 0


def test_a_node_with_gpus_allocated_by_dra_alone_is_a_candidate() -> None:
    found = reduced(node(gpus={}, devices=NodeDevices(8)))
    assert (found.gpus, found.devices, found.obstacle) == ({}, 8, "")


@pytest.mark.parametrize(
    ("taint", "kept_away"),
    [
        (GPU_TAINT, False),
        ({"key": "nvidia.com/gpu", "effect": "NoExecute"}, False),
        ({"key": "dedicated", "value": "team", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "team", "effect": "PreferNoSchedule"}, False),
        ({"key": f"{MAINTENANCE}", "value": "quarantine", "effect": "NoSchedule"}, True),
        ({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, True),
    ],
)
def test_a_taint_that_the_sweeps_pods_do_not_tolerate_keeps_it_away(taint: dict[str, str], kept_away: bool) -> None:
    message = f"its taint {taint['key']} keeps the sweep away"
    assert reduced(node(taints=(taint,))).obstacle == (message if kept_away else "")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "a", "value": "1"}, True),
        ({"key": "a", "operator": "Equal", "value": "2"}, False),
        ({"key": "b", "operator": "Exists"}, False),
        ({}, False),
    ],
)
def test_tolerations_are_read_as_the_scheduler_reads_them(toleration: dict[str, str], tolerates: bool) -> None:
    tainted = node(taints=({"key": "a", "value": "1", "effect": "NoSchedule"},))
    found = candidate(tainted, NOW + HOUR, (toleration,), 6 * HOUR, NOW)
    assert found is not None
    assert (found.obstacle == "") is tolerates


def test_a_node_without_gpus_is_none_of_ours_until_an_agent_has_spoken_for_it() -> None:
    assert candidate(node(gpus={}), None, (), 6 * HOUR, NOW) is None
    spoken = reduced(node(gpus={}, annotations={RESULTS: "{}"}))
    assert spoken.obstacle == "offers no GPUs to pods"


def test_node_under_a_run_is_reported_as_such() -> None:
    patch = acquire(node(), Claim(RunKind.QUARANTINE, "x", NOW + HOUR), NOW)
    assert patch is not None
    assert reduced(node(annotations=patch["metadata"]["annotations"])).under_run


def test_record_without_a_test_is_a_failed_try() -> None:
    record = json.dumps({"timestamp": (NOW - HOUR).isoformat(), "status": "unknown"})
    assert (
        why_not(reduced(node(annotations={SWEEP_RESULT: record}))) == "tried without a result at 2026-11-21T11:00:00Z"
    )


@pytest.mark.parametrize(
    ("labels", "is_left"),
    [
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, True),
        ({"cloud.google.com/gke-gpu-sharing-strategy": "mps"}, True),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}, False),
        ({"nvidia.com/gpu.sharing-strategy": "none"}, False),
    ],
)
def test_a_node_without_exclusive_gpus_is_left_to_its_agent(labels: dict[str, str], is_left: bool) -> None:
    found = node(gpus={"nvidia.com/gpu.shared": 32})
    obstacle = reduced(replace(found, labels={**found.labels, **labels})).obstacle

    assert ("MPS shares its GPUs" in obstacle, bool(obstacle)) == (is_left, is_left)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"cause": "DcgmEngineEmbedded"}, "its DCGM engine can't be used: DcgmEngineEmbedded"),
        ({"host": "10.0.3.17:5555"}, "only an agent of the full image can verify its DCGM engine at 10.0.3.17:5555; "),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_node_with_an_engine_of_its_own_is_left_to_its_agent(engine: dict[str, str] | None, why: str) -> None:
    inventory = {} if engine is None else {"dcgm": engine}
    found = reduced(node(annotations={RESULTS: json.dumps({"status": "pass", "inventory": inventory})}))

    assert found.obstacle.startswith(why)
    assert bool(found.obstacle) == bool(why)


@given(
    st.lists(
        st.tuples(st.none() | st.floats(0, 50), st.sampled_from(["p4d", "p5", ""]), st.booleans(), st.booleans()),
        max_size=30,
    ),
    st.integers(0, 12),
    st.integers(1, 100),
)
def test_of_any_fleet_no_limit_is_passed_and_no_idle_node_waits_without_a_reason(
    fleet: list[tuple[float | None, str, bool, bool]], places: int, percent: int
) -> None:
    nodes = [
        one(f"n{number}", hours, kind, under_run=held, obstacle="held" if held else "")
        for number, (hours, kind, held, _) in enumerate(fleet)
    ]
    busy = {f"n{number}": "p" for number, (*_, used) in enumerate(fleet) if used}
    decisions = select(nodes, busy, {}, places, SweepLimits(12, percent), NOW)

    chosen = [each.node for each in decisions if not each.why]
    assert sorted(each.node.name for each in decisions) == sorted(each.name for each in nodes)
    assert len(chosen) <= places
    assert not any(each.name in busy or each.under_run for each in chosen)
    assert all(each.tested is None or NOW - each.tested.at >= 6 * HOUR for each in chosen)
    for kind, number in Counter(each.instance_type for each in nodes).items():
        held = sum(each.under_run for each in nodes if each.instance_type == kind)
        new = sum(each.instance_type == kind for each in chosen)
        assert new == 0 or held + new <= max(1, number * percent // 100)
