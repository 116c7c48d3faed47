"""containerd's effective configuration: its file and imports, merged by the rules of its release.

The rules follow containerd's own loader (services/server/config of 1.x, cmd/containerd/server/config and the migrations
in plugins/cri of 2.x). It reads a file, then its imports, breadth first, each path once. The merge differs:

- 1.x uses the last file's table of a plugin as a whole (containerd issue 5837). It reads the CRI plugin under its
  short name if the last `version` of all files is 1, otherwise under its full name.
- 2.0 to 2.2 merge the tables, then migrate those of schema 2 if the last `version` is 2. A table of schema 1 is only
  renamed. It then counts if the last `version` is 2, and does not count if it is 3.
- 2.3 migrates each file separately before it merges, so that files of all schemas add up.
- Migrated handlers never replace handlers under the new plugin: they are lost if that plugin has any.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
from healthcheck.text.documents import MalformedError

STANDARD_FILE = "/etc/containerd/config.toml"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Default of containerd's cdi_spec_dirs."""
_GREATEST_NUMBER = (1 << 63) - 1
_NEWEST_OF_1, _NEWEST_OF_2_2, _NEWEST_OF_2_3 = 2, 3, 4
"""Newest schema that each release reads."""
_SCHEMA_OF_FULL_NAMES = 2
_DOTS_OF_A_FULL_NAME = 3
"""Fewest dots of a full name in 1.x: `io.containerd.grpc.v1.cri`. The last part can contain more."""
_SHORT, _OLD, _NEW = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
"""Plugin whose table contains the handlers, in schema 1, in schema 2, and since schema 3."""
_SCHEMAS = {_SHORT: 1, _OLD: 2, _NEW: 3}
_IMAGES = "io.containerd.cri.v1.images"
_SERVER = "io.containerd.server.v1.grpc"
_LINUX_V1, _SHIMS_PLUGIN = "io.containerd.runtime.v1.linux", "linux"
"""The shim of containerd before 1.2, which 1.x still starts, with separate options.

Its plugin has the short name in schema 1. The plugin's `runtime` is the program of handlers that name none.
"""
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
_TAKES_OVER_EACH_FILE: Release = (2, 3)
_CDI_ALWAYS: Release = (2, 4)
"""First release in which CDI is always on and enable_cdi is ignored."""

Table = Mapping[str, Any]
T = TypeVar("T")


class _RefusedError(Exception):
    """Error for files with which containerd does not start, or which only this program can't read."""

    def __init__(self, problem: ConfigurationProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _WrongValueError(Exception):
    """Error for a value of a type that containerd does not accept at `path`.

    The path starts at the plugin's table or at the file's.
    """

    def __init__(self, path: tuple[str, ...], value: object, message: str) -> None:
        super().__init__(message)
        self.path, self.value, self.message = path, value, message


class _Source(Struct, frozen=True):
    """One file and its content."""

    path: str
    raw: bytes
    table: Table
    written: float


class _Definition(Struct, frozen=True):
    """Origin of a handler's definition.

    It is stored in the handler's table, so that it moves with the table.
    """

    file: str
    line: int
    schema: int
    section: str


_DEFINED_IN = "\0defined in"


class _Config(Struct):
    """containerd's interpretation of one file or of several."""

    version: int
    plugins: dict[str, Any] = field(default_factory=dict)
    disabled: dict[str, str] = field(default_factory=dict)
    """Disabled plugins, each with the file that disables it."""
    address: str = ""
    lost: list[Table] = field(default_factory=list)
    """Tables of handlers that the migration dropped."""
    replaced: list[Table] = field(default_factory=list)
    """Tables of handlers that a later file replaced."""
    last_with: dict[str, str] = field(default_factory=dict)
    """The file whose table was kept, by plugin."""


class _Reader(Struct):
    """Reads the files in containerd's order."""

    root: Path
    sources: list[_Source] = field(default_factory=list)
    size: int = 0
    listed: dict[str, list[str]] = field(default_factory=dict)
    """Matches by pattern, so that no folder is listed twice."""

    def read_all(self, path: str) -> None:
        pending, loaded = [path], set[str]()
        while pending:
            file = pending.pop(0)
            if file not in loaded:
                loaded.add(file)
                pending += self._imports(file)

    def matches(self, pattern: str) -> list[str]:
        if pattern not in self.listed:
            self.listed[pattern] = host_files.matches(self.root, pattern)
        return self.listed[pattern]

    def _imports(self, file: str) -> Iterator[str]:
        """Yield the imports in order. Paths are relative to the file, and matches of a pattern are sorted by name."""
        source = self._load(file)
        if source is None:
            return
        for message in _own_value(source, list[str], "imports") or []:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), message))
            yield from self.matches(path) if "*" in message else [path]

    def _load(self, file: str) -> _Source | None:
        """Return the file's content; None if the first file does not exist, in which case the defaults apply."""
        if len(self.sources) == _MOST_FILES:
            raise _RefusedError(ConfigurationProblem(file, f"more than {_MOST_FILES} files", only_ours=True))
        try:
            raw, written = config_files.read(self.root, file)
        except FileNotFoundError as error:
            if self.sources:
                raise _RefusedError(_not_there(self.root, file)) from error
            return None
        except MalformedError as error:
            raise _RefusedError(config_files.problem(error, file)) from error
        self.size += len(raw)
        if self.size > _MOST_BYTES:
            raise _RefusedError(
                ConfigurationProblem(file, f"more than {_MOST_BYTES >> 20} MiB together", only_ours=True)
            )
        try:
            table = toml_file.parse(raw)
        except MalformedError as error:
            self.sources.append(_Source(file, raw, {}, written))
            raise _RefusedError(config_files.problem(error, file)) from error
        self.sources.append(_Source(file, raw, table, written))
        return self.sources[-1]


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


def read_configuration(root: Path, path: str, version: str = "") -> RuntimeConfiguration:
    """Return the effective configuration of the file and its imports.

    `problem` is set if containerd would not start with them. `version` is the version that the running containerd
    reports; without it, the release is inferred from the files. Drop-in files that are not read are searched for in
    folders next to the file.
    """
    result = _release_of(version)
    reader = _Reader(root)
    known = RuntimeConfiguration(path, version=version if result else "")
    try:
        reader.read_all(path)
        release = _assumed(reader.sources, result)
        known = replace(known, generation=f"{release[0]}.{release[1]}")
        known = _effective(known, reader.sources, release)
    except _RefusedError as error:
        known = replace(known, problem=error.problem)
    unread = tuple(_unread(reader, path))
    return replace(
        known,
        schema=_first_schema(reader.sources),
        files=tuple(ReadFile(source.path, source.written) for source in reader.sources),
        unread=unread,
        unread_handlers=tuple(handler for file in unread for handler in _handlers_of(root, file)),
    )


def _release_of(version: str) -> Release | None:
    """Return major and minor version; None if they are unknown."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(found[1]), int(found[2])) if found else None


def _assumed(sources: Sequence[_Source], result: Release | None) -> Release:
    """Return the reported release, else a release that reads the newest schema among the files.

    Both 1.x and 2.x read schema 2; 1.x is assumed for it.
    """
    if result is not None:
        return result
    newest = max((_version(source) for source in sources), default=0)
    sections = {section for source in sources for section in _sections_with_handlers(source)}
    is_1 = newest <= _NEWEST_OF_1 and sections != {_NEW}
    return _1_7 if is_1 else _TAKES_OVER_EACH_FILE if newest > _NEWEST_OF_2_2 else _2_2


def _sections_with_handlers(source: _Source) -> list[str]:
    return [text for text in (_SHORT, _OLD, _NEW) if _runtimes_in(source.table.get("plugins"), text)]


def _first_schema(sources: Sequence[_Source]) -> int:
    try:
        return max(1, _version(sources[0])) if sources else 1
    except _RefusedError:
        return 1


def _unread(reader: _Reader, path: str) -> Iterator[ReadFile]:
    """Yield the files in drop-in folders that no import includes."""
    folders = [f"{posixpath.dirname(path)}/{name}" for name in _DROP_IN_FOLDERS]
    there = dict.fromkeys(file for folder in folders for file in reader.matches(f"{folder}/*.toml"))
    read = {source.path for source in reader.sources}
    others = [file for file in there if file not in read]
    read = {host_files.resolved(reader.root, file) for file in read} if others else read
    for file in others:
        if host_files.resolved(reader.root, file) not in read:
            try:
                yield ReadFile(file, host_files.below(reader.root, file).stat().st_mtime)
            except OSError:
                continue


def _handlers_of(root: Path, file: ReadFile) -> Sequence[Handler]:
    """Return the file's handlers under any plugin; none if the file can't be read."""
    try:
        raw, _ = config_files.read(root, file.path)
        plugins = _plugins_of(_Source(file.path, raw, toml_file.parse(raw), file.written))
    except (FileNotFoundError, MalformedError, _RefusedError):
        return ()
    tables = [_runtimes_in(plugins, section) for section in (_SHORT, _OLD, _NEW)]
    return [handler for place in _misplaced(tables, _NEW) for handler in place.handlers]


# One file.


def _version(source: _Source) -> int:
    """Return the file's `version`; 0 if it has none."""
    version = _own_value(source, int, "version") or 0
    if not 0 <= version <= _GREATEST_NUMBER:
        line = toml_file.key_line(source.raw, ("version",))
        raise _RefusedError(ConfigurationProblem(source.path, "version is not a number from 1 on", line))
    return version


def _own(source: _Source) -> _Config:
    disabled = _own_value(source, list[str], "disabled_plugins") or []
    return _Config(
        _version(source),
        _plugins_of(source),
        dict.fromkeys(disabled, source.path),
        _own_value(source, str, "grpc", "address") or "",
    )


def _own_value(source: _Source, kind: type[T], *path: str) -> T | None:
    try:
        return _at(source.table, kind, *path)
    except _WrongValueError as error:
        line = toml_file.key_line(source.raw, error.path)
        raise _RefusedError(ConfigurationProblem(source.path, error.message, line)) from error


def _plugins_of(source: _Source) -> dict[str, Any]:
    """Return the tables of the file's plugins, with the origin added to each handler's table."""
    plugins = dict(_own_value(source, dict[str, Any], "plugins") or {})
    for section in (_SHORT, _OLD, _NEW):
        cri = _own_value(source, dict[str, Any], "plugins", section)
        containerd = cri.get("containerd") if cri else None
        if cri and isinstance(containerd, dict):
            plugins[section] = {**cri, "containerd": _with_definitions(source, section, containerd)}
    return plugins


def _with_definitions(source: _Source, section: str, containerd: Table) -> Table:
    above = ("plugins", section, "containerd")

    def place(value: Any, *path: str) -> Any:
        if not isinstance(value, dict):
            return value
        line = toml_file.table_line(source.raw, (*above, *path))
        return {**value, _DEFINED_IN: _Definition(source.path, line, max(1, _version(source)), section)}

    placed = {key: place(value, key) if key in _LEGACY else value for key, value in containerd.items()}
    runtimes = containerd.get("runtimes")
    if isinstance(runtimes, dict):
        if len(runtimes) > _MOST_HANDLERS:
            raise _RefusedError(
                ConfigurationProblem(source.path, f"more than {_MOST_HANDLERS} handlers", only_ours=True)
            )
        placed["runtimes"] = {name: place(value, "runtimes", name) for name, value in runtimes.items()}
    return placed


# Merging of several files.


def _effective(known: RuntimeConfiguration, sources: Sequence[_Source], release: Release) -> RuntimeConfiguration:
    merge = _merged_by_1 if release < _2_0 else _merged_by_2
    merged = merge(sources, release, is_running=bool(known.version))
    section = _SHORT if release < _2_0 and merged.version == 1 else _OLD if release < _2_0 else _NEW
    try:
        cri = _at(merged.plugins, dict[str, Any], section) or {}
        found = _from_cri(cri, release, _shims_program(merged.plugins, release, section))
        address = _at(merged.plugins, str, _SERVER, "address") if release >= _TAKES_OVER_EACH_FILE else merged.address
    except _WrongValueError as error:
        raise _RefusedError(_problem_of(error, sources)) from error
    others = [_runtimes_in(merged.plugins, other) for other in (_SHORT, _OLD, _NEW) if other != section]
    replaced = tuple(_replaced(merged, section, found.handlers))
    return replace(
        known,
        handlers=found.handlers,
        built_in=found.built_in,
        default=found.default,
        default_in=_default_in(found.default, sources),
        cdi=found.cdi,
        cdi_folders=found.cdi_folders,
        misplaced=tuple(
            _with_handler(place, found.handlers, release) for place in _misplaced([*merged.lost, *others], section)
        ),
        replaced=replaced,
        replaced_by=merged.last_with[section] if replaced else "",
        address=address or "",
        disabled_in=_disabled_in(merged, release, section),
    )


def _default_in(default: str, sources: Sequence[_Source]) -> str:
    result = _last_to_say(default, ("containerd", "default_runtime_name"), sources)
    return result[0].path if result is not None else ""


def _shims_program(plugins: Table, release: Release, section: str) -> str:
    """Return the program that the oldest shim starts for a handler without one (runtime/v1/linux of 1.x)."""
    if release >= _2_0:
        return ""
    return _at(plugins, str, _SHIMS_PLUGIN if section == _SHORT else _LINUX_V1, "runtime") or ""


def _merged_by_1(sources: Sequence[_Source], release: Release, *, is_running: bool) -> _Config:
    merged = _Config(1)
    for source in sources:
        own = _own(source)
        merged.version = own.version or merged.version
        merged.replaced += [_runtimes_in(merged.plugins, text) for text in (_SHORT, _OLD) if text in own.plugins]
        merged.last_with |= dict.fromkeys(own.plugins, source.path)
        merged.plugins |= own.plugins
        merged.disabled |= own.disabled
        merged.address = own.address or merged.address
    if release >= _1_7:  # until its last releases, 1.6 read any newer schema as schema 2
        _refuse_newer(merged, sources, _NEWEST_OF_1)
    if is_running and merged.version > 1:
        _refuse_short_names(sources, ("plugins", "disabled_plugins", "required_plugins"), _DOTS_OF_A_FULL_NAME)
    return merged


def _merged_by_2(sources: Sequence[_Source], release: Release, *, is_running: bool) -> _Config:
    each_alone = release >= _TAKES_OVER_EACH_FILE
    newest = _NEWEST_OF_2_3 if each_alone else _NEWEST_OF_2_2
    merged = _Config(newest)
    for source in sources:
        own = _own(source)
        if own.version < _SCHEMA_OF_FULL_NAMES:
            _refuse_newer(merged, sources, newest)  # migration to an unknown schema
            _give_full_names(own)
            own.version = _SCHEMA_OF_FULL_NAMES if each_alone else merged.version
        if each_alone and own.version < newest:
            _take_over(own, release)
            if own.address and _SERVER not in own.plugins:
                own.plugins[_SERVER] = {"address": own.address}
            own.version = newest
        merged.version = own.version
        merged.plugins = _deep(merged.plugins, own.plugins)
        merged.disabled |= own.disabled
        merged.lost += own.lost
        merged.address = own.address or merged.address
    _refuse_newer(merged, sources, newest)
    if is_running:
        newer = [source for source in sources if _version(source) >= _SCHEMA_OF_FULL_NAMES]
        _refuse_short_names(newer, ("disabled_plugins", "required_plugins"), 1)
    if not each_alone and merged.version < newest:
        _take_over(merged, release)
    return merged


def _give_full_names(config: _Config) -> None:
    config.plugins = {(_OLD if key == _SHORT else key): value for key, value in config.plugins.items()}
    config.disabled = {(_OLD if key == _SHORT else key): file for key, file in config.disabled.items()}


def _take_over(config: _Config, release: Release) -> None:
    """Move the settings of schema 2's plugin to the newer plugin, unless the newer one already has them."""
    old, new = config.plugins.get(_OLD), config.plugins.get(_NEW)
    if not isinstance(old, dict):
        return
    new = new if isinstance(new, dict) else {}
    left = {"containerd", "enable_cdi"} if release >= _CDI_ALWAYS else {"containerd"}
    taken = {key: value for key, value in old.items() if key not in left} | new
    if isinstance(containerd := old.get("containerd"), dict):
        own = new.get("containerd")
        own = own if isinstance(own, dict) else {}
        taken["containerd"] = {**containerd, **own}
        if "runtimes" in own:
            config.lost.append(_runtimes_in(config.plugins, _OLD))
    elif "containerd" in old:
        taken["containerd"] = old["containerd"]  # of another type: it is refused later
    config.plugins = {key: value for key, value in config.plugins.items() if key != _OLD} | {_NEW: taken}


def _deep(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged tables. For all other values, also lists and false, the value of `above` replaces the other."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _deep(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _refuse_newer(merged: _Config, sources: Sequence[_Source], newest: int) -> None:
    """Raise an error if the last file with a `version` has a newer schema than `newest`."""
    if merged.version > newest:
        source = next(one for one in reversed(sources) if _version(one) == merged.version)
        message = f"version is {merged.version}, but this containerd reads no version above {newest}"
        line = toml_file.key_line(source.raw, ("version",))
        raise _RefusedError(ConfigurationProblem(source.path, message, line))


def _refuse_short_names(sources: Sequence[_Source], keys: Sequence[str], dots: int) -> None:
    """Refuse plugin names that are not full names, which schema 2 and later require.

    1.x refuses any short name. 2.x refuses short names only in disabled_plugins and required_plugins.
    """
    for source in sources:
        for key in keys:
            kind: Any = dict[str, Any] if key == "plugins" else list[str]
            for short in [name for name in _own_value(source, kind, key) or () if name.count(".") < dots]:
                line = toml_file.key_line(source.raw, (key, short) if key == "plugins" else (key,))
                raise _RefusedError(
                    ConfigurationProblem(source.path, f"{key}: {short!r} is not the full name of a plugin", line)
                )


def _disabled_in(merged: _Config, release: Release, section: str) -> str:
    names = {section, _OLD, _IMAGES, _SHORT} if release >= _2_0 else {section, _SHORT}
    return next((file for name, file in merged.disabled.items() if name in names), "")


def _misplaced(tables: Sequence[Table], section: str) -> Iterator[Misplaced]:
    """Yield the handlers under a plugin that is not read, by file and plugin."""
    by_place: dict[tuple[str, int, str], list[Handler]] = {}
    for runtimes in tables:
        for name, table in runtimes.items():
            if isinstance(table, dict) and isinstance(place := table.get(_DEFINED_IN), _Definition):
                try:
                    handler = _handler(name, {name: table}, (name,))
                except _WrongValueError:
                    handler = Handler(name, "", "", None, place.file, place.line)
                by_place.setdefault((place.file, place.schema, place.section), []).append(handler)
    for (file, schema, written), handlers in by_place.items():
        right_schema = schema if _section_of(schema) == section else _SCHEMAS[section]
        yield Misplaced(file, schema, written, section, tuple(handlers), right_schema)


def _with_handler(place: Misplaced, handlers: Sequence[Handler], release: Release) -> Misplaced:
    """Return the table with the reason why it is not read, although its section fits its schema."""
    if place.section != _section_of(place.schema):
        return place
    text = next((handler.file for handler in handlers), "")
    taken_over = _2_0 <= release < _TAKES_OVER_EACH_FILE and text != place.file
    return replace(place, handler_file=text, read_from=".".join(map(str, _TAKES_OVER_EACH_FILE)) if taken_over else "")


def _section_of(schema: int) -> str:
    return next((section for section, own in _SCHEMAS.items() if own == schema), _NEW)


def _replaced(merged: _Config, section: str, kept: Sequence[Handler]) -> Iterator[Handler]:
    names = {handler.name for handler in kept}
    for place in _misplaced(merged.replaced, section):
        if place.section == section:
            yield from (handler for handler in place.handlers if handler.name not in names)


def _problem_of(error: _WrongValueError, sources: Sequence[_Source]) -> ConfigurationProblem:
    result = _last_to_say(error.value, error.path, sources)
    if result is None:
        return ConfigurationProblem(sources[0].path, error.message)
    source, path = result
    return ConfigurationProblem(source.path, error.message, toml_file.key_line(source.raw, path))


def _last_to_say(
    wanted: object, path: tuple[str, ...], sources: Sequence[_Source]
) -> tuple[_Source, tuple[str, ...]] | None:
    """Return the last file with this value, and the path of the value, under any plugin with handlers."""
    for source in reversed(sources):
        for section in (_SHORT, _OLD, _NEW):
            value: Any = source.table
            own = ("plugins", *(path if path[0] in (_SERVER, _LINUX_V1, _SHIMS_PLUGIN) else (section, *path)))
            for key in own:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None and value == wanted:
                return source, own
    return None


# The CRI plugin's own table.

_LEGACY = {"default_runtime": "default", "untrusted_workload_runtime": "untrusted"}
"""Tables of 1.x outside `runtimes` that define a handler, and the name of the handler."""


def _from_cri(cri: Table, release: Release, shims_program: str) -> RuntimeConfiguration:
    """Return the handlers, the default and the CDI settings. Other fields keep their defaults."""
    is_1 = release < _2_0
    runtimes = _at(cri, dict[str, Any], "containerd", "runtimes")
    legacy = [text for text in _LEGACY if _at(cri, str, "containerd", text, "runtime_type")] if is_1 else []
    paths: dict[str, tuple[str, ...]] = {name: ("containerd", "runtimes", name) for name in runtimes or {}}
    paths |= {_LEGACY[text]: ("containerd", text) for text in legacy}
    handlers = {name: _handler(name, cri, path, shims_program, is_1=is_1) for name, path in paths.items()}
    default = _at(cri, str, "containerd", "default_runtime_name")
    if is_1:
        default = "default" if "default_runtime" in legacy else default
        _refuse_what_1_refuses(cri, handlers.get(default or RUNC), "untrusted_workload_runtime" in legacy)
    return RuntimeConfiguration(
        "",
        handlers=tuple(handlers.values()),
        built_in=() if is_1 and runtimes is not None else (RUNC,),
        default=RUNC if default is None else default,
        cdi=_cdi(cri, release),
        cdi_folders=tuple(_cdi_folders(cri, release)),
    )


def _refuse_what_1_refuses(cri: Table, default: Handler | None, has_legacy_untrusted: bool) -> None:
    """Raise an error for values with which the CRI plugin of 1.x does not load (ValidatePluginConfig).

    containerd then starts no pods.
    """
    if _at(cri, bool, "systemd_cgroup") and (default is None or default.runtime_type != _LINUX_V1):
        raise _WrongValueError(("systemd_cgroup",), True, f"systemd_cgroup works with {_LINUX_V1} only")
    untrusted = _at(cri, dict[str, Any], "containerd", "runtimes", "untrusted")
    if has_legacy_untrusted and untrusted is not None:
        path = ("containerd", "untrusted_workload_runtime")
        raise _WrongValueError(path, _at(cri, dict[str, Any], *path), "untrusted is defined twice")


def _cdi(cri: Table, release: Release) -> bool:
    if release < _1_7 or release >= _CDI_ALWAYS:
        return release >= _CDI_ALWAYS
    is_running = _at(cri, bool, "enable_cdi")
    return release >= _2_0 if is_running is None else is_running


def _cdi_folders(cri: Table, release: Release) -> Sequence[str]:
    messages = _at(cri, list[str], "cdi_spec_dirs") if release >= _1_7 else None
    return CDI_FOLDERS if messages is None else messages


def _handler(name: str, cri: Table, path: tuple[str, ...], shims_program: str = "", *, is_1: bool = False) -> Handler:
    """Return the handler defined by its table at `path`.

    containerd never refuses invalid options at its start; each pod fails instead. `shims_program` is the program that
    the oldest shim starts if the handler names none.
    """
    place = (_at(cri, dict[str, Any], *path) or {}).get(_DEFINED_IN)
    kind = _at(cri, str, *path, "runtime_type") or ""
    options = _at(cri, dict[str, Any], *path, "options")
    if kind != _LINUX_V1 or options is not None:
        named = "Runtime" if kind == _LINUX_V1 else "BinaryName"
        binary, cgroup = (
            (*path, "options", _spelt(text, options or {}, is_1=is_1)) for text in (named, "SystemdCgroup")
        )
    else:
        binary, cgroup = (*path, "runtime_engine"), ("systemd_cgroup",)
    ignored = (options or {}).get(_spelt("BinaryName", options or {}, is_1=is_1)) if kind == _LINUX_V1 else None
    return Handler(
        name,
        kind,
        _at(cri, str, *binary) or (shims_program if kind == _LINUX_V1 else ""),
        _systemd_cgroup(cri, kind, options, cgroup),
        place.file if isinstance(place, _Definition) else "",
        place.line if isinstance(place, _Definition) else 0,
        _at(cri, bool, *path, "privileged_without_host_devices") or False,
        ignored if isinstance(ignored, str) else "",
    )


def _systemd_cgroup(cri: Table, kind: str, options: Table | None, path: tuple[str, ...]) -> bool | None:
    """Return SystemdCgroup; False if a runc shim's options lack it; None without options, and for other shims."""
    is_running = _at(cri, bool, *path)
    is_runcs = kind in ("", _LINUX_V1) or kind.startswith(_RUNC_SHIMS)
    return False if is_running is None and options is not None and is_runcs else is_running


def _spelt(option: str, options: Table, *, is_1: bool) -> str:
    """Return the key that sets the option. 1.x (go-toml 1) tries four spellings, 2.x (go-toml 2) ignores the case."""
    if is_1:
        spellings = (option, option.lower(), option.upper(), option[0].lower() + option[1:])
        return next((spelling for spelling in spellings if spelling in options), option)
    # containerd sorts the keys by name before it reads them, so the last of several keys decides.
    return max((key for key in options if key.lower() == option.lower()), default=option)


def _runtimes_in(plugins: Any, section: str) -> Table:
    """Return the tables of the handlers under the plugin; none if there is a value of another type."""
    value = plugins
    for key in (section, "containerd", "runtimes"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _at(table: Table, kind: type[T], *path: str) -> T | None:
    """Return the value at the path; None if there is none.

    Raises an error if the value, or a table above it, is of another type.
    """
    value: Any = table
    for depth, key in enumerate(path, 1):
        if key not in value:
            return None
        value = value[key]
        expected: Any = kind if depth == len(path) else dict[str, Any]
        if not _is_a(value, expected):
            raise _WrongValueError(path[:depth], value, f"{key} is {_KINDS[expected]}")
    return value  # type: ignore[no-any-return]


def _is_a(value: object, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == list[str]:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return isinstance(value, dict if kind == dict[str, Any] else kind)


_KINDS: Mapping[Any, str] = {
    int: "not a number",
    str: "not a string",
    bool: "neither true nor false",
    list[str]: "not a list of strings",
    dict[str, Any]: "not a table",
}
