"""Components of a GPU cluster, as the GPU operator and the charts make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.diagnosis.states import Object, ago, container, node, obj, pod

NAMESPACE = "gpu-operator"
DRIVER, TOOLKIT = "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset"
PLUGIN, FEATURES = "nvidia-device-plugin-daemonset", "gpu-feature-discovery"
EXPORTER, VALIDATOR, MIG_MANAGER = "nvidia-dcgm-exporter", "nvidia-operator-validator", "nvidia-mig-manager"
_DEPLOY = {
    DRIVER: "driver",
    TOOLKIT: "container-toolkit",
    PLUGIN: "device-plugin",
    FEATURES: "gpu-feature-discovery",
    EXPORTER: "dcgm-exporter",
    VALIDATOR: "operator-validator",
    MIG_MANAGER: "mig-manager",
}
_IMAGES = {
    DRIVER: "nvcr.io/nvidia/driver:570.124.06-ubuntu22.04",
    TOOLKIT: "nvcr.io/nvidia/k8s/container-toolkit:v1.17.5-ubuntu20.04",
    PLUGIN: "nvcr.io/nvidia/k8s-device-plugin:v0.17.1",
    FEATURES: "nvcr.io/nvidia/k8s-device-plugin:v0.17.1",
    EXPORTER: "nvcr.io/nvidia/k8s/dcgm-exporter:4.1.1-4.0.4-ubuntu22.04",
    VALIDATOR: "nvcr.io/nvidia/cloud-native/gpu-operator-validator:v25.3.0",
    MIG_MANAGER: "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12.1-ubuntu20.04",
}
_INIT = {
    TOOLKIT: ("driver-validation",),
    PLUGIN: ("toolkit-validation",),
    FEATURES: ("toolkit-validation",),
    EXPORTER: ("toolkit-validation",),
    MIG_MANAGER: ("toolkit-validation",),
    VALIDATOR: ("driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation"),
}
OPERANDS = (DRIVER, TOOLKIT, PLUGIN, FEATURES, EXPORTER, VALIDATOR)
TOLERATES_GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def gpu_node(name: str, gpus: int | None = 8, /, **changes: Any) -> Object:
    """As the operator has labelled it."""
    labels = {f"nvidia.com/gpu.deploy.{text}": "true" for text in _DEPLOY.values()}
    labels |= {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.present": "true"}
    labels |= {"nvidia.com/gpu.count": str(gpus or 0), "nvidia.com/gpu.replicas": "1"} if gpus else {}
    labels |= {"nvidia.com/mig.strategy": "single", "feature.node.kubernetes.io/pci-10de.present": "true"}
    return node(name, gpus, **changes | {"labels": labels | changes.get("labels", {})})


def operator(*nodes: Object, without: Sequence[str] = (), only: Sequence[str] = OPERANDS) -> list[Object]:
    """The operator with its operands, each ready on all the nodes."""
    operands = [text for text in only if text not in without]
    deployment = obj(
        "Deployment",
        "gpu-operator",
        NAMESPACE,
        metadata={
            "labels": {"app": "gpu-operator", "helm.sh/chart": "gpu-operator-v25.3.0"},
            "annotations": {"meta.helm.sh/release-name": "gpus", "meta.helm.sh/release-namespace": NAMESPACE},
        },
        spec={
            "replicas": 1,
            "template": {
                "metadata": {"labels": {"app": "gpu-operator"}},
                "spec": {"containers": [{"name": "gpu-operator", "image": "nvcr.io/nvidia/gpu-operator:v25.3.0"}]},
            },
        },
        status={"replicas": 1, "readyReplicas": 1},
    )
    policy = obj(
        "ClusterPolicy",
        "cluster-policy",
        spec={"toolkit": {"enabled": True}, "operator": {"runtimeClass": "nvidia"}},
        status={"state": "ready"},
    )
    daemons = [daemon(text, wanted=len(nodes)) for text in operands]
    pods = [operand(text, place["metadata"]["name"]) for text in operands for place in nodes]
    return [deployment, policy, obj("RuntimeClass", "nvidia", handler="nvidia"), *nodes, *daemons, *pods]


def daemon(name: str, /, *, wanted: int = 1, ready: int | None = None, **changes: Any) -> Object:
    """A DaemonSet of the operator's, or any other by `labels`, `selector`, `image`; `spec` is added to its pods'."""
    labels = changes.get("labels", {"app": name})
    selector = changes.get("selector", {f"nvidia.com/gpu.deploy.{_DEPLOY[name]}": "true"} if name in _DEPLOY else {})
    spec: Object = {
        "nodeSelector": selector,
        "tolerations": changes.get("tolerations", [TOLERATES_GPU]),
        "containers": [{"name": f"{name}-ctr", "image": changes.get("image", _IMAGES.get(name, "example/x:1"))}],
        "initContainers": [{"name": text, "image": _IMAGES[VALIDATOR]} for text in _INIT.get(name, ())],
    }
    return obj(
        "DaemonSet",
        name,
        changes.get("namespace", NAMESPACE),
        age=changes.get("age", 600),
        metadata={"labels": labels},
        spec={
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec | changes.get("spec", {})},
        },
        status={
            "desiredNumberScheduled": wanted,
            "currentNumberScheduled": changes.get("made", wanted),
            "numberReady": wanted if ready is None else ready,
        },
    )


def operand(name: str, on: str, /, **changes: Any) -> Object:
    """A pod of such a DaemonSet; `stands_at` an init container, or with other `states`."""
    init = [{"name": text, "image": _IMAGES[VALIDATOR]} for text in _INIT.get(name, ())]
    stands_at, age = changes.pop("stands_at", ""), changes.get("age", 600)
    main = container(f"{name}-ctr", image=changes.pop("image", _IMAGES.get(name, "example/x:1")))
    status: Object = {"initContainerStatuses": [_done(entry["name"], age) for entry in init]}
    if stands_at:
        status = {"initContainerStatuses": [_before(entry["name"], stands_at, age) for entry in init]}
        changes |= {"phase": "Pending", "states": [_not_begun(main["name"])]}
    elif "states" in changes:
        changes.setdefault("phase", "Running")
    plain = {
        "namespace": NAMESPACE,
        "labels": {"app": name},
        "owner": ("DaemonSet", name),
        "containers": [main],
        "age": age,
    }
    merged: Any = plain | changes
    merged["spec"] = {"initContainers": init} | changes.get("spec", {})
    merged["status"] = status | changes.get("status", {})
    return pod(f"{name}-{on}", 0, on=on, **merged)


def _done(name: str, age: float) -> Object:
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": ago(age - 1)}
    return {"name": name, "ready": True, "restartCount": 0, "state": {"terminated": ended}}


def _before(name: str, stands_at: str, age: float) -> Object:
    names = list(_INIT[VALIDATOR])
    if name == stands_at:
        return {"name": name, "ready": False, "restartCount": 0, "state": {"running": {"startedAt": ago(age - 1)}}}
    return _done(name, age) if names.index(name) < names.index(stands_at) else _not_begun(name)


def _not_begun(name: str) -> Object:
    return {"name": name, "ready": False, "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}
