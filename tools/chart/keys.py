"""The chart's values, declared in keys.yaml: name, meaning, allowed values, and places in the manifests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from gpu_healthcheck.healthcheck.model import PREFIX
from tools.chart.manifest import Steps
from tools.chart.rules import ALERTS
from tools.chart.settings import lines

Schema = Mapping[str, Any]
Identity = tuple[str, str]

AGENT: Identity = ("DaemonSet", "gpu-healthcheck-agent")
SWEEPER: Identity = ("CronJob", "gpu-healthcheck-sweeper")
QUARANTINE: Identity = ("CronJob", "gpu-healthcheck-quarantine-node")
AUTOMATION: Identity = ("CronJob", "gpu-healthcheck-reset-automation")
EVICT: Identity = ("Deployment", "gpu-healthcheck-evict")
POD_MONITOR: Identity = ("PodMonitor", "gpu-healthcheck")
RULES: Identity = ("PrometheusRule", "gpu-healthcheck")
CONFIG: Identity = ("ConfigMap", "gpu-healthcheck-config")
GATE: Identity = ("MutatingAdmissionPolicy", "gpu-healthcheck-gate")
_OBJECTS: Mapping[str, Identity] = {
    "agent": AGENT,
    "sweeper": SWEEPER,
    "sweep": ("CronJob", "gpu-healthcheck-sweep-node"),
    "quarantine": QUARANTINE,
    "reset": ("CronJob", "gpu-healthcheck-reset-node"),
    "automation": AUTOMATION,
    "evict": EVICT,
    "podMonitor": POD_MONITOR,
}
"""Objects by their names in keys.yaml."""

_TEMPLATE: Steps = ("spec", "template", "spec")
PODS: Mapping[Identity, Steps] = {
    identity: _TEMPLATE if identity in (AGENT, EVICT) else ("spec", "jobTemplate", *_TEMPLATE)
    for identity in _OBJECTS.values()
    if identity != POD_MONITOR
}
"""Workloads with our image, and the path of the pod spec in each."""

REPOSITORY = "([a-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
"""Repository of an image reference; also part of a policy's expression."""
_PATTERNS = {
    "REPOSITORY": REPOSITORY,
    "NAME": "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
    "AMOUNT": r"[0-9]+(\.[0-9]+)?([eE][0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?",
    "DURATION": "([0-9]+(ms|s|m|h))+",
    "PREFIX": re.escape(PREFIX),
    "PROFILES": lines(r"[^#|\n]+\|[0-9 \t]+\|[0-9 \t]+\|[ \t]*(true|false)[ \t]*\|[^#|\n]*"),
}
_ALERTS_BY_KEY = {
    "prometheusRule.severities": sorted(ALERTS),
    "prometheusRule.for": sorted(name for name, duration in ALERTS.items() if duration),
}
"""Alerts that a value may name."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place and type of a value in an object.

    A `block` is the whole entry: omitted for an empty value, and added if the manifests lack it.
    """

    of: Identity
    path: Steps
    block: bool


@dataclass(frozen=True, slots=True)
class Key:
    """One value. Its default is the value at the first of its places, if it has places."""

    name: str
    means: str
    schema: Schema
    places: tuple[Place, ...]
    default: Any

    @property
    def is_optional(self) -> bool:
        """Whether the value may be empty: the entry is then omitted, or the list or map is empty."""
        return self.default in ([], {}) or (bool(self.places) and all(place.block for place in self.places))


def _key(name: str, declared: Mapping[str, Any]) -> Key:
    schema = declared["schema"]
    if name in _ALERTS_BY_KEY:
        schema = {**schema, "propertyNames": {"enum": _ALERTS_BY_KEY[name]}}
    path = declared.get("entry") or declared.get("value", "")
    places = (
        Place(_OBJECTS[text], _steps(_OBJECTS[text], path), "entry" in declared) for text in declared.get("of", ())
    )
    return Key(name, declared["means"], schema, tuple(places), declared.get("default"))


def _steps(identity: Identity, path: str) -> Steps:
    """Return the path of `pod/containers/0/resources` in this object."""
    first, *rest = (int(step) if step.isdecimal() else step for step in path.split("/"))
    return (*PODS[identity], *rest) if first == "pod" else (first, *rest)


def _read_keys() -> tuple[Key, ...]:
    text = Template(Path(__file__).with_name("keys.yaml").read_text()).safe_substitute(_PATTERNS)
    return tuple(_key(name, declared) for name, declared in yaml.safe_load(text)["values"].items())


KEYS = _read_keys()

ADDED = {
    "monitoring": "",
    "dra": "dra",
    "device-taints": "deviceTaints",
    "reset-automation": "resetAutomation",
    "evict": "evict",
    "gate": "gate",
}
"""Overlays that only add objects, with the key KEY that enables each by KEY.enabled."""
LABELLED: Mapping[Identity, str] = {POD_MONITOR: "podMonitor", RULES: "prometheusRule"}
"""Objects with their own KEY.enabled; KEY.labels is added to their labels."""
