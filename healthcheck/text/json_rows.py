"""JSON objects as frozen values. A field's name is its key, for reading and for writing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from healthcheck.text.moments import timestamp

R = TypeVar("R", bound="JsonObject")
T = TypeVar("T")
_PLAIN = frozenset({str, int, float, bool})
_MOST_WHOLE = 10**19
"""Upper limit of whole numbers: as many digits as in the record numbers of the kernel log."""
_MOST_SECONDS = 1e13
"""Upper limit of seconds: more than the kernel log can have, and a float still represents milliseconds."""


NULL = object()
"""Placed after a key's reader: the value None is written as null instead of being omitted."""


class JsonObject(Struct, frozen=True, kw_only=True):
    """An object of a document. None means that the document lacks the value.

    A field that is a key has its reader next to its type: `Annotated[str | None, word] = None`. The reader returns None
    for an invalid value. A module with such fields must keep its annotations: no `from __future__ import annotations`.
    """

    readers: ClassVar[tuple[tuple[str, Callable[[Any], Any], bool], ...]] = ()
    """Name, reader, and whether None is written, of each field."""
    odd: frozenset[str] = frozenset()
    """Keys with a value of the wrong kind."""

    def __init_subclass__(cls) -> None:
        entries = ((name, kind.__metadata__) for name, kind in cls.__annotations__.items())
        cls.readers += tuple((name, words[0], NULL in words) for name, words in entries)

    def must_have(self, *keys: str) -> None:
        """Raise ValueError if one of the keys is missing, or if any key has a value of the wrong kind."""
        if self.odd:
            raise ValueError(f"{', '.join(sorted(self.odd))}: a value of another type")
        if missing := [name for name in keys if getattr(self, name) is None]:
            raise ValueError(f"missing {', '.join(missing)}")


def row_in(kind: type[R], raw: Mapping[str, Any]) -> R:
    """Return the object as this kind of row. Unknown keys are ignored."""
    fields: dict[str, Any] = {}
    odd = []
    for name, read, null in kind.readers:
        if name in raw:
            value = fields[name] = read(raw[name])
            if value is None and not (null and raw[name] is None):
                odd.append(name)
    return kind(odd=frozenset(odd), **fields)


def as_json(row: JsonObject, time: Callable[[datetime], str] = timestamp) -> dict[str, Any]:
    """Return the row as plain JSON types, in the order of the fields."""
    fields: dict[str, Any] = {}
    for name, _, null in row.readers:
        value = getattr(row, name)
        if value is not None:
            fields[name] = value if type(value) in _PLAIN else _plain(value, time)
        elif null:
            fields[name] = None
    return fields


def _plain(value: Any, time: Callable[[datetime], str]) -> Any:
    if isinstance(value, JsonObject):
        return as_json(value, time)
    if isinstance(value, tuple):
        return [_plain(entry, time) for entry in value]
    if isinstance(value, Mapping):
        return {name: _plain(entry, time) for name, entry in value.items()}
    if isinstance(value, datetime):
        return time(value)
    if isinstance(value, Enum):
        return value.name if isinstance(value, IntEnum) else value.value
    return value


# Readers of values.


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def word(value: object) -> str | None:
    """Return a text, or a number as text."""
    return str(value) if isinstance(value, str | int | float) else None


def yes(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def whole(value: object) -> int | None:
    """Return a count or a position in the log, of at most 19 digits."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and -1 <= value < _MOST_WHOLE
    return value if isinstance(value, int) and is_whole else None


def seconds(value: object) -> float | None:
    """Return seconds of a monotonic clock."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if isinstance(value, int | float) and is_number and abs(value) <= _MOST_SECONDS else None


def names(value: object) -> dict[str, str] | None:
    """Return one word for each key. Invalid values are left out."""
    if not isinstance(value, dict):
        return None
    return {str(name): message for name, entry in value.items() if (message := word(entry)) is not None}


def words(value: object) -> tuple[str, ...] | None:
    return (
        tuple(message for entry in value if (message := word(entry)) is not None) if isinstance(value, list) else None
    )


def one_of(kinds: Mapping[str, T]) -> Callable[[object], T | None]:
    return lambda value: kinds.get(value) if isinstance(value, str) else None


def row(kind: type[R]) -> Callable[[object], R | None]:
    return lambda value: row_in(kind, value) if isinstance(value, dict) else None


def rows(kind: type[R]) -> Callable[[object], tuple[R, ...] | None]:
    """Return a reader of a list of such objects. Other entries are left out."""
    return lambda value: (
        tuple(row_in(kind, entry) for entry in value if isinstance(entry, dict)) if isinstance(value, list) else None
    )


def only_rows(kind: type[R]) -> Callable[[object], tuple[R, ...] | None]:
    """Return a reader of a list that contains only such objects."""
    read = rows(kind)
    return lambda value: (
        read(value) if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else None
    )
