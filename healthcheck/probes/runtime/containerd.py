"""containerd's effective configuration: its file, what that imports, and what containerd makes of them together.

After containerd's own loader (cmd/containerd/server/config/config.go of 1.7 and 2.x): a file, then what it imports,
breadth first, each path once. Which containerd reads them is not known; it is taken from the first file's schema. From
3 on only containerd 2 reads it, which merges the plugins' tables; 1 and 2 are taken for containerd 1, where a later
file's table of a plugin replaces the whole table of an earlier one (containerd issue 5837). Handlers that a file of 1
or 2 has under the newest plugin count, if it has no others: containerd 2 takes them from there.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from healthcheck.probes.runtime import host_files
from healthcheck.probes.runtime.facts import Configuration, Handler, Misplaced, Problem, ReadFile

STANDARD_FILE = "/etc/containerd/config.toml"
NEWEST_SCHEMA = 4
SCHEMA_OF_2 = 3
"""From this one on, only containerd 2 reads what stands there."""
RUNC = "runc"
"""The handler that containerd has, and takes as default, where its files say nothing."""
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""containerd's default for cdi_spec_dirs."""
_SECTIONS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
"""The plugin whose table holds the runtime handlers, by schema."""
_MOST_FILES = 64
_MOST_BYTES = 1 << 20
"""Of all files together."""
_LONGEST_LINE = 4096
_MOST_DOTS = 128
"""In one line. A parser's time grows with the square of a key's parts; no configuration comes near."""
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)\Z")

Table = dict[str, Any]


class _RefusedError(Exception):
    """containerd does not start with this, or only we can't read it."""

    def __init__(self, message: str, line: int = 0, column: int = 0, *, only_ours: bool = False) -> None:
        super().__init__(message)
        self.message, self.line, self.column, self.only_ours = message, line, column, only_ours


@dataclass(slots=True)
class _Merged:
    """What the files that were read so far amount to."""

    schema: int = 0
    cri: Table = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """By handler: the file that defined it last."""
    files: list[ReadFile] = field(default_factory=list)
    misplaced: list[Misplaced] = field(default_factory=list)
    address: str = ""
    size: int = 0


def read_configuration(root: Path, path: str) -> Configuration:
    """What the file and its imports amount to; `problem` where containerd would not start with them."""
    merged = _Merged()
    pending, loaded = [path], set[str]()
    file = path
    try:
        while pending:
            file = pending.pop(0)
            if file in loaded:
                continue
            loaded.add(file)
            pending += _imports(root, file, _load(root, file, merged))
        return _effective(path, merged)
    except _RefusedError as error:
        problem = Problem(file, error.message, error.line, error.column, error.only_ours)
        return Configuration(path, schema=max(1, merged.schema), files=tuple(merged.files), problem=problem)


def _load(root: Path, file: str, merged: _Merged) -> Table:
    """What stands in the file, after it was merged. Without the first one there is nothing but the defaults."""
    if len(merged.files) == _MOST_FILES:
        raise _RefusedError(f"more than {_MOST_FILES} files", only_ours=True)
    try:
        raw, written = host_files.read(root, file)
    except FileNotFoundError as error:
        if merged.files:
            raise _RefusedError("imported, and does not exist") from error
        return {}
    except OSError as error:
        raise _RefusedError(f"can't be read: {error.strerror}", only_ours=True) from error
    merged.size += len(raw)
    if merged.size > _MOST_BYTES:
        raise _RefusedError(f"more than {_MOST_BYTES >> 20} MiB together", only_ours=True)
    merged.files.append(ReadFile(file, written))
    table = _parsed(raw)
    _merge(merged, file, table)
    return table


def _parsed(raw: bytes) -> Table:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        raise _RefusedError("no UTF-8", line, error.start - before.rfind(b"\n")) from error
    for number, line_of_text in enumerate(text.split("\n"), 1):
        if len(line_of_text) > _LONGEST_LINE or line_of_text.count(".") > _MOST_DOTS:
            raise _RefusedError("a line that is too long to be read here", number, only_ours=True)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        if place := _PLACE.search(message):
            raise _RefusedError(message[: place.start()], int(place[1]), int(place[2])) from error
        end = text.rstrip("\n")
        message = message.removesuffix(" (at end of document)")
        raise _RefusedError(message, end.count("\n") + 1, len(end) - end.rfind("\n")) from error
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of too many digits
        raise _RefusedError(f"can't be read: {type(error).__name__}", only_ours=True) from error


def _merge(merged: _Merged, file: str, table: Table) -> None:
    own = table.get("version", 0)
    if not isinstance(own, int) or isinstance(own, bool) or not 0 <= own <= NEWEST_SCHEMA:
        raise _RefusedError(f"version is no number from 1 to {NEWEST_SCHEMA}")
    merged.schema = merged.schema or own or 1
    # A file that tells no version, or a newer one than the first, is read as the first one's.
    schema = own if 0 < own <= merged.schema else merged.schema
    plugins = _table(table, "plugins")
    section = _section(schema, plugins)
    cri = _table(plugins, section)
    runtimes = _runtimes(cri)
    if section in plugins:
        deep = merged.schema >= SCHEMA_OF_2
        merged.cri = _deep(merged.cri, cri) if deep else cri
        merged.origins = {**(merged.origins if deep else {}), **dict.fromkeys(runtimes, file)}
    for other in dict.fromkeys(one for one in _SECTIONS.values() if one != section):
        if handlers := _handlers(_table(plugins, other), file):
            merged.misplaced.append(Misplaced(file, schema, other, section, handlers))
    server = _table(plugins, "io.containerd.server.v1.grpc")
    address = _text(server, "address") or _text(_table(table, "grpc"), "address")
    merged.address = address or merged.address


def _section(schema: int, plugins: Table) -> str:
    """The plugin whose handlers count. In a file of an old schema containerd 2 takes those of the new one too."""
    own, newest = _SECTIONS[schema], _SECTIONS[NEWEST_SCHEMA]
    return own if _runtimes(_table(plugins, own)) or not _runtimes(_table(plugins, newest)) else newest


def _effective(path: str, merged: _Merged) -> Configuration:
    containerd = _table(merged.cri, "containerd")
    handlers = tuple(
        _handler(name, _table(_runtimes(merged.cri), name), merged.origins[name]) for name in _runtimes(merged.cri)
    )
    folders = merged.cri.get("cdi_spec_dirs", CDI_FOLDERS)
    if not isinstance(folders, list | tuple) or not all(isinstance(one, str) for one in folders):
        raise _RefusedError("cdi_spec_dirs is no list of paths")
    cdi = merged.cri.get("enable_cdi", merged.schema >= SCHEMA_OF_2)
    if not isinstance(cdi, bool):
        raise _RefusedError("enable_cdi is neither true nor false")
    return Configuration(
        path,
        schema=max(1, merged.schema),
        files=tuple(merged.files),
        handlers=handlers,
        default=_text(containerd, "default_runtime_name") or RUNC,
        cdi=cdi,
        cdi_folders=tuple(folders),
        misplaced=tuple(merged.misplaced),
        address=merged.address,
    )


def _imports(root: Path, file: str, table: Table) -> Iterator[str]:
    """The paths in their order: relative to the file, a pattern's matches by name."""
    told = table.get("imports", [])
    if not isinstance(told, list) or not all(isinstance(one, str) for one in told):
        raise _RefusedError("imports is no list of paths")
    for one in told:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), one))
        if "*" in path:
            yield from host_files.matches(root, path)
        else:
            yield path


def _runtimes(cri: Table) -> Table:
    return _table(_table(cri, "containerd"), "runtimes")


def _handlers(cri: Table, file: str) -> tuple[Handler, ...]:
    runtimes = _runtimes(cri)
    return tuple(_handler(name, _table(runtimes, name), file) for name in runtimes)


def _handler(name: str, table: Table, file: str) -> Handler:
    options = _table(table, "options")
    cgroup = options.get("SystemdCgroup")
    # In files of schema 1 the toolkit wrote it under the older name too.
    binary = _text(options, "BinaryName") or _text(options, "Runtime")
    return Handler(name, _text(table, "runtime_type"), binary, cgroup if isinstance(cgroup, bool) else None, file)


def _table(table: Mapping[str, Any], key: str) -> Table:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise _RefusedError(f"{key} is no table")
    return value


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise _RefusedError(f"{key} is no text")
    return value


def _deep(below: Table, above: Table) -> Table:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _deep(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
