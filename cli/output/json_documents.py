"""Print one JSON or YAML document to standard output."""

from __future__ import annotations

import json
from typing import Any

from gpu_healthcheck.healthcheck.host.streams import write_document, write_json

_UNBROKEN = 1 << 20
"""YAML line width that keeps each text on one line, as in kubectl's output."""


def write_as(form: str, value: Any, indent: int | None = 2) -> None:
    """Print `value`. `form` is json or yaml; `indent` None: JSON on one line."""
    if form == "json":
        write_json(value, indent)
    else:
        write_document(yaml_of(value))


def yaml_of(value: Any) -> str:
    import yaml  # noqa: PLC0415 - JSON does not need it

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the C implementation, if PyYAML has it
    plain = json.loads(json.dumps(value))  # values of enums, and copies of shared objects: YAML would write references
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=False, width=_UNBROKEN))
