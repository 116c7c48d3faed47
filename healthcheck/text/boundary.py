"""Boundary for JSON from outside: read parsed JSON into frozen Structs, with typed, bounded and printable values.

The type of a field is its reader: a `count: int` refuses a text. `Annotated` adds the place of its value, `At("a.b")`,
or another reader. Unknown keys are ignored; a missing value, null and a reader's None are the field's default.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum, IntEnum
from functools import lru_cache, partial
from itertools import islice
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from gpu_healthcheck.healthcheck.text.moments import moment, moment_or_none, timestamp
from gpu_healthcheck.healthcheck.text.printable import printable

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
_PLAIN = frozenset({str, int, float, bool})
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
    parts = table(raw)
    for name, path, more, reader in _fields(kind):
        value: Any = parts
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


def _reader_of(kind: Any, *, lenient: bool = False) -> Reader:
    """Return the reader of values of this type. `lenient`: it leaves out invalid entries of lists and maps."""
    for annotation in getattr(kind, "__metadata__", ()):
        if callable(annotation):
            return annotation  # type: ignore[no-any-return]
    if get_origin(kind) in (Annotated, Union, types.UnionType, tuple):
        reader = _reader_of(get_args(kind)[0], lenient=lenient)
        return partial(valid if lenient else each, reader) if get_origin(kind) is tuple else reader
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_member, kind.__members__ if issubclass(kind, IntEnum) else {one.value: one for one in kind})
    if isinstance(kind, type) and issubclass(kind, Struct):
        return partial(read_row, kind) if issubclass(kind, JsonObject) else partial(read, kind)
    return (_READERS_OF_ROWS if lenient else _READERS)[kind]


# Rows of our own documents, which other programs may have changed.


NULL = object()
"""Marks a key whose value None is written as null instead of being omitted."""


class JsonObject(Struct, frozen=True, kw_only=True):
    """An object of a document, whose keys are its fields. None means that the document lacks the value."""

    invalid: frozenset[str] = frozenset()
    """Keys with a value of the wrong type: they are read as None, so that the other keys stay."""

    def must_have(self, *keys: str) -> None:
        """Raise ValueError if one of the keys is missing, or if any key has a value of the wrong type."""
        if self.invalid:
            raise ValueError(f"{', '.join(sorted(self.invalid))}: a value of another type")
        if missing := [name for name in keys if getattr(self, name) is None]:
            raise ValueError(f"missing {', '.join(missing)}")


R = TypeVar("R", bound=JsonObject)


@lru_cache(maxsize=64)
def _keys(kind: type[JsonObject]) -> tuple[tuple[str, Reader, bool], ...]:
    """Return name, reader, and whether None is written, of each key."""
    hints = get_type_hints(kind, include_extras=True)
    keys = [(name, hints[name]) for name in kind.__struct_fields__ if name != "invalid"]
    return tuple(
        (name, _reader_of(hint, lenient=True), NULL in getattr(hint, "__metadata__", ())) for name, hint in keys
    )


def read_row(kind: type[R], raw: object) -> R:
    """Return the object as this kind of row. Raises ValueError if it is none."""
    parts = table(raw)
    values: dict[str, Any] = {}
    invalid = set()
    for name, reader, is_null in _keys(kind):
        if name in parts and not (is_null and parts[name] is None):
            try:
                values[name] = reader(parts[name])
            except ValueError:
                invalid.add(name)
    return kind(invalid=frozenset(invalid), **values)


def as_json(row: JsonObject, time: Callable[[datetime], str] = timestamp) -> dict[str, Any]:
    """Return the row as plain JSON types, in the order of the fields."""
    plain: dict[str, Any] = {}
    for name, _, is_null in _keys(type(row)):
        value = getattr(row, name)
        if value is not None:
            plain[name] = value if type(value) in _PLAIN else _plain(value, time)
        elif is_null:
            plain[name] = None
    return plain


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


def only(kind: type[R]) -> Callable[[Any], tuple[R, ...]]:
    """Return a reader of a list that contains only such objects."""
    return lambda value: tuple(read_row(kind, entry) for entry in listed(value))


def valid(reader: Callable[[Any], T], value: object) -> tuple[T, ...]:
    """Return the valid entries of a list."""
    return tuple(found for entry in listed(value) if (found := attempt(reader, entry)) is not None)


def attempt(reader: Callable[[Any], T], value: object) -> T | None:
    """Return the value as the reader returns it; None if it is invalid."""
    try:
        return reader(value)
    except ValueError:
        return None


def text_or_number(value: object) -> str:
    """Return a text, or a number as text."""
    return printable(_written(value), LONGEST_MESSAGE)


def position(value: object) -> int:
    """Return a count, or a position in the log; -1 for none."""
    if whole(value) < -1:
        raise _unexpected("a count", value)
    return whole(value)


def _valid_words(value: object) -> dict[str, str]:
    words = ((str(name), attempt(text_or_number, entry)) for name, entry in table(value).items())
    return {name: found for name, found in words if found is not None}


# Readers of values.


def text(value: object, longest: int = LONGEST_NAME) -> str:
    if not isinstance(value, str):
        raise _unexpected("a text", value)
    return printable(value, longest)


def text_or_none(value: object) -> str | None:
    """Return a text; None, for the default, if it is empty."""
    return text(value) or None


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


def _member(members: Mapping[str, T], value: object) -> T:
    if not isinstance(value, str) or value not in members:
        raise ValueError(f"expected one of {', '.join(members)}")
    return members[value]


def is_there(value: object) -> bool:
    """Return whether there is a value; it may be an empty object."""
    return value is not None


def texts(value: object, keep: Callable[[str], bool] = bool, longest: int = LONGEST_MESSAGE) -> dict[str, str]:
    """Return labels, annotations, selectors, amounts. Numbers are returned as written; null is left out."""
    return {
        printable(name, LONGEST_NAME): printable(_written(entry), longest)
        for name, entry in islice(table(value).items(), MOST_ENTRIES)
        if entry is not None and isinstance(name, str) and keep(name)
    }


def each(reader: Callable[[Any], T], value: object) -> tuple[T, ...]:
    """Return the entries of a list other than null."""
    return tuple(map(reader, entries(value)))


def entries(value: object) -> Iterator[Any]:
    """Yield the entries of a list other than null; none if there is no list."""
    found = [] if value is None else listed(value)
    return (entry for entry in islice(found, MOST_ENTRIES) if entry is not None)


def items(value: object) -> Iterator[tuple[str, Any]]:
    """Yield names and entries of an object, without null."""
    pairs = islice(table(value).items(), MOST_ENTRIES)
    return ((printable(str(name), LONGEST_NAME), entry) for name, entry in pairs if entry is not None)


def names(value: object) -> tuple[str, ...]:
    """Return the names in a list of objects."""
    return tuple(text(value_at(entry, "name") or "") for entry in entries(value))


def by_name(key: str, *keys: str, longest: int = LONGEST_NAME) -> Reader:
    """Return a reader of a list of objects: by the text at `key`, the text at the first of `keys` that has one."""

    def pairs(value: object) -> dict[str, str]:
        found = {}
        for entry in map(table, entries(value)):
            found[text(entry.get(key) or "")] = text(next(filter(None, map(entry.get, keys)), ""), longest)
        return found

    return pairs


def listed(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _unexpected("a list", value)
    return value


def table(value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _unexpected("an object", value)
    return value


def _written(value: object) -> str:
    return value if isinstance(value, str) else str(whole(value) if isinstance(value, int) else number(value))


def _unexpected(expected: str, value: object) -> ValueError:
    return ValueError(f"expected {expected}, not {_JSON_TYPES.get(type(value), 'such a value')}")


_READERS: Mapping[Any, Reader] = {
    str: text,
    bool: flag,
    int: whole,
    float: number,
    datetime: moment,
    Mapping[str, str]: texts,
}
_READERS_OF_ROWS = {**_READERS, str: text_or_number, int: position, Mapping[str, str]: _valid_words}
Text = Annotated[str, message]
"""A text for people."""
Moment = Annotated[datetime | None, moment_or_none]
"""A time; None for a time that no clock of this century shows."""
