"""A TOML file from outside: parsed within bounds, with the lines of its tables and the place of what is wrong."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LONGEST_LINE = 4096
_MOST_EFFORT = 1 << 20
"""The squares of all lines' dots together: a parser's time grows with the square of a key's parts.

Of 2,000 lines with 15 dots each it is half; no configuration comes near.
"""
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)\Z")

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """What stands in a file, or `error`: why that can't be told. It is remembered: nobody may change it."""

    table: Table = field(default_factory=dict)
    error: str = ""
    line: int = 0
    """Of the error, from 1, as `column`; 0 is unknown."""
    column: int = 0
    only_ours: bool = False
    """It is we who can't read it, within our bounds; another program may well."""


@functools.lru_cache(maxsize=32)
def parse(raw: bytes) -> Document:
    """Remembered by the content, since the files of a node are read at each look and change once a year."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        return Document(error="no UTF-8", line=before.count(b"\n") + 1, column=error.start - before.rfind(b"\n"))
    effort = 0
    for number, line in enumerate(text.split("\n"), 1):
        effort += line.count(".") ** 2
        if len(line) > _LONGEST_LINE or effort > _MOST_EFFORT:
            return Document(error="a line that is too long to be read here", line=number, only_ours=True)
    try:
        return Document(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        return _malformed(text, str(error))
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of too many digits
        return Document(error=f"can't be read: {type(error).__name__}", only_ours=True)


def _malformed(text: str, message: str) -> Document:
    if place := _PLACE.search(message):
        return Document(error=message[: place.start()], line=int(place[1]), column=int(place[2]))
    end = text.rstrip("\n")
    message = message.removesuffix(" (at end of document)")
    return Document(error=message, line=end.count("\n") + 1, column=len(end) - end.rfind("\n"))


def table_line(raw: bytes, path: tuple[str, ...]) -> int:
    """The line of the header of the table, or of its first sub-table's; 0 where it is written inline."""
    return _headers(raw).get(path, 0)


def key_line(raw: bytes, path: tuple[str, ...]) -> int:
    """The line of the key, or of the table of that name; 0 where it is neither a header's nor on a line of its own."""
    above = _headers(raw).get(path[:-1], 0)
    if line := _headers(raw).get(path):
        return line
    if path[:-1] and not above:
        return 0
    for number, line_of_text in enumerate(_lines(raw)[above:], above + 1):
        if _begins_a_table(line_of_text):
            return 0
        if _alone(f"{line_of_text.partition('=')[0]}=0") == path[-1:]:
            return number
    return 0


@functools.lru_cache(maxsize=32)
def _headers(raw: bytes) -> Mapping[tuple[str, ...], int]:
    """By table: the first line that opens it or a table in it."""
    found: dict[tuple[str, ...], int] = {}
    implied: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(_lines(raw), 1):
        if _begins_a_table(line) and (path := _alone(line)):
            found.setdefault(path, number)
            for end in range(1, len(path)):
                implied.setdefault(path[:end], number)
    return implied | found


def _lines(raw: bytes) -> list[str]:
    return [line.removesuffix("\r") for line in raw.decode(errors="replace").split("\n")]


def _begins_a_table(line: str) -> bool:
    return line.lstrip().startswith("[")


def _alone(line: str) -> tuple[str, ...]:
    """The keys, from the outermost, that the line names by itself; () where it is no header and no key's line."""
    try:
        value: Any = tomllib.loads(line)
    except (ValueError, RecursionError):
        return ()
    path: list[str] = []
    while value and isinstance(value, dict | list):
        if isinstance(value, dict):
            path.append(next(iter(value)))
            value = value[path[-1]]
        else:
            value = value[0]
    return tuple(path)
