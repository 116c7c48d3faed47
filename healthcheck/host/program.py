"""Start and end of this project's programs: options, environment, signals, exit codes (docs/commands.md)."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gpu_healthcheck.healthcheck.host import node_file


def stop_at_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set, regardless of the state of the main thread.

    A signal handler in Python runs only when the main thread is back in the interpreter. A main thread that is about to
    wait would never run it. Therefore the signal itself writes to a pipe, which a thread reads.
    """
    stop = threading.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def wait() -> None:
        os.read(read_end, 1)
        stop.set()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: None)  # without a handler nothing is written to the pipe
    return stop


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
