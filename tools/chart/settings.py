"""The ConfigMap's settings as chart values, with the same types and limits as in the agent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

from gpu_healthcheck.healthcheck.catalog.profiles import PROFILES_FILE
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.state import REPAIR_CONDITIONS
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, Setting, settings_of, written
from gpu_healthcheck.healthcheck.settings.node_overrides import PER_NODE
from gpu_healthcheck.healthcheck.settings.reading import read_settings


def lines(text: str) -> str:
    """Return a pattern of a text with such lines; a line may be empty, and `#` begins a comment."""
    return rf"^([ \t]*({text})?[ \t]*(#[^\n]*)?(\n|$))*$"


def _any_of(words: Iterable[str]) -> str:
    return f"({'|'.join(map(re.escape, words))})"


_SETTINGS = settings_of(NodeSettings)
_CONDITION, _TIER = _any_of(REPAIR_CONDITIONS), _any_of(one.name for one in Severity)
_SOURCE = "([sS]?[xX][iI][dD]|[dD][cC][gG][mM])"
_PLAIN = rf"([A-Z][A-Za-z0-9]+|{_SOURCE}[ \t]+[0-9]{{1,5}})[ \t]*=[ \t]*{_TIER}"
_LOGGED = r"([sS]?[xX][iI][dD][ \t]+[0-9]{1,5}|S?Xid[1-9][0-9]{0,4})"
_WINDOW = "[0-9]{1,5}[smh]"
_COUNTED = (
    rf"{_LOGGED}[ \t]*=[ \t]*{_any_of(one.name for one in Severity if one)}"
    rf"[ \t]+after[ \t]+([2-9]|1[0-6])[ \t]+in[ \t]+{_WINDOW}"
)
_NARROWER: dict[str, dict[str, Any]] = {
    "EFA_MIN_BW": {"anyOf": [{"const": 0}, {"minimum": 500}]},
    "BUDGET_LABEL": {
        "pattern": r"^(([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"
    },
    "DCGM_HOST": {"pattern": r"^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?)?$"},
    "REPAIR_CONDITIONS": {"pattern": rf"^({_CONDITION}( *, *{_CONDITION})*)?$"},
    "severity-overrides": {"pattern": lines(f"{_PLAIN}|{_COUNTED}")},
    "SWEEP_NAMESPACE": {"pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
}
"""Values that validators reject although type and range are valid; a test compares each with its validator."""


def allowed(name: str, value: Any) -> bool:
    """Whether the product accepts the value."""
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(str(value), encoding="utf-8")
        return not read_settings(Path(folder)).bad


def names() -> list[str]:
    """Return the keys that are values of the chart."""
    return [key for key, setting in _SETTINGS.items() if setting.has_effect]


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a setting, with its meaning as the description."""
    setting = _SETTINGS[name]
    return {"description": setting.meaning, **_allowed_values(name, setting)}


def _allowed_values(name: str, setting: Setting) -> dict[str, Any]:
    if setting.kind is int:
        bounds = {"minimum": setting.limits.ge, "maximum": setting.limits.le}
        return {"type": "integer", **bounds, **_NARROWER.get(name, {})}
    if setting.kind is bool:
        return {"type": "boolean"}
    if setting.rule.mildest is not None:
        return {"enum": _severities(name)}
    if name == "CHECKS_LIGHTWEIGHT":
        return {"type": "string", "pattern": f"^ *{_check()}( +{_check()})* *$"}
    narrower = {"pattern": lines(_node_override())} if name == "node-overrides" else _NARROWER.get(name, {})
    return {"type": "string", **narrower}


def _node_override() -> str:
    """Return a pattern of one line of `node-overrides`. The agent also checks the bounds of a number."""
    value = "([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
    key = "([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
    space, comma = "[ \\t]*", "[ \\t]*,[ \\t]*"
    one_of = rf"[ \t]+(in|notin){space}\({space}{value}({comma}{value})*{space}\)"
    requirement = f"(!{space}{key}|{key}({space}(==?|!=){space}{value}|{one_of})?)"
    pairs = (f"{name}={_override_value(name)}" for name in PER_NODE)
    pair = f"({'|'.join(pairs)})"
    return rf"{requirement}({comma}{requirement})*{space}:{space}{pair}([ \t]+{pair})*"


def _override_value(name: str) -> str:
    setting = _SETTINGS[name]
    if setting.kind is int:
        return "[0-9]{1,8}"
    if setting.kind is bool:
        return "(true|false|0|1)"
    return f"{_check()}(,{_check()})*" if name == "CHECKS_LIGHTWEIGHT" else _any_of(_severities(name))


def _severities(name: str) -> list[str]:
    return [text for text in ("", *(one.name for one in Severity)) if allowed(name, text)]


def _check() -> str:
    """Return a pattern of one group, by number or name, or one check that a check cycle may run."""
    groups = dict.fromkeys(check.group for check in CHECKS)
    words = [*(group.partition("-")[0] for group in groups), *groups, *(check.name for check in CHECKS)]
    return _any_of(text for text in words if allowed("CHECKS_LIGHTWEIGHT", text))


def settings_lines(value: Callable[[Setting], str]) -> str:
    """Return each setting with its meaning and bounds as a comment, and its default in the form of `value`."""
    lines = []
    for key, setting in _SETTINGS.items():
        if setting.has_effect:
            text = f"{setting.meaning} {setting.span}".rstrip()
            lines.append(fill(text, 116, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False))
            lines.append(f"{key}: {value(setting)}")
    return "\n".join(lines) + "\n"


def typed_default(setting: Setting) -> str:
    """Return the default as the chart's values write it."""
    is_text = isinstance(setting.default, Severity | None)
    return json.dumps(written(setting.default) if is_text else setting.default, ensure_ascii=False)


def template() -> str:
    """Return the template of the ConfigMap's data: the values that differ from their defaults."""
    defaults = "\n".join(f"    {json.dumps(key)} {json.dumps(written(_SETTINGS[key].default))}" for key in names())
    return _DATA.format(defaults=defaults, profiles=PROFILES_FILE)


_DATA = """
{{{{- $data := dict }}}}
{{{{- $defaults := dict
{defaults}
}}}}
{{{{- range $key, $default := $defaults }}}}
{{{{- $value := index $.Values.settings $key }}}}
{{{{- /* A number of a values file is a float64 to Helm. */}}}}
{{{{- $text := kindIs "float64" $value | ternary ($value | int64 | toString) ($value | toString) }}}}
{{{{- if ne $text $default }}}}
{{{{- $_ := set $data $key $text }}}}
{{{{- end }}}}
{{{{- end }}}}
{{{{- with .Values.instanceProfiles }}}}
{{{{- $_ := set $data "{profiles}" . }}}}
{{{{- end }}}}
{{{{- toYaml $data | nindent 2 }}}}"""
