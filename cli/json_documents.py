"""One document for programs on standard output: JSON, or the same as YAML."""

from __future__ import annotations

import json
from typing import Any

from healthcheck.host.streams import write_document, write_json

_UNBROKEN = 1 << 20
"""Columns: a text stands on one line, as kubectl writes it."""


def write_as(form: str, value: Any, indent: int | None = 2) -> None:
    """`form` is json or yaml; `indent` None: JSON on one line."""
    if form == "json":
        write_json(value, indent)
    else:
        write_document(yaml_of(value))


def yaml_of(value: Any) -> str:
    import yaml  # noqa: PLC0415 - JSON needs none of it

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the safe one in C where PyYAML was built with it
    plain = json.loads(json.dumps(value))  # words of enums, and no object twice: YAML would refer to the first
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=False, width=_UNBROKEN))
