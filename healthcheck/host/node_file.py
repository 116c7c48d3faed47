"""A file of ours on the node: replaced whole or not at all, read up to a limit, written by one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def replace_whole(path: Path, content: bytes, *, on_disk: bool = True) -> None:
    """Raises OSError; the old file then stays. `on_disk`: it outlives the machine's end, too, once this returns."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(content)
        if on_disk:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)
    if on_disk:
        _sync(path.parent)


def read_start(path: Path, most: int) -> bytes:
    """Raises OSError."""
    with path.open("rb") as file:
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


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
