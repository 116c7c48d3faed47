"""values.yaml, values.schema.json and the table in the chart's README: three views of one list of keys."""

from __future__ import annotations

import json
from textwrap import fill, indent
from typing import Any

import yaml

from tools.chart import settings
from tools.chart.keys import KEYS, Identity, Key
from tools.chart.manifest import Document
from tools.chart.templates import sources

_HEAD = """\
# Generated from kubernetes/manifests and tools/chart/keys.yaml by `make docs`.
#
# Helm merges your maps with these defaults. To remove an entry, set it to null.

"""
_SETTINGS = """\
# The ConfigMap has the values that differ from these defaults. Every agent reads changes within about a minute, without
# a restart.
"""


def values() -> str:
    """Return the contents of values.yaml."""
    found = sources()
    parts = [_HEAD]
    groups: dict[str, list[Key]] = {}
    for key in KEYS:
        groups.setdefault(key.name.split(".")[0], []).append(key)
    for group, keys in groups.items():
        if keys[0].name == group:
            parts.append(_entry(keys[0], found))
        else:
            parts.append(f"{group}:\n" + indent("".join(_entry(key, found) for key in keys), "  "))
    lines = indent(settings.settings_lines(settings.typed_default), "  ")
    return "\n".join([parts[0].rstrip() + "\n", *parts[1:], f"{_SETTINGS}settings:\n{lines}"])


def _entry(key: Key, found: dict[Identity, Document]) -> str:
    comment = fill(key.means, 110, initial_indent="# ", subsequent_indent="# ") + "\n" if key.means else ""
    name = key.name.rpartition(".")[2]
    return comment + yaml.safe_dump({name: default(key, found)}, sort_keys=False, width=110)


def default(key: Key, found: dict[Identity, Document]) -> Any:
    """Return the manifests' value, or else the list's."""
    result = found[key.places[0].of].value(key.places[0].path) if key.places else None
    return key.default if result is None else result


def schema() -> str:
    """Return the contents of values.schema.json."""
    names = settings.names()
    whole: dict[str, Any] = {"$schema": "http://json-schema.org/draft-07/schema#", **_object()}
    for key in KEYS:
        *parents, last = key.name.split(".")
        folder = whole
        for parent in parents:
            folder = _required(folder, parent)["properties"].setdefault(parent, _object())
        if not key.is_optional:
            _required(folder, last)
        folder["properties"][last] = {**key.schema, **({"description": key.means} if key.means else {})}
    # All are required: the ConfigMap would have the text "<nil>" for a missing setting.
    _required(whole, "settings")["properties"]["settings"] = _object() | {
        "properties": {name: settings.schema(name) for name in names},
        "required": names,
    }
    whole["properties"]["global"] = {"type": "object", "description": "Helm's own values, if this is a subchart."}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _required(folder: dict[str, Any], name: str) -> dict[str, Any]:
    """Mark the key as required: Helm drops a key that is null, and a template would then produce an invalid object."""
    folder["required"] = list(dict.fromkeys((*folder.get("required", ()), name)))
    return folder


def _object() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "additionalProperties": False}


def table() -> str:
    """Return the table for the chart's README, one line per key."""
    found = sources()
    lines = ["| key | default | meaning |", "|---|---|---|"]
    lines += [f"| `{key.name}` | {_shown(default(key, found))} | {key.means} |" for key in KEYS]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else value
    return f"`{text}`" if text and len(text) <= 24 else "-" if not text else "the manifests'"
