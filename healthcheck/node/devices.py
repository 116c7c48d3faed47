"""GPUs that a driver of dynamic resource allocation (DRA) gives out: of which node, and who holds some. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from healthcheck.text.printable import printable

DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Newest first: 1.34 serves the first, 1.33 the second, 1.32 the third."""
DRIVER = "gpu.nvidia.com"
CLAIM_TEMPLATE = "gpu-healthcheck-sweep"
"""The ResourceClaimTemplate of the sweeps' pods: all GPUs of their node."""
OVERLAY = "kubernetes/overlays/dra"
_WHOLE = "gpu"
"""The driver's own word for a whole GPU, in the attribute `type`; others are `mig` and `vfio`."""
_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_LONGEST, _MOST_NAMED = 80, 3


@dataclass(frozen=True, slots=True)
class Device:
    """`counters`: what it shares with other devices; a MIG instance that is not made yet, with its whole GPU."""

    pool: str
    name: str
    kind: str
    counters: frozenset[str] = frozenset()
    taint: str = ""
    """The first that keeps pods off it; '' for none."""


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """What the driver gives out of one node's GPUs. `why_not` a sweep can claim all of them; '' where it can."""

    gpus: int = 0
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """A ResourceClaim that holds devices of the driver. What monitors (`adminAccess`) holds none."""

    namespace: str
    name: str
    devices: tuple[tuple[str, str], ...]
    """Pool and name of each."""
    pods: tuple[str, ...] = ()

    def __str__(self) -> str:
        who = f"{self.namespace}/{self.pods[0]}" if self.pods else f"the claim {self.namespace}/{self.name}"
        return f"{who} holds {len(self.devices)} {DRIVER}"


@dataclass(frozen=True, slots=True)
class GivenOut:
    """What the driver gives out in the whole cluster, by node name. `has_template`: CLAIM_TEMPLATE is there."""

    devices: Mapping[str, Sequence[Device]] = field(default_factory=dict)
    has_template: bool = False

    def of(self, node: str) -> NodeDevices | None:
        every = self.devices.get(node)
        if not every:
            return None
        why = "" if self.has_template else f"gives its GPUs out by DRA, for which a sweep needs {OVERLAY}"
        return NodeDevices(sum(one.kind == _WHOLE for one in every), next(_obstacles(every), why))

    def claimed_by(self, claims: Iterable[GpuClaim]) -> dict[str, str]:
        """By node name, one claim that holds devices there, in words."""
        nodes = {(one.pool, one.name): node for node, every in self.devices.items() for one in every}
        return {nodes[device]: str(claim) for claim in claims for device in claim.devices if device in nodes}


def given_out(told: Iterable[tuple[str, Sequence[Device]]]) -> GivenOut:
    """The driver tells of a node in as many slices as it likes."""
    devices: defaultdict[str, list[Device]] = defaultdict(list)
    for node, every in told:
        devices[node] += every
    return GivenOut(devices)


def devices_of(resource_slice: Mapping[str, Any]) -> tuple[str, list[Device]] | None:
    """Of an API ResourceSlice the node and its devices; None where it is another driver's, or no single node's."""
    spec = resource_slice["spec"]
    node = spec.get("nodeName")
    if spec.get("driver") != DRIVER or not node:
        return None
    pool = str(spec["pool"]["name"])
    return str(node), [_device(pool, one) for one in spec.get("devices") or ()]


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


def _device(pool: str, device: Mapping[str, Any]) -> Device:
    told = device.get("basic") or device  # v1beta1 has a level more
    attributes = told.get("attributes") or {}
    kind = attributes.get("type") or attributes.get(f"{DRIVER}/type") or {}
    taints = (one for one in told.get("taints") or () if one.get("effect") in _KEEPS_AWAY)
    return Device(
        pool,
        _word(device["name"]),
        _word(kind.get("string") or "unknown"),
        frozenset(str(one.get("counterSet")) for one in told.get("consumesCounters") or ()),
        next((_word(one.get("key")) for one in taints), ""),
    )


def _word(text: object) -> str:
    return printable(str(text), _LONGEST)
