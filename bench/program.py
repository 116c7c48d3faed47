"""Measured programs: one with its own session and output file, which is always ended, and complete runs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from bench.outcome import ROOT, CouldNotMeasure

_TIMEOUT_SECONDS = 5.0


class Program:
    """Program `python WORDS…` with a writable standard input; it is killed only if it does not end on request."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._log = folder / "program.log"
        self._pid_file = folder.parent / f"{folder.name}.pid"  # removing the stage's folder kills its programs
        with self._log.open("ab") as log:
            self.started_ns = time.monotonic_ns()
            self._process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us, and we end it
            )
        self._pid_file.write_text(str(self._process.pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: str, seconds: float = 30.0) -> str:
        """Send one line and return the answer line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise CouldNotMeasure(f"a program under measurement ended:\n{self.tail()}") from error
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        answer = self._process.stdout.readline() if ready else b""
        if not answer:
            raise CouldNotMeasure(f"no answer to {request!r} in {seconds:g} s:\n{self.tail()}")
        return answer.decode().strip()

    def tail(self, lines: int = 15) -> str:
        """Return the end of the output, for the message of an error."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def logged(self, event: str) -> datetime:
        """Wait for this event in the program's log, and return the time of its last occurrence."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            lines = [line for line in self._log.read_text(errors="replace").splitlines(keepends=True) if line[0] == "{"]
            found = [entry for line in lines if line[-1] == "\n" and (entry := json.loads(line))["event"] == event]
            if found:
                return datetime.fromisoformat(found[-1]["timestamp"])
            time.sleep(0.01)
        raise CouldNotMeasure(f"the log has no event {event!r}:\n{self.tail()}")

    def end(self) -> None:
        """Send SIGTERM, and SIGKILL to the session if the program does not end."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=_TIMEOUT_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._pid_file.unlink(missing_ok=True)


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
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=dict(environment), stdout=subprocess.PIPE)
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
