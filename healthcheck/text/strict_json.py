"""Strict parser of foreign JSON. It rejects documents that two readers could interpret differently.

All texts of the result are printable.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import msgspec

from gpu_healthcheck.healthcheck.text.printable import printable

DEEPEST = 64
"""Most nested lists and objects. No record has ten levels. Recursion beyond Python's limit would end a program."""
_SHOWN = 40


def loads(text: str | bytes, longest: int) -> Any:
    """Parse the document and make each text in it printable. Raises ValueError with the reason."""
    if len(text) > longest:
        raise ValueError(f"{len(text)} characters; at most {longest} are read")
    text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
    document = _written_once(text)
    if text.count("[") + text.count("{") > DEEPEST:
        refuse_deep(document)
    # Without escapes, each text appears unchanged in the document. If the whole document is printable, all its parts
    # are.
    return document if "\\" not in text and printable(text) == text else _shown(document)


def _written_once(text: str) -> Any:
    """Return the document as `_DECODER` reads it.

    If encoding it again yields the same text, each key occurs once and all values are regular.
    """
    try:
        document = msgspec.json.decode(text)
        if msgspec.json.encode(document) == text.encode():
            return document
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass  # the strict decoder reports the reason
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST}") from None


def refuse_deep(document: Any) -> None:
    """Raise ValueError if lists and objects are nested too deeply."""
    if _depth(document) > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST}")


def refuse_twice(text: str | bytes) -> None:
    """Raise ValueError if a key occurs twice in one object of a JSON document. The message names the key."""
    json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises ValueError if a key occurs twice.

    One reader would use the first value and another the last, so neither is accepted.
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:_SHOWN]!r} occurs twice")
    return table


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _shown(entry) for key, entry in value.items()}
    return [_shown(entry) for entry in value] if isinstance(value, list) else value


def _number(word: str) -> float:
    """Parse a finite number.

    Python also reads NaN, Infinity and 1e999, and writes values that other programs can't read.
    """
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word[:_SHOWN]} is not a number")
    return number


def _depth(document: Any) -> int:
    depth, layer = 0, [document]
    while layer := [entry for entry in layer if isinstance(entry, dict | list) and entry]:
        depth += 1
        layer = [inner for entry in layer for inner in (entry.values() if isinstance(entry, dict) else entry)]
    return depth


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_number, object_pairs_hook=_object)
"""Created once, because each node of a fleet has a record to decode."""
