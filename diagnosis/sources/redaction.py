"""Select the parts of an object that may be saved. Pure.

These are all parts that a diagnosis reads, and none that is likely to be secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_healthcheck.diagnosis.snapshot.meta import is_kept
from gpu_healthcheck.diagnosis.snapshot.pods import shown_flags, shown_value

_DROPPED = frozenset(
    (
        *("managedFields", "command", "args", "lifecycle", "readinessProbe"),
        *("envFrom", "imagePullSecrets", "caBundle", "volumeMounts", "stringData"),
        *("csi", "flexVolume"),  # some drivers take passwords among a volume's attributes
    )
)
_CA = "(set)"
_PROBES = ("livenessProbe", "startupProbe")


def redacted(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object without environment values, command lines, and annotations of unknown owners."""
    shown = _without(raw)
    assert isinstance(shown, dict)
    return shown


def _without(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        if key == "annotations":
            return {name: text for name, text in value.items() if is_kept(str(name))}
        if key in _PROBES:  # their commands and headers may have secrets
            return {name: number for name, number in value.items() if isinstance(number, int)}
        kept = {name: _without(entry, str(name)) for name, entry in value.items() if name not in _DROPPED}
        if flags := _flags(value):
            kept["args"] = [f"--{name}={message}" for name, message in flags.items()]
        return kept | {"caBundle": _CA} if value.get("caBundle") else kept
    if isinstance(value, list):
        return list(map(_variable, value)) if key == "env" else [_without(entry) for entry in value]
    return value


def _flags(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags of a container's command line that may be shown."""
    lists = (entry.get(key) for key in ("command", "args"))
    words = (word for listed in lists if isinstance(listed, list) for word in listed if isinstance(word, str))
    return shown_flags(str(entry.get("name")), words)


def _variable(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return None
    name, value = entry.get("name"), entry.get("value")
    return {"name": name, "value": shown_value(str(name), value if isinstance(value, str) else "")}
