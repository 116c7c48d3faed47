"""Waits for another process, thread or machine."""

from __future__ import annotations

import errno
import os
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIVE_UP_SECONDS = 400.0
"""No test asserts a time: this is when it stops to wait for what never comes."""

T = TypeVar("T")


def eventually(ask: Callable[[], T | None], why: Callable[[], object] = lambda: "") -> T:
    """The first true answer. A machine that stood still while we waited is no reason to give up."""
    began, looks = time.monotonic(), 0
    while not (answer := ask()):
        waited, looks = time.monotonic() - began, looks + 1
        if waited > GIVE_UP_SECONDS < looks:
            raise AssertionError(f"never true within {GIVE_UP_SECONDS:g} s: {why()}")
        time.sleep(min(0.01 + waited / 20, 0.25))
    return answer


def hand_over(fifo: Path, text: str) -> None:
    """Write into a FIFO once it has a reader: the reader then continues on a test's signal, not after some seconds."""
    with os.fdopen(eventually(partial(_asked_for, fifo)), "w") as out:
        out.write(text)


def _asked_for(fifo: Path) -> int | None:
    """Open for writing; None while there is no reader."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
