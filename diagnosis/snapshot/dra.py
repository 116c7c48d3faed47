"""Dynamic resource allocation: the devices that a driver offers, and the claims of pods."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.nodes import Taint
from diagnosis.snapshot.pods import Toleration, read_toleration
from healthcheck.node.device_rules import HEEDED

_SELECTED_BY = frozenset(("driver", "pool", "device"))


class SliceDevice(Struct, frozen=True):
    """Device of a slice. `attributes` and `capacity` are texts by short name."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


class ResourceSlice(Struct, frozen=True):
    """Slice of a pool. `node` is '' for devices of no single node.

    `Snapshot.pools` defines which slices of a pool count.
    """

    meta: Meta
    driver: str
    pool: str
    node: str
    devices: tuple[SliceDevice, ...] = ()
    generation: int = 0
    count: int = 0
    """Number of slices in the pool; 0 if unknown."""


class Request(Struct, frozen=True):
    """Request of a claim for one class. `selectors` are CEL expressions."""

    name: str
    device_class: str
    count: int = 1
    all: bool = False
    selectors: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ResourceClaim(Struct, frozen=True):
    """Claim of a pod. `devices` are the allocated devices, as driver/pool/device; empty before allocation."""

    meta: Meta
    requests: tuple[Request, ...] = ()
    devices: tuple[str, ...] = ()
    reserved_for: tuple[str, ...] = ()
    """Names of the pods that reserved the claim."""


class DeviceClass(Struct, frozen=True):
    """DeviceClass. `resource`: extended resource whose requests are served with devices of the class."""

    meta: Meta
    selectors: tuple[str, ...] = ()
    resource: str = ""


class DeviceTaintRule(Struct, frozen=True):
    """Taint on all devices of its driver, pool and name; '' for any.

    `selects`: whether the rule selects the devices in a form known here.
    """

    meta: Meta
    driver: str
    pool: str
    device: str
    taint: Taint
    selects: bool = True
    is_heeded: bool = False
    """Whether the cluster's controllers have processed the rule; a served API alone does not prove that."""


def read_slice(raw: Fields) -> ResourceSlice:
    spec = raw.at("spec")
    return ResourceSlice(
        read_meta("ResourceSlice", raw),
        spec.text("driver"),
        spec.text("pool", "name"),
        spec.text("nodeName"),
        tuple(map(_device, spec.each("devices"))),
        spec.number("pool", "generation") or 0,
        spec.number("pool", "resourceSliceCount") or 0,
    )


def read_claim(raw: Fields) -> ResourceClaim:
    """Read a ResourceClaim or a ResourceClaimTemplate."""
    kind = "ResourceClaimTemplate" if raw.has("spec", "spec") else "ResourceClaim"
    spec = raw.at("spec", "spec") if raw.has("spec", "spec") else raw.at("spec")
    given = raw.each("status", "allocation", "devices", "results")
    return ResourceClaim(
        read_meta(kind, raw),
        tuple(map(_request, spec.each("devices", "requests"))),
        tuple(f"{fields.text('driver')}/{fields.text('pool')}/{fields.text('device')}" for fields in given),
        tuple(fields.text("name") for fields in raw.each("status", "reservedFor")),
    )


def read_device_class(raw: Fields) -> DeviceClass:
    spec = raw.at("spec")
    return DeviceClass(read_meta("DeviceClass", raw), _selectors(spec), spec.text("extendedResourceName"))


def read_device_rule(raw: Fields) -> DeviceTaintRule:
    """Read a rule.

    A selector by class or by an expression, as in older versions, can't be evaluated here.
    """
    selector = raw.at("spec", "deviceSelector")
    return DeviceTaintRule(
        read_meta("DeviceTaintRule", raw),
        selector.text("driver"),
        selector.text("pool"),
        selector.text("device"),
        _taint(raw.at("spec", "taint")),
        raw.has("spec", "deviceSelector") and set(raw.names("spec", "deviceSelector")) <= _SELECTED_BY,
        any(fields.text("type") == HEEDED for fields in raw.each("status", "conditions")),
    )


def _taint(raw: Fields) -> Taint:
    return Taint(raw.text("key"), raw.text("value"), raw.text("effect"))


def _request(raw: Fields) -> Request:
    exact = raw.at("exactly") if raw.has("exactly") else raw
    return Request(
        raw.text("name"),
        exact.text("deviceClassName"),
        exact.number("count") or 1,
        exact.text("allocationMode") == "All",
        _selectors(exact),
        tuple(map(read_toleration, exact.each("tolerations"))),
    )


def _selectors(raw: Fields) -> tuple[str, ...]:
    return tuple(fields.message("cel", "expression") for fields in raw.each("selectors"))


def _device(raw: Fields) -> SliceDevice:
    fields = raw.at("basic") if raw.has("basic") else raw
    return SliceDevice(
        raw.text("name"),
        {key: _value(fields.at("attributes", key)) for key in fields.names("attributes")},
        {
            key: fields.text("capacity", key, "value") or fields.text("capacity", key)
            for key in fields.names("capacity")
        },
        tuple(map(_taint, fields.each("taints"))),
    )


def _value(raw: Fields) -> str:
    number = raw.number("int")
    if number is not None:
        return str(number)
    if raw.has("bool"):
        return str(raw.flag("bool")).lower()
    return raw.text("string") or raw.text("version")
