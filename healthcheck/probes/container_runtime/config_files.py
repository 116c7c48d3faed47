"""A runtime's configuration files: their bytes, types of values, words in files of flags, positions of errors."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from healthcheck.host import host_files
from healthcheck.probes.container_runtime import toml_file
from healthcheck.probes.container_runtime.facts import ConfigurationProblem
from healthcheck.text.documents import MalformedError
from healthcheck.text.printable import printable

_LONGEST_LINE = 1 << 14
"""Most characters of a line of flags."""
_WORDS: Mapping[type, str] = {
    int: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list of strings",
    dict: "a table",
}
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


def check_types(raw: bytes, content: Mapping[str, Any], types: Mapping[str, type]) -> None:
    """Raise MalformedError for the first value of another type than `types` has for its key.

    Only tables in `types` are searched. All entries of `runtimes` are tables.
    """
    pending: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), content)]
    for path, table in pending:
        for key, value in table.items():
            kind = dict if path[-1:] == ("runtimes",) else types.get(key)
            if kind is not None and value is not None and not _is_a(value, kind):
                raise MalformedError(f"{key} is not {_WORDS[kind]}", toml_file.key_line(raw, (*path, key)))
            if kind is dict and value:
                pending.append(((*path, key), value))


def _is_a(value: object, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


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
