"""Boundary for JSON from outside: read parsed JSON into frozen Structs, with typed, bounded and printable values.

The type of a field is its reader: a `count: int` refuses a text. `Annotated` adds the place of its value, `At("a.b")`,
or another reader. Unknown keys are ignored; a missing value, null and a reader's None are the field's default.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from healthcheck.text.moments import moment, moment_or_none
from healthcheck.text.printable import printable

S = TypeVar("S", bound=Struct)
T = TypeVar("T")
LONGEST_NAME = 320
"""Longest name: more than a qualified name, a namespace and an object name."""
LONGEST_MESSAGE = 4096
MOST_ENTRIES = 1024
"""Maximum entries of a list or map; the rest is cut off."""
_MOST_WHOLE = 10**19
"""Upper limit of whole numbers: as many digits as in the record numbers of the kernel log."""
_MOST_NUMBER = 1e13
"""Upper limit of other numbers: more seconds than the kernel log can have, and a float represents milliseconds."""
_JSON_TYPES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
Reader = Callable[[Any], Any]
"""Return the value, other than null, as the type of its field; None for the default. Raises ValueError."""


class At:
    """Paths of a field's value; the first one with a value counts. `At("")`: the whole object. `At()`: no value."""

    def __init__(self, *paths: str) -> None:
        self.paths = tuple(tuple(filter(None, path.split("."))) for path in paths)


def read(kind: type[S], raw: object, **given: object) -> S:
    """Return the object as this Struct. Raises ValueError with the key of a value of the wrong type.

    `given`: values of fields that are not in the object.
    """
    values: dict[str, Any] = {}
    table = _table(raw)
    for name, path, more, reader in _fields(kind):
        value: Any = table
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        try:
            found = reader(value) if value is not None else None
            if more and not found:
                others = (reader(other) for at in more if (other := value_at(raw, *at)) is not None)
                found = next(filter(None, others), found)
        except ValueError as error:
            raise ValueError(f"{'.'.join(path) or name}: {error}") from None
        if found is not None:
            values[name] = found
    return kind(**values, **given)


def value_at(raw: object, *path: str) -> object:
    """Return the value at this path; None if there is none."""
    for key in path:
        if not isinstance(raw, dict):
            return None
        raw = raw.get(key)
    return raw


_Path = tuple[str, ...]


@lru_cache(maxsize=256)
def _fields(kind: type[Struct]) -> tuple[tuple[str, _Path, tuple[_Path, ...], Reader], ...]:
    """Return name, path, further paths and reader of each field that has a value in JSON."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for one in fields(kind):
        hint = hints[one.name]
        places = [place for place in getattr(hint, "__metadata__", ()) if isinstance(place, At)]
        paths = places[0].paths if places else ((one.encode_name,),)
        if paths:
            found.append((one.name, paths[0], paths[1:], _reader_of(hint)))
    return tuple(found)


def _reader_of(kind: Any) -> Reader:
    """Return the reader of values of this type."""
    inner = [one for one in get_args(kind) if one not in (types.NoneType, Ellipsis)]
    if get_origin(kind) is Annotated:
        return next(filter(callable, kind.__metadata__), None) or _reader_of(inner[0])
    if get_origin(kind) in (Union, types.UnionType):
        return _reader_of(inner[0])
    if get_origin(kind) is tuple:
        return partial(each, _reader_of(inner[0]))
    if kind == Mapping[str, str]:
        return texts
    if issubclass(kind, Struct):
        return partial(read, kind)
    return _READERS[kind]


# Readers of values.


def text(value: object, longest: int = LONGEST_NAME) -> str:
    if not isinstance(value, str):
        raise _unexpected("a text", value)
    return printable(value, longest)


def message(value: object) -> str:
    """Return a text for people on one line."""
    return text(value, LONGEST_MESSAGE)


def document(value: object, longest: int) -> str:
    """Return a text of several printable lines. One line may be the whole text, as JSON may be written.

    Whitespace of YAML and JSON stays whitespace: tabs, and line ends of Windows.
    """
    if not isinstance(value, str):
        raise _unexpected("a text", value)
    lines = value[:longest].replace("\r\n", "\n").replace("\t", " ").split("\n")
    return "\n".join(printable(line, longest) for line in lines)


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _unexpected("true or false", value)
    return value


def whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MOST_WHOLE:
        raise _unexpected("a whole number", value)
    return value


def number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _MOST_NUMBER:
        raise _unexpected("a number", value)
    return float(value)


def is_there(value: object) -> bool:
    """Return whether there is a value; it may be an empty object."""
    return value is not None


def texts(value: object, keep: Callable[[str], bool] = bool, longest: int = LONGEST_MESSAGE) -> dict[str, str]:
    """Return labels, annotations, selectors, amounts. Numbers are returned as written; null is left out."""
    return {
        printable(name, LONGEST_NAME): printable(_written(entry), longest)
        for name, entry in islice(_table(value).items(), MOST_ENTRIES)
        if entry is not None and isinstance(name, str) and keep(name)
    }


def each(reader: Callable[[Any], T], value: object) -> tuple[T, ...]:
    """Return the entries of a list other than null."""
    return tuple(map(reader, entries(value)))


def entries(value: object) -> Iterator[Any]:
    """Yield the entries of a list other than null; none if there is no list."""
    if value is not None and not isinstance(value, list):
        raise _unexpected("a list", value)
    return (entry for entry in islice(value or (), MOST_ENTRIES) if entry is not None)


def items(value: object) -> Iterator[tuple[str, Any]]:
    """Yield names and entries of an object, without null."""
    pairs = islice(_table(value).items(), MOST_ENTRIES)
    return ((printable(str(name), LONGEST_NAME), entry) for name, entry in pairs if entry is not None)


def by_name(key: str, *keys: str, longest: int = LONGEST_NAME) -> Reader:
    """Return a reader of a list of objects: by the text at `key`, the text at the first of `keys` that has one."""

    def pairs(value: object) -> dict[str, str]:
        found = {}
        for entry in map(_table, entries(value)):
            found[text(entry.get(key) or "")] = text(next(filter(None, map(entry.get, keys)), ""), longest)
        return found

    return pairs


def _table(value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _unexpected("an object", value)
    return value


def _written(value: object) -> str:
    return value if isinstance(value, str) else str(whole(value) if isinstance(value, int) else number(value))


def _unexpected(expected: str, value: object) -> ValueError:
    return ValueError(f"expected {expected}, not {_JSON_TYPES.get(type(value), 'such a value')}")


_READERS: Mapping[type, Reader] = {str: text, bool: flag, int: whole, float: number, datetime: moment}
Text = Annotated[str, message]
"""A text for people."""
Moment = Annotated[datetime | None, moment_or_none]
"""A time; None for a time that no clock of this century shows."""
