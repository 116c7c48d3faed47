"""Which of a Node's and a pod's resources are GPUs, and how many a pod holds. Pure.

What a node offers decides what a Job asks for, so only what NVIDIA's device plugin serves counts there: whole GPUs,
shared ones and MIG instances. What a pod asks for decides whether a node is idle, so anything counts there that some
scheduler of ours knows puts work onto an NVIDIA GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from healthcheck.text.moments import moment_or_none

_WHOLE = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
_MIG = "nvidia.com/mig-"
_OF_CLASS = "deviceclass.resource.kubernetes.io/"
_ASKED = ("nvidia.com/gpu", _MIG, "volcano.sh/vgpu", "k8s.amazonaws.com/vgpu", _OF_CLASS)
"""With what the resources begin that pods ask for: NVIDIA's, HAMi's (`nvidia.com/gpumem` …), Volcano's, AWS's vGPU, and
those by which a pod without a claim has devices of a DeviceClass."""
_CLAIM = "DRA claim"


class GpuPod(Struct, frozen=True):
    """A pod on a node that holds GPUs there, by the scheduler's arithmetic."""

    namespace: str
    name: str
    node: str
    holds: Mapping[str, int]

    @property
    def only_claims(self) -> bool:
        """Whether it holds nothing but claims, which may be for other devices."""
        return set(self.holds) == {_CLAIM}

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} holds {listed(self.holds)}"


def listed(amounts: Mapping[str, int]) -> str:
    """As a person reads it: `8 nvidia.com/gpu`."""
    return ", ".join(f"{number} {resource}" for resource, number in sorted(amounts.items()))


def offered(allocatable: object) -> dict[str, int]:
    """The GPU resources that a Node's `status.allocatable` has some of. What is no plain count is left out."""
    if not isinstance(allocatable, dict):
        return {}
    named = [name for name in allocatable if name in _WHOLE or name.startswith(_MIG)]
    return {name: number for name in named if (number := whole_quantity(allocatable[name]))}


def has_device_plugin(status: Mapping[str, Any]) -> bool:
    """Whether pods may ask for GPUs by a resource's name. One whose GPUs are all unhealthy keeps its capacity."""
    both = {**(status.get("allocatable") or {}), **(status.get("capacity") or {})}
    return any(_number(name, both[name]) for name in both if name.startswith(_ASKED))


def gpu_pod(pod: Mapping[str, Any]) -> GpuPod | None:
    """The GPUs that an API Pod holds on its node; None where it holds none.

    As the scheduler counts: containers run beside each other, and beside the sidecars (init containers that restart);
    other init containers run alone, after the sidecars that stand before them. A finished init container's share stays
    held. Whether a DRA claim is for a GPU stands in another object: any claim counts as one.
    """
    spec = pod.get("spec") or {}
    holds = _held(spec)
    if claims := spec.get("resourceClaims"):
        holds[_CLAIM] = len(claims)
    if not holds:
        return None
    metadata = pod["metadata"]
    return GpuPod(metadata.get("namespace", ""), metadata["name"], spec.get("nodeName", ""), dict(holds))


def unplaced_since(pod: Mapping[str, Any]) -> datetime | None:
    """Since when no scheduler finds a place for an API Pod that asks for GPUs.

    None for any other, and for one that takes nothing from pods of a lower priority.
    """
    if gpu_pod(pod) is None or (pod.get("spec") or {}).get("preemptionPolicy") == "Never":
        return None
    conditions = (pod.get("status") or {}).get("conditions") or ()
    told = (one for one in conditions if one.get("type") == "PodScheduled" and one.get("reason") == "Unschedulable")
    return next((moment_or_none(one.get("lastTransitionTime")) for one in told), None)


def whole_quantity(quantity: object) -> int | None:
    """A resource's quantity that is a plain count; None for what is absent or written otherwise."""
    is_count = isinstance(quantity, str) and quantity.isascii() and quantity.isdigit() and len(quantity) < 10
    return int(str(quantity)) if is_count else None


def _held(spec: Mapping[str, Any]) -> Counter[str]:
    running: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        running.update(_asked(container))
    starting: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars.update(_asked(container))
            starting |= sidecars
        else:
            starting |= sidecars + _asked(container)
    return (running + sidecars) | starting


def _asked(container: Mapping[str, Any]) -> Counter[str]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({name: number for name, amount in asked.items() if (number := _number(name, amount))})


def _number(resource: str, amount: object) -> int:
    """0 for what is no GPU; 1 for an amount that is no plain count, such as `16k` of a GPU's memory."""
    if not resource.startswith(_ASKED):
        return 0
    number = whole_quantity(amount)
    return 1 if number is None else number
