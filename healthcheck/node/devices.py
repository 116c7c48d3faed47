"""GPUs published by a driver for dynamic resource allocation (DRA), with their nodes and claims.

Pure functions, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

DRIVER = "gpu.nvidia.com"
CLAIM_TEMPLATE = "gpu-healthcheck-sweep"
"""ResourceClaimTemplate of the sweeps' pods: all GPUs of their node."""
OVERLAY = "kubernetes/overlays/dra"
_WHOLE = "gpu"
"""Value of the driver's attribute `type` for a whole GPU; others are `mig` and `vfio`."""
_MOST_NAMED = 3
_UNREAD = "the DRA driver is publishing its GPUs again"


class Device(Struct, frozen=True):
    """A GPU, or a part of a GPU, that a claim can be given.

    `address` is '' and `uuids` is empty if the driver does not publish them. `counters` names the resources shared with
    other devices; a MIG instance that does not exist yet shares them with its whole GPU.
    """

    pool: str
    name: str
    address: str = ""
    uuids: frozenset[str] = frozenset()
    """UUIDs of the GPU, or of the MIG instance and its GPU."""
    kind: str = "unknown"
    counters: frozenset[str] = frozenset()
    taint: str = ""
    """First taint in its ResourceSlice that keeps pods off it; '' without one."""


class NodeDevices(Struct, frozen=True):
    """The DRA devices of one node.

    `why_not` is the reason why a sweep can't claim all devices; '' if it can.
    """

    gpus: int = 0
    why_not: str = ""


class GpuClaim(Struct, frozen=True):
    """A ResourceClaim that holds devices of the driver.

    A claim for monitoring (`adminAccess`) does not hold devices.
    """

    namespace: str
    name: str
    devices: tuple[tuple[str, str], ...]
    """Pool and name of each device."""
    pods: tuple[str, ...] = ()

    def __str__(self) -> str:
        owner = f"{self.namespace}/{self.pods[0]}" if self.pods else f"the claim {self.namespace}/{self.name}"
        return f"{owner} holds {len(self.devices)} {DRIVER}"


class AllocatedDevices(Struct, frozen=True):
    """DRA devices of the whole cluster, by node name. `has_template`: CLAIM_TEMPLATE exists.

    `unread` lists the nodes with devices that are unknown now, because the driver is publishing them again.
    """

    devices: Mapping[str, Sequence[Device]] = field(default_factory=dict)
    has_template: bool = False
    unread: frozenset[str] = frozenset()

    def of(self, node: str) -> NodeDevices | None:
        if node in self.unread:
            return NodeDevices(why_not=_UNREAD)
        every = self.devices.get(node)
        if not every:
            return None
        why = "" if self.has_template else f"allocates its GPUs by DRA, for which a sweep needs {OVERLAY}"
        return NodeDevices(sum(device.kind == _WHOLE for device in every), next(_obstacles(every), why))

    def claimed_by(self, claims: Iterable[GpuClaim]) -> dict[str, str]:
        """Return one claim that holds devices on each node, as text, by node name."""
        nodes = {(device.pool, device.name): node for node, devices in self.devices.items() for device in devices}
        return {nodes[device]: str(claim) for claim in claims for device in claim.devices if device in nodes}


def gpu_claim(claim: Mapping[str, Any]) -> GpuClaim | None:
    """Return the devices of the driver that an API ResourceClaim holds; None if it holds none."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    held = [result for result in results if result.get("driver") == DRIVER and result.get("adminAccess") is not True]
    if not held:
        return None
    users = status.get("reservedFor") or ()
    return GpuClaim(
        metadata["namespace"],
        metadata["name"],
        tuple((str(result.get("pool")), str(result.get("device"))) for result in held),
        tuple(str(user.get("name")) for user in users if user.get("resource") == "pods"),
    )


def _obstacles(devices: Sequence[Device]) -> Iterator[str]:
    whole = [device for device in devices if device.kind == _WHOLE]
    covered = {(device.pool, counter) for device in whole for counter in device.counters}
    apart = {device.kind for device in devices if device.kind != _WHOLE and not _is_covered(device, covered)}
    if apart:
        kinds = ", ".join(sorted(apart)[:_MOST_NAMED])
        yield f"allocates devices by DRA ({kinds}) that a claim for its whole GPUs does not cover"
    if tainted := next((device for device in whole if device.taint), None):
        yield f"its device {tainted.name} has the taint {tainted.taint}"


def _is_covered(part: Device, covered: set[tuple[str, str]]) -> bool:
    """Whether a claim for the whole GPUs covers this part too, so that it can't be allocated separately."""
    return bool(part.counters) and all((part.pool, counter) in covered for counter in part.counters)
