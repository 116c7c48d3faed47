from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.component_states import PLUGIN, daemon, gpu_node, operand, operator
from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    consequences,
    judged,
    node,
    obj,
    pod,
    recorded,
    results,
    terminated,
    waiting,
)

A = gpu_node("a")
EFA = {"vpc.amazonaws.com/efa": "32"}
TYPE = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
EFA_PLUGIN = "aws-efa-k8s-device-plugin"
LABELS = {"name": EFA_PLUGIN}
DRA = "nvidia-dra-driver-gpu-kubelet-plugin"
DRA_LABELS = {"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}
OWN_DRA = "nvidia-dra-driver-kubelet-plugin"
GPUS = {"containers": [{"name": "gpus", "image": "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0"}]}


def policy(state: str, *conditions: Object) -> Object:
    return obj("ClusterPolicy", "cluster-policy", spec={}, status={"state": state, "conditions": list(conditions)})


def with_policy(entry: Object, *nodes: Object) -> list[Object]:
    return [*(each for each in operator(*nodes or (A,)) if each["kind"] != "ClusterPolicy"), entry]


def budget(allowed: int, labels: dict[str, str] | None = None) -> Object:
    return obj(
        "PodDisruptionBudget",
        "keep",
        "team",
        spec={"selector": {"matchLabels": labels or {"app": "serve"}}},
        status={"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1},
    )


def serves(**changes: Any) -> Object:
    return pod("serve-0", 4, on="a", labels={"app": "serve"}, **changes)


def efa(*nodes: str) -> list[Object]:
    pods = [
        operand(EFA_PLUGIN, on, namespace="kube-system", labels=LABELS, owner=("DaemonSet", EFA_PLUGIN)) for on in nodes
    ]
    return [daemon(EFA_PLUGIN, wanted=len(nodes), namespace="kube-system", labels=LABELS, selector={}), *pods]


def dra(*nodes: str, sliced: tuple[str, ...] = (), spec: Object | None = None) -> list[Object]:
    labels: Any = {"labels": DRA_LABELS, "selector": {}}
    pods = [operand(DRA, on, labels=DRA_LABELS, owner=("DaemonSet", DRA)) for on in nodes]
    slices = [
        obj(
            "ResourceSlice",
            f"s-{on}",
            spec={"driver": "gpu.nvidia.com", "nodeName": on, "devices": [{"name": "gpu-0"}]},
        )
        for on in sliced
    ]
    device_class = obj("DeviceClass", "gpu.nvidia.com", spec={})
    return [daemon(DRA, wanted=len(nodes), spec=spec or GPUS, **labels), *pods, *slices, device_class]


def gpu_cluster(state: str, *conditions: Object, name: str = "gpu-cluster") -> Object:
    """The operator's stack of DRA: it has no device plugin."""
    return obj("GPUCluster", name, spec={"draDriver": {}}, status={"state": state, "conditions": list(conditions)})


def by_claims(cluster: Object, *nodes: str) -> list[Object]:
    """A GPUCluster with its own DaemonSet of the DRA driver, on nodes that the operator has labelled."""
    labels = {"app": OWN_DRA, "app.kubernetes.io/name": "nvidia-dra-driver"}
    spec: Object = {"containers": [{"name": "gpus", "image": "nvcr.io/nvidia/dra-driver-nvidia-gpu:v0.5.0"}]}
    deploy = {"nvidia.com/gpu.deploy.dra-driver": "true"}
    pods = [operand(OWN_DRA, on, labels=labels, owner=("DaemonSet", OWN_DRA)) for on in nodes]
    deployment = next(entry for entry in operator() if entry["kind"] == "Deployment")
    there = [gpu_node(on, None, labels=deploy) for on in nodes]
    running = daemon(OWN_DRA, wanted=len(nodes), labels=labels, selector=deploy, spec=spec)
    slices = [entry for entry in dra(sliced=nodes) if entry["kind"] in ("ResourceSlice", "DeviceClass")]
    return [cluster, deployment, *there, running, *pods, *slices]


def listing(*types: str) -> list[Object]:
    """The EFA plugin for these instance types, on no node."""
    term = {"matchExpressions": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = {"affinity": {"nodeAffinity": required}}
    kept: Any = {"namespace": "kube-system", "labels": LABELS, "selector": {}}
    system = pod("coredns", 0, on="a", namespace="kube-system")
    return [daemon(EFA_PLUGIN, wanted=0, spec=spec, **kept), system]


def dranet(*nodes: str) -> list[Object]:
    """EFA by DRANET, as its chart installs it."""
    labels = {"k8s-app": "aws-dranet", "app.kubernetes.io/name": "aws-dranet"}
    spec: Object = {"containers": [{"name": "dranet", "image": "x/eks/dranet:v1.2.0-eksbuild.2"}]}
    pods = [
        operand("aws-dranet", on, namespace="kube-system", labels=labels, owner=("DaemonSet", "aws-dranet"))
        for on in nodes
    ]
    offered = {"driver": "dra.net", "devices": [{"name": "pci-0000-00-1e-0"}]}
    slices = [obj("ResourceSlice", f"net-{on}", spec=offered | {"nodeName": on}) for on in nodes]
    kept: Any = {"namespace": "kube-system", "labels": labels, "selector": {}, "spec": spec}
    efa_class = obj("DeviceClass", "efa.networking.k8s.aws", spec={})
    return [daemon("aws-dranet", wanted=len(nodes), **kept), *pods, *slices, efa_class]


def checked(name: str, efa_check: str, **changes: Any) -> Object:
    """A GPU node with a report of our agent on its EFA devices."""
    checks = [{"check": "2-efa-enumeration", "status": efa_check, "severity": "PASS"}]
    return gpu_node(name, annotations=recorded(status="pass", severity="PASS", checks=checks), **changes)


NOT_READY = policy("notReady", condition("Ready", "False", "OperandNotReady", "operands"))
CORDONED = gpu_node("a", cordoned=True)
FAULT = condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "fell off")
SMALL = {"node.kubernetes.io/instance-type": "g6.8xlarge"}
GOING = {"name": "gpu-cluster", "uid": "x", "deletionTimestamp": ago(1)}
SYSTEM = pod("coredns", 0, on="a", namespace="kube-system")
BROKEN_DRANET = operand(
    "aws-dranet",
    "a",
    namespace="kube-system",
    labels={"k8s-app": "aws-dranet"},
    owner=("DaemonSet", "aws-dranet"),
    states=[waiting("CrashLoopBackOff", "back-off", "dranet", lastState={"terminated": terminated(1)})],
)
OFFERS = gpu_node("a", capacity=EFA, allocatable=EFA, labels=TYPE)
SICK: list[tuple[str, list[Object], tuple[str, str]]] = [
    ("a policy that waits", with_policy(NOT_READY), ("ClusterPolicyNotReady", "clusterpolicy/cluster-policy")),
    (
        "a policy that can't be met",
        with_policy(policy("notReady", condition("Error", "True", "ReconcileFailed", "x", minutes=2))),
        ("ClusterPolicyNotReady", "clusterpolicy/cluster-policy"),
    ),
    (
        "a RuntimeClass that is gone",
        [*dra("a", sliced=("a",), spec=GPUS | {"runtimeClassName": "nvidia"}), A],
        ("RuntimeClassMissing", "runtimeclass/nvidia"),
    ),
    ("a node that does not answer", [gpu_node("a", ready="Unknown")], ("NodeNotReady", "node/a")),
    ("a fault that EKS reports", [gpu_node("a", conditions=[FAULT])], ("NodeReportsGpuFault", "node/a")),
    (
        "a fault that AKS reports",
        [gpu_node("a", conditions=[condition("XIDErrors", "True", "XID", "79")])],
        ("NodeReportsGpuFault", "node/a"),
    ),
    (
        "a drain that a budget blocks",
        [CORDONED, serves(), budget(0)],
        ("BudgetBlocksDrain", "poddisruptionbudget/team/keep"),
    ),
    (
        "a drain that has left only what a budget holds",
        [CORDONED, serves(), budget(0), operand(PLUGIN, "a")],
        ("BudgetBlocksDrain", "poddisruptionbudget/team/keep"),
    ),
    (
        "an upgrade's drain beside other pods",
        [
            *operator(gpu_node("a", cordoned=True, labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"})),
            *(serves(), budget(0), pod("other", 1, on="a", namespace="else")),
        ],
        ("BudgetBlocksDrain", "poddisruptionbudget/team/keep"),
    ),
    (
        "EFA in capacity alone",
        [gpu_node("a", capacity=EFA, allocatable={"vpc.amazonaws.com/efa": "0"}), *efa("a")],
        ("EfaNotOffered", "node/a"),
    ),
    ("EFA of its like alone", [OFFERS, gpu_node("b", labels=TYPE), *efa("a")], ("EfaNotOffered", "node/b")),
    (
        "EFA that the agent sees, of a type that the plugin does not list",
        [checked("a", "pass", labels=SMALL), *listing("p4d.24xlarge")],
        ("EfaPluginLeavesTypeOut", "daemonset/kube-system/aws-efa-k8s-device-plugin"),
    ),
    (
        "a GPUCluster that waits",
        by_claims(gpu_cluster("notReady", condition("Ready", "False", "OperandNotReady", "x")), "a"),
        ("GpuClusterNotReady", "gpucluster/gpu-cluster"),
    ),
    (
        "a ClusterPolicy beside a GPUCluster",
        [*operator(A), gpu_cluster("ready")],
        ("ClusterPolicyBesideGpuCluster", "gpucluster/gpu-cluster"),
    ),
    (
        "a network DRA driver that fails",
        [A, *(one for one in dranet("a") if one["kind"] != "Pod"), BROKEN_DRANET],
        ("NetworkDraDriverNotReady", "node/a"),
    ),
    (
        "a node that the operator has not labelled for its DRA driver",
        [*by_claims(gpu_cluster("ready"), "a"), gpu_node("b", None), SYSTEM],
        ("GpuSlicesMissing", "node/b"),
    ),
    ("no slice of a node", [A, gpu_node("b"), *dra("a", "b", sliced=("a",))], ("GpuSlicesMissing", "node/b")),
    (
        "MIG failed",
        operator(gpu_node("a", labels={"nvidia.com/mig.config.state": "failed"})),
        ("MigConfigFailed", "node/a"),
    ),
    (
        "MIG that does not fit",
        operator(gpu_node("a", 0, labels={"nvidia.com/gpu.product": "NVIDIA-H100-MIG-INVALID"})),
        ("MigGeometryInvalid", "node/a"),
    ),
    (
        "an upgrade that failed",
        operator(gpu_node("a", cordoned=True, labels={"nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"})),
        ("DriverUpgradeFailed", "node/a"),
    ),
    (
        "discovery without labels",
        [one for one in operator(A) if one["kind"] != "Node"] + [node("a", 8)],
        ("GpuLabelsMissing", "node/a"),
    ),
]


@pytest.mark.parametrize(("state", "expected"), [pair[1:] for pair in SICK], ids=[pair[0] for pair in SICK])
def test_state_has_its_cause_and_no_other(state: list[Object], expected: tuple[str, str]) -> None:
    assert results(judged(*state)) == [expected]


UPGRADING = {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}
OTHER = pod("other", 1, on="a", namespace="else")
NEXT = pod(
    *("serve-1", 4),
    on="b",
    labels={"app": "serve"},
    age=2,
    phase="Pending",
    states=[waiting("ContainerCreating")],
)
HEALTHY: list[tuple[str, list[Object]]] = [
    ("a ready policy", with_policy(policy("ready", condition("Ready", "True", "Reconciled")))),
    ("a policy while a driver is upgraded", with_policy(NOT_READY, gpu_node("a", cordoned=True, labels=UPGRADING))),
    ("a policy while a node is new", with_policy(NOT_READY, A, gpu_node("b", age=5))),
    (
        "a policy that has just begun to wait",
        with_policy(policy("notReady", condition("Ready", "False", "x", minutes=3))),
    ),
    (
        "a policy without GPU nodes",
        [policy("notReady", condition("Ready", "False", "OperandNotReady")), node("a", None)],
    ),
    ("a cordon without a budget", [CORDONED, serves()]),
    ("a cordon beside work that a drain would have taken along", [CORDONED, serves(), budget(0), OTHER]),
    ("a budget whose next pod is about to be ready", [CORDONED, gpu_node("b"), serves(), NEXT, budget(0)]),
    ("a budget that allows one", [CORDONED, serves(), budget(1)]),
    ("a budget over others", [CORDONED, serves(), budget(0, {"app": "other"})]),
    ("a budget on a node that stays", [A, serves(), budget(0)]),
    ("a daemon's pod", [CORDONED, serves(owner=("DaemonSet", "x")), budget(0)]),
    ("no EFA anywhere", [gpu_node("a", labels=TYPE), gpu_node("b", labels=TYPE), *efa("a", "b")]),
    ("a node of the type without EFA devices", [OFFERS, gpu_node("b", labels=TYPE), *efa("a", "b")]),
    (
        "a node whose agent sees no EFA device",
        [checked("a", "not-configured", labels=TYPE), *listing("p4d.24xlarge")],
    ),
    ("EFA by DRANET beside the plugin", [OFFERS, gpu_node("b", labels=TYPE), *efa("a"), *dranet("b")]),
    ("a GPUCluster beside a new node", [*by_claims(gpu_cluster("ready"), "a"), gpu_node("b", None, age=5), SYSTEM]),
    ("a GPUCluster", by_claims(gpu_cluster("ready"), "a")),
    ("a GPUCluster that is ignored", [*operator(A), gpu_cluster("ignored", name="another")]),
    ("a GPUCluster on its way out", [*operator(A), gpu_cluster("ready") | {"metadata": GOING}]),
    ("DRA for compute domains alone", [A, *dra("a", spec={"containers": [{"name": "compute-domains", "image": "x"}]})]),
    ("DRA in place of the plugin", [gpu_node("a", None), *dra("a", sliced=("a",))]),
    ("MIG being changed", operator(gpu_node("a", labels={"nvidia.com/mig.config.state": "pending"}))),
    ("a node that goes", [gpu_node("a", ready="Unknown", metadata={"deletionTimestamp": ago(2)})]),
    (
        "a condition of ours for repairers",
        [gpu_node("a", conditions=[FAULT | {"message": "gpu-healthcheck: Xid79 on gpu/0000:53:00.0: fell off"}])],
    ),
    ("another condition", [gpu_node("a", conditions=[condition("AcceleratedHardwareReady", "True", "ok")])]),
]


@pytest.mark.parametrize("state", [pair[1] for pair in HEALTHY], ids=[pair[0] for pair in HEALTHY])
def test_intended_states_have_no_causes(state: list[Object]) -> None:
    assert results(judged(*state)) == []


def test_policy_is_a_consequence_of_the_operand_that_it_waits_for() -> None:
    crashed = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": terminated(1)}}
    broken = operand(PLUGIN, "a", states=[{"name": f"{PLUGIN}-ctr", "ready": False, "restartCount": 9, **crashed}])
    state = [entry for entry in with_policy(NOT_READY) if entry["metadata"]["name"] != f"{PLUGIN}-a"]
    diagnosis = judged(*state, broken)
    assert results(diagnosis) == [("DevicePluginNotReady", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("ClusterPolicyNotReady", "clusterpolicy/cluster-policy")]
