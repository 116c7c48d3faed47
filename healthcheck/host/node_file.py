"""A file of ours on the node: replaced whole or not at all, read up to a limit, written by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO

from healthcheck.host.opening import open_file


def replace_whole(path: Path, content: bytes, *, on_disk: bool = True) -> None:
    """Raises OSError; the old file then stays. `on_disk`: it outlives the machine's end, too, once this returns."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        _fill(file, content, on_disk=on_disk)
    new.replace(path)
    if on_disk:
        _sync(path.parent)


def replace_for_owner(path: Path, content: bytes) -> None:
    """In a person's folder: for the owner alone from its first moment, and no file of another name is lost for it.

    Raises OSError; what was there then stays.
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
    """Raises OSError, also for what is no file: a pipe is not waited for. Raises Shortage."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "there is something that is no file", str(path))
        return file.read(most)


def lock(path: Path) -> int | None:
    """Have it alone until `unlock`, or until the process ends, however it ends; None: another has it.

    The folder is made where there is none. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:
        os.close(file)
        raise
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
