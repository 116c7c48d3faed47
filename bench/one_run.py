"""One complete run of our program: its output, duration and resource use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.outcome import CouldNotMeasure

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class OneRun:
    """Result of a run.

    `figures` is its parsed output; the memory is the peak of the whole process, including Python and the client.
    """

    figures: Mapping[str, Any]
    seconds: float
    cpu_seconds: float
    peak_mib: float


def run_once(
    words: tuple[str, ...],
    environment: Mapping[str, str],
    exit_codes: Container[int] = (0,),
    read: Callable[[bytes], Mapping[str, Any]] = json.loads,
) -> OneRun:
    """Run `python -m WORDS…`; `read` parses its output. Raises CouldNotMeasure for any other end."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=_ROOT, env=dict(environment), stdout=subprocess.PIPE)
    assert process.stdout is not None
    raw = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in exit_codes:
        raise CouldNotMeasure(f"{' '.join(words)} ended with {process.returncode}")
    seconds = time.monotonic() - began
    return OneRun(read(raw), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def ignore(_: bytes) -> Mapping[str, Any]:
    """Read no output."""
    return {}
