"""Files of this project on the node: atomic replacement, limited reads, one writer at a time.

A user with write permission for the folder can put a pipe, a socket, a device or a link at this path. None of them is
followed, and opening one never blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO

from gpu_healthcheck.healthcheck.host.opening import refuse_shortage

_NEVER = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotAFile(OSError):
    """The path is not a regular file."""


def replace_whole(path: Path, content: bytes, *, on_disk: bool = True) -> None:
    """Replace the file.

    Raises OSError; the old file then remains. `on_disk`: on return, the file survives a crash of the machine.
    """
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "xb", opener=lambda name, flags: os.open(name, flags | _NEVER, 0o644)) as file:
        _fill(file, content, on_disk=on_disk)
    new.replace(path)
    if on_disk:
        _sync(path.parent)


def replace_for_owner(path: Path, content: bytes) -> None:
    """Replace a file in a user's folder.

    Only the owner can read it from the first moment, and no other file is overwritten. Raises OSError; the previous
    file then remains.
    """
    new = path.with_name(f".new-{os.urandom(8).hex()}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as opened:
            _fill(opened, content, on_disk=True)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def read_start(path: Path, most: int) -> bytes:
    """Return the first `most` bytes. Raises OSError, and Shortage."""
    with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def lock(path: Path) -> int | None:
    """Lock the file until `unlock` or the end of the process.

    Returns None if another process has the lock. The folder is created if it does not exist. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:
        os.close(file)
        raise
    return file


def _open_regular(path: Path, flags: int) -> int:
    try:
        file = os.open(path, flags | _NEVER, 0o600)
    except OSError as error:
        refuse_shortage(error)
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise NotAFile(error.errno, "not a regular file", str(path)) from error
        raise
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NotAFile(errno.EINVAL, "not a regular file", str(path))
    return file


def unlock(file: int) -> None:
    os.close(file)


def _fill(file: BinaryIO, content: bytes, *, on_disk: bool) -> None:
    file.write(content)
    if on_disk:
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
