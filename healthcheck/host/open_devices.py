"""Devices of a driver that a process has open, by device number: a container chooses the names of its files.

A child process reads them, with a deadline for each process: kernels before 5.1 may ask a server of NFS on the way
through /proc/PID/fd (nfs_weak_revalidate), and file systems from elsewhere may ignore AT_STATX_DONT_SYNC.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from gpu_healthcheck.healthcheck.host.command import Child, ChildError, isolated

START_SECONDS, PROCESS_SECONDS = 30.0, 2.0
"""Deadlines of the first answer of a child, and of the answer about one process."""


class OpenDevices:
    """Reads the open devices with this major number of the processes below `root`, the host's `/`."""

    def __init__(self, root: Path, major: int) -> None:
        self._proc = root / "proc"
        self._child = Child((*isolated("gpu_healthcheck.healthcheck.host.open_devices_child"), str(major)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def of(self, pid: int) -> frozenset[int]:
        """Return the minor numbers; none if the process has ended. Raises ChildError, MissedDeadline."""
        if self._child.pid is None:
            self._ask("self", START_SECONDS)
        return self._ask(str(pid), PROCESS_SECONDS)

    def _ask(self, process: str, seconds: float) -> frozenset[int]:
        answer = self._child.ask(str(self._proc / process), seconds).decode()
        if not answer.startswith("!"):
            return frozenset(map(int, answer.split()))
        raise ChildError(f"{self._proc / process}: {answer[1:]}")
