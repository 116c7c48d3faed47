"""CRI-O's effective configuration: crio.conf, then every file of its drop-in folder.

The rules follow crio.conf(5), crio.conf.d(5) and CRI-O's own loader (pkg/config/config.go: UpdateFromFile,
UpdateFromPath). The main file comes first and may be missing. All files below the folder follow in the order of their
names, whatever their suffix. The last file with an option decides its value. A runtime's table is one option: a later
table of the same name replaces it completely.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from healthcheck.host import host_files
from healthcheck.probes.container_runtime import config_files, toml_file
from healthcheck.probes.container_runtime.facts import CRIO, Handler, ReadFile, RuntimeConfiguration
from healthcheck.probes.container_runtime.toml_file import Table
from healthcheck.text.documents import MalformedError

STANDARD_FILE = "/etc/crio/crio.conf"
STANDARD_FOLDER = "/etc/crio/crio.conf.d"
_NEVER_READ = "/etc/crio/conf.d"
"""Default folder of `nvidia-ctk` 1.18 to 1.19.0 (NVIDIA/nvidia-container-toolkit pull request 1829)."""
STANDARD_SOCKET = "/run/crio/crio.sock"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Default of cdi_spec_dirs. CDI can't be disabled."""
_OCI = "oci"
"""Type of runtimes that start a program as runc is started. The types `vm` and `pod` do not."""
_CRUN_SINCE = (1, 31)
"""First version whose default runtime is crun instead of runc. CRI-O has a built-in handler for the default."""
_NONE: Table = {}
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("crio", "runtime", "runtimes", "api"), dict),
    **dict.fromkeys(("default_runtime", "cgroup_manager", "listen", "runtime_path", "runtime_type"), str),
    "cdi_spec_dirs": list,
}
_MOST_BYTES = 1 << 20
"""Most bytes of all files together."""


class _Merged(Struct):
    """Effective options of the files that were read so far. `options` are those of [crio.runtime]."""

    options: dict[str, Any] = field(default_factory=dict)
    runtimes: dict[str, tuple[Table, str, int]] = field(default_factory=dict)
    """Table, file and line of each runtime's definition, by name."""
    default_in: str = ""
    address: str = ""
    files: list[ReadFile] = field(default_factory=list)
    size: int = 0


def read_configuration(
    root: Path, path: str = STANDARD_FILE, folder: str = STANDARD_FOLDER, version: str = ""
) -> RuntimeConfiguration:
    """Return the effective configuration of the files. `version` is CRI-O's, as `1.31.2`.

    `problem` is set if CRI-O would not start with them.
    """
    merged = _Merged()
    for file in (path, *host_files.walk(root, folder)):
        try:
            _load(root, file, merged, may_miss=file == STANDARD_FILE)
        except MalformedError as error:
            files, problem = tuple(merged.files), config_files.problem(error, file)
            return RuntimeConfiguration(path, CRIO, version, 0, files, cdi=True, problem=problem)
    others = _other_files(root, {read_file.path for read_file in merged.files})
    handlers = [_handler(name, *result) for name, result in others.runtimes.items()]
    return replace(_effective(path, version, merged), unread_handlers=tuple(handlers))


def _other_files(root: Path, read: Container[str]) -> _Merged:
    """Return the content of files in folders that CRI-O does not read. Unreadable files are skipped."""
    merged = _Merged()
    for file in host_files.walk(root, _NEVER_READ):
        if file not in read:
            with suppress(MalformedError):
                _load(root, file, merged, may_miss=True)
    return merged


def _load(root: Path, file: str, merged: _Merged, *, may_miss: bool) -> None:
    try:
        raw, written = config_files.read(root, file)
    except FileNotFoundError as error:
        if may_miss:
            return
        raise MalformedError("named, but does not exist") from error
    merged.size += len(raw)
    if merged.size > _MOST_BYTES:
        raise MalformedError(f"more than {_MOST_BYTES >> 20} MiB together", only_ours=True)
    merged.files.append(ReadFile(file, written))
    table = toml_file.parse(raw)
    config_files.check_types(raw, table, _TYPES)
    crio = table.get("crio", {})
    runtime = crio.get("runtime", {})
    for name, own in runtime.get("runtimes", {}).items():
        line = toml_file.table_line(raw, ("crio", "runtime", "runtimes", name))
        merged.runtimes[name] = (own, file, line)
    merged.options.update({key: value for key, value in runtime.items() if key != "runtimes"})
    merged.default_in = file if "default_runtime" in runtime else merged.default_in
    merged.address = crio.get("api", {}).get("listen") or merged.address


def _effective(path: str, version: str, merged: _Merged) -> RuntimeConfiguration:
    own = _own_runtime(version)
    default = merged.options.get("default_runtime") or own
    runtimes = {own: (_NONE, "", 0), **merged.runtimes}
    handlers = [_handler(name, *result) for name, result in runtimes.items()]
    return RuntimeConfiguration(
        path,
        CRIO,
        version,
        schema=0,
        files=tuple(merged.files),
        handlers=tuple(handlers),
        default=default,
        default_in=merged.default_in,
        cdi=True,
        cdi_folders=tuple(merged.options.get("cdi_spec_dirs", CDI_FOLDERS)),
        address=merged.address,
        systemd_cgroup=merged.options.get("cgroup_manager", "") in ("", "systemd"),
    )


def _own_runtime(version: str) -> str:
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    old = numbers is not None and (int(numbers[1]), int(numbers[2])) < _CRUN_SINCE
    return "runc" if old else "crun"


def _handler(name: str, table: Table, file: str, line: int) -> Handler:
    return Handler(
        name,
        table.get("runtime_type") or _OCI,
        # Without a path, CRI-O searches its PATH for a program with the runtime's name.
        table.get("runtime_path") or name,
        None,
        file,
        line,
        privileged_without_host_devices=table.get("privileged_without_host_devices") is True,
    )
