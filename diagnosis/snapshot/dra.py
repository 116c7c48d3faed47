"""Dynamic resource allocation: the devices that a driver offers, and the claims of pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.snapshot.meta import ApiObject, read_object
from gpu_healthcheck.diagnosis.snapshot.nodes import Taint
from gpu_healthcheck.diagnosis.snapshot.pods import Toleration
from gpu_healthcheck.healthcheck.node.device_rules import HEEDED
from gpu_healthcheck.healthcheck.text.boundary import At, entries, flag, items, message, names, text, value_at, whole

_SELECTED_BY = frozenset(("driver", "pool", "device"))


def _attributes(value: object) -> dict[str, str]:
    return {name: _attribute(attribute) for name, attribute in items(value)}


def _attribute(attribute: object) -> str:
    if (number := value_at(attribute, "int")) is not None:
        return str(whole(number))
    if (is_true := value_at(attribute, "bool")) is not None:
        return str(flag(is_true)).lower()
    return text(value_at(attribute, "string") or value_at(attribute, "version") or "")


def _capacity(value: object) -> dict[str, str]:
    return {name: text(value_at(amount, "value") or amount) for name, amount in items(value)}


class SliceDevice(Struct, frozen=True):
    """Device of a slice. `attributes` and `capacity` are texts by short name."""

    name: str = ""
    attributes: Annotated[Mapping[str, str], At("basic.attributes", "attributes"), _attributes] = field(
        default_factory=dict
    )
    capacity: Annotated[Mapping[str, str], At("basic.capacity", "capacity"), _capacity] = field(default_factory=dict)
    taints: Annotated[tuple[Taint, ...], At("basic.taints", "taints")] = ()


class ResourceSlice(ApiObject, frozen=True):
    """Slice of a pool. `node` is '' for devices of no single node.

    `Snapshot.pools` defines which slices of a pool count.
    """

    driver: Annotated[str, At("spec.driver")] = ""
    pool: Annotated[str, At("spec.pool.name")] = ""
    node: Annotated[str, At("spec.nodeName")] = ""
    devices: Annotated[tuple[SliceDevice, ...], At("spec.devices")] = ()
    generation: Annotated[int, At("spec.pool.generation")] = 0
    count: Annotated[int, At("spec.pool.resourceSliceCount")] = 0
    """Number of slices in the pool; 0 if unknown."""


def _expressions(value: object) -> tuple[str, ...]:
    return tuple(message(value_at(entry, "cel", "expression") or "") for entry in entries(value))


class Request(Struct, frozen=True):
    """Request of a claim for one class. `selectors` are CEL expressions."""

    name: str = ""
    device_class: Annotated[str, At("exactly.deviceClassName", "deviceClassName")] = ""
    count: Annotated[int, At("exactly.count", "count")] = 1
    all: Annotated[bool, At("exactly.allocationMode", "allocationMode"), lambda mode: mode == "All"] = False
    selectors: Annotated[tuple[str, ...], At("exactly.selectors", "selectors"), _expressions] = ()
    tolerations: Annotated[tuple[Toleration, ...], At("exactly.tolerations", "tolerations")] = ()


def _allocated(results: object) -> tuple[str, ...]:
    keys = "driver", "pool", "device"
    return tuple("/".join(text(value_at(entry, key) or "") for key in keys) for entry in entries(results))


class ResourceClaim(ApiObject, frozen=True):
    """Claim of a pod. `devices` are the allocated devices, as driver/pool/device; empty before allocation.

    `api` is the API version in which it was listed, the newest that the API server serves.
    """

    api: Annotated[str, At("apiVersion")] = ""
    requests: Annotated[tuple[Request, ...], At("spec.spec.devices.requests", "spec.devices.requests")] = ()
    devices: Annotated[tuple[str, ...], At("status.allocation.devices.results"), _allocated] = ()
    reserved_for: Annotated[tuple[str, ...], At("status.reservedFor"), names] = ()
    """Names of the pods that reserved the claim."""


class DeviceClass(ApiObject, frozen=True):
    """DeviceClass. `resource`: extended resource whose requests are served with devices of the class."""

    selectors: Annotated[tuple[str, ...], At("spec.selectors"), _expressions] = ()
    resource: Annotated[str, At("spec.extendedResourceName")] = ""


def _selects(selector: object) -> bool:
    """Return whether the selector is of a known form.

    A selector by class or by an expression, as in older versions, can't be evaluated here.
    """
    return dict(items(selector)).keys() <= _SELECTED_BY


def _is_heeded(conditions: object) -> bool:
    return any(value_at(condition, "type") == HEEDED for condition in entries(conditions))


class DeviceTaintRule(ApiObject, frozen=True):
    """Taint on all devices of its driver, pool and name; '' for any.

    `selects`: whether the rule selects the devices in a form known here.
    """

    driver: Annotated[str, At("spec.deviceSelector.driver")] = ""
    pool: Annotated[str, At("spec.deviceSelector.pool")] = ""
    device: Annotated[str, At("spec.deviceSelector.device")] = ""
    taint: Annotated[Taint, At("spec.taint")] = field(default_factory=Taint)
    selects: Annotated[bool, At("spec.deviceSelector"), _selects] = False
    is_heeded: Annotated[bool, At("status.conditions"), _is_heeded] = False
    """Whether the cluster's controllers have processed the rule; a served API alone does not prove that."""


class DomainNode(Struct, frozen=True):
    """Node in the status of a ComputeDomain, as the IMEX daemon there has registered it.

    `clique` is the node's NVLink clique; '' without a fabric. `index` is None in versions of the driver without it.
    """

    name: str = ""
    address: Annotated[str, At("ipAddress")] = ""
    clique: Annotated[str, At("cliqueID")] = ""
    index: int | None = None
    status: str = ""


class ComputeDomain(ApiObject, frozen=True):
    """ComputeDomain of NVIDIA's DRA driver. `template`: the ResourceClaimTemplate by which pods use it.

    `wanted` is the number of nodes for which its status waits; 0 if it waits for none, or in v1beta2.
    """

    wanted: Annotated[int, At("spec.numNodes")] = 0
    template: Annotated[str, At("spec.channel.resourceClaimTemplate.name")] = ""
    status: Annotated[str, At("status.status")] = ""
    nodes: Annotated[tuple[DomainNode, ...], At("status.nodes")] = ()


def read_claim(_kind: str, raw: object) -> ResourceClaim:
    """Read a ResourceClaim or a ResourceClaimTemplate."""
    template = value_at(raw, "spec", "spec") is not None
    return read_object(ResourceClaim, "ResourceClaimTemplate" if template else "ResourceClaim", raw)
