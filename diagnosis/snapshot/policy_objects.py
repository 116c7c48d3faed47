"""Rules of a cluster: quotas, limits, disruption budgets, RuntimeClasses, admission webhooks."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.pods import Expression, read_expressions

_LONGEST_BUNDLE = 64 * 1024
_TIMEOUT = 10
"""Default timeout of a webhook in seconds."""


class Quota(Struct, frozen=True):
    """ResourceQuota: amounts by name, as `requests.nvidia.com/gpu`. `scopes`: pods it covers; empty for all."""

    meta: Meta
    hard: Mapping[str, str] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)
    scopes: tuple[Expression, ...] = ()


class LimitRangeItem(Struct, frozen=True):
    """One entry of a LimitRange, of `kind` Container, Pod or PersistentVolumeClaim."""

    kind: str
    most: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


class LimitRange(Struct, frozen=True):
    """LimitRange with its items."""

    meta: Meta
    limits: tuple[LimitRangeItem, ...] = ()


class Selector(Struct, frozen=True):
    """Label selector. A budget without one selects nothing; an empty selector selects everything."""

    labels: Mapping[str, str] = field(default_factory=dict)
    expressions: tuple[Expression, ...] = ()

    def takes(self, labels: Mapping[str, str]) -> bool:
        same = all(labels.get(key) == value for key, value in self.labels.items())
        return same and all(expression.takes(labels.get(expression.key)) for expression in self.expressions)

    def __str__(self) -> str:
        """Format as `team is a and gpu is not off`; '' for an empty selector."""
        return " and ".join((*(f"{key} is {text}" for key, text in self.labels.items()), *map(str, self.expressions)))


class DisruptionBudget(Struct, frozen=True):
    """PodDisruptionBudget. `allowed` is None if it has not been computed yet."""

    meta: Meta
    selector: Selector | None = None
    allowed: int | None = None
    healthy: int | None = None
    wanted: int | None = None


class RuntimeClass(Struct, frozen=True):
    """RuntimeClass: its handler and its nodeSelector."""

    meta: Meta
    handler: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)


class Webhook(Struct, frozen=True):
    """One webhook of a configuration. `service` is namespace/name; '' for a URL."""

    configuration: Meta
    name: str
    service: str = ""
    path: str = ""
    fails_closed: bool = True
    on_pods: bool = False
    """Whether it is called when a pod is created."""
    ca: str = ""
    """PEM certificates in base64, as in the API; a placeholder in a saved state."""
    namespaces: Selector = field(default_factory=Selector)
    objects: Selector = field(default_factory=Selector)
    timeout: int = _TIMEOUT
    """Timeout in seconds."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """matchConditions: expressions by name, all of which must be true."""


def read_quota(raw: Fields) -> Quota:
    hard = raw.words("status", "hard") or raw.words("spec", "hard")
    plain = tuple(Expression(name, "Exists") for name in raw.texts("spec", "scopes"))
    selected = (
        Expression(fields.text("scopeName"), fields.text("operator"), tuple(fields.texts("values")))
        for fields in raw.each("spec", "scopeSelector", "matchExpressions")
    )
    meta = read_meta("ResourceQuota", raw)
    return Quota(meta, hard, raw.words("status", "used"), (*plain, *selected))


def read_limit_range(raw: Fields) -> LimitRange:
    limits = (
        LimitRangeItem(fields.text("type"), fields.words("max"), fields.words("min"), fields.words("default"))
        for fields in raw.each("spec", "limits")
    )
    return LimitRange(read_meta("LimitRange", raw), tuple(limits))


def read_budget(raw: Fields) -> DisruptionBudget:
    return DisruptionBudget(
        read_meta("PodDisruptionBudget", raw),
        read_selector(raw.at("spec", "selector")) if raw.has("spec", "selector") else None,
        raw.number("status", "disruptionsAllowed"),
        raw.number("status", "currentHealthy"),
        raw.number("status", "desiredHealthy"),
    )


def read_runtime_class(raw: Fields) -> RuntimeClass:
    return RuntimeClass(read_meta("RuntimeClass", raw), raw.text("handler"), raw.words("scheduling", "nodeSelector"))


def read_webhooks(kind: str, raw: Fields) -> tuple[Webhook, ...]:
    """Read the webhooks of a MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""
    meta = read_meta(kind, raw)
    return tuple(_webhook(meta, fields) for fields in raw.each("webhooks"))


def read_selector(raw: Fields) -> Selector:
    return Selector(raw.words("matchLabels"), read_expressions(raw, "matchExpressions"))


def _webhook(meta: Meta, raw: Fields) -> Webhook:
    service = raw.at("clientConfig", "service")
    named = f"{service.text('namespace')}/{service.text('name')}" if service.has("name") else ""
    on_pods = any(
        {"pods", "*", "*/*"} & set(rule.texts("resources")) and {"CREATE", "*"} & set(rule.texts("operations"))
        for rule in raw.each("rules")
    )
    return Webhook(
        meta,
        raw.text("name"),
        named,
        service.text("path"),
        raw.text("failurePolicy") != "Ignore",
        on_pods,
        raw.text("clientConfig", "caBundle", longest=_LONGEST_BUNDLE),
        read_selector(raw.at("namespaceSelector")),
        read_selector(raw.at("objectSelector")),
        _TIMEOUT if (timeout := raw.number("timeoutSeconds")) is None else timeout,
        {fields.text("name"): fields.message("expression") for fields in raw.each("matchConditions")},
    )
