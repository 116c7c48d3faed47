"""Devices that a DRA driver allocates, by node, and their owners: objects of resource.k8s.io as it publishes them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.node.device_pools import given_out, read_slice
from gpu_healthcheck.healthcheck.node.devices import DRIVER, AllocatedDevices, NodeDevices, gpu_claim
from gpu_healthcheck.healthcheck.node.state import NodeState, with_devices

Object = dict[str, Any]
ANEW = "the DRA driver is publishing its GPUs again"
NEEDED = "allocates its GPUs by DRA, for which a sweep needs kubernetes/overlays/dra"


def device(name: str, kind: str | None = "gpu", *, counters: str = "", taints: tuple[str, ...] = ()) -> Object:
    return {
        "name": name,
        "attributes": {"type": {"string": kind}, "pcieBusID": {"string": "0000:18:00.0"}} if kind else {},
        "consumesCounters": [{"counterSet": word, "counters": {}} for word in counters.split()],
        "taints": [{"key": "gpu.nvidia.com/xid", "effect": effect} for effect in taints],
    }


def published(*devices: Object, node: str | None = "n", driver: str = DRIVER, count: int = 1) -> Object:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": count}
    spec = {"driver": driver, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": "s"}, "spec": spec | ({"nodeName": node} if node else {"allNodes": True})}


def offer(*slices: Object, has_template: bool = True) -> AllocatedDevices:
    found = given_out(device_slice for device_slice in map(read_slice, slices) if device_slice)
    return replace(found, has_template=has_template)


def held(*devices: str, pods: tuple[str, ...] = ("train",), **result: Any) -> Object:
    results = [{"driver": DRIVER, "pool": "n", "device": device, "request": "gpu", **result} for device in devices]
    users = [{"resource": "pods", "name": name, "uid": "u"} for name in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    return {"metadata": {"namespace": "team", "name": "c"}, "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("slices", "devices"),
    [
        ([published(device("gpu-0"), device("gpu-1"))], NodeDevices(2)),
        ([published(device("gpu-0"), count=2), published(device("gpu-1"), count=2)], NodeDevices(2)),
        # Without all slices the number of GPUs is unknown.
        ([published(device("gpu-0"), count=2)], NodeDevices(why_not=ANEW)),
        ([published(count=2)], NodeDevices(why_not=ANEW)),
        ([published()], None),
        ([published(device("gpu-0"), node=None)], None),
        ([published(device("channel-0"), driver="compute-domain.nvidia.com")], None),
        (
            [published(device("gpu-0"), device("gpu-1-mig-0", "mig"))],
            NodeDevices(1, "allocates devices by DRA (mig) that a claim for its whole GPUs does not cover"),
        ),
        (
            [published(device("gpu-vfio-0", "vfio"), device("gpu-0-mig-0", "mig"), device("gpu-1", None))],
            NodeDevices(
                0, "allocates devices by DRA (mig, unknown, vfio) that a claim for its whole GPUs does not cover"
            ),
        ),
        # Instances that are made when they are asked for, out of a GPU that is given out too.
        ([published(device("gpu-0", counters="a"), device("m", "mig", counters="a"))], NodeDevices(1)),
        (
            [published(device("gpu-0", counters="a"), device("m", "mig", counters="b"))],
            NodeDevices(1, "allocates devices by DRA (mig) that a claim for its whole GPUs does not cover"),
        ),
        (
            [published(device("gpu-0"), device("gpu-1", taints=("None", "NoExecute")))],
            NodeDevices(2, "its device gpu-1 has the taint gpu.nvidia.com/xid"),
        ),
        ([published(device("gpu-0", taints=("None",)))], NodeDevices(1)),
    ],
)
def test_devices_of_a_node_that_a_sweep_can_claim(slices: list[Object], devices: NodeDevices | None) -> None:
    assert offer(*slices).of("n") == devices


def test_node_without_the_template_needs_the_overlay() -> None:
    assert offer(published(device("gpu-0")), has_template=False).of("n") == NodeDevices(1, NEEDED)


@pytest.mark.parametrize(("has_template", "devices"), [(True, NodeDevices(1)), (False, None)])
def test_node_with_a_device_plugin_needs_no_template(has_template: bool, devices: NodeDevices | None) -> None:
    both = offer(published(device("gpu-0")), has_template=has_template)
    assert with_devices(NodeState("n", gpus={"nvidia.com/gpu": 8}), both).devices == devices
    assert with_devices(NodeState("other"), both).devices is None


@pytest.mark.parametrize(
    ("claim", "busy"),
    [
        (held("gpu-0", "gpu-1"), {"n": "team/train holds 2 gpu.nvidia.com"}),
        (held("gpu-0", pods=()), {"n": "the claim team/c holds 1 gpu.nvidia.com"}),
        (held("gpu-7"), {}),
        (held("gpu-0", pool="elsewhere"), {}),
        (held("gpu-0", adminAccess=True), {}),
        (held("gpu-0", driver="dra.net"), {}),
        (held(), {}),
        ({"metadata": {"namespace": "team", "name": "c"}, "spec": {}}, {}),
    ],
)
def test_claim_that_holds_devices_of_a_node_is_named(claim: Object, busy: dict[str, str]) -> None:
    found = gpu_claim(claim)
    assert offer(published(device("gpu-0"), device("gpu-1"))).claimed_by([found] if found else []) == busy
