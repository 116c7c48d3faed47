"""Determine which resources are GPUs, and which pods request them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.quantity import amount
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.dra import DeviceClass
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import Container, Pod, PodSpec

_GPU = re.compile(
    r"(?:nvidia\.com/(?:gpu|mig-|pgpu|vgpu)|(?:amd|birentech)\.com/gpu|(?:[a-z]{1,20}\.)?mthreads\.com/|gpu\.intel\.com/"
    r"|volcano\.sh/(?:vgpu|gpu)|k8s\.amazonaws\.com/vgpu|metax-tech\.com/s?gpu|enflame\.com/gcu|hygon\.com/dcu)",
    re.ASCII,
)
"""Resource names of the vendors' device plugins and of HAMi, including card memory and cores."""
_GPU_CLASS = re.compile(r"\b(?:v?gpu|mig|vfio)\b", re.ASCII | re.IGNORECASE)
"""DeviceClasses and their drivers: `gpu.nvidia.com`, `mig.nvidia.com`, `vfio.gpu.nvidia.com`, `gpu.amd.com`."""
_MEANT = re.compile(r"gpu|cuda|\bmig-|\d{1,2}g\.\d{1,3}gb|nvidia\.com/[a-z]{1,3}\d{1,4}", re.ASCII | re.IGNORECASE)
_OTHER_VENDORS = re.compile(
    r"huawei\.com/(?:npu|ascend)|(?:cambricon|kunlunxin|vastaitech|mthreads|hygon|enflame|metax-tech)\.com/"
    r"|iluvatar\.ai/|habana\.ai/|aws\.amazon\.com/neuron",
    re.ASCII | re.IGNORECASE,
)
"""Accelerators of other vendors, as HAMi and the vendors' device plugins call them."""
_SWEEP = "gpu-healthcheck-sweep"
SHARES = frozenset(f"nvidia.com/{one}" for one in ("gpumem", "gpumem-percentage", "gpucores", "priority"))
"""HAMi's resources that no node offers, and no other scheduler knows."""


_FRACTION, _MEMORY, _DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
_OF_CONTAINER = re.compile(r"nvidia\.com/container\.\S{1,253}\.gpu-memory\.request\Z", re.ASCII)
_MIB = 1 << 20


class GpuShare(Struct, frozen=True):
    """Share of GPUs that a pod requests from KAI or run:ai by an annotation, and not by a resource.

    `text`: the annotation. It is a `fraction` or `memory`, in MiB, of each of `devices` GPUs; both are None if the
    value is unreadable.
    """

    text: str
    devices: Decimal
    fraction: Decimal | None = None
    memory: Decimal | None = None


def share_of(pod: Pod) -> GpuShare | None:
    """Return the share that the pod requests; None if its scheduler does not read such annotations."""
    noted = pod.meta.annotations
    name = next((name for name in noted if name in (_FRACTION, _MEMORY) or _OF_CONTAINER.match(name)), "")
    if not name or pod.spec.scheduler in ("", "default-scheduler"):
        return None
    value, devices = amount(noted[name]), amount(noted.get(_DEVICES, "1")) or Decimal(1)
    if name == _FRACTION:
        return GpuShare(f"{name}={noted[name]}", devices, fraction=value)
    memory = value / _MIB if value is not None and value > _MIB else value
    return GpuShare(f"{name}={noted[name]}", devices, memory=memory)


def is_gpu(resource: str) -> bool:
    """Whether the resource represents a GPU, or a share or part of a GPU."""
    return _GPU.match(resource) is not None


def meant_as_gpu(resource: str) -> bool:
    """Whether the name was meant as a GPU, even if misspelled: `nvidia.com/GPU`, `nividia.com/gpu`."""
    return is_gpu(resource) or _MEANT.search(resource) is not None


def is_accelerator(resource: str) -> bool:
    """Whether the name was meant as a GPU, or as the accelerator of another vendor."""
    return meant_as_gpu(resource) or _OTHER_VENDORS.match(resource) is not None


def gpus_of(container: Container) -> dict[str, str]:
    """Return the GPU resources that the container requests, as written in its spec."""
    asked = {**container.limits, **container.requests}
    return {name: value for name, value in asked.items() if is_gpu(name) and value not in ("", "0")}


def asks_for_gpus(spec: PodSpec) -> bool:
    """Whether the containers request GPUs as resources; claims are separate objects."""
    return any(gpus_of(container) for container in spec.containers)


def asks_for_accelerators(spec: PodSpec) -> bool:
    """Whether the containers request resources that were meant as GPUs, or as accelerators of another vendor."""
    return any(is_accelerator(name) for each in spec.containers for name in (*each.limits, *each.requests))


@lru_cache(maxsize=1)
def gpu_pods(snapshot: Snapshot) -> tuple[Pod, ...]:
    """Return the pods that request GPUs, by resources or by claims, in any state."""
    claims = gpu_claims(snapshot)
    return tuple(pod for pod in snapshot.pods if asks_for_gpus(pod.spec) or claims_gpus(pod, claims))


def gpu_pods_on(snapshot: Snapshot) -> Mapping[str, list[Pod]]:
    """Return the GPU pods that have not ended, by node."""
    return grouped((pod.spec.node, pod) for pod in gpu_pods(snapshot) if pod.spec.node and not pod.over)


@lru_cache(maxsize=1)
def gpu_claims(snapshot: Snapshot) -> frozenset[tuple[str, str]]:
    """Return namespaces and names of ResourceClaims, and their templates, that request a GPU class.

    A pod may name a claim that does not exist or is not visible. It counts if its name suggests a GPU, or if GPUs are
    the only devices that can be claimed.
    """
    classes = {device_class.meta.name: device_class for device_class in snapshot.device_classes}
    asks_for_gpu = {
        (claim.meta.namespace, claim.meta.name): any(
            is_gpu_class(request.device_class, classes.get(request.device_class)) for request in claim.requests
        )
        for claim in snapshot.claims
    }
    visible = snapshot.sees("DeviceClass") and bool(classes)
    only_gpus = visible and all(is_gpu_class(name, device_class) for name, device_class in classes.items())
    for pod in snapshot.pods:
        for name, source in pod.spec.claims.items():
            asks_for_gpu.setdefault((pod.meta.namespace, source), only_gpus or "gpu" in f"{name} {source}".lower())
    return frozenset(claim for claim, is_for_gpu in asks_for_gpu.items() if is_for_gpu)


def claims_gpus(pod: Pod, claims: Iterable[tuple[str, str]]) -> bool:
    """Whether one of the pod's claims is among these."""
    names = (*pod.spec.claims.values(), *pod.claim_names.values())
    return any((pod.meta.namespace, name) in claims for name in names)


def is_deep_test(pod: Pod) -> bool:
    """Whether the pod is a deep diagnostic of this system, which waits for a free node and runs on tainted nodes."""
    return pod.meta.labels.get("app.kubernetes.io/name") == "gpu-healthcheck" or pod.spec.priority_class == _SWEEP


def is_gpu_class(name: str, known: DeviceClass | None) -> bool:
    """Whether the DeviceClass selects GPUs, by its name or its selectors."""
    return any(_GPU_CLASS.search(text) for text in (name, *(known.selectors if known else ())))
