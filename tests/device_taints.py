"""Objects of NVIDIA's DRA driver, created by hand, a pod that claims a GPU, and the DeviceTaintRules of a node."""

from __future__ import annotations

import json
from typing import Any

from gpu_healthcheck.sim.control_plane import DEVICE_TAINT_RULES, ControlPlane

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "gpu.nvidia.com"
SELECTORS = [{"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"}}]
CLASSES = [
    {"kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": SELECTORS}},
    {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}},
    },
]
WORK = {
    "terminationGracePeriodSeconds": 0,
    "containers": [{"name": "x", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
}
"""Pod that claims one GPU."""
Json = dict[str, Any]


def install_driver(plane: ControlPlane) -> None:
    """Create the driver's class, and a template of claims for one GPU."""
    for entry in CLASSES:
        plane.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "resource.k8s.io/v1", **entry}))


def publish(plane: ControlPlane, node: str, addresses: list[str]) -> None:
    """As the driver does: one pool, called by the node, a device for each GPU."""
    devices = [
        {
            "name": f"gpu-{n}",
            "attributes": {"type": {"string": "gpu"}, "resource.kubernetes.io/pciBusID": {"string": text}},
        }
        for n, text in enumerate(addresses)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    plane.request("DELETE", f"{SLICES}/{node}")
    answer = plane.request("POST", SLICES, {"metadata": {"name": node}, "spec": spec})
    assert answer.status == 201, answer.message


def rules_of(plane: ControlPlane, node: str) -> dict[str, str]:
    """By device the tier, of the rules that are called by this node."""
    listed = plane.request("GET", DEVICE_TAINT_RULES).body["items"]
    named = {entry["metadata"]["name"]: entry["spec"] for entry in listed}
    mine = {name: spec for name, spec in named.items() if name.startswith(f"gpu-healthcheck.{node}.")}
    return {spec["deviceSelector"]["device"]: spec["taint"]["value"] for spec in mine.values()}


def devices_in_use(plane: ControlPlane) -> list[str]:
    """Return the devices that the scheduler has allocated to claims."""
    claims = plane.request("GET", "/apis/resource.k8s.io/v1/resourceclaims").body["items"]
    allocations = [claim["status"]["allocation"] for claim in claims if "allocation" in claim.get("status", {})]
    return sorted(result["device"] for one in allocations for result in one["devices"]["results"])
