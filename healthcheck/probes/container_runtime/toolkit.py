"""The configuration of nvidia-container-runtime: what it reads at each container's start.

After NVIDIA's own loader (nvidia-container-toolkit, internal/config): the GPU operator's wrapper names a file of its
own beside the program; every other is /etc/nvidia-container-runtime/config.toml. Without a file its defaults hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.probes.container_runtime import config_files, named_paths, toml_file
from healthcheck.probes.container_runtime.facts import Problem, Toolkit
from healthcheck.probes.container_runtime.toml_file import Table
from healthcheck.text.documents import MalformedError

STANDARD_FILE = "/etc/nvidia-container-runtime/config.toml"
OPERATORS_FILE = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
_OPERATORS_FOLDER = "/usr/local/nvidia/toolkit/"
_RUNTIME, _CLI = "nvidia-container-runtime", "nvidia-container-cli"
_ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_VOLUME_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
_TYPES: dict[tuple[str, ...], type] = {
    (_CLI,): dict,
    (_RUNTIME,): dict,
    (_CLI, "root"): str,
    (_CLI, "ldconfig"): str,
    (_RUNTIME, "mode"): str,
    (_ENVVAR,): bool,
    (_VOLUME_MOUNTS,): bool,
}
_WORDS = {dict: "table", str: "text", bool: "true or false"}


def read_toolkit(root: Path, programs: Sequence[str] = ()) -> Toolkit | None:
    """The file that the program reads; None without one.

    `programs` are the paths of what the handlers start. Where they do not tell whose toolkit it is, the operator's file
    comes first: the operator leaves one only where it is used.
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
        return Toolkit(path, problem=Problem(path, f"can't be read: {error.strerror}", only_ours=True))
    try:
        table = toml_file.parse(raw)
    except MalformedError as error:
        return Toolkit(path, problem=config_files.problem(error, path))
    wrong = _of_wrong_type(table)
    if wrong is not None:
        keys, kind = wrong
        return Toolkit(path, problem=Problem(path, f"{keys[-1]} is no {kind}", toml_file.key_line(raw, keys)))
    return _from_table(root, path, table)


def _of_wrong_type(table: Table) -> tuple[tuple[str, ...], str] | None:
    """The first key whose value the program does not take, and what it would."""
    for keys, kind in _TYPES.items():
        above = table.get(keys[0], {}) if len(keys) == 2 else table
        value = above.get(keys[-1]) if isinstance(above, dict) else None
        if value is not None and not isinstance(value, kind):
            return keys, _WORDS[kind]
    return None


def _from_table(root: Path, path: str, table: Table) -> Toolkit:
    cli, runtime = table.get(_CLI, {}), table.get(_RUNTIME, {})
    driver_root, ldconfig = cli.get("root", ""), cli.get("ldconfig", "")
    return Toolkit(
        path,
        runtime.get("mode", ""),
        driver_root,
        ldconfig,
        (*named_paths.missing(root, [driver_root]), *_missing_ldconfig(root, ldconfig)),
        table.get(_ENVVAR, True),
        table.get(_VOLUME_MOUNTS, False),
    )


def _missing_ldconfig(root: Path, ldconfig: str) -> tuple[str, ...]:
    """With the @ it is the host's; the program takes the one with or without `.real`, whichever is there."""
    if not ldconfig.startswith("@"):
        return ()
    path = ldconfig.removeprefix("@")
    plain = path.removesuffix(".real")
    gone = named_paths.missing(root, [plain, f"{plain}.real"])
    return (path,) if len(gone) == 2 else ()
