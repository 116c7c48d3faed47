"""Paths on the host that files name: whether they exist, and where a program is, with its architecture."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.opening import entries_of, is_there, open_file
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import RuntimeBinary

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


def missing(root: Path, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that do not exist, in their order, each once: many paths in few folders, in each check cycle.

    Paths below an empty or missing top-level folder are not reported: a captured tree has no /dev or /usr.
    """
    folders: dict[str, str] = {}
    shown: dict[str, bool] = {}
    return tuple(path for path in dict.fromkeys(paths) if _is_missing(root, path, folders, shown))


def _is_missing(root: Path, path: str, folders: dict[str, str], shown: dict[str, bool]) -> bool:
    if not path.startswith("/") or "\0" in path:
        return False
    top = path.split("/", 2)[1]
    if top not in shown:
        shown[top] = _has_entries(root, top)
    if not shown[top]:
        return False
    folder, _, name = path.rpartition("/")
    if folder not in folders:
        folders[folder] = host_files.resolved(root, folder)
    # Links of a folder are followed once, even for hundreds of files in it.
    try:
        mode = os.lstat(f"{root}{folders[folder]}/{name}").st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return stat.S_ISLNK(mode) and _leads_nowhere(root, path)


def _leads_nowhere(root: Path, path: str) -> bool:
    try:
        return not is_there(host_files.below(root, path))
    except OSError:  # links in a circle
        return True
    except ProbeError:
        return False


def _has_entries(root: Path, folder: str) -> bool:
    """Whether the folder exists and is not empty."""
    try:
        return next(entries_of(host_files.below(root, folder)), None) is not None
    except OSError:
        return False


def find_program(root: Path, named: str) -> RuntimeBinary:
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
