"""Parser of external TOML files, with limits, the lines of tables and the positions of errors."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from healthcheck.text import documents
from healthcheck.text.documents import MalformedError

_LONGEST_LINE = 4096
_MOST_EFFORT = 1 << 20
"""Largest sum of the squares of the dots in each line: the time of a parser is quadratic in the parts of a key.

2,000 lines with 15 dots each reach half of it. Configurations have far fewer.
"""
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)\Z")

Table = Mapping[str, Any]


@functools.lru_cache(maxsize=32)
def parse(raw: bytes) -> Table:
    """Return the parsed content, which callers must not change. Raises MalformedError.

    The result is cached by content: the files of a node are read in each check cycle and rarely change.
    """
    text = documents.decoded(raw)
    effort = 0
    for number, line in enumerate(text.split("\n"), 1):
        effort += line.count(".") ** 2
        if len(line) > _LONGEST_LINE or effort > _MOST_EFFORT:
            raise MalformedError("a line is too long to be read here", number, only_ours=True)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(text, str(error)) from error
    except (RecursionError, ValueError) as error:  # too deep nesting; a number with too many digits
        raise MalformedError(f"can't be read: {type(error).__name__}", only_ours=True) from error


def _malformed(text: str, message: str) -> MalformedError:
    if place := _PLACE.search(message):
        return MalformedError(message[: place.start()], int(place[1]), int(place[2]))
    end = text.rstrip("\n")
    message = message.removesuffix(" (at end of document)")
    return MalformedError(message, end.count("\n") + 1, len(end) - end.rfind("\n"))


def table_line(raw: bytes, path: tuple[str, ...]) -> int:
    """Return the line of the header of the table or of its first sub-table; 0 for an inline table."""
    return _headers(raw).get(path, 0)


def key_line(raw: bytes, path: tuple[str, ...]) -> int:
    """Return the line of the key, or of the table of that name; 0 if neither has its own line."""
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
    """Return the line that first opens each table or a table in it."""
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
    """Return the keys in a header or at the start of a key's line, outermost first; () for other lines."""
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
