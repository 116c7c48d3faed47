"""Rules that keep new work off one GPU of NVIDIA's DRA driver. Data only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.devices import DRIVER
from gpu_healthcheck.healthcheck.node.state import UNHEALTHY
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, moment_or_none

TIERS = frozenset(one.name for one in Severity if one is not Severity.PASS)
EVICTING_TIERS = frozenset({Severity.REBOOT.name, Severity.ISOLATE.name})
HEEDED = "EvictionInProgress"
"""Condition that the device-taint controller sets on each rule that it has processed, whatever its effect."""


class RuleTaint(Struct, frozen=True):
    """Taint of a rule. `evicts`: it also ends the pods that claim the device."""

    tier: str = ""
    evicts: bool = False

    @property
    def as_object(self) -> dict[str, str]:
        return {"key": UNHEALTHY, "value": self.tier, "effect": "NoExecute" if self.evicts else "NoSchedule"}


class DeviceRule(Struct, frozen=True):
    """A DeviceTaintRule as the API server shows it. `uid` and `version` identify the rule to change."""

    name: str
    uid: str
    version: str
    node_uid: str = ""
    """UID of the Node that owns it."""
    device: str = ""
    taint: RuleTaint = field(default_factory=RuleTaint)
    time_added: datetime = EARLIEST
    is_ours: bool = False
    """Whether the rule has exactly the content that an agent writes under this name."""
    is_processed: bool = False
    """Whether the cluster's controllers have processed it. A served API alone does not prove that a controller acts."""
    is_processed_now: bool = False
    """Whether they have processed its last change. An older observation does not prove that they still run."""


MOST_RULES = 64
"""Most numbered rules of one node. A GPU with dynamic MIG has a device for each placement of each size."""
_WHOLE = re.compile(r"gpu-(0|[1-9][0-9]?)", re.ASCII)


def rule_name(node_name: str, device: str) -> str:
    """Return the name of a rule. Device names have no dot, so no two nodes share a rule name."""
    return f"gpu-healthcheck.{node_name}.{device}"


def numbered_names(node_name: str) -> tuple[str, ...]:
    """Return the names of rules for devices that are not whole GPUs.

    The admission policy does not let agents use invented device names (docs/decisions/notes.md).
    """
    return tuple(rule_name(node_name, str(index)) for index in range(MOST_RULES))


def is_whole(device: str) -> bool:
    """Whether the device is a whole GPU, by the driver's name for it.

    A rule can be named after such a device.
    """
    return bool(_WHOLE.fullmatch(device))


def is_rule_name(name: str, node_name: str, device: str) -> bool:
    """Whether this is an agent's name for that device's rule; up to 0.2.0 rules were named after the device."""
    return name == rule_name(node_name, device) or name in numbered_names(node_name)


def device_rule(rule: Mapping[str, Any], node_name: str) -> DeviceRule:
    """Return the fields of an API DeviceTaintRule that this project uses.

    A rule that another client has changed no longer counts as ours.
    """
    metadata, spec = rule["metadata"], rule["spec"]
    selector, taint = spec.get("deviceSelector") or {}, spec["taint"]
    device = str(selector.get("device", ""))
    known_taint = RuleTaint(str(taint.get("value", "")), evicts=taint.get("effect") == "NoExecute")
    owners = [
        str(owner.get("uid", "")) for owner in metadata.get("ownerReferences") or () if owner.get("kind") == "Node"
    ]
    conditions = (rule.get("status") or {}).get("conditions") or ()
    processed = [condition for condition in conditions if condition.get("type") == HEEDED]
    generation = metadata.get("generation")
    return DeviceRule(
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        version=str(metadata["resourceVersion"]),
        node_uid=next(iter(owners), ""),
        device=device,
        taint=known_taint,
        time_added=moment_or_none(taint.get("timeAdded")) or EARLIEST,
        is_ours=bool(device)
        and is_rule_name(metadata["name"], node_name, device)
        and selector == selector_of(node_name, device)
        and known_taint.as_object == {key: taint.get(key) for key in ("key", "value", "effect")}
        and known_taint.tier in (EVICTING_TIERS if known_taint.evicts else TIERS),
        is_processed=bool(processed),
        is_processed_now=any(condition.get("observedGeneration") == generation for condition in processed),
    )


def selector_of(node_name: str, device: str) -> dict[str, str]:
    """Return the rule's selector for a device. The driver names the pool after the node."""
    return {"driver": DRIVER, "pool": node_name, "device": device}
