"""Files of container runtimes on disk: which ones the kubelet's runtime reads, and which define NVIDIA's handler.

Files are only searched for tables of handlers. Which of them count is for the runtime's own loader to say.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.probes.container_runtime import toml_file
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import CRIO_FOLDER, CRIO_UNREAD
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CRIO, NvidiaDefinition, ReadFile
from gpu_healthcheck.healthcheck.text.documents import MalformedError
from gpu_healthcheck.healthcheck.text.printable import printable

NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""Names of NVIDIA's handlers in the toolkit and in the RuntimeClasses of the GPU operator."""
PROGRAM = "nvidia-container-runtime"
"""Name of the program, a prefix of its variants' names, and the handler's name on AKS and MicroK8s."""
_DROP_IN_FOLDERS = ("conf.d", "config.d")
_PROGRAM_KEYS = ("BinaryName", "Runtime", "runtime_path", "runtime_engine")
_MOST_FILES = 64
_HOOK_FOLDERS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
"""Folders of hooks without hooks_dir in CRI-O's files (crio.conf(5), and the override folder of oci-hooks(5))."""
_HOOK, _MOST_FOLDERS = "*nvidia*hook*.json", 16


def is_nvidias(handler: str, program: str) -> bool:
    """Whether the handler starts NVIDIA's runtime, by its exact name or by its program."""
    return handler in NAMES or is_nvidias_program(program)


def is_nvidias_program(path: str) -> bool:
    return path.rpartition("/")[2].startswith(PROGRAM)


def files_of(root: Path, config: str, kind: str, folder: str = "") -> tuple[list[str], list[str]]:
    """Return the files of a runtime: its file, and its imports or drop-ins; then the imports that do not exist.

    Imports of imports are left out.
    """
    if kind == CRIO:
        return [config, *host_files.walk(root, folder or CRIO_FOLDER)][:_MOST_FILES], []
    names = (_table(root, config) or {}).get("imports")
    paths = [
        posixpath.normpath(posixpath.join(posixpath.dirname(config), name))
        for name in (names if isinstance(names, list) else [])
        if isinstance(name, str)
    ]
    files = [config, *(file for path in paths for file in (host_files.matches(root, path) if "*" in path else [path]))]
    missing = [printable(path) for path in paths if "*" not in path and not host_files.exists(root, path)]
    return files[:_MOST_FILES], missing


def with_times(root: Path, files: Iterable[str]) -> Iterator[ReadFile]:
    """Yield the existing files with the time of their last change."""
    for file in files:
        with contextlib.suppress(OSError):
            yield ReadFile(printable(file), host_files.below(root, file).stat().st_mtime)


def unread_files(root: Path, config: str, kind: str, read: Iterable[str]) -> list[str]:
    """Return the files of drop-in folders that the runtime does not read."""
    if kind == CRIO:
        found = host_files.walk(root, CRIO_UNREAD)
    else:
        patterns = (f"{posixpath.dirname(config)}/{name}/*.toml" for name in _DROP_IN_FOLDERS)
        found = [file for pattern in patterns for file in host_files.matches(root, pattern)]
    known = {host_files.resolved(root, file) for file in read} if found else set()
    return [file for file in found if host_files.resolved(root, file) not in known][:_MOST_FILES]


def definitions(root: Path, files: Iterable[str], config: str, kind: str) -> Iterator[NvidiaDefinition]:
    """Yield the tables of these files that define a handler of NVIDIA's. Malformed files are skipped."""
    for file in files:
        for name, program in dict(_handlers(_table(root, file) or {})).items():
            yield NvidiaDefinition(printable(file), printable(name), config, kind, printable(program))


def hook_of(root: Path, files: Iterable[str], kind: str) -> str:
    """Return the OCI hook of NVIDIA's that the runtime reads; '' if there is none.

    With it, CRI-O injects GPUs into containers of any handler. The last file with hooks_dir counts.
    """
    if kind != CRIO:
        return ""
    folders: Iterable[object] = _HOOK_FOLDERS
    for file in files:
        crio = (_table(root, file) or {}).get("crio")
        runtime = crio.get("runtime") if isinstance(crio, dict) else None
        named = runtime.get("hooks_dir") if isinstance(runtime, dict) else None
        folders = named[:_MOST_FOLDERS] if isinstance(named, list) else folders
    named_folders = [folder for folder in folders if isinstance(folder, str) and folder.startswith("/")]
    hooks = (hook for folder in named_folders for hook in host_files.matches(root, f"{folder.rstrip('/')}/{_HOOK}"))
    return printable(next(hooks, ""))


def _handlers(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and program of NVIDIA's handlers in any table of handlers."""
    pending: list[Mapping[str, Any]] = [table]
    for one in pending:
        for key, value in one.items():
            if isinstance(value, dict):
                pending.append(value)
                runtimes = value.items() if key == "runtimes" else ()
                named = ((name, _program(own)) for name, own in runtimes if isinstance(own, dict))
                yield from ((name, program) for name, program in named if is_nvidias(name, program))


def _program(handler: Mapping[str, Any]) -> str:
    options = handler.get("options")
    tables = (options if isinstance(options, dict) else {}, handler)
    named = (table.get(key) for table in tables for key in _PROGRAM_KEYS)
    return next((text for text in named if isinstance(text, str) and text), "")


def _table(root: Path, file: str) -> Mapping[str, Any] | None:
    try:
        return toml_file.parse(host_files.read(root, file)[0])
    except (OSError, MalformedError):
        return None
