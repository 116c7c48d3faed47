"""Docker's configuration (daemon.json), for a kubelet that uses Docker through cri-dockerd.

The rules follow the reference of dockerd. Options can also be set by the daemon's own flags. dockerd refuses to start
if the file and the flags set the same option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("runtimes", "features", "options"), dict),
    **dict.fromkeys(("default-runtime", "path", "runtimeType", "BinaryName"), str),
    **dict.fromkeys(("exec-opts", "cdi-spec-dirs"), list),
}


def read_configuration(root: Path, path: str = STANDARD_FILE) -> RuntimeConfiguration:
    """Return the file's configuration. Without a file, the defaults apply.

    `problem` is set if dockerd would not start with it.
    """
    files: tuple[ReadFile, ...] = ()
    try:
        raw, written = config_files.read(root, path)
        files = (ReadFile(path, written),)
        fields = documents.json_object(raw)
        config_files.check_types(raw, fields, _TYPES)
        return _effective(path, files, fields)
    except FileNotFoundError:
        return _effective(path, files, {})
    except MalformedError as error:
        return RuntimeConfiguration(path, DOCKER, schema=0, files=files, problem=config_files.problem(error, path))


def _effective(path: str, files: tuple[ReadFile, ...], fields: Table) -> RuntimeConfiguration:
    runtimes = fields.get("runtimes") or {}
    handlers = [_handler(name, table or {}, path) for name, table in runtimes.items()]
    return RuntimeConfiguration(
        path,
        DOCKER,
        schema=0,
        files=files,
        handlers=(*([] if RUNC in runtimes else [Handler(RUNC, "", "", None, "")]), *handlers),
        default=fields.get("default-runtime") or RUNC,
        # Newer versions enable it by default, but no documentation states that cri-dockerd passes CDI devices on.
        cdi=(fields.get("features") or {}).get("cdi") is True,
        cdi_folders=tuple(fields.get("cdi-spec-dirs") or CDI_FOLDERS),
        systemd_cgroup=_is_systemd(fields.get("exec-opts") or ()),
    )


def _handler(name: str, table: Table, path: str) -> Handler:
    binary = table.get("path") or (table.get("options") or {}).get("BinaryName") or ""
    return Handler(name, table.get("runtimeType") or "", binary, None, path)


def _is_systemd(options: Sequence[str]) -> bool | None:
    """Whether the cgroup driver is systemd; None if it is not set.

    Docker then uses systemd with cgroup v2, and cgroupfs with v1.
    """
    drivers = [option.removeprefix(_CGROUP_DRIVER) for option in options if option.startswith(_CGROUP_DRIVER)]
    return drivers[-1] == "systemd" if drivers else None
