"""How our programs begin and end, all in the same way: options, environment, exit codes (docs/commands.md)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from healthcheck.host.streams import complain

if TYPE_CHECKING:
    from pydantic import ValidationError

FAULT, COULD_NOT, USAGE, INTERRUPTED = 1, 2, 3, 130
"""A fault was found, or something is left to do; it could not look, or not be done; it was called wrongly; Ctrl-C."""


class Options(argparse.ArgumentParser):
    """Of a program `gpu-healthcheck NAME`; wrong ones end it with USAGE."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(prog=f"gpu-healthcheck {name}", description=description)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; --help shows what is allowed\n")


def complain_of_environment(program: str, error: ValidationError) -> int:
    """Name each variable that is wrong, with what it is. Returns the exit code."""
    for one in error.errors(include_url=False):
        name = one["loc"][0] if one["loc"] else "environment"
        allowed = one["ctx"]["error"] if one["type"] == "value_error" else one["msg"]
        given = "is not set" if one["type"] == "missing" else f"= {one['input']!r}: {allowed}"
        complain(program, f"{name} {given}")
    return USAGE
