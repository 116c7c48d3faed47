"""DeviceTaintRules as the API shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.device_rules import RuleTaint, device_rule, rule_name
from gpu_healthcheck.healthcheck.node.gpu_resources import has_device_plugin

NODE = "ip-10-0-0-1.ec2.internal"
Json = dict[str, Any]


def rule(device: str = "gpu-0", **changes: Any) -> Json:
    """`spec`, `selector`, `taint` and `metadata` are merged into an agent's rule."""
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
    ("changes", "is_ours"),
    [
        ({}, True),
        ({"taint": {"value": "ISOLATE"}}, True),
        ({"taint": {"value": "PASS"}}, False),
        ({"taint": {"effect": "None"}}, False),
        ({"taint": {"effect": "NoExecute", "value": "REBOOT"}}, True),
        ({"taint": {"effect": "NoExecute"}}, False),
        ({"taint": {"effect": "NoExecute", "value": "MONITOR"}}, False),
        ({"taint": {"effect": []}}, False),
        ({"taint": {"key": "gpu.nvidia.com/xid"}}, False),
        ({"selector": {"pool": "another"}}, False),
        ({"selector": {"driver": "gpu.example.com"}}, False),
        ({"selector": {"device": "gpu-1"}}, False),
        ({"selector": {"selectors": []}}, False),
        ({"metadata": {"name": "somebody"}}, False),
    ],
)
def test_rule_with_an_agents_content_is_ours(changes: Json, is_ours: bool) -> None:
    found = device_rule(rule(**changes), NODE)
    assert (found.is_ours, found.node_uid, found.is_processed) == (is_ours, "node-uid", False)


@pytest.mark.parametrize(
    ("taint", "evicts"), [({"effect": "NoExecute", "value": "REBOOT"}, True), ({"value": "REBOOT"}, False)]
)
def test_effect_of_a_rule_is_read(taint: Json, evicts: bool) -> None:
    found = device_rule(rule(taint={**taint, "timeAdded": "2026-11-23T01:02:03Z"}), NODE)
    assert found.taint == RuleTaint("REBOOT", evicts=evicts)
    assert found.time_added == datetime(2026, 11, 23, 1, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize(("generation", "now"), [(2, True), (3, False)])
@pytest.mark.parametrize(("status", "reason"), [("False", "OtherEffect"), ("True", "PodsPendingEviction")])
def test_processed_rule_is_recognised(generation: int, now: bool, status: str, reason: str) -> None:
    seen = {"type": "EvictionInProgress", "status": status, "reason": reason, "observedGeneration": 2}
    found = device_rule(rule(metadata={"generation": generation}, status={"conditions": [seen]}), NODE)
    assert (found.is_processed, found.is_processed_now) == (True, now)


def test_rule_names_of_two_nodes_differ() -> None:
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
def test_device_plugin_shows_in_the_nodes_resources(status: Json, expected: bool) -> None:
    assert has_device_plugin(status) is expected
