"""The ConfigMap's settings as values of the chart: typed and bounded as the product itself reads them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from healthcheck.model import Severity
from healthcheck.settings import NodeSettings

_FIELDS = {str(one.alias): one for one in NodeSettings.model_fields.values()}
_NARROWER: dict[str, dict[str, Any]] = {
    "EFA_MIN_BW": {"anyOf": [{"const": 0}, {"minimum": 500}]},
    "CHECKS_LIGHTWEIGHT": {"minLength": 1},
}
"""What a validator of the settings refuses beyond type and range; a test holds each to it."""


def allowed(name: str, value: Any) -> bool:
    """Whether the product takes it."""
    try:
        NodeSettings(**{name: value})
    except ValidationError:
        return False
    return True


def schema(name: str) -> dict[str, Any]:
    """What the value may be."""
    field = _FIELDS[name]
    if field.annotation is int:
        low = next(one.ge for one in field.metadata if hasattr(one, "ge"))
        high = next(one.le for one in field.metadata if hasattr(one, "le"))
        return {"type": "integer", "minimum": low, "maximum": high, **_NARROWER.get(name, {})}
    if field.annotation is bool:
        return {"type": "boolean"}
    if field.annotation is Severity:
        return {"enum": [one.name for one in Severity if allowed(name, one.name)]}
    return {"type": "string", **_NARROWER.get(name, {})}


def default(name: str, text: str) -> Any:
    """What the manifests' text is as a value."""
    kind = _FIELDS[name].annotation
    if kind is bool:
        return text in ("true", "1")
    return int(text) if kind is int else text


def template(name: str, text: str) -> str:
    """The value as the text that a ConfigMap has, in the words that the manifests have for it."""
    kind = _FIELDS[name].annotation
    value = f'index .Values.settings "{name}"'
    if kind is int:
        return f"{{{{ {value} | int64 | quote }}}}"  # a number of a values file is a float64 to Helm
    if kind is bool:
        yes, no = ("1", "0") if text in ("0", "1") else ("true", "false")
        return f'{{{{ {value} | ternary "{yes}" "{no}" | quote }}}}'
    return f"{{{{ {value} | toJson }}}}"
