"""A runtime's configuration files: their bytes, the words in files of flags, and positions of errors."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.probes.container_runtime.facts import ConfigurationProblem
from healthcheck.text.documents import MalformedError
from healthcheck.text.printable import printable

_LONGEST_LINE = 1 << 14
"""Most characters of a line of flags."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


def read(root: Path, path: str) -> tuple[bytes, float]:
    """Read a file as `host_files.read` does.

    Raises FileNotFoundError, and MalformedError if the file exists but can't be read.
    """
    try:
        return host_files.read(root, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MalformedError(f"can't be read: {error.strerror}", only_ours=True) from error


def problem(error: MalformedError, path: str) -> ConfigurationProblem:
    return ConfigurationProblem(path, error.message, error.line, error.column, error.only_ours)


@functools.lru_cache(maxsize=32)
def arguments(raw: bytes) -> tuple[str, ...]:
    """Return the words of a file of flags: one flag per line, or systemd's form `NAME="--flag=value …"`."""
    words: list[str] = []
    for line in raw.decode("utf-8", "replace").splitlines():
        for word in _words(line):
            words += _words(word.partition("=")[2]) if _VARIABLE.match(word) else [word]
    return tuple(printable(word) for word in words)


def _words(line: str) -> list[str]:
    if len(line) > _LONGEST_LINE:
        return []
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an unclosed quotation mark
        return line.split()
