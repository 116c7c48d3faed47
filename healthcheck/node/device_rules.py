"""A node's GPUs as NVIDIA's DRA driver publishes them, and the rules that keep new work off one of them. Words only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from healthcheck.model import Severity
from healthcheck.node.devices import DRIVER
from healthcheck.node.state import UNHEALTHY
from healthcheck.probes.pci import normalise_address

EFFECT = "NoSchedule"
TIERS = frozenset(one.name for one in Severity if one is not Severity.PASS)
_ADDRESSES = ("resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID")
"""Kubernetes' own name for it (its package deviceattribute), which the driver has used since 25.12; its own before."""
_UUIDS = ("uuid", "parentUUID")
"""Of the GPU, or of the MIG instance and the GPU that it is a part of."""
_HEEDED = "EvictionInProgress"
"""The condition that the controller of device taints gives each rule that it has seen, whatever its effect."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU or a part of one that a claim can be given. `address` '' and no UUIDs: the driver does not say which."""

    pool: str
    name: str
    address: str = ""
    uuids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """A DeviceTaintRule as the API server shows it. `uid` and `version` say which one is meant when it is changed."""

    name: str
    uid: str
    version: str
    node_uid: str = ""
    """Of the Node that owns it."""
    device: str = ""
    tier: str = ""
    is_ours: bool = False
    """It says what an agent's rule of this name says, and nothing else."""
    is_heeded: bool = False
    """The cluster's controllers have seen it. An API that is served is no sign that anybody acts on it."""


class IncompletePoolError(ValueError):
    """The driver is publishing the pool anew: who reads it now does not see all devices."""


def rule_name(node_name: str, device: str) -> str:
    """A device's name has no dot, so that no two nodes share one."""
    return f"gpu-healthcheck.{node_name}.{device}"


def published(slices: Iterable[Mapping[str, Any]], node_name: str) -> tuple[GpuDevice, ...]:
    """What the driver publishes of this node. Raises IncompletePoolError."""
    pools: dict[str, list[Mapping[str, Any]]] = {}
    for one in slices:
        spec = one["spec"]
        if spec.get("driver") == DRIVER and spec.get("nodeName") == node_name:
            pools.setdefault(str(spec["pool"]["name"]), []).append(spec)
    return tuple(device for name, specs in pools.items() for device in _devices(name, specs))


def _devices(pool: str, specs: Sequence[Mapping[str, Any]]) -> Iterator[GpuDevice]:
    newest = max(int(spec["pool"]["generation"]) for spec in specs)
    current = [spec for spec in specs if spec["pool"]["generation"] == newest]
    if len(current) != current[0]["pool"]["resourceSliceCount"]:
        raise IncompletePoolError(f"{DRIVER} is publishing the pool {pool} anew")
    for spec in current:
        for device in spec.get("devices") or ():
            yield _device(pool, device)


def _device(pool: str, device: Mapping[str, Any]) -> GpuDevice:
    told = {str(key).removeprefix(f"{DRIVER}/"): value for key, value in (device.get("attributes") or {}).items()}
    texts = {key: value["string"] for key, value in told.items() if isinstance(value.get("string"), str)}
    addresses = (normalise_address(texts[key]) for key in _ADDRESSES if key in texts)
    address = next((one for one in addresses if one is not None), "")
    return GpuDevice(pool, str(device["name"]), address, frozenset(texts[key] for key in _UUIDS if key in texts))


def device_rule(rule: Mapping[str, Any], node_name: str) -> DeviceRule:
    """What of an API DeviceTaintRule counts. One that somebody has changed is his."""
    metadata, spec = rule["metadata"], rule["spec"]
    selector, taint = spec.get("deviceSelector") or {}, spec["taint"]
    device, tier = str(selector.get("device", "")), str(taint.get("value", ""))
    owners = [str(one.get("uid", "")) for one in metadata.get("ownerReferences") or () if one.get("kind") == "Node"]
    conditions = (rule.get("status") or {}).get("conditions") or ()
    says = {"key": taint.get("key"), "effect": taint.get("effect")}
    return DeviceRule(
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        version=str(metadata["resourceVersion"]),
        node_uid=next(iter(owners), ""),
        device=device,
        tier=tier,
        is_ours=metadata["name"] == rule_name(node_name, device)
        and selector == selector_of(node_name, device)
        and says == {"key": UNHEALTHY, "effect": EFFECT}
        and tier in TIERS,
        is_heeded=any(one.get("type") == _HEEDED for one in conditions),
    )


def selector_of(node_name: str, device: str) -> dict[str, str]:
    """The driver calls a node's pool by the node's name."""
    return {"driver": DRIVER, "pool": node_name, "device": device}


def taint_of(tier: str) -> dict[str, str]:
    return {"key": UNHEALTHY, "value": tier, "effect": EFFECT}
