"""The container runtime that the kubelet uses, with its files, its own report and the answer of its loader."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.container_runtime import (
    cdi,
    cri,
    distributions,
    facts,
    host_paths,
    nvidia_definitions,
    processes,
    toolkit,
)
from gpu_healthcheck.healthcheck.probes.container_runtime import kubelet as kubelets
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import LAYOUTS, RuntimePaths
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    NOT_FOUND,
    UNREADABLE,
    ContainerRuntime,
    Kubelet,
    NvidiaDefinition,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.kubelet import KubeletSettings
from gpu_healthcheck.healthcheck.probes.container_runtime.origins import Origin
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import CONTAINERD, CRI_DOCKERD, CRIO, Process

_KINDS = {CONTAINERD: facts.CONTAINERD, CRIO: facts.CRIO, CRI_DOCKERD: facts.DOCKER}
"""Kind of each program to which a kubelet connects."""
_FILES = {
    CONTAINERD: distributions.STANDARD_FILE,
    CRIO: distributions.CRIO_FILE,
    CRI_DOCKERD: "/etc/docker/daemon.json",
}
_FLAGS = ("config", "config-dir", "default-runtime")
"""Flags of the process that its loader needs too."""
_SOCKET = "containerd.sock"
"""Name of containerd's socket in any folder."""
_MOST_PROGRAMS = 256


def read_container_runtime(host: Host) -> ContainerRuntime:
    """Return the container runtime. Raises ProbeError if /proc or /sys exists but can't be read."""
    return replace(_of_node(host), for_gpus=_has_gpus(host))


def _has_gpus(host: Host) -> bool | None:
    """Whether the node has GPUs; None without /sys.

    Captures of the container runtime's files often omit /sys.
    """
    if not (host.root / "sys").exists():
        return None
    return any(function.is_gpu_here for function in pci.read_functions(host))


def _of_node(host: Host) -> ContainerRuntime:
    root = host.root
    found = _processes(host)
    kubelet = kubelets.choose(root, found)
    if kubelet is None:
        visible = processes.are_the_hosts(root)
        return ContainerRuntime(why_none="no kubelet runs on this node" if visible else "no kubelet is visible")
    settings = kubelets.settings_of(root, kubelet)
    # k3s itself listens on the socket in the role of Docker's.
    runtimes = [process for process in found if process.name in _KINDS]
    holder = processes.holder_of(root, kubelet, settings.endpoint, [*runtimes, kubelet])
    layout = _layout(kubelet, settings)
    if holder is None and layout is None:
        named = not settings.is_default and settings.endpoint.endswith(f"/{_SOCKET}")
        why = f"the kubelet's runtime is at {settings.endpoint}: an unknown runtime"
        unknown = ContainerRuntime(why_none=why, not_found=named, known_from=settings.endpoint_source)
        return replace(unknown, socket=settings.endpoint, kubelet=_facts(kubelet, settings))
    return _observe(host, settings, holder, layout, kubelet, found)


def _processes(host: Host) -> Sequence[Process]:
    try:
        found = host.once(processes.find)
    except (FileNotFoundError, NotADirectoryError):  # a captured tree may lack /proc
        return ()
    except OSError as error:
        raise ProbeError(f"{error.filename or host.root / 'proc'}: {error.strerror}") from error
    crowded = sorted(found.crowded - {processes.FABRIC_MANAGER, processes.IMEX})
    if crowded:
        raise ProbeError(f"more than {processes.MOST} processes are called {crowded[0]}")
    return sorted(found.processes, key=lambda process: process.origin is not Origin.HOST)


def _layout(kubelet: Process, settings: KubeletSettings) -> RuntimePaths | None:
    """Return the layout with the kubelet's socket, first that of its distribution."""
    own = distributions.by_kubelet(kubelet)
    fitting = (paths for paths in LAYOUTS if paths.socket == settings.endpoint)
    return min(fitting, key=lambda paths: paths.distribution != own, default=None)


def _observe(
    host: Host,
    settings: KubeletSettings,
    holder: Process | None,
    layout: RuntimePaths | None,
    kubelet: Process,
    found: Sequence[Process],
) -> ContainerRuntime:
    root = host.root
    own = processes.root_of(root, holder) if holder is not None else root
    kind = _KINDS.get(holder.name, facts.DOCKER) if holder is not None else layout.kind if layout else facts.CONTAINERD
    path = _config_of(holder) if holder is not None else layout.config if layout else ""
    files, missing = nvidia_definitions.files_of(own, path, kind, holder.flag("config-dir", "d") if holder else "")
    distribution = distributions.by_kubelet(kubelet) or distributions.by_files(root, path)
    others = list(_others(root, path, found))
    observed = ContainerRuntime(
        path,
        kind,
        socket=settings.endpoint,
        known_from=settings.endpoint_source,
        pid=holder.pid if holder is not None and holder.origin is Origin.HOST else 0,
        since_boot=holder.since_boot if holder is not None else None,
        flags=_flags(holder) if holder is not None else (),
        unit=holder.unit if holder is not None else "",
        distribution=distribution,
        template=distributions.template_of(root, distribution, path),
        kubelet=_facts(kubelet, settings),
        files=tuple(nvidia_definitions.with_times(own, files)),
        missing_imports=tuple(missing),
        others=tuple(config for config, _ in others),
        definitions=tuple(_definitions(root, own, path, kind, files, others)),
        hook=nvidia_definitions.hook_of(own, files, kind),
        architecture=platform.machine(),
    )
    return _with_files(own, cri.with_answer(host, observed))


def _with_files(root: Path, observed: ContainerRuntime) -> ContainerRuntime:
    """Return the facts with the files that the runtime's configuration names."""
    if not observed.is_known:
        return observed
    used = observed.used
    named = list(dict.fromkeys(handler.binary for handler in used.handlers if handler.binary))[:_MOST_PROGRAMS]
    programs = tuple(host_paths.find_program(root, name) for name in named)
    folders = observed.running.cdi_folders or used.cdi_folders
    own = toolkit.read_toolkit(root, [program.path for program in programs])
    return replace(observed, programs=programs, cdi_specs=cdi.read_specs(root, folders), toolkit=own)


def _config_of(process: Process) -> str:
    return process.flag("config", "c") or _FILES.get(process.name, _FILES[CRI_DOCKERD])


def _flags(process: Process) -> tuple[str, ...]:
    given = {name: process.flag(name, name[0]) if name == "config" else process.flag(name) for name in _FLAGS}
    return tuple(word for name, value in given.items() if value for word in (f"--{name}", value))


def _others(root: Path, path: str, found: Sequence[Process]) -> Iterator[tuple[str, str]]:
    """Yield the node's other configuration files with their kinds: of other host runtimes, and at usual paths.

    Runtimes in containers (with other mounts than the host's) belong to the containers and are skipped.
    """
    known = {host_files.resolved(root, path)}
    own = [
        (_config_of(process), _KINDS[process.name])
        for process in found
        if process.name in (CONTAINERD, CRIO) and not processes.is_elsewhere(root, process)
    ]
    for config, kind in (*own, *((layout.config, layout.kind) for layout in LAYOUTS)):
        real = host_files.resolved(root, config)
        if real not in known and host_files.exists(root, config):
            known.add(real)
            yield config, kind


def _definitions(
    root: Path, own: Path, path: str, kind: str, files: Sequence[str], others: Sequence[tuple[str, str]]
) -> Iterator[NvidiaDefinition]:
    yield from nvidia_definitions.definitions(own, files, path, kind)
    unread = nvidia_definitions.unread_files(own, path, kind, files)
    yield from nvidia_definitions.definitions(own, unread, "", kind)
    for config, other_kind in others:
        its = [file for file in nvidia_definitions.files_of(root, config, other_kind)[0] if file not in files]
        yield from nvidia_definitions.definitions(root, its, config, other_kind)


def _facts(kubelet: Process, settings: KubeletSettings) -> Kubelet:
    return Kubelet(kubelet.name, kubelet.pid, settings.config, settings.systemd_cgroup)


CONTAINER_RUNTIME = Probe("container-runtime", read_container_runtime, ContainerRuntime, (UNREADABLE, NOT_FOUND))
