"""GPUs that a driver of dynamic resource allocation (DRA) gives out: of which node, and who holds some. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Newest first: 1.34 serves the first, 1.33 the second, 1.32 the third."""
DRIVER = "gpu.nvidia.com"
CLAIM_TEMPLATE = "gpu-healthcheck-sweep"
"""The ResourceClaimTemplate of the sweeps' pods: all GPUs of their node."""
OVERLAY = "kubernetes/overlays/dra"
_WHOLE = "gpu"
"""The driver's own word for a whole GPU, in the attribute `type`; others are `mig` and `vfio`."""
_MOST_NAMED = 3
_UNREAD = "its GPUs are being published anew by the DRA driver"


class Device(Struct, frozen=True):
    """A GPU or a part of one that a claim can be given. `address` '' and no UUIDs: the driver does not say which.

    `counters`: what it shares with other devices; a MIG instance that is not made yet, with its whole GPU.
    """

    pool: str
    name: str
    address: str = ""
    uuids: frozenset[str] = frozenset()
    """Of the GPU, or of the MIG instance and the GPU that it is a part of."""
    kind: str = "unknown"
    counters: frozenset[str] = frozenset()
    taint: str = ""
    """The first in its ResourceSlice that keeps pods off it; '' for none."""


class NodeDevices(Struct, frozen=True):
    """What the driver gives out of one node's GPUs. `why_not` a sweep can claim all of them; '' where it can."""

    gpus: int = 0
    why_not: str = ""


class GpuClaim(Struct, frozen=True):
    """A ResourceClaim that holds devices of the driver. What monitors (`adminAccess`) holds none."""

    namespace: str
    name: str
    devices: tuple[tuple[str, str], ...]
    """Pool and name of each."""
    pods: tuple[str, ...] = ()

    def __str__(self) -> str:
        who = f"{self.namespace}/{self.pods[0]}" if self.pods else f"the claim {self.namespace}/{self.name}"
        return f"{who} holds {len(self.devices)} {DRIVER}"


class GivenOut(Struct, frozen=True):
    """What the driver gives out in the whole cluster, by node name. `has_template`: CLAIM_TEMPLATE is there.

    `unread`: nodes of whose devices nobody can tell now, for the driver is publishing them anew.
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
        why = "" if self.has_template else f"gives its GPUs out by DRA, for which a sweep needs {OVERLAY}"
        return NodeDevices(sum(one.kind == _WHOLE for one in every), next(_obstacles(every), why))

    def claimed_by(self, claims: Iterable[GpuClaim]) -> dict[str, str]:
        """By node name, one claim that holds devices there, in words."""
        nodes = {(one.pool, one.name): node for node, every in self.devices.items() for one in every}
        return {nodes[device]: str(claim) for claim in claims for device in claim.devices if device in nodes}


def gpu_claim(claim: Mapping[str, Any]) -> GpuClaim | None:
    """What an API ResourceClaim holds of the driver's devices; None where it holds none."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    held = [one for one in results if one.get("driver") == DRIVER and one.get("adminAccess") is not True]
    if not held:
        return None
    users = status.get("reservedFor") or ()
    return GpuClaim(
        metadata["namespace"],
        metadata["name"],
        tuple((str(one.get("pool")), str(one.get("device"))) for one in held),
        tuple(str(one.get("name")) for one in users if one.get("resource") == "pods"),
    )


def _obstacles(devices: Sequence[Device]) -> Iterator[str]:
    whole = [one for one in devices if one.kind == _WHOLE]
    covered = {(one.pool, counter) for one in whole for counter in one.counters}
    apart = {one.kind for one in devices if one.kind != _WHOLE and not _is_covered(one, covered)}
    if apart:
        kinds = ", ".join(sorted(apart)[:_MOST_NAMED])
        yield f"gives out devices by DRA ({kinds}) that no claim of its whole GPUs covers"
    if tainted := next((one for one in whole if one.taint), None):
        yield f"its device {tainted.name} has the taint {tainted.taint}"


def _is_covered(part: Device, covered: set[tuple[str, str]]) -> bool:
    """Whether whoever has the whole GPUs has this part of them too: it can't be given out then."""
    return bool(part.counters) and all((part.pool, counter) in covered for counter in part.counters)
