"""Pods for which an autoscaler wants a node, and states in which that node will join soon."""

from __future__ import annotations

import pytest

from diagnosis.model import Certainty
from tests.diagnosis.states import GPU, Object, ago, consequences, event, judged, node, obj, results
from tests.diagnosis.test_unscheduled import CLASS, SHORT, claimed, devices, runs, taken, waits

POOL, JOB = "nodepool/gpu", "job/team/train"
NO_CAPACITY = (
    "NodeClaim gpu-7xq2v event: creating instance, insufficient capacity, with fleet error(s), "
    "InsufficientInstanceCapacity: We currently do not have sufficient p5.48xlarge capacity in the Availability Zone "
    "you requested (us-east-1a)"
)
NO_QUOTA = (
    "NodeClaim gpu-7xq2v event: creating instance, insufficient capacity, with fleet error(s), VcpuLimitExceeded: You "
    "have requested more vCPU capacity than your current vCPU limit of 96 allows"
)
STATUS = obj("ConfigMap", "cluster-autoscaler-status", "kube-system")
WAITS = waits(SHORT, age=50)
FULL = [node("a"), runs("busy", 8, "a"), WAITS]


def nominated(claim: str = "gpu-7xq2v", since: float = 40, until: float = 1, count: int = 12) -> Object:
    text = f"Pod should schedule on: nodeclaim/{claim}"
    entry = event(WAITS, "Nominated", text, warning=False, by="karpenter", minutes=until, count=count)
    return entry | {"firstTimestamp": ago(since)}


def of_claim(message: str = NO_CAPACITY, name: str = "gpu-7xq2v", minutes: float = 2) -> Object:
    return event(obj("NodeClaim", name), "InsufficientCapacityError", message, by="karpenter", minutes=minutes)


def triggered(minutes: float = 30) -> Object:
    text = "pod triggered scale-up: [{eks-gpu-a 0->1 (max: 4)}]"
    return event(WAITS, "TriggeredScaleUp", text, warning=False, by="cluster-autoscaler", minutes=minutes)


def failed(message: str) -> Object:
    return event(STATUS, "FailedScaleUp", f"Scale-up failed for group {message}", by="cluster-autoscaler")


@pytest.mark.parametrize(
    ("events", "cause", "subject", "certainty"),
    [
        ([nominated(), of_claim()], "InsufficientCapacity", POOL, Certainty.PROVEN),
        ([nominated("gpu-a", 40, 25, 3), nominated("gpu-b", 20, 1, 3)], "InsufficientCapacity", POOL, Certainty.LIKELY),
        ([nominated(since=8), of_claim()], "InsufficientCapacity", POOL, Certainty.PROVEN),
        ([nominated(), of_claim(NO_QUOTA)], "CloudQuotaExceeded", POOL, Certainty.PROVEN),
        ([triggered()], "InsufficientCapacity", JOB, Certainty.LIKELY),
        (
            [triggered(), failed("eks-gpu-a: OutOfResource. ZONE_RESOURCE_POOL_EXHAUSTED: no capacity")],
            "InsufficientCapacity",
            JOB,
            Certainty.PROVEN,
        ),
        ([triggered(), failed("eks-other: VcpuLimitExceeded")], "InsufficientCapacity", JOB, Certainty.LIKELY),
    ],
)
def test_node_that_never_joins_is_the_cause_of_full_nodes(
    events: list[Object], cause: str, subject: str, certainty: Certainty
) -> None:
    diagnosis = judged(*FULL, *events)

    assert results(diagnosis) == [(cause, subject)]
    assert diagnosis.problems[0].found.certainty is certainty
    assert consequences(diagnosis.problems[0]) == [("GpusAllInUse", f"resource/{GPU}")]


def test_node_that_never_joins_is_reported_also_for_a_pod_with_claims() -> None:
    state = [node("a", None), *claimed(age=50), devices("gpu-0"), taken("gpu-0"), triggered()]

    assert set(results(judged(*state))) == {("InsufficientCapacity", JOB), ("DevicesAllAllocated", CLASS)}


@pytest.mark.parametrize(
    "events",
    [
        [nominated(since=8)],
        [nominated(since=3), of_claim()],
        [triggered(9)],
        [nominated(), node("new", 0, age=3)],
        [nominated(since=10), of_claim(name="cpu-7xq2v")],
    ],
    ids=["it is created", "another type is tried", "it is created by a group", "it has joined", "another pool fails"],
)
def test_node_that_will_join_is_no_cause(events: list[Object]) -> None:
    assert results(judged(*FULL, *events)) == []


def test_nominated_existing_node_is_not_missing() -> None:
    entry = event(WAITS, "Nominated", "Pod should schedule on: node/a", warning=False, by="karpenter", minutes=20)

    assert results(judged(*FULL, entry)) == [("GpusAllInUse", f"resource/{GPU}")]
