"""States from reports to GPU cluster projects, each with its actual cause."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.component_states import DRIVER, NAMESPACE, PLUGIN, daemon, gpu_node, operand
from tests.diagnosis.states import (
    GPU,
    Object,
    condition,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    results,
    terminated,
    waiting,
)

CRASHES: dict[str, Any] = {"restartCount": 9}


def refused(message: str, reason: str = "Unschedulable") -> list[Object]:
    return [condition("PodScheduled", "False", reason, message, minutes=40)]


def crashed(message: str, **changes: Any) -> Object:
    last = {"terminated": terminated(1, message=message)}
    return pod("t", on="a", states=[waiting("CrashLoopBackOff", lastState=last, **CRASHES)], **changes)


def claiming(**changes: Any) -> Object:
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
    return pod("p", containers=[container(claims=[{"name": "gpu"}])], spec=claims, **changes)


def replica_set(**status: int) -> Object:
    template = {"spec": {"containers": [container("main", 1)]}}
    return obj("ReplicaSet", "serve-5d", "team", spec={"replicas": 1, "template": template}, status=status)


K3S: dict[str, Any] = {"runtime": "containerd://2.1.4-k3s1", "kubelet": "v1.33.5+k3s1"}
NO_DRIVER = (
    "Failed to allocate device vector A (error code CUDA driver version is insufficient for CUDA runtime version)!"
)
NVIDIA = obj("RuntimeClass", "nvidia", handler="nvidia")
OF_KAI = "No nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs."
NOT_REGISTERED = "Failed to prepare dynamic resources: DRA driver compute-domain.nvidia.com is not registered"
STALE = (
    'error mounting "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15" to rootfs at "/usr/lib/x86_64-linux-gnu/'
    'libnvidia-ml.so.550.54.15": stat /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15: no such file or directory'
)
DEDICATED = {"key": "dedicated", "value": "inference", "effect": "NoSchedule"}
PREPARING = claiming(on="a", phase="Pending", states=[waiting("ContainerCreating")])
REPORTED: dict[str, tuple[list[Object], list[tuple[str, str]]]] = {
    "a scheduler of other words": (
        [node("a"), pod("busy", 8, on="a"), pod("t", conditions=refused(OF_KAI), spec={"schedulerName": "kai"})],
        [("GpusAllInUse", f"resource/{GPU}")],
    ),
    "a scheduler of other words, where there is room": (
        [node("a"), pod("t", conditions=refused("the stars are not aligned for this pod"))],
        [("NoNodeFits", "pod/team/t")],
    ),
    "a pod refused before any node, in old words": (
        [
            node("a"),
            obj("PersistentVolumeClaim", "data", "team", status={"phase": "Pending"}, spec={"storageClassName": "x"}),
            pod(
                "t",
                conditions=refused("pod has unbound immediate PersistentVolumeClaims (repeated 2 times)"),
                spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
            ),
        ],
        [("VolumeClaimNotBound", "persistentvolumeclaim/team/data")],
    ),
    "a template that is not there": (
        [node("a"), claiming(conditions=refused("0/1 nodes are available: resourceclaim not created."))],
        [("ResourceClaimMissing", "resourceclaim/team/one-gpu")],
    ),
    "a claim whose driver the kubelet does not know": (
        [node("a"), PREPARING, event(PREPARING, "FailedPrepareDynamicResources", NOT_REGISTERED, count=40)],
        [("ClaimNotPrepared", "node/a")],
    ),
    "no RuntimeClass where NVIDIA's is never the default": (
        [node("a", **K3S), NVIDIA, crashed(NO_DRIVER)],
        [("RuntimeClassNotNamed", "pod/team/t")],
    ),
    "a GPU that nobody asked for": (
        [node("a"), crashed(NO_DRIVER, containers=[container("main")])],
        [("GpuNotRequested", "pod/team/t")],
    ),
    "a driver replaced beneath a specification": (
        [node("a"), pod("t", on="a", states=[waiting("RunContainerError", STALE)], phase="Pending")],
        [("CdiSpecificationStale", "node/a")],
    ),
    "hugepages, of which no node has so many": (
        [
            node("a", capacity={"hugepages-2Mi": "1Gi"}, allocatable={"hugepages-2Mi": "1Gi"}),
            pod(
                "t",
                containers=[container("main", 1, resources={"hugepages-2Mi": "5Gi"})],
                conditions=refused("0/1 nodes are available: 1 Insufficient hugepages-2Mi."),
            ),
        ],
        [("MoreCpuOrMemoryThanAnyGpuNodeHas", "pod/team/t")],
    ),
    "hugepages, of which no node has any": (
        [
            node("a", capacity={"hugepages-1Gi": "8Gi"}, allocatable={"hugepages-1Gi": "8Gi"}),
            pod("busy", 8, on="a"),
            pod(
                "t",
                containers=[container("main", 1, resources={"hugepages-2Mi": "5Gi"})],
                conditions=refused(
                    "0/1 nodes are available: 1 Insufficient hugepages-2Mi, 1 Insufficient nvidia.com/gpu."
                ),
            ),
        ],
        [("MoreCpuOrMemoryThanAnyGpuNodeHas", "pod/team/t")],
    ),
    "two nodes for others, one of them cordoned": (
        [
            node("a", taints=[DEDICATED]),
            node("b", taints=[DEDICATED], cordoned=True),
            pod("t", conditions=refused("0/2 nodes are available: 2 node(s) had untolerated taint(s).")),
        ],
        [("TaintNotTolerated", "pod/team/t")],
    ),
    "a pod of days that its node rejected after a reboot": (
        [
            node("a"),
            pod(
                "t",
                on="a",
                phase="Failed",
                age=3000,
                conditions=[condition("Ready", "False", "PodFailed", minutes=40)],
                status={
                    "reason": "UnexpectedAdmissionError",
                    "message": "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate "
                    "unhealthy devices nvidia.com/gpu, which is unexpected",
                },
            ),
        ],
        [("NoHealthyGpuAtAdmission", "node/a")],
    ),
    "a host that brings the device plugin, which did not start": (
        [
            node("a", 0, runtime="containerd://1.6.20+bottlerocket"),
            pod("dns", 0, on="a", namespace="kube-system"),
        ],
        [("GpusNotOffered", "node/a")],
    ),
}
LEFT_BEHIND = pod(
    "serve-5d-a",
    on="a",
    phase="Failed",
    owner=("ReplicaSet", "serve-5d"),
    status={"reason": "UnexpectedAdmissionError", "message": "Allocate failed due to x, which is unexpected"},
)
UNTOLD = pod("t", conditions=[condition("PodScheduled", "False", "Unschedulable")])
REPORTED["a condition that says no more than that, beside an event"] = (
    [
        node("a"),
        UNTOLD,
        event(UNTOLD, "FailedScheduling", 'persistentvolumeclaim "datas" not found', by="default-scheduler"),
    ],
    [("VolumeClaimMissing", "persistentvolumeclaim/team/datas")],
)
NOTED = pod("t", spec={"schedulerName": "kai-scheduler"})
REPORTED["an event of a scheduler that sets no condition"] = (
    [node("a"), pod("busy", 8, on="a"), NOTED, event(NOTED, "Unschedulable", OF_KAI, by="kai-scheduler")],
    [("GpusAllInUse", f"resource/{GPU}")],
)
NO_STATES = pod("t", on="a", phase="Pending", states=[])
LOGIN = 'Failed to pull image "nvcr.io/nim/x:1": failed to authorize: 401 Unauthorized'
REPORTED["a pull that only an event tells of"] = (
    [node("a"), NO_STATES, event(NO_STATES, "Failed", LOGIN, count=9)],
    [("ImagePullUnauthorized", "pod/team/t")],
)
CLI = (
    "Error: failed to create containerd task: nvidia-container-cli: initialization error: nvml error: driver not loaded"
)
REPORTED["a start that only an event tells of"] = (
    [node("a"), NO_STATES, event(NO_STATES, "Failed", CLI, count=9)],
    [("DriverNotLoaded", "node/a")],
)
HEALTHY: dict[str, list[Object]] = {
    "a registry that has not answered once": [
        node("a"),
        first := pod(
            "t", on="a", phase="Pending", age=0.7, states=[waiting("ErrImagePull", "context deadline exceeded")]
        ),
        event(first, "Failed", "Failed to pull image: context deadline exceeded", minutes=0.2),
    ],
    "what a rejected pod was for runs, though its maker has not counted that": [
        node("a"),
        replica_set(replicas=1),
        LEFT_BEHIND,
        pod("serve-5d-b", on="a", age=50, owner=("ReplicaSet", "serve-5d")),
    ],
    "a group with room for all of it, not yet looked at again": [
        node("a"),
        *(
            pod(f"g-{i}", 4, annotations={"scheduling.k8s.io/group-name": "g"}, on="a", phase="Pending", age=0.5)
            for i in range(2)
        ),
    ],
    "a kubelet that has not yet heard of a ConfigMap": [
        node("a"),
        early := pod("t", on="a", phase="Pending", age=8, states=[waiting("ContainerCreating")]),
        event(
            early, "FailedMount", 'MountVolume.SetUp failed: object "team"/"kube-root-ca.crt" not registered', count=5
        ),
    ],
}


@pytest.mark.parametrize(("state", "expected"), REPORTED.values(), ids=REPORTED)
def test_the_cause_of_a_report_is_named(state: list[Object], expected: list[tuple[str, str]]) -> None:
    assert results(judged(*state)) == expected


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
def test_what_only_looks_like_one_is_none(state: list[Object]) -> None:
    assert results(judged(*state)) == []


def test_a_running_pod_without_container_states_is_ready() -> None:
    bare: dict[str, Any] = {"states": [], "conditions": []}
    plugin = operand(PLUGIN, "a", status={"containerStatuses": [], "initContainerStatuses": []}, **bare)
    late = pod("t", on="a", **bare)
    old = event(late, "FailedMount", "MountVolume.SetUp failed for volume: timed out", minutes=50)

    assert results(judged(gpu_node("a"), daemon(PLUGIN), plugin, late, old)) == []


def test_pods_of_a_group_that_all_say_something_else_are_one_group() -> None:
    of_group = {"scheduling.k8s.io/group-name": "ring"}
    result = ("pod group is not ready, 2 Pending, 2 minAvailable. Origin reason is r-1: ", "")
    short = "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."
    pods = [pod(f"r-{i}", 8, annotations=of_group, conditions=refused(result[i] + short)) for i in range(2)]

    assert results(judged(node("a"), *pods)) == [("GangIncomplete", "podgroup/team/ring")]


def test_what_keeps_the_driver_away_is_why_no_gpu_is_offered() -> None:
    why = 'Error creating: pods "d-" is forbidden: violates PodSecurity "restricted:latest": privileged'
    driver = daemon(DRIVER, made=0, ready=0)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    state = [gpu_node("a", None), driver, event(driver, "FailedCreate", why), obj("Namespace", NAMESPACE)]
    state[-1]["metadata"]["labels"] = labels

    assert results(judged(*state)) == [("PodSecurityDenied", f"namespace/{NAMESPACE}")]


def test_a_plugin_seen_by_its_pods_alone_is_for_other_nodes_too() -> None:
    tied = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [tied]}}}
    there = operand(PLUGIN, "a", spec={"affinity": affinity, "nodeSelector": {}})
    found = judged(gpu_node("a"), gpu_node("b", None), there, missing=["DaemonSet"]).problems

    assert [(problem.found.cause.name, problem.found.subject) for problem in found] == [
        ("DevicePluginMissing", "node/b")
    ]
    assert "has no pod there" in found[0].found.evidence[0]


def test_who_could_make_some_of_its_pods_and_no_more_is_still_refused() -> None:
    fields_of = obj("PyTorchJob", "llm", "team")
    worker = pod("llm-worker-0", 8, on="a", owner=("PyTorchJob", "llm"))
    text = (
        'Error creating: pods "llm-worker-1" is forbidden: exceeded quota: gpu, requested: requests.nvidia.com/gpu=8, '
        "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
    )
    later = pod("llm-worker-1", 8, on="b", owner=("PyTorchJob", "llm"), age=1)
    refusal = event(fields_of, "FailedCreatePod", text, minutes=5)

    assert [name for name, _ in results(judged(node("a"), node("b"), worker, refusal))] == ["ExceededQuota"]
    assert results(judged(node("a"), node("b"), worker, later, refusal)) == []


def test_an_old_end_is_past_where_its_conditions_say_so() -> None:
    old = [condition("Ready", "False", "PodFailed", minutes=2900)]
    status = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed due to x, which is unexpected"}
    left = pod("t", on="a", phase="Failed", age=3000, conditions=old, status=status)

    assert results(judged(node("a"), left)) == []
