"""How our programs begin and end, all in the same way: options, environment, exit codes (docs/commands.md)."""

from __future__ import annotations

import argparse
from typing import NoReturn

FAULT, COULD_NOT, USAGE, INTERRUPTED = 1, 2, 3, 130
"""A fault was found, or something is left to do; it could not look, or not be done; it was called wrongly; Ctrl-C."""


class Options(argparse.ArgumentParser):
    """Of a program `gpu-healthcheck NAME`; wrong ones end it with USAGE."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(prog=f"gpu-healthcheck {name}", description=description)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; --help shows what is allowed\n")
