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
"""EC2's instance metadata service, where nothing else is set."""
_MILDEST = "mildest"

NodeName = Annotated[
    str, Meta(min_length=1, max_length=253, description="the name of a Node, of 1 to 253 characters, is wanted")
]
LogLevel = Annotated[
    str, Meta(pattern="^(debug|info|warning|error)$", description="allowed are debug, info, warning, error")
]
Port = Annotated[int, Meta(ge=0, le=65535)]
# An empty variable would mean the current working directory.
Folder = Annotated[Path, Meta(description="the path of a folder from the root, beginning with /")]
AnySeverity = Annotated[
    Severity, Meta(description="allowed are MONITOR, RESET, REBOOT or ISOLATE", extra={_MILDEST: Severity.MONITOR})
]
# A lower severity would cost a machine for a fault that a reset fixes.
RepairSeverity = Annotated[
    Severity, Meta(description="allowed are REBOOT or ISOLATE", extra={_MILDEST: Severity.REBOOT})
]


class Setting(Struct, frozen=True):
    """One declared setting."""

    name: str
    """Of the field."""
    key: str
    """Of the ConfigMap, or a variable of the environment."""
    kind: type
    default: Any
    """NODEFAULT: it has to be set."""
    meta: Meta

    @property
    def mildest(self) -> Severity:
        """Return the lowest severity that the setting accepts."""
        return Severity((self.meta.extra or {}).get(_MILDEST, Severity.MONITOR))

    @property
    def bounds(self) -> str:
        """Return the bounds of a number as text; '' for other types."""
        if self.meta.ge is None:
            return ""
        unit = " of seconds" if self.name.endswith("_seconds") else ""
        return f"a whole number{unit}, {self.meta.ge} to {self.meta.le}"

    @property
    def allowed(self) -> str:
        """Return a text with the allowed values, for error messages; '' if any text is allowed."""
        if self.kind is bool:
            return "allowed are true and false, or 1 and 0"
        return self.meta.description or self.bounds


@cache
def settings_of(declared: type[Struct]) -> Mapping[str, Setting]:
    """Return the settings by key, in the order of their declaration."""
    return {one.encode_name: _setting(one.name, one.encode_name, one.type, one.default) for one in fields(declared)}


def by_key(values: Struct) -> dict[str, Any]:
    """The values, under their keys."""
    return {one.key: getattr(values, one.name) for one in settings_of(type(values)).values()}


def _setting(name: str, key: str, declared: Any, default: Any) -> Setting:
    kind, *metas = get_args(declared) or (declared,)
    return Setting(name, key, kind, default, next(iter(metas), Meta()))
