"""Read the last log lines of each container from a folder of `kubectl cluster-info dump --output-directory`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.healthcheck.text.printable import printable

_NAME = "logs.txt"
_MARK = re.compile(
    rb"==== (START|END) logs for container (\S{1,253}) of pod (\S{1,253})/(\S{1,253}) ====\s*\Z", re.ASCII
)
_MOST_LINES = 200
_LONGEST_LINE = 4096
_DEEPEST = 16
_MOST_ENTRIES = 200_000
_MOST_CHARACTERS = 512 << 20
"""Limit for all logs together."""
_CHUNK = 64 * 1024
"""Longest line; the rest counts as another line."""


class DumpError(ValueError):
    """Folder exceeds the limits for reading. The message states the limit."""


def read_dump_logs(folder: Path) -> dict[tuple[str, str], str]:
    """Return the logs by a pod's subject and a container's name. Raises OSError, DumpError."""
    logs: dict[tuple[str, str], str] = {}
    left = _MOST_CHARACTERS
    for file in sorted(file for file in files_below(folder) if file.name == _NAME):
        for pair, text in _of(file):
            left -= len(text)
            if left < 0:
                raise DumpError(f"over {_MOST_CHARACTERS >> 20} MiB of logs, which is the limit")
            logs[pair] = text
    return logs


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all regular files, without pipes and devices, which may have no end.

    Raises OSError also for a subfolder that can't be opened, which `rglob` ignores. Raises DumpError.
    """
    ahead, entries = [(folder, 0)], 0
    while ahead:
        path, depth = ahead.pop()
        if depth > _DEEPEST:
            raise DumpError(f"folders more than {_DEEPEST} deep; a dump has three levels")
        for entry in path.iterdir():
            entries += 1
            if entries > _MOST_ENTRIES:
                raise DumpError(f"over {_MOST_ENTRIES:,} files, which is the limit")
            if entry.is_dir() and not entry.is_symlink():
                ahead.append((entry, depth + 1))
            elif entry.is_file() or not entry.exists():
                yield entry


def _of(file: Path) -> Iterator[tuple[tuple[str, str], str]]:
    result: tuple[str, str] | None = None
    lines: deque[bytes] = deque(maxlen=_MOST_LINES)
    with file.open("rb") as stream:
        for line in iter(partial(stream.readline, _CHUNK), b""):
            mark = _MARK.match(line)
            if mark is None:
                lines.append(line)
                continue
            if result is not None and mark[1] == b"END":
                texts = (raw.decode("utf-8", "replace").rstrip("\r\n") for raw in lines)
                yield result, "\n".join(printable(text, _LONGEST_LINE) for text in texts)
            container, namespace, pod = (part.decode("ascii") for part in mark.groups()[1:])
            result = (subject("Pod", namespace, pod), container) if mark[1] == b"START" else None
            lines.clear()
