"""A document of YAML as PyYAML reads it, within our bounds."""

from __future__ import annotations

from typing import Any

import yaml

from healthcheck.text.documents import MalformedError

_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe one in C where PyYAML was built with it."""
_MOST_NESTED = 128
"""Lists and mappings within each other."""


def read(raw: bytes) -> Any:
    """Raises MalformedError."""
    try:
        _refuse_deep(raw)
        return yaml.load(raw, Loader=_YAML)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark
        raise MalformedError(
            error.problem or "no YAML", *((place.line + 1, place.column + 1) if place else ())
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedError(f"can't be read: {type(error).__name__}", only_ours=True) from error


def _refuse_deep(raw: bytes) -> None:
    """Its events are read without recursion, its tables are not: in C, without end, and the process would be lost."""
    depth = 0
    for event in yaml.parse(raw, Loader=_YAML):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_NESTED:
            raise MalformedError("nested too deeply to be read here", only_ours=True)
