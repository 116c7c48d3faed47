"""The logs in a folder that `kubectl cluster-info dump --output-directory` wrote: of each container its last lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from diagnosis.snapshot.meta import subject
from healthcheck.text.printable import printable

_NAME = "logs.txt"
_MARK = re.compile(
    rb"==== (START|END) logs for container (\S{1,253}) of pod (\S{1,253})/(\S{1,253}) ====\s*\Z", re.ASCII
)
_MOST_LINES = 200
_LONGEST_LINE = 4096
_CHUNK = 64 * 1024
"""A line may have no end: what is beyond this counts as another."""


def read_dump_logs(folder: Path) -> dict[tuple[str, str], str]:
    """By a pod's subject and a container's name. Raises OSError."""
    files = sorted(file for file in files_below(folder) if file.name == _NAME)
    return {one: text for file in files for one, text in _of(file)}


def files_below(folder: Path) -> Iterator[Path]:
    """Raises OSError, as for a folder within that can't be opened: `rglob` passes over it, and nobody would know.

    A pipe or a device, which may have no end, is none.
    """
    for one in folder.iterdir():
        if one.is_dir() and not one.is_symlink():
            yield from files_below(one)
        elif one.is_file() or not one.exists():
            yield one


def _of(file: Path) -> Iterator[tuple[tuple[str, str], str]]:
    whose: tuple[str, str] | None = None
    lines: deque[bytes] = deque(maxlen=_MOST_LINES)
    with file.open("rb") as stream:
        for line in iter(partial(stream.readline, _CHUNK), b""):
            mark = _MARK.match(line)
            if mark is None:
                lines.append(line)
                continue
            if whose is not None and mark[1] == b"END":
                yield whose, "\n".join(_shown(one) for one in lines)
            container, namespace, pod = (part.decode("ascii") for part in mark.groups()[1:])
            whose = (subject("Pod", namespace, pod), container) if mark[1] == b"START" else None
            lines.clear()


def _shown(line: bytes) -> str:
    return printable(line.decode("utf-8", "replace").rstrip("\r\n"), _LONGEST_LINE)
