"""Kinds with few facts: rules of a cluster, admission webhooks, endpoints, ConfigMaps, volumes, Leases, operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.snapshot.meta import ApiObject, Meta, read_object
from gpu_healthcheck.diagnosis.snapshot.pods import Conditions, read_terms
from gpu_healthcheck.healthcheck.node.label_selector import Expression
from gpu_healthcheck.healthcheck.text.boundary import (
    LONGEST_MESSAGE,
    At,
    Moment,
    by_name,
    document,
    each,
    entries,
    flag,
    items,
    read,
    text,
    value_at,
)

_LONGEST_BUNDLE, _LONGEST_DOCUMENT = 64 * 1024, 256 * 1024
_ZONES = (
    *("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
    *("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
)
"""Zone labels that restrict a volume; several zones in one value are separated by `__`."""


class _Scope(Expression, frozen=True):
    key: Annotated[str, At("scopeName")] = ""


def _scopes(spec: object) -> tuple[Expression, ...]:
    plain = (Expression(text(name), "Exists") for name in entries(value_at(spec, "scopes")))
    selected = entries(value_at(spec, "scopeSelector", "matchExpressions"))
    return (*plain, *(read(_Scope, entry) for entry in selected))


class Quota(ApiObject, frozen=True):
    """ResourceQuota: amounts by name, as `requests.nvidia.com/gpu`. `scopes`: pods it covers; empty for all."""

    hard: Annotated[Mapping[str, str], At("status.hard", "spec.hard")] = field(default_factory=dict)
    used: Annotated[Mapping[str, str], At("status.used")] = field(default_factory=dict)
    scopes: Annotated[tuple[Expression, ...], At("spec"), _scopes] = ()


class LimitRangeItem(Struct, frozen=True):
    """One entry of a LimitRange, of `kind` Container, Pod or PersistentVolumeClaim."""

    kind: Annotated[str, At("type")] = ""
    most: Annotated[Mapping[str, str], At("max")] = field(default_factory=dict)
    least: Annotated[Mapping[str, str], At("min")] = field(default_factory=dict)
    defaults: Annotated[Mapping[str, str], At("default")] = field(default_factory=dict)


class LimitRange(ApiObject, frozen=True):
    """LimitRange with its items."""

    limits: Annotated[tuple[LimitRangeItem, ...], At("spec.limits")] = ()


class Selector(Struct, frozen=True):
    """Label selector. A budget without one selects nothing; an empty selector selects everything."""

    labels: Annotated[Mapping[str, str], At("matchLabels")] = field(default_factory=dict)
    expressions: Annotated[tuple[Expression, ...], At("matchExpressions")] = ()

    def takes(self, labels: Mapping[str, str]) -> bool:
        same = all(labels.get(key) == value for key, value in self.labels.items())
        return same and all(expression.takes(labels.get(expression.key)) for expression in self.expressions)

    def __str__(self) -> str:
        """Format as `team is a and gpu is not off`; '' for an empty selector."""
        return " and ".join((*(f"{key} is {text}" for key, text in self.labels.items()), *map(str, self.expressions)))


class DisruptionBudget(ApiObject, frozen=True):
    """PodDisruptionBudget. `allowed` is None if it has not been computed yet."""

    selector: Annotated[Selector | None, At("spec.selector")] = None
    allowed: Annotated[int | None, At("status.disruptionsAllowed")] = None
    healthy: Annotated[int | None, At("status.currentHealthy")] = None
    wanted: Annotated[int | None, At("status.desiredHealthy")] = None


class RuntimeClass(ApiObject, frozen=True):
    """RuntimeClass: its handler and its nodeSelector."""

    handler: str = ""
    node_selector: Annotated[Mapping[str, str], At("scheduling.nodeSelector")] = field(default_factory=dict)


def _service(value: object) -> str | None:
    name = value_at(value, "name")
    return None if name is None else f"{text(value_at(value, 'namespace') or '')}/{text(name)}"


def _is_on_pods(rules: object) -> bool:
    """Return whether one of the rules is about the creation of pods."""
    return any(
        not {"pods", "*", "*/*"}.isdisjoint(each(text, value_at(rule, "resources")))
        and not {"CREATE", "*"}.isdisjoint(each(text, value_at(rule, "operations")))
        for rule in entries(rules)
    )


class Webhook(Struct, frozen=True):
    """One webhook of a configuration. `service` is namespace/name; '' for a URL."""

    configuration: Annotated[Meta, At()]
    name: str = ""
    service: Annotated[str, At("clientConfig.service"), _service] = ""
    path: Annotated[str, At("clientConfig.service.path")] = ""
    fails_closed: Annotated[bool, At("failurePolicy"), lambda policy: policy != "Ignore"] = True
    on_pods: Annotated[bool, At("rules"), _is_on_pods] = False
    """Whether it is called when a pod is created."""
    ca: Annotated[str, At("clientConfig.caBundle"), partial(text, longest=_LONGEST_BUNDLE)] = ""
    """PEM certificates in base64, as in the API; a placeholder in a saved state."""
    namespaces: Annotated[Selector, At("namespaceSelector")] = field(default_factory=Selector)
    objects: Annotated[Selector, At("objectSelector")] = field(default_factory=Selector)
    timeout: Annotated[int, At("timeoutSeconds")] = 10
    """Timeout in seconds."""
    conditions: Annotated[
        Mapping[str, str], At("matchConditions"), by_name("name", "expression", longest=LONGEST_MESSAGE)
    ] = field(default_factory=dict)
    """matchConditions: expressions by name, all of which must be true."""


def read_webhooks(kind: str, raw: Any) -> tuple[Webhook, ...]:
    """Read the webhooks of a MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""
    meta = read_object(ApiObject, kind, raw).meta
    return tuple(read(Webhook, entry, configuration=meta) for entry in entries(raw.get("webhooks")))


def _documents(value: object) -> dict[str, str]:
    return {name: document(entry, _LONGEST_DOCUMENT) for name, entry in items(value)}


class ConfigMap(ApiObject, frozen=True):
    """ConfigMap with unchanged documents. Only ConfigMaps that were queried by name are kept."""

    data: Annotated[Mapping[str, str], _documents] = field(default_factory=dict)


class VolumeClaim(ApiObject, frozen=True):
    """A PersistentVolumeClaim. `volume` is '' until a volume is bound to it."""

    phase: Annotated[str, At("status.phase")] = ""
    volume: Annotated[str, At("spec.volumeName")] = ""
    storage_class: Annotated[str, At("spec.storageClassName")] = ""


class Volume(ApiObject, frozen=True):
    """PersistentVolume. A node can mount it if it meets one of `terms` (None: any node) and all of `zones`."""

    terms: Annotated[
        tuple[tuple[Expression, ...], ...] | None, At("spec.nodeAffinity.required.nodeSelectorTerms"), read_terms
    ] = None

    @property
    def zones(self) -> tuple[Expression, ...]:
        labels = self.meta.labels
        return tuple(Expression(key, "In", tuple(labels[key].split("__"))) for key in _ZONES if key in labels)


class Lease(ApiObject, frozen=True):
    """Lease with the time of its last renewal, and the number of seconds for which that is valid."""

    renewed: Annotated[Moment, At("spec.renewTime")] = None
    seconds: Annotated[int, At("spec.leaseDurationSeconds")] = 0


def _enabled(spec: object) -> dict[str, bool]:
    found = ((name, value_at(part, "enabled")) for name, part in items(spec))
    return {name: flag(enabled) for name, enabled in found if enabled is not None}


class ClusterPolicy(ApiObject, frozen=True):
    """Configuration and state of the GPU operator: a ClusterPolicy, or a GPUCluster, its stack for DRA.

    `parts`: by operand, whether it is enabled, if the policy sets that.
    """

    state: Annotated[str, At("status.state")] = ""
    conditions: Conditions = ()
    parts: Annotated[Mapping[str, bool], At("spec"), _enabled] = field(default_factory=dict)
    toolkit_env: Annotated[Mapping[str, str], At("spec.toolkit.env"), by_name("name", "value", longest=1024)] = field(
        default_factory=dict
    )
    cdi: Annotated[bool | None, At("spec.cdi.enabled")] = None
    runtime_class: Annotated[str, At("spec.operator.runtimeClass")] = ""
    plugin_config: Annotated[str, At("spec.devicePlugin.config.name")] = ""
    """ConfigMap of the device plugin; '' if it reads none."""
    plugin_default: Annotated[str, At("spec.devicePlugin.config.default")] = ""
    """Key of that ConfigMap for nodes without a label of their own."""


class Endpoints(Struct, frozen=True):
    """Number of ready addresses of a Service, from one EndpointSlice or its Endpoints."""

    meta: Meta
    service: str
    ready: int


def read_endpoints(kind: str, raw: Any) -> Endpoints:
    """Read the facts of an EndpointSlice, or of Endpoints."""
    meta = read_object(ApiObject, kind, raw).meta
    if kind == "Endpoints":
        addresses = (entries(value_at(subset, "addresses")) for subset in entries(raw.get("subsets")))
        return Endpoints(meta, meta.name, sum(1 for each in addresses for _ in each))
    ready = (value_at(entry, "conditions", "ready") is not False for entry in entries(raw.get("endpoints")))
    return Endpoints(meta, meta.labels.get("kubernetes.io/service-name", ""), sum(ready))
