"""Pods for which an autoscaler wants a node, and states in which that node will join soon."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.model import Certainty
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


def refused_in_google(reason: str, minutes: float = 1) -> Object:
    text = f"Node scale up in zones us-central1-c associated with this pod failed: {reason}. Pod is at risk of not"
    return event(WAITS, "FailedScaleUp", text, by="cluster-autoscaler", minutes=minutes)


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
        ([refused_in_google("GCE quota exceeded")], "CloudQuotaExceeded", JOB, Certainty.PROVEN),
        ([triggered(3), refused_in_google("GCE out of resources")], "InsufficientCapacity", JOB, Certainty.PROVEN),
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
        [refused_in_google("GCE out of resources", minutes=12), triggered(9)],
    ],
    ids=[
        *("it is created", "another type is tried", "it is created by a group", "it has joined", "another pool fails"),
        "the autoscaler tries again",
    ],
)
def test_node_that_will_join_is_no_cause(events: list[Object]) -> None:
    assert results(judged(*FULL, *events)) == []


def test_nominated_existing_node_is_not_missing() -> None:
    entry = event(WAITS, "Nominated", "Pod should schedule on: node/a", warning=False, by="karpenter", minutes=20)

    assert results(judged(*FULL, entry)) == [("GpusAllInUse", f"resource/{GPU}")]


def refusing(text: str, reason: str = "NotTriggerScaleUp", by: str = "cluster-autoscaler") -> Object:
    return event(WAITS, reason, text, warning=by == "karpenter", by=by)


IN_GPU_POOL = 'incompatible with nodepool "gpu", daemonset overhead={"cpu":"185m","pods":"6"}, '
OTHER_POOL = (
    'incompatible with nodepool "system", daemonset overhead={"cpu":"1"}, did not tolerate '
    "CriticalAddonsOnly=true:NoSchedule; "
)
NO_TYPE = 'no instance type satisfied resources {"cpu":"1","nvidia.com/gpu":"8"} and requirements karpenter.sh/nodepool'
BY_WORDS = [
    ("pod didn't trigger scale-up: 1 max node group size reached", "at its maximum size, raise that"),
    ("pod didn't trigger scale-up: 1 in backoff after failed scale-up", "configmap cluster-autoscaler-status"),
    ("pod didn't trigger scale-up: 1 node(s) had untolerated taint {sku: gpu}", "add the toleration to the pod"),
    (
        "pod didn't trigger scale-up (it wouldn't fit if a new node is added): 2 Insufficient nvidia.com/gpu",
        "node-template/resources/nvidia.com/gpu with the number",
    ),
    (
        "pod didn't trigger scale-up: 1 Insufficient nvidia.com/gpu, 1 Insufficient cpu",
        "If that is the GPU group, request less",
    ),
    (
        'Failed to schedule pod, all available instance types exceed limits for nodepool: "gpu"',
        "Raise `spec.limits` of it: `kubectl edit nodepool gpu`",
    ),
    ("pod didn't trigger scale-up: max cluster cpu, memory limit reached", "Raise the autoscaler's limits"),
]
BY_POOL = [
    (
        f"{IN_GPU_POOL}did not tolerate nvidia.com/gpu=true:NoSchedule",
        "key: nvidia.com/gpu, value: true, effect: NoSchedule",
    ),
    (f"{IN_GPU_POOL}did not tolerate taint (taint=nvidia.com/gpu:NoSchedule)", "key: nvidia.com/gpu, value: , effect"),
    (f"{IN_GPU_POOL}{NO_TYPE} In [gpu] (no instance type has enough resources)", "allow instance types that have"),
    (f'{IN_GPU_POOL}incompatible requirements, label "team" does not have known values', "remove team from the pod's"),
    (
        f"{IN_GPU_POOL}incompatible requirements, key topology.kubernetes.io/zone, zone In [a] not in",
        "/zone in the pod",
    ),
]


@pytest.mark.parametrize(("message", "step"), BY_WORDS)
@pytest.mark.parametrize("full", [True, False])
def test_refusal_of_the_cluster_autoscaler_is_ended_by_its_words(message: str, step: str, *, full: bool) -> None:
    nodes = FULL if full else [node("cpu", None), WAITS]
    (problem,) = judged(*nodes, refusing(message)).problems

    assert problem.found.cause.name == ("GpusAllInUse" if full else "GpuResourceAbsent")
    assert any(step in text for text in problem.found.remedy)
    assert not any(step in text for text in judged(*nodes).problems[0].found.remedy)


@pytest.mark.parametrize(("message", "step"), BY_POOL)
def test_refusal_of_karpenter_is_ended_in_the_pool_with_gpus(message: str, step: str) -> None:
    entry = refusing(f"Failed to schedule pod, {OTHER_POOL}{message}", "FailedScheduling", "karpenter")
    (problem,) = judged(node("cpu", None), WAITS, entry).problems

    (found,) = problem.found.remedy
    assert found.startswith("NodePool gpu: ")
    assert step in found


def test_refusal_of_the_autoscaler_ends_also_without_the_nodes() -> None:
    (problem,) = judged(WAITS, refusing(BY_WORDS[0][0]), missing=["Node"]).problems

    assert problem.found.remedy[-1] == "If the group with such GPUs is at its maximum size, raise that."
