"""Child process that reads the open devices of processes: one line in, one line out.

stat() of an open file on a network file system asks its server, and waits if it does not answer. statx() with
AT_STATX_DONT_SYNC takes what the kernel has (statx(2); nfs_getattr, ceph_getattr, fuse_update_get_attr).
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import sys

from gpu_healthcheck.healthcheck.host.opening import is_gone, read

_AT_NO_AUTOMOUNT, _AT_STATX_DONT_SYNC, _STATX_TYPE = 0x800, 0x4000, 1
_MODE, _DEVICE, _STATX_BYTES = struct.Struct("28xH"), struct.Struct("128xII"), 256
"""Places of the mode and of the device number in struct statx (linux/stat.h)."""
_FLAGS = re.compile(rb"^flags:\s*([0-7]{1,12})$", re.MULTILINE)
_LONGEST_INFO = 4096


def main() -> None:
    """Run the child: read the folder of a process, write its minor numbers, or `!` and the error. Usage: `MAJOR`."""
    major = int(sys.argv[1])
    if _statx(0, b"/", _AT_STATX_DONT_SYNC, _STATX_TYPE, _about):  # a system that refuses it hides every device
        sys.exit(f"statx: {os.strerror(ctypes.get_errno())}")
    for line in sys.stdin:
        try:
            answer = " ".join(map(str, open_minors(line.rstrip("\n"), major)))
        except OSError as error:
            answer = f"!{error.strerror}"
        print(answer, flush=True)


def open_minors(process: str, major: int) -> set[int]:
    """Return the minor numbers of the devices that this process in /proc has open. Raises OSError."""
    try:
        if os.listdir(f"{process}/fd"):  # noqa: PTH208 - thousands of names
            return _minors_in(process, major)
        # A process whose first thread has ended shows its files at the others.
        threads = os.listdir(f"{process}/task")  # noqa: PTH208
        return set().union(*(_minors_in(f"{process}/task/{thread}", major) for thread in threads))
    except OSError as error:
        if is_gone(error):
            return set()
        raise


def _minors_in(task: str, major: int) -> set[int]:
    found: set[int] = set()
    folder = os.open(f"{task}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for file in os.listdir(folder):  # noqa: PTH208
            minor = _minor(folder, file, major)
            if minor is not None and minor not in found and _is_open(f"{task}/fdinfo/{file}"):
                found.add(minor)
    finally:
        os.close(folder)
    return found


def _minor(folder: int, file: str, major: int) -> int | None:
    """Return the minor number of the open device; None if it is another file, was closed, or is kept from us."""
    if _statx(folder, file.encode(), _AT_STATX_DONT_SYNC | _AT_NO_AUTOMOUNT, _STATX_TYPE, _about):
        return None
    if not stat.S_ISCHR(_MODE.unpack_from(_about)[0]):
        return None
    of_driver, minor = _DEVICE.unpack_from(_about)
    return int(minor) if of_driver == major else None


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
_about = ctypes.create_string_buffer(_STATX_BYTES)
