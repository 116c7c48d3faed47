"""Configuration files of a container runtime, judged by the loader of the runtime that the kubelet uses.

The runtime's own program prints the configuration that it would start with, or refuses it: `containerd config dump`,
`crio config`. It is started again from /proc/PID/exe, below the root of that process, with an empty environment and in
a network namespace without interfaces. Only a process that runs as the host's root outside of all pods is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.command import ChildError, Program, ProgramEnd, isolated
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime import processes, toml_file
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    CONTAINERD,
    CRIO,
    ConfigurationProblem,
    ContainerRuntime,
    Handler,
    RuntimeAnswer,
    RuntimeConfiguration,
)
from gpu_healthcheck.healthcheck.text.documents import MalformedError
from gpu_healthcheck.healthcheck.text.printable import printable

DEADLINE_SECONDS = 10.0
_PATIENCE_SECONDS = 1.0
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""Environment of `unshare`. The loader itself gets none."""
_NAMES = {CONTAINERD: "containerd", CRIO: "crio"}
"""Name with which the program is started. k3s contains several programs and chooses by it."""
_SHORT, _OLD, _NEW = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
"""Plugin with the table of handlers: in schema 1, in schema 2, and since schema 3."""
_CRI = {_SHORT, _OLD, _NEW, "io.containerd.cri.v1.images"}
"""Plugins without which containerd does not serve the kubelet."""
_REFUSALS = {CONTAINERD: re.compile(r"containerd: (.*)"), CRIO: re.compile(r'.*level=fatal msg="?(.*?)"?')}
"""Last line of a loader that refuses the files."""
_POSITION = re.compile(r"row (\d{1,9}) column (\d{1,9})|\((\d{1,9}), (\d{1,9})\)|line (\d{1,9})")
"""Positions of go-toml 2, go-toml 1 and BurntSushi's toml."""
_FILE = re.compile(r"(?:file=|TOML from |TOML: |configuration )(/[^\s:\"]{1,500})")
_MOST_HANDLERS = 256
_MOST_WORDS = 600
_MOST_LINES = 16
"""Last lines of a loader that may name the file of its refusal."""


@dataclass
class Loader:
    """Runs the loader of the kubelet's runtime, one at a time."""

    root: Path
    deadline_seconds: float = DEADLINE_SECONDS
    _program: Program = field(default_factory=lambda: Program(_ENVIRONMENT, _PATIENCE_SECONDS), init=False)

    def load(self, facts: ContainerRuntime) -> RuntimeAnswer:
        """Return the configuration in the files, the loader's refusal, or the reason why it could not be asked."""
        try:
            ended = self._run(facts)
            return _answer(facts, ended)
        except (ProbeError, ChildError, MalformedError) as error:
            return RuntimeAnswer(why_not_loaded=printable(f"its loader could not be asked: {error}", _MOST_WORDS))
        except OSError as error:
            why = f"its loader could not be asked: process {facts.pid}: {error.strerror}"
            return RuntimeAnswer(why_not_loaded=why)

    def end(self) -> int | None:
        """End the running loader. Return its pid if it can't be ended."""
        return self._program.end()

    def _run(self, facts: ContainerRuntime) -> ProgramEnd:
        name = _NAMES.get(facts.kind)
        if name is None:
            raise ProbeError(f"{facts.kind} has none")
        with _proven(self.root, facts) as process:
            words = (name, *facts.flags, *_command(Path(process, "root"), facts))
            child = isolated("gpu_healthcheck.healthcheck.probes.container_runtime.loader_child")
            return self._program.run(("unshare", "--net", "--", *child, process, *words), self.deadline_seconds)


def _command(root: Path, facts: ContainerRuntime) -> tuple[str, ...]:
    """Return the arguments. `root`: that of the runtime's process, whose mounts may differ from the host's."""
    if facts.kind == CRIO:
        return ("config",)
    # Without a file at its default path, containerd starts with its defaults, but 1.x does not dump them.
    has_file = bool(facts.flags) or host_files.exists(root, facts.path)
    return "config", "dump" if has_file else "default"


@contextmanager
def _proven(root: Path, facts: ContainerRuntime) -> Iterator[str]:
    """Yield the folder in /proc of the runtime's process, held open, so that no later process with its pid is used.

    Raises ProbeError unless it is the host's root outside of all pods, and OSError.
    """
    if not facts.pid:
        raise ProbeError("its process is not visible")
    with processes.opened(root, facts.pid) as folder:
        if not processes.is_hosts_root(root, folder, facts.since_boot):
            raise ProbeError(f"process {facts.pid} is not known to run as root of the host, outside of pods")
        yield f"/proc/{os.getpid()}/fd/{folder}"


def _answer(facts: ContainerRuntime, ended: ProgramEnd) -> RuntimeAnswer:
    lines = ended.err.decode("utf-8", "replace").strip().split("\n")[-_MOST_LINES:]
    *_, last = errors = [printable(line.strip()) for line in lines]
    if ended.code:
        refused = _REFUSALS[facts.kind].fullmatch(last) if ended.code == 1 else None
        if refused is None:
            raise ProbeError(f"exit code {ended.code}: {last}")
        return RuntimeAnswer(refusal=_refusal(facts, refused[1], errors))
    if facts.missing_imports:  # containerd 2 takes a missing import for a missing first file, and dumps the rest
        missing = facts.missing_imports[0]
        return RuntimeAnswer(refusal=ConfigurationProblem(facts.path, f"imports {missing}, which does not exist"))
    table = toml_file.parse(ended.out)
    return RuntimeAnswer(on_disk=(_crio if facts.kind == CRIO else _containerd)(table))


def _refusal(facts: ContainerRuntime, message: str, errors: Sequence[str]) -> ConfigurationProblem:
    """Return the loader's words with the file and the position in them.

    A position without a file belongs to any of the files.
    """
    file, position = next(filter(None, map(_FILE.search, reversed(errors))), None), _POSITION.search(message)
    line, column = 0, 0
    if position and (file or len(facts.files) < 2):
        row = [int(number) for number in position.groups() if number]
        line, column = row[0], row[1] if len(row) > 1 else 0
    return ConfigurationProblem(file[1] if file else facts.path, message[:_MOST_WORDS], line, column)


def _containerd(table: Mapping[str, Any]) -> RuntimeConfiguration:
    plugins = _table(table, "plugins")
    section = next((name for name in (_NEW, _OLD, _SHORT) if "containerd" in _table(plugins, name)), "")
    cri = _table(plugins, section)
    containerd = _table(cri, "containerd")
    cdi, schema = cri.get("enable_cdi"), table.get("version")
    return RuntimeConfiguration(
        tuple(_handlers(_table(containerd, "runtimes"))),
        _text(containerd.get("default_runtime_name")),
        # containerd 2.4 has no such option: CDI is always on.
        cdi if isinstance(cdi, bool) else "cdi_spec_dirs" in cri,
        _texts(cri.get("cdi_spec_dirs")),
        cri_disabled=not section or bool(_CRI & {*_texts(table.get("disabled_plugins"))}),
        schema=schema if isinstance(schema, int) else 0,
        section=section,
    )


def _crio(table: Mapping[str, Any]) -> RuntimeConfiguration:
    """Return CRI-O's configuration. It prints options with their default values as comments."""
    runtime = _table(_table(table, "crio"), "runtime")
    return RuntimeConfiguration(
        tuple(_handlers(_table(runtime, "runtimes"))),
        _text(runtime.get("default_runtime")),
        cdi=True,
        cdi_folders=_texts(runtime.get("cdi_spec_dirs")),
    )


def _handlers(runtimes: Mapping[str, Any]) -> Iterator[Handler]:
    for name in [*runtimes][:_MOST_HANDLERS]:
        table = _table(runtimes, name)
        options = _table(table, "options")
        # The oldest shim of containerd 1 has other options.
        binary = options.get("BinaryName") or options.get("Runtime") or table.get("runtime_path")
        driver = options.get("SystemdCgroup", False if options else None)
        yield Handler(
            printable(name),
            _text(table.get("runtime_type")),
            _text(binary),
            driver if isinstance(driver, bool) else None,
        )


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(text) for text in value[:_MOST_HANDLERS]) if isinstance(value, list) else ()
