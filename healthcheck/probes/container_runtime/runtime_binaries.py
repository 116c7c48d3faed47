"""A program on the host: its path, whether it is executable, and its architecture."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.host.opening import open_file
from healthcheck.probes.container_runtime.facts import RuntimeBinary

SEARCHED = (
    "/usr/local/sbin/",
    "/usr/local/bin/",
    "/usr/sbin/",
    "/usr/bin/",
    "/sbin/",
    "/bin/",
    "/snap/bin/",
    "/snap/microk8s/current/usr/bin/",
)
"""Search path for programs named without a folder: systemd's default PATH, and the folder of snaps."""
_MACHINES = {21: "ppc64le", 62: "x86_64", 183: "aarch64"}
"""Architectures with NVIDIA GPUs as in uname, by e_machine. All are little-endian."""
_ELF = b"\x7fELF"
_HEAD_BYTES = 64


def find(root: Path, named: str) -> RuntimeBinary:
    """Return the program as a service finds it: by its path, or the first executable file in its PATH."""
    paths = [named] if "/" in named else [f"{folder}{named}" for folder in SEARCHED]
    there = [path for path in paths if _is_file(root, path)]
    path = next((text for text in there if host_files.is_executable(root, text)), there[0] if there else "")
    if not path:
        return RuntimeBinary(named)
    return RuntimeBinary(named, path, host_files.is_executable(root, path), architecture(root, path))


def architecture(root: Path, path: str) -> str:
    """Return the architecture of an ELF file, as uname names it; '' for other or unreadable files."""
    try:
        with _opened(host_files.below(root, path)) as file:
            head = os.pread(file, _HEAD_BYTES, 0)
    except OSError:
        return ""
    if not head.startswith(_ELF) or len(head) < _HEAD_BYTES:
        return ""
    (machine,) = struct.unpack_from("<H", head, 18)
    return _MACHINES.get(machine, "")


def _is_file(root: Path, path: str) -> bool:
    try:
        return stat.S_ISREG(host_files.below(root, path).stat().st_mode)
    except OSError:
        return False


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    number = open_file(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "no plain file", str(file))
        yield number
    finally:
        os.close(number)
