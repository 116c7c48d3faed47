"""Docker's configuration (daemon.json), for a kubelet that uses Docker through cri-dockerd.

The rules follow the reference of dockerd. Options can also be set by the daemon's own flags. dockerd refuses to start
if the file and the flags set the same option.
"""

from __future__ import annotations

from pathlib import Path

from healthcheck.probes.container_runtime import config_files
from healthcheck.probes.container_runtime.facts import DOCKER, RUNC, Handler, ReadFile, RuntimeConfiguration
from healthcheck.text import documents
from healthcheck.text.documents import MalformedError, Table

STANDARD_FILE = "/etc/docker/daemon.json"
STANDARD_SOCKET = "/run/docker.sock"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Default of cdi-spec-dirs."""
_CGROUP_DRIVER = "native.cgroupdriver="


def read_configuration(root: Path, path: str = STANDARD_FILE) -> RuntimeConfiguration:
    """Return the file's configuration. Without a file, the defaults apply.

    `problem` is set if dockerd would not start with it.
    """
    files: tuple[ReadFile, ...] = ()
    try:
        raw, written = config_files.read(root, path)
        files = (ReadFile(path, written),)
        return _effective(path, files, documents.json_object(raw))
    except FileNotFoundError:
        return _effective(path, files, {})
    except MalformedError as error:
        return RuntimeConfiguration(path, DOCKER, schema=0, files=files, problem=config_files.problem(error, path))


def _effective(path: str, files: tuple[ReadFile, ...], fields: Table) -> RuntimeConfiguration:
    runtimes = _table(fields, "runtimes")
    handlers = [_handler(name, _table(runtimes, name), path) for name in runtimes]
    return RuntimeConfiguration(
        path,
        DOCKER,
        schema=0,
        files=files,
        handlers=(*([] if RUNC in runtimes else [Handler(RUNC, "", "", None, "")]), *handlers),
        default=_text(fields, "default-runtime") or RUNC,
        # Newer versions enable it by default, but no documentation states that cri-dockerd passes CDI devices on.
        cdi=_table(fields, "features").get("cdi") is True,
        cdi_folders=_list(fields, "cdi-spec-dirs") or CDI_FOLDERS,
        systemd_cgroup=_is_systemd(_list(fields, "exec-opts")),
    )


def _handler(name: str, table: Table, path: str) -> Handler:
    binary = _text(table, "path") or _text(_table(table, "options"), "BinaryName")
    return Handler(name, _text(table, "runtimeType"), binary, None, path)


def _is_systemd(options: tuple[str, ...]) -> bool | None:
    """Whether the cgroup driver is systemd; None if it is not set.

    Docker then uses systemd with cgroup v2, and cgroupfs with v1.
    """
    drivers = [option.removeprefix(_CGROUP_DRIVER) for option in options if option.startswith(_CGROUP_DRIVER)]
    return drivers[-1] == "systemd" if drivers else None


def _table(table: Table, key: str) -> Table:
    value = table.get(key)
    if not isinstance(value, dict | None):
        raise MalformedError(f"{key} is not an object")
    return value or {}


def _text(table: Table, key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str | None):
        raise MalformedError(f"{key} is not a string")
    return value or ""


def _list(table: Table, key: str) -> tuple[str, ...]:
    value = table.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise MalformedError(f"{key} is not a list of strings")
    return tuple(value)
