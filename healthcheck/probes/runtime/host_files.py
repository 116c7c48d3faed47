"""Files by the paths that the host itself uses: every link leads inside the host's root, never into ours."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 20
_MOST_LINKS = 40
"""As the kernel follows (path_resolution(7))."""
_MOST_MATCHES = 256


def resolve(root: Path, path: str) -> str:
    """The path as the host names it after all links; what does not exist keeps its name. Raises OSError on a loop."""
    if "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path.replace("\0", "?"))
    links = 0
    ahead = path.split("/")[::-1]
    real: list[str] = []
    while ahead:
        part = ahead.pop()
        if part == "..":
            real = real[:-1]
        elif part not in ("", "."):
            here = root.joinpath(*real, part)
            if not here.is_symlink():
                real.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = str(here.readlink())
            real = [] if target.startswith("/") else real
            ahead += target.split("/")[::-1]
    return "/" + "/".join(real)


def below(root: Path, path: str) -> Path:
    """Where the file lies as we see it. Raises OSError."""
    return root / resolve(root, path).lstrip("/")


def read(root: Path, path: str) -> tuple[bytes, float]:
    """All of a plain file of at most 1 MiB, and when it was last written, in seconds of UTC. Raises OSError."""
    file = os.open(below(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "no plain file", path)
        if about.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"more than {MOST_BYTES >> 20} MiB", path)
        return os.pread(file, MOST_BYTES, 0), about.st_mtime
    finally:
        os.close(file)


def is_executable(root: Path, path: str) -> bool:
    """A plain file that somebody may run."""
    try:
        mode = below(root, path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def matches(root: Path, pattern: str) -> list[str]:
    """The paths that a pattern with `*`, `?` or `[…]` names, in order; a name that begins with a dot is one too.

    A name that can't be told to anybody, no UTF-8 or with a line break, is left out.
    """
    found = ["/"]
    for part in pattern.strip("/").split("/"):
        found = [name for folder in found for name in _entries(root, folder, part)][:_MOST_MATCHES]
    return found


def _entries(root: Path, folder: str, part: str) -> list[str]:
    if not set(part) & set("*?["):
        name = f"{folder.rstrip('/')}/{part}"
        return [name] if _exists(root, name) else []
    try:
        names = sorted(entry.name for entry in below(root, folder).iterdir())
    except OSError:
        return []
    fitting = [name for name in names if fnmatch.fnmatchcase(name, part) and name.isprintable()]
    return [f"{folder.rstrip('/')}/{name}" for name in fitting]


def _exists(root: Path, path: str) -> bool:
    try:
        return os.path.lexists(below(root, path))
    except OSError:
        return False
