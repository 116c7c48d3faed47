"""The chart's values: name, meaning, allowed values, and places in the manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from healthcheck.model import PREFIX
from tools.chart.manifest import Steps
from tools.chart.rules import ALERTS
from tools.chart.settings import lines

Schema = Mapping[str, Any]
Identity = tuple[str, str]

AGENT: Identity = ("DaemonSet", "gpu-healthcheck-agent")
SWEEPER: Identity = ("CronJob", "gpu-healthcheck-sweeper")
SWEEP: Identity = ("CronJob", "gpu-healthcheck-sweep-node")
QUARANTINE: Identity = ("CronJob", "gpu-healthcheck-quarantine-node")
RESET: Identity = ("CronJob", "gpu-healthcheck-reset-node")
AUTOMATION: Identity = ("CronJob", "gpu-healthcheck-reset-automation")
POD_MONITOR: Identity = ("PodMonitor", "gpu-healthcheck")
RULES: Identity = ("PrometheusRule", "gpu-healthcheck")
CONFIG: Identity = ("ConfigMap", "gpu-healthcheck-config")
GATE: Identity = ("MutatingAdmissionPolicy", "gpu-healthcheck-gate")

_TEMPLATE: Steps = ("spec", "template", "spec")
_JOB_TEMPLATE: Steps = ("spec", "jobTemplate", *_TEMPLATE)
PODS: Mapping[Identity, Steps] = {
    AGENT: _TEMPLATE,
    SWEEPER: _JOB_TEMPLATE,
    SWEEP: _JOB_TEMPLATE,
    QUARANTINE: _JOB_TEMPLATE,
    RESET: _JOB_TEMPLATE,
    AUTOMATION: _JOB_TEMPLATE,
}
"""Workloads with our image, and the path of the pod spec in each."""

REPOSITORY = "([a-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
"""Repository of an image reference; also part of a policy's expression."""

_TEXT: Schema = {"type": "string"}
_NAME = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
"""Name of an object."""
_AMOUNT = r"[0-9]+(\.[0-9]+)?([eE][0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?"
_DURATION = "^([0-9]+(ms|s|m|h))+$"
_SHARE: Schema = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 99999}
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
"""Toleration that the policy of sweep Jobs accepts: it names a taint other than ours."""
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
    """One value. Its default is the value at the first of its places, if it has places."""

    name: str
    means: str
    schema: Schema
    places: tuple[Place, ...] = ()
    default: Any = None

    @property
    def is_optional(self) -> bool:
        """Whether the value may be empty: the entry is then omitted, or the list or map is empty."""
        return self.default in ([], {}) or (bool(self.places) and all(place.block for place in self.places))


def _in_pods(*path: str | int, of: tuple[Identity, ...] = tuple(PODS), block: bool = True) -> tuple[Place, ...]:
    return tuple(Place(pair, (*PODS[pair], *path), block) for pair in of)


def _by_alert(alerts: Iterable[str], pattern: str) -> Schema:
    """Return the schema of a map from names of alerts."""
    value = {"type": "string", "pattern": pattern}
    return {"type": "object", "propertyNames": {"enum": sorted(alerts)}, "additionalProperties": value}


def _resources(of: Identity) -> tuple[Place, ...]:
    return _in_pods("containers", 0, "resources", of=(of,))


KEYS = (
    Key(
        "image.repository",
        "Repository of the image.",
        {"type": "string", "pattern": f"^{REPOSITORY}$"},
        default="gpu-healthcheck",
    ),
    Key(
        "image.tag",
        "Tag of the image. Empty: the chart's version.",
        {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"},
        default="",
    ),
    Key(
        "image.digest",
        "Digest of the image, such as sha256:0123…; replaces the tag.",
        {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        default="",
    ),
    Key(
        "image.pullPolicy",
        "Set Always if the tag moves.",
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
        "Run the agent from the image without DCGM and EFA's tools. Jobs use the full image.",
        _SWITCH,
        default=False,
    ),
    Key(
        "slim.digest",
        "Digest of the slim image, required with image.digest. Otherwise its tag is image.tag with -slim appended.",
        {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        default="",
    ),
    Key(
        "slim.memory",
        "The agent's memory limit with slim.enabled; replaces the one in agent.resources.",
        {"type": "string", "pattern": f"^{_AMOUNT}$"},
        default="192Mi",
    ),
    Key(
        "runtimeClassName",
        "RuntimeClass of agents and quarantines, such as nvidia, if every GPU node has it. Empty: the host's driver.",
        {"type": "string", "pattern": f"^({_NAME})?$"},
        default="",
    ),
    Key(
        "onlyGpuNodes",
        "For clusters in which every node has GPUs: the sweeper may run on any of them (docs/security.md).",
        _SWITCH,
        default=False,
    ),
    Key(
        "agent.resources",
        "Resources of the agent. Set no CPU limit: probes would miss their deadlines.",
        _RESOURCES,
        _resources(AGENT),
    ),
    Key(
        "agent.tolerations",
        "Tolerations of the agent. Default: every taint, including our own.",
        _TOLERATIONS,
        _in_pods("tolerations", of=(AGENT,)),
    ),
    Key(
        "agent.affinity",
        "Selects the nodes with an agent. The sweeper always avoids the nodes that the default selects.",
        _AFFINITY,
        _in_pods("affinity", of=(AGENT,)),
    ),
    Key(
        "agent.nodeSelector",
        "Further labels that nodes with an agent must have.",
        _WORDS,
        _in_pods("nodeSelector", of=(AGENT,)),
        {},
    ),
    Key(
        "agent.metricsPort",
        "Port of /metrics, /healthz and /readyz, open on the node itself because of the host's network.",
        {"type": "integer", "minimum": 1, "maximum": 65535},
        _in_pods("containers", 0, "ports", 0, "containerPort", of=(AGENT,), block=False),
    ),
    Key(
        "agent.logLevel",
        "Log level: debug, info, warning or error.",
        {"enum": ["debug", "info", "warning", "error"]},
        default="info",
    ),
    Key(
        "agent.maxUnavailable",
        "Number or percentage of agents that a rollout replaces at a time.",
        {"type": ["string", "integer"], "pattern": "^([1-9][0-9]?|100)%$", "minimum": 1},
        (Place(AGENT, ("spec", "updateStrategy", "rollingUpdate", "maxUnavailable")),),
    ),
    Key(
        "sweeper.schedule",
        "Schedule at which the sweeper searches for idle nodes that are due.",
        {"type": "string", "pattern": r"^(@[a-z]+( [0-9a-z]+)?|(\S+ +){4}\S+)$"},
        (Place(SWEEPER, ("spec", "schedule")),),
    ),
    Key(
        "sweeper.resources",
        "Resources of the sweeper's pod, which creates the sweep Jobs.",
        _RESOURCES,
        _resources(SWEEPER),
    ),
    Key(
        "sweeper.tolerations",
        "Tolerations of the sweeper's pod.",
        _TOLERATIONS,
        _in_pods("tolerations", of=(SWEEPER,)),
        [],
    ),
    Key(
        "sweeper.nodeSelector",
        "Node selector of the sweeper's pod.",
        _WORDS,
        _in_pods("nodeSelector", of=(SWEEPER,)),
        {},
    ),
    Key(
        "sweep.resources",
        "Resources of a sweep's Job, in addition to all GPUs of its node.",
        _RESOURCES,
        _resources(SWEEP),
    ),
    Key(
        "sweep.tolerations",
        "Tolerations of a sweep's Job. Nodes with other taints are not swept. Our own taints are not allowed.",
        _OF_A_SWEEP,
        _in_pods("tolerations", of=(SWEEP,)),
    ),
    Key("quarantine.resources", "Resources of a quarantine's Job.", _RESOURCES, _resources(QUARANTINE)),
    Key(
        "quarantine.tolerations",
        "Tolerations of a quarantine's Job. Nodes with other taints cannot be tested.",
        _TOLERATIONS,
        _in_pods("tolerations", of=(QUARANTINE,)),
    ),
    Key(
        "reset.tolerations",
        "Tolerations of a reset's Job. GPUs of nodes with other taints cannot be reset.",
        _TOLERATIONS,
        _in_pods("tolerations", of=(RESET,)),
    ),
    Key(
        "instanceProfiles",
        "Lines of instance-profiles.conf that add or replace instance types.",
        {"type": "string", "pattern": _PROFILES},
        default="",
    ),
    Key(
        "dra.enabled",
        "Sweep nodes whose GPUs NVIDIA's DRA driver allocates.",
        _SWITCH,
        default=False,
    ),
    Key(
        "deviceTaints.enabled",
        "Permission to taint single GPUs that NVIDIA's DRA driver allocates, and to see whether HAMi's scheduler obeys "
        "cordons. Also set settings.DEVICE_TAINTS.",
        _SWITCH,
        default=False,
    ),
    Key(
        "resetAutomation.enabled",
        "Reset GPUs with RESET findings on nodes without GPU pods, one node at a time (docs/quarantine.md).",
        _SWITCH,
        default=False,
    ),
    Key(
        "gate.enabled",
        "Add the gate to GPU pods of namespaces labelled gpu-healthcheck.aws-samples.io/gate=enabled (docs/gate.md).",
        _SWITCH,
        default=False,
    ),
    Key("podMonitor.enabled", "Create a PodMonitor of all agents for the Prometheus operator.", _SWITCH, default=False),
    Key(
        "podMonitor.labels",
        "Labels by which Prometheus selects the PodMonitor, such as {release: prometheus}.",
        _WORDS,
        default={},
    ),
    Key(
        "podMonitor.interval",
        "Scrape interval.",
        {"type": "string", "pattern": _DURATION},
        (Place(POD_MONITOR, ("spec", "podMetricsEndpoints", 0, "interval")),),
    ),
    Key(
        "prometheusRule.enabled",
        "Create the alerts as a PrometheusRule for the Prometheus operator.",
        _SWITCH,
        default=False,
    ),
    Key("prometheusRule.labels", "Labels by which Prometheus selects the PrometheusRule.", _WORDS, default={}),
    Key(
        "prometheusRule.severities",
        "Severity of an alert, such as {GpuNodeResetNeeded: critical}; none removes the alert.",
        _by_alert(ALERTS, "^[a-z][a-z0-9_-]{0,31}$"),
        default={},
    ),
    Key(
        "prometheusRule.for",
        "Waiting time of an alert, such as {GpuNodeFault: 5m}.",
        _by_alert((name for name, waits in ALERTS.items() if waits), _DURATION),
        default={},
    ),
    Key(
        "prometheusRule.runbookUrl",
        "Address of the page of the alerts; an alert's name in lower case is its anchor.",
        {"type": "string", "pattern": r"""^https?://[^\s'"{}#]+$"""},
        default="https://github.com/aws-samples/gpu-healthcheck/blob/main/docs/alerts.md",
    ),
    Key(
        "prometheusRule.namespace",
        "Namespace of the agents in the label namespace of up and of kube-state-metrics.",
        {"type": "string", "pattern": f"^{_NAME}$"},
        default="gpu-healthcheck",
    ),
    Key(
        "prometheusRule.job",
        "Regular expression of the label job of the agents' series up.",
        {"type": "string", "pattern": r"""^[^\s'"\\{}]+$"""},
        default="(.+/)?gpu-healthcheck.*",
    ),
    Key(
        "prometheusRule.fleetFaults",
        "Nodes of a cluster that become faulty within 15 minutes: GpuFleetFaults.",
        _COUNT,
        default=3,
    ),
    Key(
        "prometheusRule.fleetBlind",
        "Nodes of a cluster on which the same check does not run: GpuHealthcheckFleetBlind.",
        _COUNT,
        default=3,
    ),
    Key(
        "prometheusRule.budgetUsed",
        "Used share of the fleet budget: GpuHealthcheckBudgetNearlyUsed.",
        _SHARE,
        default=0.8,
    ),
    Key(
        "prometheusRule.throttledAboveType",
        "Part of the time above the median of the instance type: GpuThrottledAboveType.",
        _SHARE,
        default=0.1,
    ),
    Key(
        "prometheusRule.typeSlow",
        "Share of the nodes of an instance type with slow GPUs: GpuTypeSlow.",
        _SHARE,
        default=0.2,
    ),
    Key(
        "prometheusRule.temperatureMargin",
        "Degrees Celsius below a GPU's slowdown temperature: GpuTemperatureHigh.",
        {"type": "integer", "minimum": 0, "maximum": 50},
        default=5,
    ),
    Key("prometheusRule.memoryUsed", "Used share of a GPU's memory: GpuMemoryFull.", _SHARE, default=0.95),
    Key(
        "prometheusRule.utilization",
        "Utilization of a GPU in percent: GpuUnderutilized.",
        {"type": "integer", "minimum": 1, "maximum": 100},
        default=10,
    ),
    Key(
        "prometheusRule.sweeperSeconds",
        "Time without a successful sweep in seconds: GpuHealthcheckSweeperFailing.",
        {"type": "integer", "minimum": 600, "maximum": 999999},
        default=7200,
    ),
    Key("dashboards.enabled", "Create the dashboard as a ConfigMap for Grafana's sidecar.", _SWITCH, default=False),
    Key(
        "dashboards.labels",
        "Labels in addition to grafana_dashboard, by which the sidecar selects.",
        _WORDS,
        default={},
    ),
)

ADDED = {
    "monitoring": "",
    "dra": "dra",
    "device-taints": "deviceTaints",
    "reset-automation": "resetAutomation",
    "gate": "gate",
}
"""Overlays that only add objects, with the key KEY that enables each by KEY.enabled."""
LABELLED: Mapping[Identity, str] = {POD_MONITOR: "podMonitor", RULES: "prometheusRule"}
"""Objects with their own KEY.enabled; KEY.labels is added to their labels."""
