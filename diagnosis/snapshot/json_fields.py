"""Read fields of API objects, which are untrusted: each value is returned bounded, typed and printable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from healthcheck.text.moments import moment_or_none
from healthcheck.text.printable import printable

LONGEST_NAME = 320
"""Longest name: more than a qualified name, a namespace and an object name."""
LONGEST_MESSAGE = 4096
MOST_ENTRIES = 1024
"""Maximum entries of a list or map in one object: containers, taints, labels, resources, conditions."""
_WRITTEN = (str, int, float)
"""Types of values in a map of texts."""


class Fields:
    """JSON object, or any value in its position. Absent or unexpected values read as '', None or empty.

    It is read a hundred times for each pod. Checking for a `dict`, the type of parsed JSON, takes a tenth of the time
    of a `Mapping`.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: object) -> None:
        self._raw: dict[object, object] = raw if isinstance(raw, dict) else {}

    @property
    def raw(self) -> dict[Any, Any]:
        """Return the object as it is, for a reader outside of this package."""
        return self._raw

    def has(self, *path: str) -> bool:
        """Whether the path has a value other than null."""
        return self._value(path) is not None

    def at(self, *path: str) -> Fields:
        return Fields(self._value(path))

    def text(self, *path: str, longest: int = LONGEST_NAME) -> str:
        value = self._value(path)
        return printable(value, longest) if isinstance(value, str) else ""

    def message(self, *path: str) -> str:
        """Return a text for people on one line."""
        return self.text(*path, longest=LONGEST_MESSAGE)

    def document(self, *path: str, longest: int) -> str:
        """Return a text of several printable lines. One line may be the whole text, as JSON may be written.

        Whitespace of YAML and JSON stays whitespace: tabs, and line ends of Windows.
        """
        value = self._value(path)
        text = value[:longest].replace("\r\n", "\n").replace("\t", " ") if isinstance(value, str) else None
        lines = text.split("\n") if text is not None else ()
        return "\n".join(printable(line, longest) for line in lines)

    def number(self, *path: str) -> int | None:
        value = self._value(path)
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None

    def ratio(self, *path: str) -> float | None:
        """Return a finite number, with or without a fraction."""
        value = self._value(path)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if abs(value) < 1e9 else None

    def flag(self, *path: str) -> bool:
        return self._value(path) is True

    def moment(self, *path: str) -> datetime | None:
        return moment_or_none(self._value(path))

    def each(self, *path: str) -> Iterator[Fields]:
        """Yield the objects of a list."""
        value = self._value(path)
        return map(Fields, islice(value, MOST_ENTRIES)) if isinstance(value, list) else iter(())

    def lists(self, *path: str) -> Iterator[Iterator[Fields]]:
        """Yield the lists of objects in a list."""
        value = self._value(path)
        inner = islice(value, MOST_ENTRIES) if isinstance(value, list) else ()
        return (map(Fields, islice(entries, MOST_ENTRIES)) for entries in inner if isinstance(entries, list))

    def texts(self, *path: str) -> tuple[str, ...]:
        """Return the texts of a list."""
        value = self._value(path)
        listed = islice(value, MOST_ENTRIES) if isinstance(value, list) else ()
        return tuple(printable(text, LONGEST_NAME) for text in listed if isinstance(text, str))

    def words(self, *path: str, keep: Callable[[str], bool] = bool, longest: int = LONGEST_MESSAGE) -> dict[str, str]:
        """Return a map of texts: labels, annotations, selectors, amounts. Numbers are returned as written."""
        value = self._value(path)
        pairs = islice(value.items(), MOST_ENTRIES) if isinstance(value, dict) else ()
        return {
            printable(key, LONGEST_NAME): printable(str(seconds), longest)
            for key, seconds in pairs
            if isinstance(key, str) and keep(key) and isinstance(seconds, _WRITTEN) and not isinstance(seconds, bool)
        }

    def names(self, *path: str) -> tuple[str, ...]:
        value = self._value(path)
        return (
            tuple(printable(str(key), LONGEST_NAME) for key in islice(value, MOST_ENTRIES))
            if isinstance(value, dict)
            else ()
        )

    def _value(self, path: tuple[str, ...]) -> object:
        value: object = self._raw
        for key in path:
            if not isinstance(value, dict):
                return None
            value = value.get(key)
        return value
