"""Configuration of nvidia-container-runtime, which it reads at each container's start.

The rules follow NVIDIA's own loader (nvidia-container-toolkit, internal/config). The GPU operator's wrapper names its
own file next to the program. All other installations use /etc/nvidia-container-runtime/config.toml. Without a file, the
defaults apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.probes.container_runtime import host_paths, toml_file
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ConfigurationProblem, Toolkit
from gpu_healthcheck.healthcheck.probes.container_runtime.toml_file import Table
from gpu_healthcheck.healthcheck.text.documents import MalformedError

STANDARD_FILE = "/etc/nvidia-container-runtime/config.toml"
OPERATORS_FILE = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
_OPERATORS_FOLDER = "/usr/local/nvidia/toolkit/"
_RUNTIME, _CLI = "nvidia-container-runtime", "nvidia-container-cli"
_TYPES: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys((_CLI, _RUNTIME), (dict, "a table")),
    **dict.fromkeys(("root", "ldconfig", "mode"), (str, "a string")),
    **dict.fromkeys(
        (
            "accept-nvidia-visible-devices-envvar-when-unprivileged",
            "accept-nvidia-visible-devices-as-volume-mounts",
        ),
        (bool, "true or false"),
    ),
}


def read_toolkit(root: Path, programs: Sequence[str] = ()) -> Toolkit | None:
    """Return the configuration file that the program reads; None if there is none.

    `programs` are the paths of the handlers' programs. If they do not identify the toolkit, the operator's file is
    tried first: the operator keeps a file only where it is in use.
    """
    known = [path for path in programs if path]
    files = [OPERATORS_FILE, STANDARD_FILE]
    if known:
        files = [OPERATORS_FILE] if any(path.startswith(_OPERATORS_FOLDER) for path in known) else [STANDARD_FILE]
    return next((found for found in (_read(root, path) for path in files) if found is not None), None)


def _read(root: Path, path: str) -> Toolkit | None:
    try:
        raw, _ = host_files.read(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Toolkit(path, problem=ConfigurationProblem(path, f"can't be read: {error.strerror}", only_ours=True))
    try:
        table = toml_file.parse(raw)
        for name in ("", _CLI, _RUNTIME):
            _check_types(table.get(name, {}) if name else table)
    except MalformedError as error:
        return Toolkit(path, problem=ConfigurationProblem.of(error, path))
    return _from_table(root, path, table)


def _check_types(table: Table) -> None:
    """Raise MalformedError for the first value of another type than NVIDIA's loader expects."""
    for key, value in table.items():
        kind, noun = _TYPES.get(key, (object, ""))
        if not isinstance(value, kind):
            raise MalformedError(f"{key} is not {noun}")


def _from_table(root: Path, path: str, table: Table) -> Toolkit:
    cli, runtime = table.get(_CLI, {}), table.get(_RUNTIME, {})
    driver_root, ldconfig = cli.get("root", ""), cli.get("ldconfig", "")
    return Toolkit(
        path,
        runtime.get("mode", ""),
        driver_root,
        ldconfig,
        (*host_paths.missing(root, [driver_root]), *_missing_ldconfig(root, ldconfig)),
    )


def _missing_ldconfig(root: Path, ldconfig: str) -> tuple[str, ...]:
    """Return the ldconfig path if the host lacks it; a path with @ is the host's.

    The program accepts the path with or without `.real`, whichever exists.
    """
    if not ldconfig.startswith("@"):
        return ()
    path = ldconfig.removeprefix("@")
    plain = path.removesuffix(".real")
    gone = host_paths.missing(root, [plain, f"{plain}.real"])
    return (path,) if len(gone) == 2 else ()
