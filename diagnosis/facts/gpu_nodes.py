"""Determine which nodes have GPUs, which of these are offered, and the source of this. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta

from gpu_healthcheck.diagnosis.facts.gpu_requests import is_accelerator, is_gpu
from gpu_healthcheck.diagnosis.facts.quantity import digits
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.node.device_pools import is_whole
from gpu_healthcheck.healthcheck.node.state import ENABLED, INSTANCE_TYPE

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-"
EFA = "vpc.amazonaws.com/efa"
GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com")
"""Drivers of dynamic resource allocation whose devices are GPUs."""
WHOLE, MIG_INSTANCES = "GPUs", "MIG instances"
"""Names of resource kinds in the output."""
_AMOUNTS = ("gpumem", "gpucores", "vgpu-memory", "vgpu-cores", "vgpu-number")
_OF_NICS = ("rdma/", "openshift.io/", "intel.com/", "mellanox.com/")
"""Prefixes of network devices, whose names may speak of the GPUs beside them."""
_TRUE = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    ENABLED,
)
_NVIDIA = {
    "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia",
    "eks.amazonaws.com/instance-gpu-manufacturer": "nvidia",
    "kubernetes.azure.com/accelerator": "nvidia",
}
_TYPES = re.compile(
    r"(?:ml\.)?(?:p[2-9]|g(?:[35-9]|4dn|r6))[a-z0-9-]{0,12}\.|Standard_N[CDV]|(?:a[2-4]|g[24])-[a-z]", re.ASCII
)
"""Instance types with NVIDIA's GPUs: of EC2 (g4ad has AMD's), Azure, Google."""
_GKE = "cloud.google.com/gke-accelerator"
_PASSED_THROUGH = ("vm-passthrough", "vm-vgpu")
_UPGRADING = frozenset(
    f"{state}-required"
    for state in (
        *("cordon", "wait-for-jobs", "pod-deletion", "drain", "node-maintenance", "pod-restart", "validation"),
        *("uncordon", "post-maintenance"),
    )
)
"""States of the operator's driver upgrade in which the node is being changed."""
_DEPLOY, _PAUSED = "nvidia.com/gpu.deploy.", "paused"
_OPERANDS, _PLUGIN = f"{_DEPLOY}operands", f"{_DEPLOY}device-plugin"
SETTLES = timedelta(minutes=10)
"""A node this young is still being set up: images are gigabytes, a driver may be built first."""


def is_device(resource: str) -> bool:
    """Whether the resource represents GPUs or parts of them, not their memory or cores."""
    return is_gpu(resource) and not any(word in resource for word in _AMOUNTS)


def devices_in(amounts: Iterable[str]) -> tuple[str, ...]:
    """Return the resource names that are offered as GPUs or parts of them."""
    return tuple(sorted({name for name in amounts if is_device(name)}))


def has_nvidia(node: Node) -> bool:
    """Whether the node has an NVIDIA GPU: the node offers GPUs, or a label describes the hardware."""
    labels = node.meta.labels
    # A 0 may be a remnant of a resource that is no longer in use.
    if any(name.startswith((GPU, MIG)) and number != "0" for name, number in node.capacity.items()):
        return True
    if _TYPES.match(labels.get(INSTANCE_TYPE, "")):
        return True
    if any(labels.get(key) == "true" for key in _TRUE) or any(labels.get(key) == text for key, text in _NVIDIA.items()):
        return True
    return labels.get(_GKE, "").startswith("nvidia")


def has_gpu(node: Node) -> bool:
    return has_nvidia(node) or any(is_gpu(name) and number != "0" for name, number in node.capacity.items())


def gpu_nodes(snapshot: Snapshot) -> tuple[Node, ...]:
    """Return all nodes with a GPU, including those that only a ResourceSlice lists."""
    sliced = sliced_nodes(snapshot)
    return tuple(node for node in snapshot.nodes if has_gpu(node) or node.name in sliced)


def sliced_nodes(snapshot: Snapshot, drivers: Collection[str] = GPU_DRIVERS) -> frozenset[str]:
    """Return nodes whose devices a slice lists, or is about to list.

    A pool that is being published again hides no node.
    """
    pieces = (piece for pool in snapshot.pools.values() for piece in pool if piece.devices or not is_whole(pool))
    return frozenset(piece.node for piece in pieces if piece.node and piece.driver in drivers)


def offers_gpus(node: Node) -> bool:
    """Whether the node offers any of its GPUs, by whatever name: Volcano's and others' plugins have their own."""
    offered = (name for name, number in node.allocatable.items() if number != "0" and not name.startswith(_OF_NICS))
    return any(map(is_accelerator, offered))


def is_for_machines(node: Node) -> bool:
    """Whether the node's GPUs are passed to virtual machines, so that no container gets any."""
    return node.meta.labels.get("nvidia.com/gpu.workload.config") in _PASSED_THROUGH


def brings_plugin(node: Node) -> bool:
    """Whether the node's operating system runs the device plugin itself, without a pod."""
    return "bottlerocket" in node.runtime.lower()


def is_judged(node: Node, now: datetime) -> bool:
    """Whether missing items on the node are meaningful: it is ready, not new, and not being deleted."""
    young = node.meta.created is not None and now - node.meta.created < SETTLES
    return node.ready and not young and node.meta.deleted is None


def is_changed(node: Node) -> bool:
    """Whether the operator is changing the driver or MIG profiles; operands are paused during the change."""
    return any(True for _ in changes(node))


def changes(node: Node) -> Iterator[str]:
    """Yield the labels that show such a change."""
    for key, value in node.meta.labels.items():
        paused = key.startswith(_DEPLOY) and value.startswith(_PAUSED)
        upgraded = key == "nvidia.com/gpu-driver-upgrade-state" and value in _UPGRADING
        if paused or upgraded or (key == "nvidia.com/mig.config.state" and value in ("pending", "rebooting")):
            yield f"{key}={value}"


def switched_off(node: Node) -> str:
    """Return the label that keeps the operator's device plugin off the node; '' if there is none."""
    labels = node.meta.labels
    if labels.get(_OPERANDS) == "false":
        return _OPERANDS
    value = labels.get(_PLUGIN, "true")
    return "" if value == "true" or value.startswith(_PAUSED) else _PLUGIN


def pool_kind(node: Node, name: str) -> str:
    """Return the name that people read for this resource of the node."""
    if name.startswith(MIG) or "-MIG-" in node.meta.labels.get("nvidia.com/gpu.product", ""):
        return MIG_INSTANCES
    if copies(node) > 1 or name.endswith(".shared"):
        sharing = node.meta.labels.get("nvidia.com/gpu.sharing-strategy", "")
        return "places by MPS" if sharing == "mps" else "time-sliced places"
    return WHOLE


def copies(node: Node) -> int:
    """Return how many times the device plugin offers each GPU of the node."""
    labels = node.meta.labels
    text = labels.get("nvidia.com/gpu.replicas") or labels.get("cloud.google.com/gke-max-shared-clients-per-gpu", "1")
    return digits(text, 1)
