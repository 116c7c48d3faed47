"""containerd's effective configuration: its file and imports, merged by the rules of its release.

containerd reads a file, then its imports, breadth first, each path once. The merge differs:

- 1.x uses the last file's table of the CRI plugin as a whole (containerd issue 5837), under its short name if the last
  `version` of all files is 1, otherwise under its full name.
- 2.x merges the tables, and moves those of older schemas to the new plugin: 2.0 to 2.2 all together, if the last
  `version` is 2; from 2.3 on those of each file. Moved handlers never join handlers that the new plugin already has.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from healthcheck.host import host_files
from healthcheck.probes.container_runtime import config_files, named_paths, toml_file
from healthcheck.probes.container_runtime.facts import (
    RUNC,
    ConfigurationProblem,
    Handler,
    Misplaced,
    ReadFile,
    RuntimeConfiguration,
)
from healthcheck.probes.container_runtime.toml_file import Table
from healthcheck.text.documents import MalformedError

STANDARD_FILE = "/etc/containerd/config.toml"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Default of containerd's cdi_spec_dirs."""
_SHORT, _OLD, _NEW = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
"""Plugin whose table contains the handlers, in schema 1, in schema 2, and since schema 3."""
_SCHEMAS = {_SHORT: 1, _OLD: 2, _NEW: 3}
_CRI = {*_SCHEMAS, "io.containerd.cri.v1.images"}
"""Plugins without which containerd does not serve the kubelet."""
_SERVER = "io.containerd.server.v1.grpc"
_OLDEST_SHIM = "io.containerd.runtime.v1.linux"
"""The shim of containerd before 1.2, which 1.x still starts, with separate options."""
_RUNC_SHIMS = "io.containerd.runc."
_DROP_IN_FOLDERS = ("conf.d", "config.d")
_MOST_FILES = 64
_MOST_HANDLERS = 256
"""Most handlers in one file."""
_MOST_BYTES = 1 << 20
"""Most bytes of all files together."""

Release = tuple[int, int]
"""Major and minor version. Patch releases are not distinguished."""
_1_7: Release = (1, 7)
_2_0: Release = (2, 0)
_2_2: Release = (2, 2)
_MOVES_EACH_FILE: Release = (2, 3)
_CDI_ALWAYS: Release = (2, 4)
"""First release in which CDI is always on and enable_cdi is ignored."""

_READ = ("version", "imports", "disabled_plugins", "grpc", "plugins")
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("plugins", _SERVER, "grpc", *_SCHEMAS, "containerd", "runtimes", "options"), dict),
    **dict.fromkeys(("version",), int),
    **dict.fromkeys(("imports", "disabled_plugins", "cdi_spec_dirs"), list),
    **dict.fromkeys(("address", "default_runtime_name", "runtime_type", "runtime_engine"), str),
    **dict.fromkeys(("BinaryName", "Runtime"), str),
    **dict.fromkeys(("enable_cdi", "systemd_cgroup", "SystemdCgroup", "privileged_without_host_devices"), bool),
}
"""Types of the values that are read. containerd does not start with others."""
_DATED = (
    *(("plugins", shim, "runtime") for shim in ("linux", _OLDEST_SHIM)),
    *(
        ("plugins", section, "containerd", table, "runtime_type")
        for section in (_SHORT, _OLD)
        for table in ("default_runtime", "untrusted_workload_runtime")
    ),
)
"""Settings that define a program or a handler outside of `runtimes`."""


class _RefusedError(Exception):
    """Error for files with which containerd does not start, or which only this program can't read."""

    def __init__(self, problem: ConfigurationProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Source(Struct, frozen=True):
    """One file and its content."""

    path: str
    raw: bytes
    written: float
    table: Table

    @property
    def version(self) -> int:
        """Return the file's schema; 0 if it names none."""
        version: int = self.table.get("version", 0)
        return version

    def cri(self, section: str) -> Table:
        """Return the table of the CRI plugin under this name; an empty table without one."""
        return _below(self.table, "plugins", section)

    def handlers(self, section: str) -> list[Handler]:
        runtimes = _below(self.cri(section), "containerd", "runtimes")
        return [_handler(name, runtimes[name], {}) for name in runtimes]


_DEFINED_IN = "\0defined in"
"""Key in a handler's table of the file and the line that define it, so that they move with the table."""


class _Reader(Struct):
    """Reads the files in containerd's order."""

    root: Path
    sources: list[_Source] = field(default_factory=list)
    size: int = 0

    def read_all(self, path: str) -> None:
        pending, loaded = [path], set[str]()
        while pending:
            file = pending.pop(0)
            if file not in loaded:
                loaded.add(file)
                pending += self._imports(file)

    def _imports(self, file: str) -> Iterator[str]:
        """Yield the imports in order. Paths are relative to the file, and matches of a pattern are sorted by name."""
        source = self._load(file)
        for name in source.table.get("imports", ()) if source is not None else ():
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
            yield from host_files.matches(self.root, path) if "*" in name else [path]

    def _load(self, file: str) -> _Source | None:
        """Return the file's content; None if the first file does not exist, in which case the defaults apply."""
        if len(self.sources) == _MOST_FILES:
            raise _RefusedError(ConfigurationProblem(file, f"more than {_MOST_FILES} files", only_ours=True))
        try:
            raw, written = config_files.read(self.root, file)
            self._add(_Source(file, raw, written, {}))
            self.sources[-1] = _Source(file, raw, written, _typed(file, raw))
        except FileNotFoundError as error:
            if self.sources:
                raise _RefusedError(_not_there(self.root, file)) from error
            return None
        except MalformedError as error:
            raise _RefusedError(config_files.problem(error, file)) from error
        return self.sources[-1]

    def _add(self, source: _Source) -> None:
        self.size += len(source.raw)
        if self.size > _MOST_BYTES:
            raise MalformedError(f"more than {_MOST_BYTES >> 20} MiB together", only_ours=True)
        self.sources.append(source)


def _not_there(root: Path, file: str) -> ConfigurationProblem:
    """Return the problem of an import whose file does not exist.

    For a dangling link, the message names its target. A saved tree can lack a folder below the root, such as /run. Its
    former content is then unknown.
    """
    real = host_files.resolve(root, file)
    folder = posixpath.dirname(real).split("/")[1]
    if folder and not named_paths.has_entries(root, folder):
        return ConfigurationProblem(file, f"imported, but /{folder} is empty or missing here", only_ours=True)
    led_to = "does not exist" if real == file else f"leads to {real}, which does not exist"
    return ConfigurationProblem(file, f"imported, but {led_to}")


def _typed(file: str, raw: bytes) -> Table:
    """Return the parsed content with each handler's definition in its table. Raises MalformedError."""
    table = toml_file.parse(raw)
    read = {key: table[key] for key in _READ if key in table}
    if isinstance(plugins := read.get("plugins"), dict):
        read["plugins"] = {key: plugins[key] for key in (_SERVER, *_SCHEMAS) if key in plugins}
    config_files.check_types(raw, read, _TYPES)
    if not 0 <= table.get("version", 0) < 1 << 63:
        raise MalformedError("version is not a number from 1 on", toml_file.key_line(raw, ("version",)))
    for path in _DATED:
        if _below(table, *path[:-1]).get(path[-1]) not in (None, "", "runc"):
            message = f"{path[-2]} is a table of containerd before 1.4, which is not read here"
            raise MalformedError(message, toml_file.key_line(raw, path), only_ours=True)
    for section in _SCHEMAS:
        path = ("plugins", section, "containerd")
        if len(runtimes := _below(table, *path, "runtimes")) > _MOST_HANDLERS:
            raise MalformedError(f"more than {_MOST_HANDLERS} handlers", only_ours=True)
        defined = {
            name: {**runtime, _DEFINED_IN: (file, toml_file.table_line(raw, (*path, "runtimes", name)))}
            for name, runtime in runtimes.items()
        }
        if defined:
            table = _deep(table, {"plugins": {section: {"containerd": {"runtimes": defined}}}})
    return table


def _below(table: Table, *path: str) -> Table:
    """Return the table at the path; an empty table if there is none."""
    for key in path:
        value = table.get(key)
        table = value if isinstance(value, dict) else {}
    return table


def _deep(below: Table, above: Table) -> dict[str, Any]:
    """Return the merged tables. For all other values, also lists and false, the value of `above` replaces the other."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _deep(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def read_configuration(root: Path, path: str, version: str = "") -> RuntimeConfiguration:
    """Return the effective configuration of the file and its imports.

    `problem` is set if containerd would not start with them. `version` is the version that the running containerd
    reports; without it, the release is inferred from the files. Drop-in files that are not read are searched for in
    folders next to the file.
    """
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    reader = _Reader(root)
    known = RuntimeConfiguration(path, version=version if numbers else "")
    try:
        reader.read_all(path)
        release = (int(numbers[1]), int(numbers[2])) if numbers else _assumed(reader.sources)
        known = replace(known, generation=f"{release[0]}.{release[1]}")
        known = _effective(known, reader.sources, release)
    except _RefusedError as error:
        known = replace(known, problem=error.problem)
    return replace(
        known,
        schema=max(1, reader.sources[0].version) if reader.sources else 1,
        files=tuple(ReadFile(source.path, source.written) for source in reader.sources),
        unread_handlers=tuple(_unread(reader, path)),
    )


def _assumed(sources: Sequence[_Source]) -> Release:
    """Return a release that reads the newest schema among the files. For schema 2, which both read, it is 1.x."""
    newest = max((source.version for source in sources), default=0)
    sections = {section for source in sources for section in _SCHEMAS if source.handlers(section)}
    is_1 = newest <= _newest_schema(_1_7) and sections != {_NEW}
    return _1_7 if is_1 else _MOVES_EACH_FILE if newest > _newest_schema(_2_2) else _2_2


def _newest_schema(release: Release) -> int:
    return 2 if release < _2_0 else 3 if release < _MOVES_EACH_FILE else 4


def _unread(reader: _Reader, path: str) -> Iterator[Handler]:
    """Yield the handlers in files of drop-in folders that no import includes. Malformed files are skipped."""
    patterns = (f"{posixpath.dirname(path)}/{name}/*.toml" for name in _DROP_IN_FOLDERS)
    there = [file for pattern in patterns for file in host_files.matches(reader.root, pattern)]
    read = {host_files.resolved(reader.root, source.path) for source in reader.sources} if there else set()
    for file in there:
        with contextlib.suppress(FileNotFoundError, MalformedError):
            if host_files.resolved(reader.root, file) not in read:
                raw, written = config_files.read(reader.root, file)
                source = _Source(file, raw, written, _typed(file, raw))
                yield from (handler for section in _SCHEMAS for handler in source.handlers(section))


# Merging of several files.


def _effective(known: RuntimeConfiguration, sources: Sequence[_Source], release: Release) -> RuntimeConfiguration:
    is_1 = release < _2_0
    versions = [source.version for source in sources if source.version]
    _refuse_newer(sources, release)
    section = _NEW if not is_1 else _OLD if versions and versions[-1] > 1 else _SHORT
    having = [source for source in sources if source.cri(section)]
    cri = (having[-1].cri(section) if having else {}) if is_1 else _merged_by_2(sources, release)
    containerd = _below(cri, "containerd")
    handlers = [_handler(name, table, cri) for name, table in _below(containerd, "runtimes").items()]
    default = containerd.get("default_runtime_name", RUNC)
    if is_1:
        _refuse_systemd_cgroup(sources, section, cri, handlers, default)
    names = {handler.name for handler in handlers}
    lost = [
        (source, place, ours)
        for source in sources
        for place in _SCHEMAS
        if (ours := [handler for handler in source.handlers(place) if handler.name not in names])
    ]
    replaced = [one for _, place, ours in lost if place == section for one in ours]
    return replace(
        known,
        handlers=tuple(handlers),
        built_in=() if is_1 and "runtimes" in containerd else (RUNC,),
        default=default,
        default_in=_default_in(default, sources),
        cdi=_cdi(cri, release),
        cdi_folders=tuple(cri.get("cdi_spec_dirs", CDI_FOLDERS)),
        misplaced=tuple(
            _misplaced(source, place, section, ours, handlers, release)
            for source, place, ours in lost
            if place != section
        ),
        replaced=tuple(replaced),
        replaced_by=having[-1].path if replaced else "",
        address=next((address for source in reversed(sources) if (address := _address(source))), ""),
        disabled_in=next((one.path for one in sources if _CRI & {*one.table.get("disabled_plugins", ())}), ""),
    )


def _refuse_newer(sources: Sequence[_Source], release: Release) -> None:
    """Raise an error if the last file with a `version` has a newer schema than the release reads.

    1.6 read any newer schema as schema 2 until its last releases.
    """
    last = next((source for source in reversed(sources) if source.version), None)
    newest = _newest_schema(release)
    if last is not None and last.version > newest and release >= _1_7:
        message = f"version is {last.version}, but this containerd reads no version above {newest}"
        line = toml_file.key_line(last.raw, ("version",))
        raise _RefusedError(ConfigurationProblem(last.path, message, line))


def _merged_by_2(sources: Sequence[_Source], release: Release) -> Table:
    merged: dict[str, Table] = {_OLD: {}, _NEW: {}}
    for source in sources:
        old = source.cri(_OLD) or (source.cri(_SHORT) if source.version < 2 else {})
        own = {_OLD: old, _NEW: source.cri(_NEW)}
        if release >= _MOVES_EACH_FILE:
            own = {_NEW: _moved(own)} if source.version < _newest_schema(release) else {_NEW: own[_NEW]}
        merged = _deep(merged, own)
    last = next((source.version for source in reversed(sources) if source.version > 1), _SCHEMAS[_NEW])
    return merged[_NEW] if last > _SCHEMAS[_OLD] else _moved(merged)


def _moved(tables: Mapping[str, Table]) -> Table:
    """Return the new plugin's settings, completed by those of schema 2's plugin."""
    old, new = tables[_OLD], tables[_NEW]
    containerd = {**_below(old, "containerd"), **_below(new, "containerd")}
    return {**old, **new, **({"containerd": containerd} if containerd else {})}


def _refuse_systemd_cgroup(
    sources: Sequence[_Source], section: str, cri: Table, handlers: Sequence[Handler], default: str
) -> None:
    """Raise an error for the plugin's systemd_cgroup, with which the CRI of 1.x loads for the oldest shim only."""
    kind = next((handler.runtime_type for handler in handlers if handler.name == default), "")
    if cri.get("systemd_cgroup") and kind != _OLDEST_SHIM:
        source = next(one for one in reversed(sources) if one.cri(section))
        line = toml_file.key_line(source.raw, ("plugins", section, "systemd_cgroup"))
        raise _RefusedError(ConfigurationProblem(source.path, f"systemd_cgroup works with {_OLDEST_SHIM} only", line))


def _default_in(default: str, sources: Sequence[_Source]) -> str:
    """Return the last file that sets this default; '' if none does."""
    for source in reversed(sources):
        if any(_below(source.cri(one), "containerd").get("default_runtime_name") == default for one in _SCHEMAS):
            return source.path
    return ""


def _address(source: _Source) -> str:
    address: str = _below(source.table, "plugins", _SERVER).get("address", "")
    return address or _below(source.table, "grpc").get("address", "")


def _misplaced(
    source: _Source, place: str, section: str, lost: Sequence[Handler], handlers: Sequence[Handler], release: Release
) -> Misplaced:
    """Return the handlers under a plugin that is not read.

    If the plugin fits the file's schema, the other files are the reason.
    """
    schema = max(1, source.version)
    right_schema = schema if _section_of(schema) == section else _SCHEMAS[section]
    if place != _section_of(schema):
        return Misplaced(source.path, schema, place, section, tuple(lost), right_schema)
    file = next((handler.file for handler in handlers), "")
    is_read_later = _2_0 <= release < _MOVES_EACH_FILE and file != source.path
    read_from = ".".join(map(str, _MOVES_EACH_FILE)) if is_read_later else ""
    return Misplaced(source.path, schema, place, section, tuple(lost), right_schema, file, read_from)


def _section_of(schema: int) -> str:
    return next((section for section, own in _SCHEMAS.items() if own == schema), _NEW)


def _cdi(cri: Table, release: Release) -> bool:
    if release < _1_7 or release >= _CDI_ALWAYS:
        return release >= _CDI_ALWAYS
    is_on: bool = cri.get("enable_cdi", release >= _2_0)
    return is_on


def _handler(name: str, table: Table, cri: Table) -> Handler:
    """Return the handler of a table. The oldest shim reads its program and cgroup driver from other keys."""
    kind = table.get("runtime_type", "")
    options = table.get("options")
    binary, systemd_cgroup = _below(table, "options").get("BinaryName", ""), None
    ignored = ""
    if kind == _OLDEST_SHIM:
        ignored, binary = binary, _below(table, "options").get("Runtime") or table.get("runtime_engine", "")
        systemd_cgroup = cri.get("systemd_cgroup")
    if options is not None and (kind in ("", _OLDEST_SHIM) or kind.startswith(_RUNC_SHIMS)):
        systemd_cgroup = False
    file, line = table[_DEFINED_IN]
    return Handler(
        name,
        kind,
        binary,
        _below(table, "options").get("SystemdCgroup", systemd_cgroup),
        file,
        line,
        table.get("privileged_without_host_devices", False),
        ignored,
    )
