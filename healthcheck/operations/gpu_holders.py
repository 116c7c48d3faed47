"""How a GPU becomes free of a pod that uses it. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from healthcheck.node.gpu_resources import gpu_pod

_OURS = "gpu-healthcheck"
_DRA_DRIVERS = frozenset({"nvidia-dra-driver-gpu", "dra-driver-nvidia-gpu", "nvidia-dra-driver"})
_PLUGINS = frozenset(
    {*("nvidia-device-plugin-daemonset", "nvidia-device-plugin", "nvidia-device-plugin-ds", "hami-device-plugin")}
)
_OPERANDS = _PLUGINS | {
    *("nvidia-dcgm", "nvidia-dcgm-exporter", "dcgm-exporter", "gpu-feature-discovery", "nvsm", "nvidia-mig-manager")
}
"""Values of the labels below of NVIDIA's and HAMi's components that open every GPU."""
_LABELS = ("app", "name", "app.kubernetes.io/name", "app.kubernetes.io/component")


class HolderKind(Enum):
    """How the GPU becomes free of a holder."""

    WORKLOAD = "workload"
    """A pod with GPUs: the command evicts it."""
    OPERAND = "operand"
    """A component of NVIDIA or HAMi: the operator's label ends it, or the command evicts its pod."""
    OURS = "ours"
    """A program of this project: it closes NVML by itself."""
    FOREIGN = "foreign"
    """Anything else: the reset stops."""


def holder_kind(pod: Mapping[str, Any]) -> HolderKind:
    """Return how the GPU becomes free of this API Pod."""
    labels = _labels(pod)
    if pod["metadata"].get("namespace") == _OURS and labels.get(_LABELS[2]) == _OURS:
        return HolderKind.OURS
    if any(labels.get(key) in _OPERANDS for key in _LABELS) or is_dra_plugin(pod):
        return HolderKind.OPERAND
    return HolderKind.WORKLOAD if gpu_pod(pod) is not None else HolderKind.FOREIGN


def is_device_plugin(pod: Mapping[str, Any]) -> bool:
    """Whether this API Pod is NVIDIA's or HAMi's device plugin, which does not re-advertise a GPU by itself."""
    labels = _labels(pod)
    return any(labels.get(key) in _PLUGINS for key in _LABELS)


def is_dra_plugin(pod: Mapping[str, Any]) -> bool:
    """Whether this API Pod is the kubelet plugin of NVIDIA's DRA driver, whose taint of a GPU ends by a restart.

    The driver's controller has the same name, and belongs to no DaemonSet.
    """
    owners = pod["metadata"].get("ownerReferences") or ()
    is_of_driver = any(_labels(pod).get(key) in _DRA_DRIVERS for key in _LABELS)
    return is_of_driver and any(owner.get("kind") == "DaemonSet" for owner in owners)


def title(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata'].get('name', '')}"


def _labels(pod: Mapping[str, Any]) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}
