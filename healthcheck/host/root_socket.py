"""Unix socket that only root can connect to, and whose path leads through root's folders only."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

_MODE = 0o600
"""Mode of the socket: connect(2) needs the permission to write."""
_BACKLOG = 64


def listen(path: Path) -> socket.socket:
    """Listen on a new socket at this path, which replaces an earlier one. Raises OSError.

    The folder is opened first: the length of its path is not limited then (unix(7): 107 bytes), and no link is
    followed.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX)
    new = f"{path.name}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        os.fchmod(listener.fileno(), _MODE)  # the file gets it from its first moment
        listener.bind(f"/proc/self/fd/{folder}/{new}")
        listener.listen(_BACKLOG)
        os.replace(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener
