from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.facts.components import Role, components
from tests.diagnosis.component_states import (
    DRIVER,
    EXPORTER,
    FEATURES,
    MIG_MANAGER,
    NAMESPACE,
    PLUGIN,
    TOOLKIT,
    VALIDATOR,
    daemon,
    gpu_node,
    operand,
    operator,
)
from tests.diagnosis.states import (
    Object,
    ago,
    consequences,
    event,
    judged,
    node,
    obj,
    pod,
    results,
    snapshot,
    terminated,
    waiting,
)

A, B = gpu_node("a"), gpu_node("b")
CRASHES = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": terminated(1)}}


def with_pods(changed: list[Object], nodes: tuple[Object, ...] = (A, B)) -> list[Object]:
    """The operator's cluster, in which these pods stand in place of those of the same names."""
    names = {entry["metadata"]["name"] for entry in changed}
    return [entry for entry in operator(*nodes) if entry["metadata"]["name"] not in names] + changed


def crashing(name: str, on: str) -> Object:
    return operand(name, on, states=[{"name": f"{name}-ctr", "ready": False, "restartCount": 9, **CRASHES}])


def test_a_healthy_cluster_has_no_causes() -> None:
    assert results(judged(*operator(A, B), pod("trainer", 8, on="a"))) == []


ONE_NODE = [
    (DRIVER, "DriverNotReady"),
    (TOOLKIT, "ContainerToolkitNotReady"),
    (PLUGIN, "DevicePluginNotReady"),
    (FEATURES, "GpuFeatureDiscoveryNotReady"),
    (EXPORTER, "DcgmExporterNotReady"),
    (VALIDATOR, "OperatorValidatorNotReady"),
]


@pytest.mark.parametrize(("name", "cause"), ONE_NODE, ids=[cause for _, cause in ONE_NODE])
def test_operand_that_crashes_on_one_node_is_a_fault_of_the_node(name: str, cause: str) -> None:
    assert results(judged(*with_pods([crashing(name, "a")]))) == [(cause, "node/a")]


@pytest.mark.parametrize(("name", "cause"), ONE_NODE, ids=[cause for _, cause in ONE_NODE])
def test_operand_that_crashes_on_all_nodes_is_a_fault_of_its_workload(name: str, cause: str) -> None:
    changed = [crashing(name, "a"), crashing(name, "b")]
    assert results(judged(*with_pods(changed))) == [(cause, f"daemonset/{NAMESPACE}/{name}")]


def test_missing_image_is_a_fault_of_the_workload_even_on_one_node() -> None:
    pull = waiting("ImagePullBackOff", 'Back-off pulling image "nvcr.io/nvidia/driver:1-x": not found', "main")
    changed = [operand(DRIVER, "a", states=[pull], phase="Pending")]
    diagnosis = judged(*with_pods(changed))
    assert results(diagnosis) == [("ImageNotFound", f"daemonset/{NAMESPACE}/{DRIVER}")]
    assert consequences(diagnosis.problems[0]) == [("DriverNotReady", f"daemonset/{NAMESPACE}/{DRIVER}")]


def test_components_that_wait_for_the_driver_are_consequences() -> None:
    changed = [
        crashing(DRIVER, "a"),
        operand(TOOLKIT, "a", stands_at="driver-validation"),
        operand(PLUGIN, "a", stands_at="toolkit-validation"),
        operand(VALIDATOR, "a", stands_at="driver-validation"),
    ]
    diagnosis = judged(*with_pods(changed))
    assert results(diagnosis) == [("DriverNotReady", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("ValidationHangs", "node/a")]


def test_stage_that_hangs_without_a_cause_is_reported() -> None:
    changed = [operand(VALIDATOR, "a", stands_at="cuda-validation")]
    assert results(judged(*with_pods(changed))) == [("ValidationHangs", "node/a")]


INTENDED = [
    ("a pod on its way", with_pods([operand(PLUGIN, "a", stands_at="toolkit-validation", age=3)])),
    ("a new node", with_pods([crashing(PLUGIN, "n")], (A, gpu_node("n", age=4)))),
    ("a pod that goes", with_pods([operand(PLUGIN, "a", metadata={"deletionTimestamp": ago(1)})])),
    ("a daemon that nobody wants", [*operator(A), daemon(MIG_MANAGER, wanted=0)]),
    (
        "a node that goes",
        with_pods([crashing(PLUGIN, "b")], (A, gpu_node("b", metadata={"deletionTimestamp": ago(1)}))),
    ),
    (
        "an operand while a driver is changed",
        with_pods(
            [crashing(EXPORTER, "b")],
            (A, gpu_node("b", labels={"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"})),
        ),
    ),
    ("a pod that ended", with_pods([operand(PLUGIN, "old", phase="Failed", states=[])])),
]


@pytest.mark.parametrize("state", [state for _, state in INTENDED], ids=[name for name, _ in INTENDED])
def test_transitional_and_intended_states_have_no_causes(state: list[Object]) -> None:
    assert results(judged(*state)) == []


def test_daemon_set_without_pods_is_reported_with_its_controllers_message() -> None:
    ours = daemon(DRIVER, wanted=2, made=0, ready=0)
    event_ = event(ours, "FailedCreate", 'pods "nvidia-driver-daemonset-" is forbidden: violates PodSecurity', by="x")
    state = [entry for entry in operator(A, B) if not entry["metadata"]["name"].startswith(DRIVER)]
    diagnosis = judged(*state, ours, event_)
    assert results(diagnosis) == [("DriverNotReady", f"daemonset/{NAMESPACE}/{DRIVER}")]
    assert any("PodSecurity" in text for text in diagnosis.problems[0].found.evidence)


def test_crashing_operator_is_a_fault_of_its_deployment() -> None:
    broken = pod(
        "gpu-operator-5f7-x",
        0,
        on="a",
        namespace=NAMESPACE,
        owner=("ReplicaSet", "gpu-operator-5f7"),
        states=[{"name": "main", "ready": False, "restartCount": 20, **CRASHES}],
    )
    assert results(judged(*operator(A), broken)) == [("GpuOperatorNotReady", f"deployment/{NAMESPACE}/gpu-operator")]


def test_log_of_the_driver_gives_the_fix() -> None:
    log = "Installing Linux kernel headers...\nE: Unable to locate package linux-headers-6.8.0-1015-aws\n"
    logs = {(f"pod/{NAMESPACE}/{DRIVER}-a", f"{DRIVER}-ctr"): log}
    (problem,) = judged(*with_pods([crashing(DRIVER, "a")]), logs=logs).problems
    assert "its log: E: Unable to locate package linux-headers-6.8.0-1015-aws" in problem.found.evidence
    assert "headers" in problem.found.remedy[0]


def test_log_of_a_plugin_without_devices_is_quoted() -> None:
    logs = {(f"pod/{NAMESPACE}/{PLUGIN}-a", f"{PLUGIN}-ctr"): "No devices found. Waiting indefinitely.\n"}
    (problem,) = judged(*operator(gpu_node("a", None)), logs=logs).problems
    assert problem.found.evidence[-1] == "No devices found. Waiting indefinitely."


def test_without_nodes_a_crashing_component_is_reported_with_its_pods_node() -> None:
    diagnosis = judged(*with_pods([crashing(DRIVER, "a")]), missing=["Node"])
    assert results(diagnosis) == [("DriverNotReady", "node/a")]


def test_without_the_nodes_a_young_pod_may_be_on_a_young_node() -> None:
    young = operand(
        DRIVER, "a", age=4, states=[{"name": f"{DRIVER}-ctr", "ready": False, "restartCount": 3, **CRASHES}]
    )
    assert results(judged(*with_pods([young]), missing=["Node"])) == []


def test_without_the_pods_those_of_a_node_that_is_changed_are_not_missed() -> None:
    upgraded = gpu_node("a", labels={"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}, cordoned=True)
    behind = daemon(PLUGIN, wanted=2, ready=1)
    kept = [entry for entry in operator(upgraded, B) if entry["metadata"]["name"] != PLUGIN and entry["kind"] != "Pod"]

    assert results(judged(*kept, behind, missing=["Pod"])) == []
    assert results(judged(*kept[:2], A, B, behind, missing=["Pod"])) == [
        ("DevicePluginNotReady", f"daemonset/{NAMESPACE}/{PLUGIN}")
    ]


def test_plugin_that_ends_for_an_invalid_mig_geometry_is_a_consequence() -> None:
    cut = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID", "nvidia.com/gpu.count": "0"}
    nodes = (gpu_node("a", labels=cut, allocatable={"nvidia.com/gpu": "0"}, capacity={"nvidia.com/gpu": "0"}), B)
    diagnosis = judged(*with_pods([crashing(PLUGIN, "a")], nodes))

    assert results(diagnosis) == [("MigGeometryInvalid", "node/a")]
    assert ("DevicePluginNotReady", "node/a") in consequences(diagnosis.problems[0])


def test_master_of_feature_discovery_counts_on_any_node() -> None:
    master = pod(
        "nfd-master-x",
        0,
        on="plain",
        labels={"app.kubernetes.io/name": "node-feature-discovery"},
        owner=("ReplicaSet", "nfd-master-77"),
        states=[{"name": "main", "ready": False, "restartCount": 9, **CRASHES}],
        phase="Running",
    )
    diagnosis = judged(*operator(A, B), node("plain", None), master)
    assert results(diagnosis) == [("NodeFeatureDiscoveryNotReady", "deployment/team/nfd-master")]


DRIVERS = [
    ("nvidia-dra-driver-gpu-kubelet-plugin", {"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}, "x", Role.DRA_DRIVER),
    ("dra-driver-nvidia-gpu-kubelet-plugin", {"app.kubernetes.io/name": "dra-driver-nvidia-gpu"}, "x", Role.DRA_DRIVER),
    ("nvidia-dra-driver-kubelet-plugin", {"app.kubernetes.io/name": "nvidia-dra-driver"}, "x", Role.DRA_DRIVER),
    ("nvidia-dra-driver-kubelet-plugin", {"app": "nvidia-dra-driver-kubelet-plugin"}, "x", Role.DRA_DRIVER),
    ("mine", {}, "nvcr.io/nvidia/dra-driver-nvidia-gpu:v0.5.0", Role.DRA_DRIVER),
    ("mine", {}, "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu@sha256:0", Role.DRA_DRIVER),
    ("mine", {}, "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0", Role.DRA_DRIVER),
    (
        "imex-x1",
        {"resource.nvidia.com/computeDomain": "d0"},
        "nvcr.io/nvidia/k8s-dra-driver-gpu:v1",
        Role.DOMAIN_DAEMON,
    ),
    ("nvidia-dra-validator", {"app": "nvidia-operator-validator"}, "x", Role.VALIDATOR),
    ("aws-dranet", {"k8s-app": "aws-dranet"}, "x", Role.NETWORK_DRA),
    ("mine", {}, "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/dranet:v1.2.0-eksbuild.2", Role.NETWORK_DRA),
    ("aws-net-k8s-dra-plugin", {}, "eks/networking-device-dra-plugin:v1.0.0", Role.NETWORK_DRA),
    ("rdma-shared-dp-ds", {"app": "rdma-shared-dp"}, "x", Role.RDMA_PLUGIN),
    ("rdma-shared-dp-ds-a", {}, "x", Role.RDMA_PLUGIN),
    ("mine", {}, "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.2", Role.RDMA_PLUGIN),
    ("network-operator-sriov-device-plugin", {"app": "sriovdp"}, "x", Role.SRIOV_PLUGIN),
    ("sriov-device-plugin", {"app": "sriov-device-plugin"}, "x", Role.SRIOV_PLUGIN),
    ("mine", {}, "ghcr.io/k8snetworkplumbingwg/sriov-network-device-plugin:v3.9.0", Role.SRIOV_PLUGIN),
    ("mine", {}, "registry.example/dra-example-driver:v0.2.0", None),
]


@pytest.mark.parametrize(("name", "labels", "image", "role"), DRIVERS)
def test_a_dra_driver_is_known_by_its_old_and_new_names(
    name: str, labels: dict[str, str], image: str, role: Role | None
) -> None:
    seen = snapshot(daemon(name, labels=labels, selector={}, spec={"containers": [{"name": "gpus", "image": image}]}))

    assert [component.role for component in components(seen)] == ([role] if role is not None else [])


NO_LIBRARY = "E1127 10:00:00.000000 1 factory.go:1] Incompatible strategy detected auto"


@pytest.mark.parametrize(
    ("state", "classes", "first"),
    [
        ({}, [obj("RuntimeClass", "nvidia", handler="nvidia")], "It names no RuntimeClass"),
        ({}, [], "Create a RuntimeClass with the name and the handler nvidia"),
        ({"handlers": ("", "runc")}, [obj("RuntimeClass", "nvidia", handler="nvidia")], "nvidia-ctk runtime configure"),
    ],
    ids=["class", "no class", "no handler"],
)
def test_plugin_that_was_installed_alone_gets_nvidias_class(state: Object, classes: list[Object], first: str) -> None:
    logs = {(f"pod/{NAMESPACE}/{PLUGIN}-a", f"{PLUGIN}-ctr"): NO_LIBRARY}
    alone = [gpu_node("a", **state), daemon(PLUGIN, ready=0), crashing(PLUGIN, "a"), *classes]
    (problem,) = judged(*alone, logs=logs).problems
    steps = problem.found.steps

    assert problem.found.cause.name == "DevicePluginNotReady"
    assert first in steps[1]
    assert f"patch daemonset {PLUGIN} --type=merge" in " ".join(steps)


def test_plugin_on_cri_o_gets_no_class() -> None:
    logs = {(f"pod/{NAMESPACE}/{PLUGIN}-a", f"{PLUGIN}-ctr"): NO_LIBRARY}
    crio = gpu_node("a", runtime="cri-o://1.33.1", handlers=None)
    (problem,) = judged(crio, daemon(PLUGIN, ready=0), crashing(PLUGIN, "a"), logs=logs).problems

    assert "runtimeClassName" not in " ".join(problem.found.steps)


def test_old_driver_in_use_is_freed_by_moving_the_pods_that_use_it() -> None:
    text = "level=fatal msg=failed to uninstall nvidia driver components: resource temporarily unavailable"
    logs = {(f"pod/{NAMESPACE}/{DRIVER}-a", f"{DRIVER}-ctr"): text}
    work = pod("serve-0", 1, on="a", owner=("ReplicaSet", "serve"))
    (problem,) = judged(*with_pods([crashing(DRIVER, "a")], (A,)), work, logs=logs).problems
    steps = " ".join(problem.found.steps)

    order = ("`kubectl cordon a`", "`kubectl -n team delete pod serve-0`", "reboot the node", "`kubectl uncordon a`")
    assert sorted(order, key=steps.index) == list(order)


@pytest.mark.parametrize("ended", [True, False])
def test_pod_whose_next_container_was_never_created_is_deleted(ended: bool) -> None:
    last = {"terminated": terminated(0, "Completed", minutes=500)} if ended else waiting("PodInitializing")["state"]
    stuck = operand(PLUGIN, "a", phase="Pending", states=[waiting("PodInitializing", name=f"{PLUGIN}-ctr")])
    stuck["status"]["initContainerStatuses"] = [
        {"name": "toolkit-validation", "ready": ended, "restartCount": 0, "state": last},
        waiting("PodInitializing", name="config-manager-init"),
    ]
    (problem,) = judged(*with_pods([stuck], (A,))).problems

    assert (f"`kubectl -n {NAMESPACE} delete pod {PLUGIN}-a`" in problem.found.steps[0]) is ended
