"""Devices of a driver that a process has open, by device number: a container chooses the names of its files.

stat() of an open file on a network file system asks its server, and waits if it does not answer. statx() with
AT_STATX_DONT_SYNC takes what the kernel has (statx(2); nfs_getattr, ceph_getattr, fuse_update_get_attr). Kernels before
5.1 may ask on the way through /proc/PID/fd (nfs_weak_revalidate), and file systems from elsewhere may ignore the flag.
So a child process does it, with a deadline for each process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
import sys
from pathlib import Path
from typing import Self

from healthcheck.host.command import Child, ChildError, isolated
from healthcheck.host.kernel_files import is_gone, read

START_SECONDS, PROCESS_SECONDS = 30.0, 2.0
"""Deadlines of the first answer, and of the answer about one process."""
_AT_FDCWD, _AT_NO_AUTOMOUNT, _AT_STATX_DONT_SYNC, _STATX_TYPE = -100, 0x800, 0x4000, 1
_MODE, _DEVICE, _STATX_BYTES = struct.Struct("28xH"), struct.Struct("128xII"), 256
"""Places of the mode and of the device number in struct statx (linux/stat.h)."""
_NOT_CHECKED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS, errno.EPERM})
"""Errors that say nothing about the file. After any other, the file is on a file system that keeps it from us."""
_FLAGS = re.compile(rb"^flags:\s*([0-7]{1,12})$", re.MULTILINE)
_LONGEST_INFO = 4096


class OpenDevices:
    """Reads the open devices with this major number of the processes below `root`, the host's `/`."""

    def __init__(self, root: Path, major: int) -> None:
        self._proc = root / "proc"
        self._child = Child((*isolated(__name__), str(major)))

    def __enter__(self) -> Self:
        self._ask("self", START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def of(self, pid: int) -> frozenset[int]:
        """Return the minor numbers; none if the process has ended. Raises ChildError, MissedDeadline."""
        return self._ask(str(pid), PROCESS_SECONDS)

    def _ask(self, process: str, seconds: float) -> frozenset[int]:
        answer = self._child.ask(str(self._proc / process), seconds).decode()
        if not answer.startswith("!"):
            return frozenset(map(int, answer.split()))
        raise ChildError(f"{self._proc / process}: {answer[1:]}")


def main() -> None:
    """Run the child: read the folder of a process, write its minor numbers, or `!` and the error. Usage: `MAJOR`."""
    major = int(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = " ".join(map(str, open_minors(line.rstrip("\n"), major)))
        except OSError as error:
            answer = f"!{error.strerror}"
        print(answer, flush=True)


def open_minors(process: str, major: int) -> set[int]:
    """Return the minor numbers of the devices that this process in /proc has open. Raises OSError."""
    found: set[int] = set()
    try:
        files = os.listdir(f"{process}/fd")  # noqa: PTH208 - thousands of names
        # A process whose first thread has ended shows its files at the others.
        threads = [] if files else [f"{process}/task/{thread}" for thread in os.listdir(f"{process}/task")]  # noqa: PTH208
        for folder in threads or [process]:
            for file in os.listdir(f"{folder}/fd") if threads else files:  # noqa: PTH208
                minor = _minor(f"{folder}/fd/{file}", major)
                if minor is not None and minor not in found and _is_open(f"{folder}/fdinfo/{file}"):
                    found.add(minor)
    except OSError as error:
        if not is_gone(error):
            raise
    return found


def _minor(link: str, major: int) -> int | None:
    """Return the minor number of the open device; None if it is another file, or was closed. Raises OSError."""
    about = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(_AT_FDCWD, os.fsencode(link), _AT_STATX_DONT_SYNC | _AT_NO_AUTOMOUNT, _STATX_TYPE, about):
        if (number := ctypes.get_errno()) in _NOT_CHECKED:
            raise OSError(number, os.strerror(number), link)
        return None
    (mode,), (of_driver, minor) = _MODE.unpack_from(about), _DEVICE.unpack_from(about)
    return int(minor) if stat.S_ISCHR(mode) and of_driver == major else None


def _is_open(info: str) -> bool:
    """Whether the driver has opened the file. By O_PATH, a container may name any device; it stays closed (open(2))."""
    try:
        flags = _FLAGS.search(read(info, _LONGEST_INFO))
    except OSError as error:
        if is_gone(error):
            return False
        raise
    return flags is not None and not int(flags[1], 8) & os.O_PATH


_statx = ctypes.CDLL(None, use_errno=True).statx
