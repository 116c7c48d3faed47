"""Declaration of settings: each is one field of a frozen value, with key, default and allowed values.

This module reads no settings, so that code that only uses settings need not load the readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

from msgspec import Meta, Struct
from msgspec.structs import fields

from healthcheck.model import Severity

IMDS = "http://169.254.169.254"
"""Default address of EC2's instance metadata service."""
_MILDEST = "mildest"
_ALLOWED = "allowed"
_DIGIT = "digit"

NodeName = Annotated[
    str, Meta(min_length=1, max_length=253, extra={_ALLOWED: "the name of a Node, of 1 to 253 characters"})
]
LogLevel = Annotated[
    str, Meta(pattern="^(debug|info|warning|error)$", extra={_ALLOWED: "allowed are debug, info, warning, error"})
]
Port = Annotated[int, Meta(ge=0, le=65535)]
# An empty variable would mean the current working directory.
Folder = Annotated[Path, Meta(extra={_ALLOWED: "the path of a folder from the root, beginning with /"})]
Namespace = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        extra={_ALLOWED: "the name of a namespace: at most 63 lower-case letters, digits and hyphens"},
    ),
]
AnySeverity = Annotated[
    Severity, Meta(extra={_MILDEST: Severity.MONITOR, _ALLOWED: "allowed are MONITOR, RESET, REBOOT or ISOLATE"})
]
# A lower severity would cost a machine for a fault that a reset fixes.
RepairSeverity = Annotated[Severity, Meta(extra={_MILDEST: Severity.REBOOT, _ALLOWED: "allowed are REBOOT or ISOLATE"})]

Switch = Annotated[bool, Meta(extra={_DIGIT: True})]
"""A bool that the ConfigMap writes as 0 or 1."""


class Setting(Struct, frozen=True):
    """One declared setting."""

    name: str
    """Name of the field."""
    key: str
    """Key of the ConfigMap, or name of the environment variable."""
    kind: type
    default: Any
    """Default value; NODEFAULT for a required setting."""
    limits: Meta
    """Bounds of a number, pattern and length of a text."""
    meaning: str
    """Description for people, shown by `explain`, the ConfigMap's comments and the chart's schema."""
    extra: Mapping[str, Any]

    @property
    def mildest(self) -> Severity:
        """Return the lowest severity that the setting accepts."""
        return Severity(self.extra.get(_MILDEST, Severity.MONITOR))

    @property
    def bounds(self) -> str:
        """Return the bounds of a number as text; '' for other types."""
        if self.limits.ge is None:
            return ""
        unit = " of seconds" if self.name.endswith("_seconds") else ""
        return f"a whole number{unit}, {self.limits.ge} to {self.limits.le}"

    @property
    def span(self) -> str:
        """Return a short sentence with the bounds of a number or the severities; '' for other types."""
        if self.kind is Severity:
            return f"Allowed: {', '.join(tier.name for tier in Severity if tier >= self.mildest)}."
        return "" if self.limits.ge is None else f"Allowed: {self.limits.ge} to {self.limits.le}."

    @property
    def allowed(self) -> str:
        """Return a text with the allowed values, for error messages; '' if any text is allowed."""
        if self.kind is bool:
            return "allowed are true and false, or 1 and 0"
        return str(self.extra.get(_ALLOWED, self.bounds))

    @property
    def has_effect(self) -> bool:
        """Whether the programs use the value; False for a key that only old ConfigMaps set."""
        return not self.meaning.startswith(NO_EFFECT)

    @property
    def written_default(self) -> str:
        """Return the default as a ConfigMap writes it."""
        return str(int(self.default)) if self.extra.get(_DIGIT) else written(self.default)


NO_EFFECT = "Accepted without effect"
"""Beginning of the meaning of a setting that only old ConfigMaps set."""


def written(value: object) -> str:
    """Return a value of a setting as a ConfigMap writes it."""
    if isinstance(value, Severity):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def settings_of(declared: type[Struct]) -> Mapping[str, Setting]:
    """Return the settings by key, in the order of their declaration."""
    return {
        field.encode_name: _setting(field.name, field.encode_name, field.type, field.default)
        for field in fields(declared)
    }


def by_key(values: Struct) -> dict[str, Any]:
    """Return the values by key."""
    return {setting.key: getattr(values, setting.name) for setting in settings_of(type(values)).values()}


def _setting(name: str, key: str, declared: Any, default: Any) -> Setting:
    kind, *metas = get_args(declared) or (declared,)
    limits = next((meta for meta in metas if meta.ge is not None or meta.pattern or meta.max_length), Meta())
    meaning = next((meta.description for meta in metas if meta.description), "")
    extra = {name: value for meta in metas for name, value in (meta.extra or {}).items()}
    return Setting(name, key, kind, default, limits, meaning, extra)
