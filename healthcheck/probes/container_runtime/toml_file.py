"""Parser of external TOML files, with limits and the positions of errors."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from gpu_healthcheck.healthcheck.text import documents
from gpu_healthcheck.healthcheck.text.documents import MalformedError

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
