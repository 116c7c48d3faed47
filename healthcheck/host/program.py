"""Start and end of this project's programs: options, environment, exit codes (docs/commands.md)."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from healthcheck.host import node_file

FAULT, COULD_NOT, USAGE, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: a fault was found or work is left; could not check or not do it; invalid usage; Ctrl-C."""


class Options(argparse.ArgumentParser):
    """Option parser of a program `gpu-healthcheck NAME`. Invalid options end the program with USAGE."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(prog=f"gpu-healthcheck {name}", description=description)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; --help shows what is allowed\n")


def exit_code(main: Callable[[], int]) -> int:
    """Run a program. An unexpected exception exits with COULD_NOT; the interpreter's exit code 1 would mean FAULT."""
    try:
        return main()
    except Exception:  # noqa: BLE001 - the last boundary
        traceback.print_exc()
        return COULD_NOT


class RunRefused(Exception):
    """The run of a program can't start or continue now. The message has the reason."""


def lock_machine(file: Path, program: str) -> None:
    """Acquire the lock of this machine, which is held until the process ends. Raises RunRefused."""
    try:
        lock = node_file.lock(file)
    except OSError as error:
        raise RunRefused(f"{file}: {error.strerror}") from error
    if lock is None:
        raise RunRefused(f"another {program} is active on this machine")
