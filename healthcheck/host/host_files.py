"""Files by the host's own paths: links are resolved inside the host's root, never in this container's."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from healthcheck.host import opening
from healthcheck.host.opening import entries_of, names_in, open_file
from healthcheck.model import ProbeError

MOST_BYTES = 1 << 20
_MOST_LINKS = 40
"""Most links that the kernel follows (path_resolution(7))."""
_MOST_MATCHES = 256
_MOST_ENTRIES = 4096
"""Most names that are read in one folder."""
_DEEPEST = 8
"""Depth limit of nested folders of drop-ins."""


def resolve(root: Path, path: str) -> str:
    """Return the path on the host with all links resolved. Raises OSError on a loop of links.

    A part that does not exist keeps its name.
    """
    if not _can_be(path):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), ascii(path))
    links = 0
    base = str(root).rstrip("/")
    ahead = path.split("/")[::-1]
    real: list[str] = []
    while ahead:
        part = ahead.pop()
        if part == "..":
            real = real[:-1]
        elif part not in ("", "."):
            try:
                target = os.readlink("/".join((base, *real, part)))  # noqa: PTH115 - pathlib would double the time
            except OSError:  # no link, or the name does not exist
                real.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            real = [] if target.startswith("/") else real
            ahead += target.split("/")[::-1]
    return "/" + "/".join(real)


def resolved(root: Path, path: str) -> str:
    """The same, but return the path unchanged if its links can't be resolved."""
    try:
        return resolve(root, path)
    except OSError:
        return path


def in_run(path: str) -> str:
    """Return `/var/run/x` as `/run/x`: on every host this is a link, which a captured tree may lack."""
    return f"/run/{path.removeprefix('/var/run/')}" if path.startswith("/var/run/") else path


def _can_be(path: str) -> bool:
    """Whether a path can name a file.

    A path from a JSON file may contain characters that no file name can have.
    """
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def below(root: Path, path: str) -> Path:
    """Return the path of the file in this process's file system. Raises OSError."""
    return root / resolve(root, path).lstrip("/")


def read(root: Path, path: str) -> tuple[bytes, float]:
    """Return the content of a regular file of at most 1 MiB and its modification time in seconds of UTC.

    Raises OSError.
    """
    file = open_file(below(root, path), os.O_RDONLY | os.O_NOFOLLOW)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if about.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"more than {MOST_BYTES >> 20} MiB", path)
        return os.pread(file, MOST_BYTES, 0), about.st_mtime
    finally:
        os.close(file)


def read_whole(root: Path, path: str, most: int) -> bytes:
    """Return at most `most` bytes of a regular file. Raises OSError.

    Lists of the kernel must be read in parts, and have no known size.
    """
    file = open_file(below(root, path), os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        with open(file, "rb", closefd=False) as whole:
            return whole.read(most)
    finally:
        os.close(file)


def is_executable(root: Path, path: str) -> bool:
    """Whether the path is a regular file with an execute permission."""
    try:
        mode = below(root, path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def walk(root: Path, folder: str) -> list[str]:
    """Return the files in a folder and its subfolders, in name order (Go's filepath.Walk).

    Names that cannot be printed are left out, as in `matches`.
    """
    return [path for path, _ in zip(_walked(root, folder, _DEEPEST), range(_MOST_MATCHES), strict=False)]


def _walked(root: Path, folder: str, deepest: int) -> Iterator[str]:
    try:
        some = islice((entry for entry in entries_of(below(root, folder)) if entry.name.isprintable()), _MOST_ENTRIES)
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in some)
    except OSError:
        return
    for name, is_folder in found:
        path = f"{folder.rstrip('/')}/{name}"
        if not is_folder:
            yield path
        elif deepest:
            yield from _walked(root, path, deepest - 1)


def matches(root: Path, pattern: str) -> list[str]:
    """Return the paths that match a pattern with `*`, `?` or `[…]`, in order.

    Names that begin with a dot match too. Names that cannot be printed, such as invalid UTF-8 or names with a line
    break, are left out.
    """
    found = ["/"]
    for part in pattern.strip("/").split("/"):
        found = [name for folder in found for name in _entries(root, folder, part)][:_MOST_MATCHES]
    return found


def _entries(root: Path, folder: str, part: str) -> list[str]:
    if not set(part) & set("*?["):
        name = f"{folder.rstrip('/')}/{part}"
        return [name] if exists(root, name) else []
    try:
        names = names_in(below(root, folder))
    except OSError:
        return []
    fitting = [name for name in names if fnmatch.fnmatchcase(name, part) and name.isprintable()]
    return [f"{folder.rstrip('/')}/{name}" for name in fitting]


def is_there(root: Path, path: str) -> bool:
    """Whether a file or folder exists at this path, after links.

    Raises ProbeError if this cannot be checked.
    """
    try:
        return opening.is_there(below(root, path))
    except OSError as error:  # a loop of links
        raise ProbeError(f"{path}: {error.strerror}") from error


def exists(root: Path, path: str) -> bool:
    """Whether the path exists after links."""
    try:
        return os.path.lexists(f"{root}{resolve(root, path)}")
    except OSError:
        return False
