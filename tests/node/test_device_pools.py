"""Devices of a node in the ResourceSlices of NVIDIA's DRA driver, and incomplete slices."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.device_pools import given_out, read_slice
from gpu_healthcheck.healthcheck.node.devices import AllocatedDevices, Device

NODE = "ip-10-0-0-1.ec2.internal"
Json = dict[str, Any]


def device(name: str, **attributes: str) -> Json:
    """`resource.kubernetes.io/x` as `std_x`."""
    named = {key.replace("std_", "resource.kubernetes.io/"): {"string": value} for key, value in attributes.items()}
    return {"name": name, "attributes": {**named, "cudaComputeCapability": {"version": "9.0.0"}}}


def resource_slice(*devices: Json, generation: int = 1, count: int = 1, pool: str = NODE, **spec: Any) -> Json:
    of = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": of, "devices": list(devices), **spec}}


def read(*slices: Json) -> AllocatedDevices:
    return given_out(device_slice for device_slice in map(read_slice, slices) if device_slice is not None)


def names(*slices: Json) -> list[str] | None:
    """None if they are unknown."""
    found = read(*slices)
    return None if NODE in found.unread else [device.name for device in found.devices.get(NODE, ())]


@pytest.mark.parametrize(
    ("attributes", "address", "uuids"),
    [
        ({"std_pciBusID": "0000:18:00.0", "uuid": "GPU-1"}, "0000:18:00.0", {"GPU-1"}),
        ({"pcieBusID": "0000:18:00.0", "uuid": "GPU-1"}, "0000:18:00.0", {"GPU-1"}),
        ({"gpu.nvidia.com/pciBusID": "00000000:3B:00.0"}, "0000:3b:00.0", set()),
        ({"std_pciBusID": "0000:18:00.0", "parentUUID": "GPU-1"}, "0000:18:00.0", {"GPU-1"}),
        ({"uuid": "MIG-2", "parentUUID": "GPU-1"}, "", {"MIG-2", "GPU-1"}),
        ({"std_pciBusID": "../../etc", "pcieBusID": "0000:18:00.0"}, "0000:18:00.0", set()),
        ({"std_pcieRoot": "pci0000:10"}, "", set()),
        ({}, "", set()),
    ],
)
def test_device_has_the_address_and_uuids_of_its_gpu(attributes: dict[str, str], address: str, uuids: set[str]) -> None:
    found = read(resource_slice(device("gpu-0", **attributes)))
    assert found.devices == {NODE: [Device(NODE, "gpu-0", address, frozenset(uuids))]}


@pytest.mark.parametrize("spec", [{"driver": "compute-domain.nvidia.com"}, {"nodeName": "another"}, {"nodeName": None}])
def test_slices_of_other_drivers_and_nodes_are_ignored(spec: Json) -> None:
    assert names(resource_slice(device("gpu-0"), **spec)) == []


OLD = resource_slice(device("gpu-0"))
NEW = [resource_slice(device(f"gpu-{n}"), generation=2, count=2) for n in (1, 2)]
ELSEWHERE = resource_slice(device("gpu-9"), pool="rack")


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([OLD], ["gpu-0"]),
        ([OLD, *NEW], ["gpu-1", "gpu-2"]),
        ([*NEW, OLD], ["gpu-1", "gpu-2"]),
        ([OLD, NEW[0]], None),
        ([NEW[0]], None),
        ([*NEW, NEW[0]], None),
        ([OLD, ELSEWHERE], ["gpu-0", "gpu-9"]),
        ([NEW[0], ELSEWHERE], None),
        ([OLD, resource_slice(generation=2)], []),
        # Counters stand in a slice of their own.
        ([resource_slice(count=2), resource_slice(device("gpu-0"), count=2)], ["gpu-0"]),
    ],
)
def test_newest_complete_generation_of_a_pool_counts(slices: list[Json], expected: list[str] | None) -> None:
    assert names(*slices) == expected


def test_incomplete_pool_hides_no_other_node() -> None:
    found = read(NEW[0], resource_slice(device("gpu-0"), nodeName="b", pool="b"))
    assert (set(found.unread), set(found.devices)) == ({NODE}, {"b"})


@pytest.mark.parametrize("pool", [None, {}, {"name": NODE}, {"name": NODE, "generation": "x", "resourceSliceCount": 1}])
def test_slice_without_a_valid_pool_is_an_error(pool: Json | None) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_slice(resource_slice(device("gpu-0")) | {"spec": {"driver": "gpu.nvidia.com", "pool": pool}})
