"""Objects that NVIDIA's DRA driver publishes of a node, created by hand, and the DeviceTaintRules there."""

from __future__ import annotations

from typing import Any

from sim.control_plane import ControlPlane

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "gpu.nvidia.com"
Json = dict[str, Any]


def publish(plane: ControlPlane, node: str, addresses: list[str]) -> None:
    """As the driver does: one pool, called by the node, a device for each GPU."""
    devices = [
        {"name": f"gpu-{n}", "attributes": {"resource.kubernetes.io/pciBusID": {"string": text}}}
        for n, text in enumerate(addresses)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    plane.request("DELETE", f"{SLICES}/{node}")
    answer = plane.request("POST", SLICES, {"metadata": {"name": node}, "spec": spec})
    assert answer.status == 201, answer.message


def rules_of(plane: ControlPlane, node: str) -> dict[str, str]:
    """By device the tier, of the rules that are called by this node."""
    listed = plane.request("GET", plane.device_taint_rules).body["items"]
    named = {entry["metadata"]["name"]: entry["spec"] for entry in listed}
    mine = {name: spec for name, spec in named.items() if name.startswith(f"gpu-healthcheck.{node}.")}
    return {spec["deviceSelector"]["device"]: spec["taint"]["value"] for spec in mine.values()}
