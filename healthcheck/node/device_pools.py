"""Pools of devices of NVIDIA's DRA driver, parsed from ResourceSlices. Pure functions, no I/O.

One rule applies to all readers: a pool's newest generation counts, once all its slices are present (ResourcePool in the
Kubernetes API reference). Until then, the devices of the driver are unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from gpu_healthcheck.healthcheck.node.devices import DRIVER, AllocatedDevices, Device
from gpu_healthcheck.healthcheck.node.state import KEEPS_AWAY
from gpu_healthcheck.healthcheck.probes.pci import normalise_address
from gpu_healthcheck.healthcheck.text.printable import printable

_ADDRESSES = ("resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID")
"""Names of the address attribute: Kubernetes' name (package deviceattribute; since driver 25.12), and earlier names."""
_UUIDS = ("uuid", "parentUUID")
_LONGEST = 80


class ResourceSliceView(Protocol):
    """Interface of one ResourceSlice, independent of its reader.

    `count` is the number of slices that make up its pool in this generation. 0 means that the slice does not state it;
    the API does not allow writing 0.
    """

    @property
    def driver(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def count(self) -> int: ...


S = TypeVar("S", bound=ResourceSliceView)


class DeviceSlice(Struct, frozen=True):
    """Devices of one ResourceSlice. `node` is '' for devices that do not belong to a single node."""

    driver: str
    pool: str
    generation: int
    count: int
    node: str = ""
    devices: tuple[Device, ...] = ()


def newest(slices: Iterable[S]) -> dict[tuple[str, str], list[S]]:
    """Return the slices of each pool's newest generation, by driver and pool.

    `is_whole` tests whether they are complete.
    """
    pools: dict[tuple[str, str], list[S]] = {}
    for s in slices:
        known = pools.setdefault((s.driver, s.pool), [])
        if known and s.generation > known[0].generation:
            known.clear()
        if not known or s.generation == known[0].generation:
            known.append(s)
    return pools


def is_whole(pool: Sequence[ResourceSliceView]) -> bool:
    """Whether all slices of a generation are present. Slices without a count are taken as complete."""
    return pool[0].count in (0, len(pool))


def given_out(slices: Iterable[DeviceSlice]) -> AllocatedDevices:
    """Return the devices of a whole cluster's slices.

    The slices do not show whether a template for sweeps exists.
    """
    every = tuple(slices)
    devices: defaultdict[str, list[Device]] = defaultdict(list)
    published: set[str] = set()
    for pool in newest(every).values():
        if is_whole(pool):
            published.add(pool[0].pool)
            for device_slice in pool:
                devices[device_slice.node] += device_slice.devices
    unread = frozenset(
        device_slice.node for device_slice in every if device_slice.node and device_slice.pool not in published
    )
    known = {node: found for node, found in devices.items() if node and found and node not in unread}
    return AllocatedDevices(known, unread=unread)


def read_slice(resource_slice: Mapping[str, Any]) -> DeviceSlice | None:
    """Convert an API ResourceSlice; None for another driver's."""
    spec = resource_slice["spec"]
    if spec.get("driver") != DRIVER:
        return None
    pool = spec["pool"]
    name = str(pool["name"])
    devices = tuple(_device(name, device) for device in spec.get("devices") or ())
    count = int(pool["resourceSliceCount"])
    return DeviceSlice(DRIVER, name, int(pool["generation"]), count, str(spec.get("nodeName") or ""), devices)


def address_of(attributes: Mapping[str, str]) -> str:
    """Return the PCI address of a device's GPU from the device's attributes; '' if they do not include it."""
    texts = {key.removeprefix(f"{DRIVER}/"): text for key, text in attributes.items()}
    addresses = (normalise_address(texts[key]) for key in _ADDRESSES if key in texts)
    return next((address for address in addresses if address is not None), "")


def _device(pool: str, device: Mapping[str, Any]) -> Device:
    attributes = {str(key).removeprefix(f"{DRIVER}/"): value for key, value in (device.get("attributes") or {}).items()}
    texts = {key: value["string"] for key, value in attributes.items() if isinstance(value.get("string"), str)}
    taints = (taint for taint in device.get("taints") or () if taint.get("effect") in KEEPS_AWAY)
    return Device(
        pool,
        _word(device["name"]),
        address_of(texts),
        frozenset(texts[key] for key in _UUIDS if key in texts),
        _word(texts.get("type") or "unknown"),
        frozenset(str(counters.get("counterSet")) for counters in device.get("consumesCounters") or ()),
        next((_word(taint.get("key")) for taint in taints), ""),
    )


def _word(text: object) -> str:
    return printable(str(text), _LONGEST)
