"""The chart's values: name, meaning, allowed values, and places in the manifests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from healthcheck.model import PREFIX
from tools.chart.manifest import Steps
from tools.chart.settings import lines

Schema = Mapping[str, Any]
Identity = tuple[str, str]

AGENT: Identity = ("DaemonSet", "gpu-healthcheck-agent")
SWEEPER: Identity = ("CronJob", "gpu-healthcheck-sweeper")
SWEEP: Identity = ("CronJob", "gpu-healthcheck-sweep-node")
QUARANTINE: Identity = ("CronJob", "gpu-healthcheck-quarantine-node")
POD_MONITOR: Identity = ("PodMonitor", "gpu-healthcheck")
RULES: Identity = ("PrometheusRule", "gpu-healthcheck")
DASHBOARD: Identity = ("ConfigMap", "gpu-healthcheck-dashboard")
CONFIG: Identity = ("ConfigMap", "gpu-healthcheck-config")

_TEMPLATE: Steps = ("spec", "template", "spec")
_JOB_TEMPLATE: Steps = ("spec", "jobTemplate", *_TEMPLATE)
PODS: Mapping[Identity, Steps] = {
    AGENT: _TEMPLATE,
    SWEEPER: _JOB_TEMPLATE,
    SWEEP: _JOB_TEMPLATE,
    QUARANTINE: _JOB_TEMPLATE,
}
"""Who runs our image, and where its pod stands."""

REPOSITORY = "([a-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
"""Of an image, as a reference has it; it goes into a policy's expression too."""

_TEXT: Schema = {"type": "string"}
_NAME = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
"""Of an object."""
_AMOUNT = r"[0-9]+(\.[0-9]+)?([eE][0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?"
_SWITCH: Schema = {"type": "boolean"}
_WORDS: Schema = {"type": "object", "additionalProperties": _TEXT}
_AMOUNTS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number"], "pattern": f"^{_AMOUNT}$", "minimum": 0},
}
_RESOURCES: Schema = {
    "type": "object",
    "properties": {"limits": _AMOUNTS, "requests": _AMOUNTS},
    "additionalProperties": False,
}
_TOLERATION: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("key", "value"), _TEXT),
        "operator": {"enum": ["Exists", "Equal"]},
        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        "tolerationSeconds": {"type": "integer"},
    },
    "additionalProperties": False,
}
_TOLERATIONS: Schema = {"type": "array", "items": _TOLERATION}
_OF_A_SWEEP: Schema = {
    "type": "array",
    "items": {
        **_TOLERATION,
        "properties": {
            **_TOLERATION["properties"],
            "key": {**_TEXT, "minLength": 1, "not": {"pattern": f"^{re.escape(PREFIX)}/"}},
        },
        "required": ["key"],
    },
}
"""As the policy of its Jobs has it: it names a taint, and none of ours."""
_AFFINITY: Schema = {
    "type": "object",
    "properties": {one: {"type": "object"} for one in ("nodeAffinity", "podAffinity", "podAntiAffinity")},
    "additionalProperties": False,
}
_SECRETS: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {**_TEXT, "pattern": f"^{_NAME}$"}},
        "required": ["name"],
        "additionalProperties": False,
    },
}


_PROFILES = lines(r"[^#|\n]+\|[0-9 \t]+\|[0-9 \t]+\|[ \t]*(true|false)[ \t]*\|[^#|\n]*")


@dataclass(frozen=True, slots=True)
class Place:
    """Place and type of a value in an object.

    A `block` is the whole entry: omitted for an empty value, and added if the manifests lack it.
    """

    of: Identity
    path: Steps
    block: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One value. Its default is the value at the first of its places, if there is one."""

    name: str
    means: str
    schema: Schema
    places: tuple[Place, ...] = ()
    default: Any = None

    @property
    def is_optional(self) -> bool:
        """Whether nothing may stand there: an entry is left out then, or a list or map is empty."""
        return self.default in ([], {}) or (bool(self.places) and all(place.block for place in self.places))


def _in_pods(*path: str | int, of: tuple[Identity, ...] = tuple(PODS), block: bool = True) -> tuple[Place, ...]:
    return tuple(Place(pair, (*PODS[pair], *path), block) for pair in of)


def _resources(of: Identity) -> tuple[Place, ...]:
    return _in_pods("containers", 0, "resources", of=(of,))


KEYS = (
    Key(
        "image.repository",
        "Where the nodes pull the image from.",
        {"type": "string", "pattern": f"^{REPOSITORY}$"},
        default="gpu-healthcheck",
    ),
    Key(
        "image.tag",
        "Empty: the chart's own version.",
        {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"},
        default="",
    ),
    Key(
        "image.digest",
        "Such as sha256:0123…; where it is given, the tag is not asked.",
        {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        default="",
    ),
    Key(
        "image.pullPolicy",
        "Always for a tag that moves.",
        {"enum": ["Always", "IfNotPresent", "Never"]},
        _in_pods("containers", 0, "imagePullPolicy", block=False),
    ),
    Key(
        "imagePullSecrets",
        "Names of Secrets in the namespace, such as [{name: registry}].",
        _SECRETS,
        _in_pods("imagePullSecrets"),
        [],
    ),
    Key(
        "slim.enabled",
        "The agent from the image without DCGM and EFA's tools; Jobs keep the full one.",
        _SWITCH,
        default=False,
    ),
    Key(
        "slim.digest",
        "Of that image, where image.digest is given; else it has the tag with -slim behind it.",
        {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        default="",
    ),
    Key(
        "slim.memory",
        "The agent's limit then, in place of that of agent.resources.",
        {"type": "string", "pattern": f"^{_AMOUNT}$"},
        default="192Mi",
    ),
    Key(
        "runtimeClassName",
        "Of the agent and of quarantines, such as nvidia, where every GPU node has it. Empty: the host's own driver.",
        {"type": "string", "pattern": f"^({_NAME})?$"},
        default="",
    ),
    Key(
        "onlyGpuNodes",
        "For clusters in which every node has GPUs: the sweeper runs on any of them (docs/security.md).",
        _SWITCH,
        default=False,
    ),
    Key(
        "agent.resources", "No CPU limit: it would make every deadline of a look a lie.", _RESOURCES, _resources(AGENT)
    ),
    Key(
        "agent.tolerations",
        "Every taint, our own included.",
        _TOLERATIONS,
        _in_pods("tolerations", of=(AGENT,)),
    ),
    Key(
        "agent.affinity",
        "Which nodes have an agent. The sweeper keeps off those of the default, whatever stands here.",
        _AFFINITY,
        _in_pods("affinity", of=(AGENT,)),
    ),
    Key(
        "agent.nodeSelector", "Labels that such a node has as well.", _WORDS, _in_pods("nodeSelector", of=(AGENT,)), {}
    ),
    Key(
        "agent.metricsPort",
        "Of /metrics, /healthz and /readyz; with the host's network it is a port of the node itself.",
        {"type": "integer", "minimum": 1, "maximum": 65535},
        _in_pods("containers", 0, "ports", 0, "containerPort", of=(AGENT,), block=False),
    ),
    Key(
        "agent.logLevel",
        "debug, info, warning or error.",
        {"enum": ["debug", "info", "warning", "error"]},
        default="info",
    ),
    Key(
        "agent.maxUnavailable",
        "How many agents a rollout replaces at a time.",
        {"type": ["string", "integer"], "pattern": "^([1-9][0-9]?|100)%$", "minimum": 1},
        (Place(AGENT, ("spec", "updateStrategy", "rollingUpdate", "maxUnavailable")),),
    ),
    Key(
        "sweeper.schedule",
        "When it looks which idle nodes are due.",
        {"type": "string", "pattern": r"^(@[a-z]+( [0-9a-z]+)?|(\S+ +){4}\S+)$"},
        (Place(SWEEPER, ("spec", "schedule")),),
    ),
    Key("sweeper.resources", "Of the pod that makes the sweeps' Jobs.", _RESOURCES, _resources(SWEEPER)),
    Key("sweeper.tolerations", "Of the same pod.", _TOLERATIONS, _in_pods("tolerations", of=(SWEEPER,)), []),
    Key("sweeper.nodeSelector", "Of the same pod.", _WORDS, _in_pods("nodeSelector", of=(SWEEPER,)), {}),
    Key(
        "sweep.resources",
        "Of a sweep's Job, beside all GPUs of its node.",
        _RESOURCES,
        _resources(SWEEP),
    ),
    Key(
        "sweep.tolerations",
        "A node whose taint is not tolerated is not swept; of our own taints none may be.",
        _OF_A_SWEEP,
        _in_pods("tolerations", of=(SWEEP,)),
    ),
    Key("quarantine.resources", "Of a quarantine's Job.", _RESOURCES, _resources(QUARANTINE)),
    Key(
        "quarantine.tolerations",
        "A node whose taint is not tolerated can't be tested in quarantine.",
        _TOLERATIONS,
        _in_pods("tolerations", of=(QUARANTINE,)),
    ),
    Key(
        "instanceProfiles",
        "Lines of instance-profiles.conf for types that differ from ours, or that we have not.",
        {"type": "string", "pattern": _PROFILES},
        default="",
    ),
    Key(
        "dra.enabled",
        "Sweeps of nodes whose GPUs NVIDIA's DRA driver gives out.",
        _SWITCH,
        default=False,
    ),
    Key(
        "deviceTaints.enabled",
        "What an agent needs to taint one GPU that NVIDIA's DRA driver gives out; settings.DEVICE_TAINTS has it do so.",
        _SWITCH,
        default=False,
    ),
    Key("podMonitor.enabled", "For the Prometheus operator: every agent is scraped.", _SWITCH, default=False),
    Key("podMonitor.labels", "What its Prometheus selects by, such as {release: prometheus}.", _WORDS, default={}),
    Key(
        "podMonitor.interval",
        "Between two scrapes.",
        {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
        (Place(POD_MONITOR, ("spec", "podMetricsEndpoints", 0, "interval")),),
    ),
    Key("prometheusRule.enabled", "For the Prometheus operator: the alerts.", _SWITCH, default=False),
    Key("prometheusRule.labels", "What its Prometheus selects by.", _WORDS, default={}),
    Key("dashboards.enabled", "For Grafana's sidecar: the dashboard.", _SWITCH, default=False),
    Key("dashboards.labels", "Beside grafana_dashboard, which the sidecar looks for.", _WORDS, default={}),
)

ADDED = {"monitoring": "", "dra": "dra", "device-taints": "deviceTaints"}
"""Overlays that add objects and change none: each is made where the key KEY.enabled says so."""
LABELLED: Mapping[Identity, str] = {POD_MONITOR: "podMonitor", RULES: "prometheusRule", DASHBOARD: "dashboards"}
"""These have a key of their own, KEY.enabled, and KEY.labels is added to their labels."""
