"""The resources of a Node and of a pod that are GPUs, and the number of GPUs that a pod holds.

Pure functions, no I/O. The two counts differ. For the resources that a Job can request, only those of NVIDIA's device
plugin count: whole GPUs, shared GPUs and MIG instances. For an idle node (no pod requests GPUs), any resource counts
that a supported scheduler assigns to an NVIDIA GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.text.moments import moment_or_none

_WHOLE = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
_MIG = "nvidia.com/mig-"
_OF_CLASS = "deviceclass.resource.kubernetes.io/"
_ASKED = ("nvidia.com/gpu", _MIG, "volcano.sh/vgpu", "k8s.amazonaws.com/vgpu", _OF_CLASS)
"""Prefixes of GPU resources in pods: NVIDIA's, HAMi's (such as `nvidia.com/gpumem`), Volcano's, AWS's vGPU, and
extended resources that map to a DeviceClass."""
_CLAIM = "DRA claim"


class GpuPod(Struct, frozen=True):
    """A pod on a node that holds GPUs there, by the scheduler's arithmetic."""

    namespace: str
    name: str
    node: str
    holds: Mapping[str, int]

    @property
    def only_claims(self) -> bool:
        """Whether the pod holds only claims, which may be for other devices."""
        return set(self.holds) == {_CLAIM}

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} holds {listed(self.holds)}"


def listed(amounts: Mapping[str, int]) -> str:
    """Return the amounts as text: `8 nvidia.com/gpu`."""
    return ", ".join(f"{count} {resource}" for resource, count in sorted(amounts.items()))


def offered(allocatable: object) -> dict[str, int]:
    """Return the GPU resources with a positive count in a Node's `status.allocatable`.

    Values that are not plain counts are left out.
    """
    if not isinstance(allocatable, dict):
        return {}
    named = [name for name in allocatable if name in _WHOLE or name.startswith(_MIG)]
    return {name: count for name in named if (count := whole_quantity(allocatable[name]))}


def has_device_plugin(status: Mapping[str, Any]) -> bool:
    """Whether pods can request GPUs by resource name.

    A node whose GPUs are all unhealthy keeps its capacity.
    """
    both = {**(status.get("allocatable") or {}), **(status.get("capacity") or {})}
    return any(_gpu_count(name, both[name]) for name in both if name.startswith(_ASKED))


def gpu_pod(pod: Mapping[str, Any]) -> GpuPod | None:
    """Return the GPUs that an API Pod holds on its node; None if it holds none.

    The count follows the scheduler. Containers run at the same time, together with the sidecars (init containers that
    restart). Each other init container runs alone with the sidecars listed before it. The resources of a finished init
    container stay allocated. A DRA claim lists its devices in another object, so every claim counts as a GPU.
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
    """Return the time since which no scheduler can place an API Pod that requests GPUs.

    None for other pods, and for a pod that never preempts pods of lower priority.
    """
    if gpu_pod(pod) is None or (pod.get("spec") or {}).get("preemptionPolicy") == "Never":
        return None
    conditions = (pod.get("status") or {}).get("conditions") or ()
    entries = (
        condition
        for condition in conditions
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable"
    )
    return next((moment_or_none(condition.get("lastTransitionTime")) for condition in entries), None)


def whole_quantity(quantity: object) -> int | None:
    """Return a resource quantity that is a plain count; None if it is absent or written differently."""
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
    return Counter({name: count for name, amount in asked.items() if (count := _gpu_count(name, amount))})


def _gpu_count(resource: str, amount: object) -> int:
    """Return the count of a GPU resource: 0 for other resources, 1 for an amount that is not a plain count.

    An example of such an amount is `16k` for a GPU's memory.
    """
    if not resource.startswith(_ASKED):
        return 0
    count = whole_quantity(amount)
    return 1 if count is None else count
