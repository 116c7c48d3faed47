"""Standard output and standard error of a program: whatever it says, they take it, and a person can look at it."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from healthcheck.printable import printable


def take_any_text() -> None:
    """For a locale without UTF-8: a character that it lacks is written out, and ends no program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def complain(program: str, message: str) -> None:
    """Why a program could not do its work. The message may have several lines."""
    say(f"gpu-healthcheck {program}: {message}")


def say(message: str) -> None:
    """On standard error: what of standard output whoever reads that does not want."""
    sys.stderr.write("\n".join(map(printable, message.split("\n"))) + "\n")


def write_json(value: Any, indent: int | None = None) -> None:
    """One document on standard output, in plain ASCII: every locale can write it, and no terminal obeys it."""
    separators = (",", ":") if indent is None else None
    sys.stdout.write(json.dumps(value, indent=indent, separators=separators) + "\n")
