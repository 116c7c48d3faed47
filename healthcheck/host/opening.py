"""Functions to open files and folders. A lack of resources or permissions never counts as a missing file.

The kernel generates short files of /sys and /proc on each read. Such a file disappears together with the object that it
describes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpu_healthcheck.healthcheck.model import ProbeError, Shortage

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors for a lack of file descriptors, of this process or of the machine, or of kernel memory."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


def is_absent(error: OSError) -> bool:
    """Whether the error shows that the file does not exist.

    Any other error means that this could not be checked.
    """
    return error.errno in _ABSENT


def is_there(path: str | Path) -> bool:
    """Whether the path exists after links.

    Raises ProbeError if this cannot be checked; pathlib returns False then.
    """
    return _mode(path) is not None


def is_folder(path: str | Path) -> bool:
    """Whether the path is a folder. Raises ProbeError if this cannot be checked."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def want_folder(path: str | Path) -> None:
    """Raise ProbeError if the path is not a folder, or if this cannot be checked."""
    if not is_folder(path):
        raise ProbeError(f"{path}: no such directory")


def _mode(path: str | Path) -> int | None:
    """Return the mode of the file that the path leads to, or None if it does not exist."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - the path may be a str
    except OSError as error:
        refuse_shortage(error)
        if is_absent(error):
            return None
        raise ProbeError(f"{path}: {error.strerror}") from error


def refuse_shortage(error: OSError) -> None:
    """Raise Shortage if the error shows a lack of resources of this process and not the state of the file."""
    if error.errno in _OURS:
        raise Shortage(": ".join(str(word) for word in (error.filename, error.strerror) if word)) from error


def shortage_behind(error: BaseException) -> str:
    """Return the resource that this process lacked, from the error or its causes, or an empty string."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Shortage):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in _OURS:
            return ": ".join(str(word) for word in (cause.filename, cause.strerror) if word)
        cause = cause.__cause__ or cause.__context__
    return ""


def is_shortage(text: str) -> bool:
    """Whether a message of another program reports a lack of resources, with the C library's error text.

    An example is the loader of shared libraries.
    """
    return any(os.strerror(number) in text for number in _OURS)


def open_file(path: str | Path, flags: int, folder: int | None = None) -> int:
    """Open like `os.open`, without blocking and without inheritance by children. Raises OSError and Shortage."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        refuse_shortage(error)
        raise


def entries_of(folder: str | Path | int) -> Iterator[os.DirEntry[str]]:
    """Return the entries like `os.scandir`. Raises OSError and Shortage."""
    try:
        entries = os.scandir(folder)
    except OSError as error:
        refuse_shortage(error)
        raise
    with entries:
        yield from entries


def names_there(folder: str | Path) -> list[str]:
    """Return the sorted names in a folder; an empty list if the folder does not exist.

    Raises ProbeError if this cannot be checked.
    """
    try:
        return names_in(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ProbeError(f"{folder}: {error.strerror}") from error


def names_in(folder: str | Path) -> list[str]:
    """Return the sorted names in a folder. Raises OSError and Shortage."""
    return sorted(entry.name for entry in entries_of(folder))


_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ESRCH})


def read(path: str | Path, most: int, folder: int | None = None) -> bytes:
    """Return the first bytes of a file.

    A captured tree may have another kind of file at this path, so the function never waits and limits the size.
    """
    file = open_file(path, os.O_RDONLY, folder)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


def is_gone(error: OSError) -> bool:
    """Whether the error shows that the kernel has removed the device or process that the file describes.

    Any other error means "could not check".
    """
    return error.errno in _GONE
