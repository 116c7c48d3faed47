"""Parsers of JSON and YAML documents, with the position and the reason of errors."""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
from typing import Any, NoReturn

Table = dict[str, Any]


class MalformedError(Exception):
    """Error for a malformed document; `line` and `column` count from 1, 0 means unknown."""

    def __init__(self, message: str, line: int = 0, column: int = 0, *, only_ours: bool = False) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column
        self.only_ours = only_ours
        """Whether the document only exceeds the limits of this program, and other programs may read it."""


@functools.lru_cache(maxsize=8)
def json_object(raw: bytes) -> Table:
    """Parse a JSON object, which callers must not change. Whitespace alone means an empty one.

    Raises MalformedError. A byte order mark at the beginning decides the encoding, as in dockerd. Without a mark it is
    UTF-8.
    """
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = decoded(raw, "utf-16" if marked else "utf-8-sig")
    if not text.strip():
        return {}
    try:
        result = json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise MalformedError(error.msg, error.lineno, error.colno) from error
    except (RecursionError, ValueError) as error:
        raise MalformedError(f"can't be read: {type(error).__name__}", only_ours=True) from error
    if not isinstance(result, dict):
        raise MalformedError("no object", 1, 1)
    return _sayable(result) if "\\u" in text else result


@functools.lru_cache(maxsize=16)
def yaml_object(raw: bytes) -> Table:
    """Parse a YAML mapping, which callers must not change. Raises MalformedError.

    JSON is YAML except for its tabs, so it is parsed as JSON.
    """
    if raw.lstrip().startswith(b"{"):
        with contextlib.suppress(MalformedError):
            return json_object(raw)
    from gpu_healthcheck.healthcheck.text import yaml_reading  # noqa: PLC0415 - most nodes and commands have no YAML

    result = yaml_reading.read(raw)
    if result is None:
        return {}
    if not isinstance(result, dict):
        raise MalformedError("no mapping", 1, 1)
    return result


def _sayable(fields: Table) -> Table:
    """Return the table with unpaired surrogates replaced, because they can't be written anywhere.

    Go reads them in the same way.
    """
    replaced: Table = json.loads(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace"))
    return replaced


def decoded(raw: bytes, encoding: str = "utf-8") -> str:
    """Decode the text. Raises MalformedError."""
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        raise MalformedError("no UTF-8", line, error.start - before.rfind(b"\n")) from error


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
