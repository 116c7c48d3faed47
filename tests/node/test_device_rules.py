"""ResourceSlices of NVIDIA's DRA driver and DeviceTaintRules, as the API shows them."""

from __future__ import annotations

from typing import Any

import pytest

from healthcheck.node.device_rules import GpuDevice, IncompletePoolError, device_rule, published, rule_name
from healthcheck.node.gpu_resources import has_device_plugin

NODE = "ip-10-0-0-1.ec2.internal"
Json = dict[str, Any]


def device(name: str, **attributes: str) -> Json:
    """`resource.kubernetes.io/x` as `std_x`."""
    named = {key.replace("std_", "resource.kubernetes.io/"): {"string": value} for key, value in attributes.items()}
    return {"name": name, "attributes": {**named, "cudaComputeCapability": {"version": "9.0.0"}}}


def resource_slice(*devices: Json, generation: int = 1, count: int = 1, **spec: Any) -> Json:
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": list(devices), **spec}}


def rule(device: str = "gpu-0", **changes: Any) -> Json:
    """`spec`, `selector`, `taint` and `metadata` are merged into what an agent writes."""
    selector = {"driver": "gpu.nvidia.com", "pool": NODE, "device": device, **changes.get("selector", {})}
    taint = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "RESET", "effect": "NoSchedule"}
    return {
        "metadata": {
            "name": f"gpu-healthcheck.{NODE}.{device}",
            "uid": "u",
            "resourceVersion": "7",
            "ownerReferences": [{"kind": "Node", "uid": "node-uid"}],
            **changes.get("metadata", {}),
        },
        "spec": {"deviceSelector": selector, "taint": {**taint, "timeAdded": "x", **changes.get("taint", {})}},
        "status": changes.get("status", {}),
    }


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
def test_a_device_is_known_by_the_names_of_its_gpu(attributes: dict[str, str], address: str, uuids: set[str]) -> None:
    assert published([resource_slice(device("gpu-0", **attributes))], NODE) == (
        GpuDevice(NODE, "gpu-0", address, frozenset(uuids)),
    )


@pytest.mark.parametrize("spec", [{"driver": "compute-domain.nvidia.com"}, {"nodeName": "another"}])
def test_of_other_drivers_and_nodes_nothing_is_read(spec: Json) -> None:
    assert published([resource_slice(device("gpu-0"), **spec)], NODE) == ()


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = resource_slice(device("gpu-0"))
    new = [resource_slice(device(f"gpu-{n}"), generation=2, count=2) for n in (1, 2)]
    assert [one.name for one in published([old, *new], NODE)] == ["gpu-1", "gpu-2"]

    with pytest.raises(IncompletePoolError, match="is publishing the pool"):
        published([old, new[0]], NODE)


def test_counters_stand_in_a_slice_of_their_own() -> None:
    counters = resource_slice(count=2)
    del counters["spec"]["devices"]
    assert [one.name for one in published([counters, resource_slice(device("gpu-0"), count=2)], NODE)] == ["gpu-0"]


@pytest.mark.parametrize(
    ("changes", "is_ours"),
    [
        ({}, True),
        ({"taint": {"value": "ISOLATE"}}, True),
        ({"taint": {"value": "PASS"}}, False),
        ({"taint": {"effect": "None"}}, False),
        ({"taint": {"effect": "NoExecute"}}, False),
        ({"taint": {"key": "gpu.nvidia.com/xid"}}, False),
        ({"selector": {"pool": "another"}}, False),
        ({"selector": {"driver": "gpu.example.com"}}, False),
        ({"selector": {"device": "gpu-1"}}, False),
        ({"selector": {"selectors": []}}, False),
        ({"metadata": {"name": "somebody"}}, False),
    ],
)
def test_a_rule_is_ours_that_says_what_we_say(changes: Json, is_ours: bool) -> None:
    found = device_rule(rule(**changes), NODE)
    assert (found.is_ours, found.node_uid, found.is_heeded) == (is_ours, "node-uid", False)


def test_a_rule_that_the_controllers_have_seen_is_heeded() -> None:
    conditions = [{"type": "EvictionInProgress", "status": "False", "reason": "OtherEffect"}]
    assert device_rule(rule(status={"conditions": conditions}), NODE).is_heeded


def test_no_two_nodes_share_a_name() -> None:
    assert rule_name("a", "gpu-0") != rule_name("a.gpu-0", "gpu-0")
    assert not device_rule(rule(), "ip-10-0-0-1").is_ours


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, False),
        ({"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}}, True),
        ({"allocatable": {"nvidia.com/gpu": "0"}, "capacity": {"nvidia.com/gpu": "1"}}, True),
        ({"allocatable": {"nvidia.com/gpu": "0"}, "capacity": {"nvidia.com/gpu": "0"}}, False),
        ({"capacity": {"volcano.sh/vgpu-number": "10"}}, True),
    ],
)
def test_a_device_plugin_shows_in_what_the_kubelet_offers(status: Json, expected: bool) -> None:
    assert has_device_plugin(status) is expected
