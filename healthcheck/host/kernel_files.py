"""The short files of /sys and /proc: made by the kernel as they are read, and gone with what they tell of."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from healthcheck.host.opening import open_file

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ESRCH})


def read(path: str | Path, most: int, folder: int | None = None) -> bytes:
    """Its first bytes. A captured tree may have anything in its place: we never wait, and never take all of it."""
    file = open_file(path, os.O_RDONLY, folder)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


def is_gone(error: OSError) -> bool:
    """What it told of is no more. Any other error tells nothing of that, and is could-not-look."""
    return error.errno in _GONE
