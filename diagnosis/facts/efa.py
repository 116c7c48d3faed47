"""Determine which nodes have EFA devices, and which pods use them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, lru_cache

from gpu_healthcheck.diagnosis.facts.gpu_nodes import EFA, sliced_nodes
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_claims, is_gpu_class
from gpu_healthcheck.diagnosis.facts.quantity import count_of
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.dra import ResourceClaim
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Container, Pod
from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile, find_profile, read_packaged
from gpu_healthcheck.healthcheck.model import Status
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE

_IMEX = "compute-domain"
"""Part of the DeviceClasses for IMEX channels: `compute-domain-default-channel.nvidia.com`."""
NETWORK_DRIVERS = ("dra.net", "dra.networking.k8s.aws")
"""DRANET, and AWS' own driver for EFA, RoCE and ENA."""
EFA_CLASS, ROCE_CLASS = "efa.networking.k8s.aws", "roce.networking.k8s.aws"
PORT_DOWN = "RdmaPortDown"
"""Reason of the agent's finding about one RDMA port of an mlx5 device."""
_DEVICE = "Elastic Fabric Adapter"
"""Part of the attribute `dra.net/pciDevice` of an EFA device."""
_CHECK = "2-efa-enumeration"
_DETECTED = (Status.PASS, Status.WARN)
_WITH_MLX5 = ("p6-b200.", "p6-b300.")
_MELLANOX = "15b3"
"""PCI vendor in labels of node feature discovery: `feature.node.kubernetes.io/pci-0200_15b3.present`."""
_RANKS = frozenset(("MASTER_ADDR", "WORLD_SIZE", "NNODES", "PET_NNODES", "FI_PROVIDER"))
"""Environment variables of a rank, which show a multi-node job whatever its kind."""
_profiles = cache(read_packaged)


def type_of(node: Node) -> str:
    return node.meta.labels.get(INSTANCE_TYPE, "")


def profile_of(node: Node) -> InstanceProfile | None:
    """Return the expected hardware of the node's instance type; None without expectation."""
    return find_profile(_profiles(), type_of(node))


def offered_efa(node: Node) -> int:
    """Return the number of EFA devices that the device plugin offers to pods."""
    return count_of(node.allocatable, EFA)


def is_multi_node_type(node: Node) -> bool:
    """Whether the instance type has EFA and is made for multi-node jobs.

    A launch template may leave EFA out for a type with few GPUs, hardly for these.
    """
    profile = profile_of(node)
    return profile is not None and profile.efa > 0 and profile.nvlink


def observed_efa(node: Node, types: Collection[str]) -> str | None:
    """Return the evidence that the node has EFA devices; '' if its agent detects none, None if nothing shows it.

    `types`: the instance types of which other nodes offer EFA.
    """
    kind = type_of(node)
    if kind in types:
        return f"other nodes of type {kind} offer {EFA}"
    if node.record is None or _CHECK not in node.record.checks:
        return None
    status = node.record.checks[_CHECK]
    return f"agent on the node detects EFA devices: {_CHECK} is {status}" if status in _DETECTED else ""


@lru_cache(maxsize=1)
def claimable_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Return nodes on which a DRA driver publishes EFA devices.

    DRANET publishes network devices of other clouds, too.
    """
    named = any(each.meta.name == EFA_CLASS for each in snapshot.device_classes)
    described = {
        each.node
        for each in snapshot.slices
        if each.driver in NETWORK_DRIVERS
        and any(_DEVICE in text for device in each.devices for text in device.attributes.values())
    }
    return frozenset(
        name
        for name in sliced_nodes(snapshot, NETWORK_DRIVERS)
        if name in described or named or _is_of_efa_type(snapshot.by_node.get(name))
    )


def mlx5_on(node: Node) -> str:
    """Return the evidence that the node has mlx5 devices in addition to EFA; '' if there is none."""
    label = next((key for key in node.meta.labels if "/pci-" in key and _MELLANOX in key), "")
    if label and node.meta.labels[label] == "true":
        return f"label {label}=true"
    return f"type {type_of(node)}" if type_of(node).removeprefix("ml.").startswith(_WITH_MLX5) else ""


def requests_efa(container: Container) -> bool:
    return (container.limits.get(EFA) or container.requests.get(EFA) or "0") != "0"


def uses_efa(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod gets EFA devices: by name, by a claim, or all devices as a privileged container.

    An unknown claim that is not for GPUs counts.
    """
    return any(map(requests_efa, pod.spec.containers)) or is_privileged(pod) or claims_efa(snapshot, pod)


def is_rank(pod: Pod) -> bool:
    """Whether the pod's environment shows that it is a rank of a job."""
    return any(_RANKS.intersection(container.env) for container in pod.spec.containers)


def is_privileged(pod: Pod) -> bool:
    return any(container.privileged for container in pod.spec.containers if not container.init)


def claims_efa(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether one of the pod's claims has a request for a class other than GPUs and IMEX channels."""
    if not pod.spec.claims:
        return False
    classes = {each.meta.name: each for each in snapshot.device_classes}
    for name, source in pod.spec.claims.items():
        claim = claim_of(snapshot, pod, name)
        if claim is None and (pod.meta.namespace, source) not in gpu_claims(snapshot):
            return True
        requests = [each for each in claim.requests if _IMEX not in each.device_class] if claim is not None else []
        if any(not is_gpu_class(each.device_class, classes.get(each.device_class)) for each in requests):
            return True
    return False


def claim_of(snapshot: Snapshot, pod: Pod, name: str) -> ResourceClaim | None:
    """Return the pod's claim of this name, or the template of the claim; None if neither is visible."""
    made = snapshot.claim.get((pod.meta.namespace, pod.claim_names.get(name, "")))
    return made or snapshot.claim.get((pod.meta.namespace, pod.spec.claims.get(name, "")))


def _is_of_efa_type(node: Node | None) -> bool:
    profile = profile_of(node) if node is not None else None
    return profile is not None and profile.efa > 0
