"""Opening files and folders. What we lack for that, or may not see, is never taken for something that is not there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from healthcheck.model import ProbeError, Shortage

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""File descriptors of this process or of the machine, and the kernel's memory."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


def is_absent(error: OSError) -> bool:
    """It says that nothing of that name is there. Any other error says that nobody could look."""
    return error.errno in _ABSENT


def is_there(path: str | Path) -> bool:
    """Whether there is anything after all links. Raises ProbeError where nobody can tell; pathlib says no."""
    return _mode(path) is not None


def is_folder(path: str | Path) -> bool:
    """Raises ProbeError where nobody can tell."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def want_folder(path: str | Path) -> None:
    """Raises ProbeError where there is none, and where nobody can tell."""
    if not is_folder(path):
        raise ProbeError(f"{path}: no such directory")


def _mode(path: str | Path) -> int | None:
    """Of what the path leads to; None: nothing is there."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - of a text too
    except OSError as error:
        refuse_shortage(error)
        if is_absent(error):
            return None
        raise ProbeError(f"{path}: {error.strerror}") from error


def refuse_shortage(error: OSError) -> None:
    """Raises Shortage where the error tells of us, and nothing of what was to be opened."""
    if error.errno in _OURS:
        raise Shortage(": ".join(str(word) for word in (error.filename, error.strerror) if word)) from error


def shortage_behind(error: BaseException) -> str:
    """What we ourselves lacked where this, or what it came from, tells of that; '' else."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Shortage):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in _OURS:
            return ": ".join(str(word) for word in (cause.filename, cause.strerror) if word)
        cause = cause.__cause__ or cause.__context__
    return ""


def is_shortage(text: str) -> bool:
    """The same of what another program says, as the loader of libraries does, in the C library's words."""
    return any(os.strerror(number) in text for number in _OURS)


def open_file(path: str | Path, flags: int, folder: int | None = None) -> int:
    """`os.open`, without waiting and not for children. Raises OSError, and Shortage."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        refuse_shortage(error)
        raise


def entries_of(folder: str | Path | int) -> Iterator[os.DirEntry[str]]:
    """`os.scandir`. Raises OSError, and Shortage."""
    try:
        entries = os.scandir(folder)
    except OSError as error:
        refuse_shortage(error)
        raise
    with entries:
        yield from entries


def names_there(folder: str | Path) -> list[str]:
    """In order; none where there is no such folder. Raises ProbeError where nobody can tell."""
    try:
        return names_in(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ProbeError(f"{folder}: {error.strerror}") from error


def names_in(folder: str | Path) -> list[str]:
    """In order. Raises OSError, and Shortage."""
    return sorted(entry.name for entry in entries_of(folder))
