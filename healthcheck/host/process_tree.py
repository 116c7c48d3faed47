"""Descendants of a program: they are collected from /proc with a reference to each, and killed together.

A process group does not include processes that create a new session or group. For instance, mpirun does this for the
processes that it starts. After the death of its parent such a process can't be traced to the program any more.
Therefore descendants are collected while their parents live.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.opening import refuse_shortage
from gpu_healthcheck.healthcheck.model import Shortage

_MOST_ROUNDS = 16
"""Rounds of killing: a process may start another one before it is killed."""


class _Process(Struct, frozen=True):
    """One process from /proc.

    `started`, in clock ticks since boot, distinguishes it from a later process with the same number.
    """

    pid: int
    parent: int
    session: int
    started: int


@dataclass
class Descendants:
    """The descendants of a process that leads its own session and has not been waited for. Must be closed."""

    pid: int
    _held: dict[int, int] = field(default_factory=dict, init=False)
    """File descriptors of the processes by pid, so that a later process with the same pid is never killed."""

    def close(self) -> None:
        """Close the file descriptors."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def collect(self) -> bool:
        """Collect the present descendants and return whether any are new.

        The more frequent the calls, the lower the risk that a process is missed.
        """
        present = {process.pid: process for process in _processes()}
        below = {self.pid, *(pid for pid, fd in self._held.items() if not _has_ended(fd, 0.0))}
        while more := {
            process.pid
            for process in present.values()
            if (process.parent in below or process.session == self.pid) and process.pid not in below
        }:
            below |= more
        new = [self._hold(present[pid]) for pid in below - {self.pid, *self._held}]
        return any(new)

    def kill(self) -> None:
        """Send SIGKILL to all collected processes, and to those that they start meanwhile."""
        for _ in range(_MOST_ROUNDS if self._held else 0):
            for fd in self._held.values():
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            with suppress(OSError, Shortage):  # if /proc is unreadable, kill only the known processes
                if self.collect():
                    continue
            return

    def wait(self, seconds: float) -> int | None:
        """Wait until all descendants have ended, up to a limit.

        Returns the process ID of a remaining process, or None.
        """
        deadline = time.monotonic() + seconds
        return next((pid for pid, fd in self._held.items() if not _has_ended(fd, deadline - time.monotonic())), None)

    def _hold(self, process: _Process) -> bool:
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        same = _read(process.pid)
        if same is None or same.started != process.started:
            os.close(fd)
            return False
        self._held[process.pid] = fd
        return True


def _has_ended(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0.0) * 1000))


def _processes() -> Iterator[_Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (process := _read(int(folder.name))) is not None:
            yield process


def _read(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        refuse_shortage(error)
        return None  # the process has ended meanwhile
    # proc_pid_stat(5): the name is in parentheses and may contain parentheses; after it state, ppid, pgrp, session …
    _, _, rest = text.rpartition(b")")
    fields = rest.split()
    return _Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))
