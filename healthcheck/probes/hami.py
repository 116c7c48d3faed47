"""HAMi on this host: the library for containers, the plugin's socket, and leftovers of pods.

The facts come from HAMi's sources, 2.4 to 2.10. At its start, the plugin (postStart, vgpu-init.sh) copies the image's
libvgpu.so* and ld.so.preload to HOOK_PATH/vgpu. Each Allocate mounts both from there and creates
containers/PODUID_CONTAINER (plugin/server.go). vGPUmonitor removes the folders of deleted pods
(pkg/monitor/nvidia/cudevshr.go). It pauses while the plugin's lock for a change of MIG exists (plugin/lock.go).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from healthcheck.host import host_files
from healthcheck.host.clock import now
from healthcheck.host.kernel_files import is_gone
from healthcheck.host.opening import entries_of
from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.container_runtime import processes
from healthcheck.probes.container_runtime.processes import DEVICE_PLUGIN, KUBELET, VGPU_MONITOR, Process
from healthcheck.probes.kubelet_pods import KUBELETS
from healthcheck.probes.services import PROCESSES_HIDDEN
from healthcheck.text.durations import duration

LIBRARY, PRELOAD = "libvgpu.so", "ld.so.preload"
USUAL_FOLDER = "/usr/local/vgpu"
"""Default folder: the chart's `global.gpuHookPath` followed by `/vgpu`."""
USUAL_RESYNC = 300.0
"""Default of HAMI_RESYNC_INTERVAL in seconds, and the fixed delay of older releases."""
MIG_LOCK = "/tmp/hami/hami-mig-apply.lock"  # noqa: S108 - HAMi's
_IMAGE_LIBRARIES = "/k8s-vgpu/lib/nvidia"
_PLUGIN_SOCKETS = "/var/lib/kubelet/device-plugins"
"""Folder of sockets in the plugin's container. Its path on the host depends on the kubelet."""
_UID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_OF_CONTAINER = re.compile(rf"({_UID})_.{{1,253}}", re.ASCII)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", re.ASCII)
_MOST_ENTRIES, _MOST_LEFT, _MOST_NAMES = 4096, 256, 32
_LONGEST_ENVIRONMENT, _LONGEST_PATH = 1 << 17, 256


class File(Struct, frozen=True):
    """A file of HAMi. `plain` is false for a folder.

    A container runtime creates a folder at the path of a missing mount source.
    """

    name: str
    plain: bool
    size: int = 0


class Plugin(Struct, frozen=True):
    """HAMi's running device plugin. `folder` is the host folder from which containers mount its files."""

    folder: str
    brings: tuple[str, ...] = ()
    """Names of the libraries in its image; empty if the image can't be read."""
    libraries: tuple[File, ...] = ()
    preload: File | None = None
    preloads: tuple[str, ...] = ()
    """Paths in ld.so.preload."""
    sockets: tuple[str, ...] | None = None
    """Names in the kubelet's folder of sockets, as mounted in the plugin's container; None if unknown."""


class StaleFolders(Struct, frozen=True):
    """Folders of former containers whose pods the kubelet has removed, older than HAMi's cleanup delay."""

    folder: str
    names: tuple[str, ...]


class Hami(Struct, frozen=True):
    """State of HAMi on this node.

    It is empty without HAMi's processes, because its files remain after its removal. `listening` are the sockets of
    device plugins in its pod's network; None if unknown. `up_seconds` is the run time of the older of its processes.
    `leftovers` is None if the kubelet's folder of pods is unknown. `mig_lock_seconds` is the age of its lock; None
    without a lock.
    """

    runs: bool = False
    up_seconds: float = 0.0
    plugin: Plugin | None = None
    listening: tuple[str, ...] | None = None
    resync_seconds: float = USUAL_RESYNC
    leftovers: StaleFolders | None = None
    mig_lock_seconds: float | None = None


class _HamiProcess(Struct, frozen=True):
    """One of HAMi's processes, and its settings from the chart: `hook` is its HOOK_PATH; '' without one."""

    process: Process
    hook: str
    resync: str


def read_hami(host: Host) -> Hami:
    """Return the state of HAMi. Raises ProbeError if HAMi is or may be present and can't be read."""
    root = host.root
    try:
        found = host.once(processes.find)
        hami_processes = [
            hami_process
            for process in found.plugins
            if (hami_process := _read_process(root, process)) is not None and hami_process.hook
        ]
        if hami_processes:
            return _read(root, hami_processes, found.processes)
        hidden = not found.plugins and host_files.exists(root, USUAL_FOLDER) and not processes.are_the_hosts(root)
    except (FileNotFoundError, NotADirectoryError):  # a captured tree may lack /proc, or a process has ended
        return Hami()
    except OSError as error:
        raise ProbeError(f"{error.filename or root / 'proc'}: {error.strerror}") from error
    if hidden:
        raise ProbeError(
            f"{USUAL_FOLDER} exists, but the processes that show whether HAMi runs are not visible", PROCESSES_HIDDEN
        )
    return Hami()


def _read_process(root: Path, process: Process) -> _HamiProcess | None:
    """Return the process's settings; None if it has just ended or is hidden.

    A hidden process may be NVIDIA's own plugin.
    """
    try:
        words = host_files.read_whole(root, f"/proc/{process.pid}/environ", _LONGEST_ENVIRONMENT)
    except PermissionError:
        if process.name == VGPU_MONITOR:
            raise
        return None
    except OSError as error:
        if is_gone(error):
            return None
        raise
    pairs = (word.partition("=") for word in words.decode("utf-8", "replace").split("\0"))
    wanted = {name: value for name, _, value in pairs if name in ("HOOK_PATH", "HAMI_RESYNC_INTERVAL")}
    return _HamiProcess(process, _path(wanted.get("HOOK_PATH", "")), wanted.get("HAMI_RESYNC_INTERVAL", "")[:64])


def _path(text: str) -> str:
    """Return the normalised path; '' if the text is not a host path."""
    fits = text.startswith("/") and text.isprintable() and len(text) <= _LONGEST_PATH
    return f"/{os.path.normpath(text).strip('/')}" if fits else ""


def _read(root: Path, hami_processes: Sequence[_HamiProcess], among: Sequence[Process]) -> Hami:
    # During a rollout, two processes of one kind may run. The younger one remains.
    youngest = {process.process.name: process for process in sorted(hami_processes, key=_started)}
    plugin, monitor = youngest.get(DEVICE_PLUGIN), youngest.get(VGPU_MONITOR)
    process = plugin or monitor or hami_processes[0]
    folder = _path(f"{plugin.hook}/vgpu") if plugin is not None else process.hook
    period_delay = duration(monitor.resync) if monitor is not None else None
    # HAMi uses its default if it can't parse the value.
    delay = period_delay.total_seconds() if period_delay is not None else USUAL_RESYNC
    return Hami(
        runs=True,
        up_seconds=max(0.0, processes.uptime(root) - min(map(_started, youngest.values()))),
        plugin=_plugin(root, plugin.process, folder) if plugin is not None else None,
        listening=_listening(root, process.process),
        resync_seconds=delay,
        leftovers=_leftovers(root, among, process.process, folder, delay),
        mig_lock_seconds=_age(root, MIG_LOCK),
    )


def _started(process: _HamiProcess) -> float:
    """Return the process's start time.

    An unknown start counts as recent, so that no fault is reported for it.
    """
    return process.process.since_boot if process.process.since_boot is not None else float("inf")


def _plugin(root: Path, process: Process, folder: str) -> Plugin:
    own = processes.root_of(root, process)
    names = [entry.name for entry in _entries(root, folder) if entry.name.startswith(LIBRARY) or entry.name == PRELOAD]
    files = {name: _file(root, f"{folder}/{name}") for name in names}
    preload = files.pop(PRELOAD, None)
    words = ""
    if preload is not None and preload.plain:
        words = host_files.read_whole(root, f"{folder}/{PRELOAD}", 1 << 12).decode("utf-8", "replace")
    # The plugin's script copies only plain files.
    brought = (
        []
        if own == root
        else [entry for entry in _entries(own, _IMAGE_LIBRARIES) if entry.is_file(follow_symlinks=False)]
    )
    return Plugin(
        folder,
        tuple(sorted(entry.name for entry in brought if entry.name.startswith(LIBRARY)))[:_MOST_NAMES],
        tuple(files[name] for name in sorted(files))[:_MOST_NAMES],
        preload,
        tuple(word[:_LONGEST_PATH] for word in re.split(r"[\s:]+", words) if word)[:_MOST_NAMES],
        _sockets(own),
    )


def _entries(root: Path, folder: str) -> list[os.DirEntry[str]]:
    """Return the folder's entries; an empty list if the folder does not exist.

    Raises OSError if it can't be read.
    """
    try:
        entries = islice(entries_of(host_files.below(root, folder)), _MOST_ENTRIES)
        return [entry for entry in entries if entry.name.isprintable()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _file(root: Path, path: str) -> File:
    name = path.rpartition("/")[2]
    try:
        about = host_files.below(root, path).lstat()
    except OSError as error:
        if is_gone(error):  # a dangling link
            return File(name, plain=False)
        raise
    return File(name, stat.S_ISREG(about.st_mode), about.st_size)


def _sockets(own: Path) -> tuple[str, ...] | None:
    try:
        there = [entry for entry in _entries(own, _PLUGIN_SOCKETS) if stat.S_ISSOCK(entry.stat().st_mode)]
    except OSError:
        return None
    return tuple(sorted(entry.name for entry in there))[:_MOST_NAMES] or None


def _listening(root: Path, process: Process) -> tuple[str, ...] | None:
    try:
        paths = processes.listens_on(root, process.pid)
    except OSError:
        return None
    names = (path.rpartition("/")[2] for path in paths if path.startswith(f"{_PLUGIN_SOCKETS}/"))
    return tuple(sorted({name for name in names if name.isprintable() and name != "kubelet.sock"}))[:_MOST_NAMES]


def _leftovers(
    root: Path, among: Sequence[Process], process: Process, folder: str, delay: float
) -> StaleFolders | None:
    """Return the stale folders. The kubelet's folder of pods is identified by the folder of HAMi's pod in it."""
    own = _pod_of(root, process)
    pods = next((pod for pod in _folders_of_pods(among) if own and host_files.exists(root, f"{pod}/{own}")), "")
    if not pods:
        return None
    containers = f"{folder}/containers"
    known = {entry.name for entry in _entries(root, pods)}
    before = now().wall.timestamp() - delay
    of_gone = (entry for entry in _entries(root, containers) if _pod_in(entry.name) not in {"", *known})
    left = (entry.name for entry in of_gone if _is_left(Path(entry.path), before))
    return StaleFolders(containers, tuple(sorted(islice(left, _MOST_LEFT))))


def _folders_of_pods(among: Sequence[Process]) -> Iterator[str]:
    """Yield the folders of pods of kubelets, first that of a running kubelet's flag."""
    messages = [process.flag("root-dir") for process in among if process.name == KUBELET]
    yield from (f"{folder}/pods" for folder in (*filter(None, map(_path, messages)), *KUBELETS))


def _pod_of(root: Path, process: Process) -> str:
    """Return the UID of the process's pod from its control group. The systemd driver writes dashes as underscores."""
    try:
        words = host_files.read_whole(root, f"/proc/{process.pid}/cgroup", 1 << 14).decode("ascii", "replace")
    except OSError:
        return ""
    found = _POD.search(words)
    return found[1].replace("_", "-") if found else ""


def _pod_in(name: str) -> str:
    found = _OF_CONTAINER.fullmatch(name)
    return found[1] if found else ""


def _is_left(folder: Path, before: float) -> bool:
    """Whether the folder is old enough and belongs to a container that was started.

    Only a started container leaves the library's mount point in it. If the kubelet refused the pod after the Allocate,
    the folder is empty, and HAMi keeps it.
    """
    try:
        about = folder.lstat()
        return stat.S_ISDIR(about.st_mode) and about.st_mtime < before and any(True for _ in entries_of(folder))
    except OSError as error:
        if is_gone(error):
            return False
        raise


def _age(root: Path, path: str) -> float | None:
    """Return the seconds since the last write; None if the file does not exist."""
    try:
        written = host_files.below(root, path).lstat().st_mtime
    except OSError as error:
        if is_gone(error):
            return None
        raise
    return max(0.0, now().wall.timestamp() - written)


HAMI = Probe("hami", read_hami, Hami, (PROCESSES_HIDDEN,))
