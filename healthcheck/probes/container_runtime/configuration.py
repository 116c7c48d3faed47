"""The container runtime that the kubelet uses, the evidence for it, and the handlers in its files."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from healthcheck.host import host_files
from healthcheck.host.clock import now
from healthcheck.host.kernel_files import read
from healthcheck.model import Host, Probe, ProbeError, Shortage
from healthcheck.probes import pci
from healthcheck.probes.container_runtime import (
    cdi,
    containerd,
    cri,
    crio,
    distributions,
    docker,
    facts,
    named_paths,
    processes,
    runtime_binaries,
    toolkit,
)
from healthcheck.probes.container_runtime import kubelet as kubelets
from healthcheck.probes.container_runtime.distributions import KUBEADM, LAYOUTS, STANDARD, RuntimePaths
from healthcheck.probes.container_runtime.facts import (
    NOT_FOUND,
    UNREADABLE,
    ContainerRuntime,
    Kubelet,
    Live,
    ReadFile,
    RuntimeConfiguration,
)
from healthcheck.probes.container_runtime.kubelet import KubeletSettings
from healthcheck.probes.container_runtime.origins import Origin
from healthcheck.probes.container_runtime.processes import (
    CONTAINERD,
    CRI_DOCKERD,
    CRIO,
    DOCKERD,
    KUBELET,
    Process,
    flag_of,
)

_RUNTIMES = (CONTAINERD, CRIO, CRI_DOCKERD)
"""Container runtimes to which a kubelet connects."""
_BOOT_ID = "proc/sys/kernel/random/boot_id"
_SOCKET = "containerd.sock"
"""Name of containerd's socket in any folder."""
_SAVING_SECONDS = 600.0
"""Longest time to copy a captured tree. Newer file times are those of the copy."""
_MOST_PROGRAMS = 256
_HOST_PROGRAMS = ("/usr/bin/kubelet", "/usr/local/bin/kubelet", "/usr/bin/containerd", "/usr/sbin/containerd")
"""Programs that show the host's architecture if no process does."""


class _Used(Struct, frozen=True):
    """The runtime that the kubelet uses: its configuration, the root of its files, and its process.

    `layout` is the source of the configuration if no such process is visible.
    """

    configuration: RuntimeConfiguration
    root: Path
    how: tuple[str, ...]
    process: Process | None = None
    layout: RuntimePaths | None = None


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
    if kubelet is None and processes.are_the_hosts(root):
        return ContainerRuntime(None, "no kubelet runs on this node")
    if kubelet is None:
        return _assumed(host, found)
    settings = kubelets.settings_of(root, kubelet)
    used = _held(root, kubelet, settings, found) or _placed(root, kubelet, settings)
    if used is None:
        message = f"the kubelet's runtime is at {settings.endpoint}: an unknown runtime"
        return cri.with_live(host, replace(_not_found(message, settings), kubelet=_facts(kubelet, settings)))
    return _observe(host, settings, used, kubelet, found)


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


def _held(root: Path, kubelet: Process, settings: KubeletSettings, found: Sequence[Process]) -> _Used | None:
    """Return the runtime whose process listens on the kubelet's socket.

    If the kernel does not show the listener, return the runtime that is configured to listen there.
    """
    among = [process for process in found if process.name in _RUNTIMES]
    holder = processes.holder_of(root, kubelet, settings.endpoint, [*among, kubelet])
    step = f"held by {holder}"
    if holder is None:
        holder = next((process for process in among if settings.endpoint == _socket_of(root, process)), None)
        step = f"{holder} is configured to listen there"
    if holder is None:
        return None
    if holder.name in (CONTAINERD, CRIO):
        return _read_by(root, holder, (*settings.how, step))
    # The kubelet reaches Docker through cri-dockerd, or through k3s in its role.
    daemon = _daemon_of(root, holder, found)
    if daemon is None:
        configuration = docker.read_configuration(root)
        return _Used(configuration, root, (*settings.how, step, f"no dockerd is visible, so {configuration.path}"))
    return _read_by(root, daemon, (*settings.how, step, f"which uses {daemon}"))


def _read_by(root: Path, process: Process, how: tuple[str, ...]) -> _Used:
    """Return the configuration that the runtime's process reads, below the root of the process."""
    own = processes.root_of(root, process)
    configuration = _configuration_of(own, process)
    message = process.flag("config", "c", "config-file")
    folder = f", then all below {_drop_ins_of(process)}" if process.name == CRIO else ""
    step = f"which reads {configuration.path} ({'by a flag' if message else 'its default'}){folder}"
    return _Used(configuration, own, (*how, step), process)


def _configuration_of(root: Path, process: Process, version: str = "") -> RuntimeConfiguration:
    file = process.flag("config", "c")
    if process.name == CRIO:
        configuration = crio.read_configuration(root, file or crio.STANDARD_FILE, _drop_ins_of(process), version)
        return _with_flags(configuration, process)
    if process.name == DOCKERD:
        configuration = docker.read_configuration(root, process.flag("config-file") or docker.STANDARD_FILE)
        return _with_flags(configuration, process)
    return containerd.read_configuration(root, file or containerd.STANDARD_FILE, version)


def _drop_ins_of(process: Process) -> str:
    return process.flag("config-dir", "d") or crio.STANDARD_FOLDER


def _with_flags(configuration: RuntimeConfiguration, process: Process) -> RuntimeConfiguration:
    """Return the configuration with the process's flags.

    Flags outrank CRI-O's files. dockerd does not start if a file and a flag set the same option.
    """
    default = process.flag("default-runtime")
    return replace(configuration, default=default, default_in="") if default else configuration


def _socket_of(root: Path, process: Process) -> str:
    """Return the socket of the process, by its flags, else by its configuration or its default."""
    own = processes.root_of(root, process)
    if process.name == CRIO:
        message = process.flag("listen") or _configuration_of(own, process).address or crio.STANDARD_SOCKET
    elif process.name == CRI_DOCKERD:
        message = process.flag("container-runtime-endpoint")
        message = message if "/" in message.removeprefix("fd://") else distributions.CRI_DOCKERD_SOCKET
    else:
        message = process.flag("address", "a") or _configuration_of(own, process).address
        message = message or distributions.STANDARD_SOCKET
    return processes.socket_path(root, message)


def _daemon_of(root: Path, holder: Process, found: Sequence[Process]) -> Process | None:
    daemons = [process for process in found if process.name == DOCKERD]
    socket = processes.socket_path(root, holder.flag("docker-endpoint") or docker.STANDARD_SOCKET)
    return processes.holder_of(root, holder, socket, daemons) or next(iter(daemons), None)


def _placed(root: Path, kubelet: Process, settings: KubeletSettings) -> _Used | None:
    """Return the runtime by the layout of the kubelet's socket.

    This applies if the runtime's process does not run or is not visible.
    """
    own = distributions.by_kubelet(kubelet)
    layouts = [_as_flags_name_it(root, paths) for paths in sorted(LAYOUTS, key=lambda paths: paths.distribution != own)]
    fitting = (paths for paths in layouts if paths.socket == settings.endpoint and _is_there(root, paths))
    layout = next(fitting, None)
    step = "no process that listens there is visible"
    return _in_place(root, layout, (*settings.how, step)) if layout else None


def _assumed(host: Host, found: Sequence[Process]) -> ContainerRuntime:
    """Return the runtime without a kubelet, as in a captured tree.

    The kubelet's settings on disk decide, else the files that exist.
    """
    root = host.root
    there = [layout for paths in LAYOUTS if _is_there(root, layout := _as_flags_name_it(root, paths))]
    layout = there[0] if there else STANDARD
    settings = kubelets.settings_on_disk(root, layout)
    if not there and (settings is None or settings.is_default):
        return ContainerRuntime(None, "no kubelet, and no configuration of a container runtime at any usual path")
    assumed = f"assumed, since no kubelet is visible: the path of {layout.distribution or 'most distributions'}"
    if settings is None:
        settings = KubeletSettings(layout.socket, assumed, ("no kubelet is visible",))
    elif layout.distribution and settings.endpoint != layout.socket:
        # These settings belong to a former kubelet.
        settings = KubeletSettings(layout.socket, assumed, settings.how)
    else:
        settings = replace(settings, said_by=f"assumed, since no kubelet is visible: {settings.said_by}")
    fitting = next((paths for paths in there if paths.socket == settings.endpoint), None)
    if fitting is None and settings.endpoint == STANDARD.socket and _has_defaults(root):
        fitting = STANDARD
    if fitting is None:
        known = any(paths.socket == settings.endpoint for paths in LAYOUTS)
        which = "its files do not exist here" if known else "an unknown runtime"
        why = f"the kubelet's runtime would be at {settings.endpoint}: {which}"
        return cri.with_live(host, replace(_not_found(why, settings), assumed=True))
    return _observe(host, settings, _in_place(root, fitting, settings.how), None, found)


def _not_found(why: str, settings: KubeletSettings) -> ContainerRuntime:
    """Return the result for an unknown runtime.

    Only containerd is reported as missing. Other runtimes that a kubelet uses may be outside this project's scope.
    """
    is_named = not settings.is_default and settings.endpoint.endswith(f"/{_SOCKET}")
    return ContainerRuntime(None, why, settings.endpoint, settings.said_by, settings.how, not_found=is_named)


def _has_defaults(root: Path) -> bool:
    """Whether there is no file at containerd's usual path, so that its defaults apply.

    False if that is unknown: in a captured tree without /sys or without the folder, and for a distribution that always
    writes a file. Also false if there are CDI specifications, because whether they are read depends on the release.
    """
    folder = host_files.resolved(root, STANDARD.config).split("/")[1]
    is_whole = (root / "sys").exists() and named_paths.has_entries(root, folder)
    is_written = distributions.by_files(root, STANDARD.config) not in ("", KUBEADM)
    return is_whole and not is_written and not cdi.read_specs(root, containerd.CDI_FOLDERS)


def _as_flags_name_it(root: Path, layout: RuntimePaths) -> RuntimePaths:
    """Return the layout with the file and the socket that a snap's own flags name."""
    flags = kubelets.runtime_flags(root, layout)
    config, socket = flag_of(flags, "config", "c"), flag_of(flags, "address", "a")
    socket = processes.socket_path(root, socket or layout.socket)
    return replace(layout, config=config or layout.config, socket=socket)


def _is_there(root: Path, layout: RuntimePaths) -> bool:
    if layout.kind == facts.CRIO and host_files.walk(root, crio.STANDARD_FOLDER):
        return True
    return host_files.exists(root, layout.config)


def _in_place(root: Path, layout: RuntimePaths, how: tuple[str, ...]) -> _Used:
    of = f"the path of {layout.distribution}" if layout.distribution else f"{layout.kind}'s usual path"
    step = f"assumed: {layout.config}, {of}"
    return _Used(_configuration_in(root, layout), root, (*how, step), None, layout)


def _configuration_in(root: Path, layout: RuntimePaths, version: str = "") -> RuntimeConfiguration:
    if layout.kind == facts.CRIO:
        return crio.read_configuration(root, layout.config, version=version)
    if layout.kind == facts.DOCKER:
        return docker.read_configuration(root, layout.config)
    return containerd.read_configuration(root, layout.config, version)


def _observe(
    host: Host, settings: KubeletSettings, used: _Used, kubelet: Process | None, found: Sequence[Process]
) -> ContainerRuntime:
    root = host.root
    since_boot = used.process.since_boot if used.process is not None else None
    asked = ContainerRuntime(used.configuration, socket=settings.endpoint, since_boot=since_boot)
    asked = cri.with_live(host, asked)
    configuration = _as_it_runs(used, asked.live)
    distribution = distributions.by_kubelet(kubelet) if kubelet is not None else ""
    distribution = distribution or (used.layout.distribution if used.layout is not None else "")
    distribution = distribution or distributions.by_files(root, configuration.path)
    named = list(dict.fromkeys(handler.binary for handler in configuration.handlers if handler.binary))[:_MOST_PROGRAMS]
    looked_for = [runtime_binaries.find(used.root, name) for name in named]
    named_programs = tuple(
        binary for binary in looked_for if binary.path or runtime_binaries.can_be_missing(used.root, binary.named)
    )
    template = distributions.template_of(used.root, distribution, configuration.path, configuration.schema)
    return ContainerRuntime(
        replace(configuration, template=template),
        socket=settings.endpoint,
        known_from=settings.said_by,
        how=used.how,
        assumed=used.process is None,
        started=_started(root, used.process, configuration.files),
        since_boot=since_boot,
        unit=used.process.unit if used.process is not None else "",
        distribution=distribution,
        kubelet=_facts(kubelet, settings, configuration),
        others=tuple(_others(root, used, found)),
        programs=named_programs,
        cdi_specs=cdi.read_specs(used.root, (asked.live and asked.live.cdi_folders) or configuration.cdi_folders),
        toolkit=toolkit.read_toolkit(used.root, [program.path for program in named_programs]),
        live=asked.live,
        why_not_live=asked.why_not_live,
        architecture=_architecture(root, [process for process in (kubelet, used.process) if process is not None]),
    )


def _as_it_runs(used: _Used, live: Live | None) -> RuntimeConfiguration:
    """Return the configuration by the rules of the running containerd or CRI-O, if its version is known."""
    version = live.version if live is not None and used.configuration.kind != facts.DOCKER else ""
    if version and used.process is not None:
        return _configuration_of(used.root, used.process, version)
    if version and used.layout is not None:
        return _configuration_in(used.root, used.layout, version)
    return used.configuration


def _started(root: Path, process: Process | None, files: Iterable[ReadFile]) -> float | None:
    """Return the start time of the process in seconds of UTC, for comparison with the times of its files.

    Return None if the files do not show when they were written. For a captured tree, this machine's clock is
    meaningless: the tree's own files give the time.
    """
    if process is None or process.since_boot is None:
        return None
    try:
        uptime = processes.uptime(root)
        if _is_our_machine(root):
            return now().wall.timestamp() - uptime + process.since_boot
        booted = processes.booted(root)
    except Shortage:
        raise
    except (OSError, ProbeError):
        return None
    are_copies = any(file.written > booted + uptime - _SAVING_SECONDS for file in files)
    return None if are_copies else booted + process.since_boot


def _facts(
    kubelet: Process | None, settings: KubeletSettings, used: RuntimeConfiguration | None = None
) -> Kubelet | None:
    """Return the facts of the kubelet.

    A kubelet that is not visible, as in a captured tree, is included if its files describe it.
    """
    systemd = None if _may_answer(used) else settings.systemd_cgroup
    if kubelet is not None:
        return Kubelet(kubelet.name, kubelet.pid, settings.config, systemd)
    return Kubelet(KUBELET, 0, settings.config, systemd) if settings.config or systemd is not None else None


def _may_answer(used: RuntimeConfiguration | None) -> bool:
    """Whether the runtime can report its cgroup driver to the kubelet.

    The kubelet then uses that driver (KubeletCgroupDriverFromCRI). containerd supports this since 2.0, CRI-O since
    1.28. The kubelet asks automatically since 1.31, and no file on the node shows its version.
    """
    return used is None or used.kind != facts.CONTAINERD or used.is_containerd_2


def _others(root: Path, used: _Used, found: Sequence[Process]) -> Iterator[RuntimeConfiguration]:
    """Yield the node's other configurations: files of other host runtimes, and files at usual paths.

    Runtimes in containers (with other mounts than the host's) belong to the containers and are skipped.
    """
    configuration = used.configuration
    seen = {
        host_files.resolved(root, path) for path in (configuration.path, *(file.path for file in configuration.files))
    }
    for process in found:
        if (
            process.name not in (CONTAINERD, CRIO, DOCKERD)
            or process == used.process
            or processes.is_elsewhere(root, process)
        ):
            continue
        yield from _unseen(root, [_configuration_of(root, process)], seen)
    for layout in LAYOUTS:
        if _is_there(root, layout) and host_files.resolved(root, layout.config) not in seen:
            yield from _unseen(root, [_configuration_in(root, layout)], seen)


def _unseen(
    root: Path, configurations: Iterable[RuntimeConfiguration], seen: set[str]
) -> Iterator[RuntimeConfiguration]:
    for configuration in configurations:
        real = host_files.resolved(root, configuration.path)
        if real not in seen and (configuration.files or configuration.problem is not None):
            seen.add(real)
            yield configuration


def _architecture(root: Path, running: Sequence[Process]) -> str:
    """Return the architecture of the host: of this machine if the root is its own, else of the tree's programs."""
    if _is_our_machine(root):
        return platform.machine()
    paths = [(processes.root_of(root, process), process.program) for process in running if process.program]
    paths += [(root, path) for path in _HOST_PROGRAMS]
    found = (runtime_binaries.architecture(base, path) for base, path in paths if host_files.exists(base, path))
    return next((text for text in found if text), "")


def _is_our_machine(root: Path) -> bool:
    try:
        return read(root / _BOOT_ID, 64) == read(f"/{_BOOT_ID}", 64)
    except OSError:
        return False


CONTAINER_RUNTIME = Probe("container-runtime", read_container_runtime, ContainerRuntime, (UNREADABLE, NOT_FOUND))
