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
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.clock import now
from gpu_healthcheck.healthcheck.host.opening import entries_of, is_gone
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import DEVICE_PLUGIN, KUBELET, VGPU_MONITOR, Process
from gpu_healthcheck.healthcheck.probes.kubelet_pods import KUBELETS
from gpu_healthcheck.healthcheck.probes.services import PROCESSES_HIDDEN
from gpu_healthcheck.healthcheck.text.durations import duration

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
_CONTAINER_FOLDER = re.compile(rf"({_UID})_.{{1,253}}", re.ASCII)
_POD_CGROUP = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", re.ASCII)
_MOST_ENTRIES, _MOST_STALE, _MOST_NAMES = 4096, 256, 32
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
    """One of HAMi's processes, and its settings from the chart.

    `hook_path` is '' without one. An unknown `started` counts as recent, so that no fault is reported for it.
    """

    process: Process
    hook_path: str
    resync_interval: str

    @property
    def started(self) -> float:
        return self.process.since_boot if self.process.since_boot is not None else float("inf")


def read_hami(host: Host) -> Hami:
    """Return the state of HAMi. Raises ProbeError if HAMi is or may be present and can't be read."""
    root = host.root
    try:
        found = host.once(processes.find)
        hami = [_hami_process(root, process) for process in found.plugins]
        hami_processes = [each for each in hami if each is not None and each.hook_path]
        if hami_processes:
            return _read(root, hami_processes, found.processes)
        is_hidden = not found.plugins and host_files.exists(root, USUAL_FOLDER) and not processes.are_the_hosts(root)
    except (FileNotFoundError, NotADirectoryError):  # a captured tree may lack /proc, or a process has ended
        return Hami()
    except OSError as error:
        raise ProbeError(f"{error.filename or root / 'proc'}: {error.strerror}") from error
    if is_hidden:
        raise ProbeError(
            f"{USUAL_FOLDER} exists, but the processes that show whether HAMi runs are not visible", PROCESSES_HIDDEN
        )
    return Hami()


def _hami_process(root: Path, process: Process) -> _HamiProcess | None:
    """Return the process's settings; None if it has just ended or is hidden.

    A hidden process may be NVIDIA's own plugin.
    """
    try:
        environ = host_files.read_whole(root, f"/proc/{process.pid}/environ", _LONGEST_ENVIRONMENT)
    except PermissionError:
        if process.name == VGPU_MONITOR:
            raise
        return None
    except OSError as error:
        if is_gone(error):
            return None
        raise
    pairs = (entry.partition("=") for entry in environ.decode("utf-8", "replace").split("\0"))
    variables = {name: value for name, _, value in pairs if name in ("HOOK_PATH", "HAMI_RESYNC_INTERVAL")}
    resync_interval = variables.get("HAMI_RESYNC_INTERVAL", "")[:64]
    return _HamiProcess(process, _host_path(variables.get("HOOK_PATH", "")), resync_interval)


def _host_path(path: str) -> str:
    """Return the normalised path; '' if it is not a host path."""
    is_path = path.startswith("/") and path.isprintable() and len(path) <= _LONGEST_PATH
    return f"/{os.path.normpath(path).strip('/')}" if is_path else ""


def _read(root: Path, hami_processes: Sequence[_HamiProcess], every: Sequence[Process]) -> Hami:
    # During a rollout, two processes of one kind may run. The younger one remains.
    youngest = {each.process.name: each for each in sorted(hami_processes, key=lambda each: each.started)}
    plugin, monitor = youngest.get(DEVICE_PLUGIN), youngest.get(VGPU_MONITOR)
    any_process = plugin or monitor or hami_processes[0]
    folder = _host_path(f"{plugin.hook_path}/vgpu") if plugin is not None else any_process.hook_path
    # HAMi uses its default if it can't parse the value.
    interval = duration(monitor.resync_interval) if monitor is not None else None
    delay = interval.total_seconds() if interval is not None else USUAL_RESYNC
    return Hami(
        runs=True,
        up_seconds=max(0.0, processes.uptime(root) - min(each.started for each in youngest.values())),
        plugin=_plugin(root, plugin.process, folder) if plugin is not None else None,
        listening=_listening(root, any_process.process),
        resync_seconds=delay,
        leftovers=_stale_folders(root, every, any_process.process, folder, delay),
        mig_lock_seconds=_age(root, MIG_LOCK),
    )


def _plugin(root: Path, process: Process, folder: str) -> Plugin:
    own_root = processes.root_of(root, process)
    names = [entry.name for entry in _entries(root, folder) if entry.name.startswith(LIBRARY) or entry.name == PRELOAD]
    files = {name: _file(root, f"{folder}/{name}") for name in sorted(names)}
    preload, preloads = files.pop(PRELOAD, None), ""
    if preload is not None and preload.plain:
        preloads = host_files.read_whole(root, f"{folder}/{PRELOAD}", 1 << 12).decode("utf-8", "replace")
    # The plugin's script copies only plain files.
    image = [] if own_root == root else _entries(own_root, _IMAGE_LIBRARIES)
    brings = [each.name for each in image if each.name.startswith(LIBRARY) and each.is_file(follow_symlinks=False)]
    return Plugin(
        folder,
        tuple(sorted(brings))[:_MOST_NAMES],
        tuple(files.values())[:_MOST_NAMES],
        preload,
        tuple(path[:_LONGEST_PATH] for path in re.split(r"[\s:]+", preloads) if path)[:_MOST_NAMES],
        _sockets(own_root),
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
    about = _lstat(root, path)
    name = path.rpartition("/")[2]
    return File(name, stat.S_ISREG(about.st_mode), about.st_size) if about is not None else File(name, plain=False)


def _lstat(root: Path, path: str) -> os.stat_result | None:
    """Return the file's state; None if it does not exist, or at a dangling link."""
    try:
        return host_files.below(root, path).lstat()
    except OSError as error:
        if is_gone(error):
            return None
        raise


def _sockets(plugin_root: Path) -> tuple[str, ...] | None:
    try:
        sockets = [entry for entry in _entries(plugin_root, _PLUGIN_SOCKETS) if stat.S_ISSOCK(entry.stat().st_mode)]
    except OSError:
        return None
    return tuple(sorted(entry.name for entry in sockets))[:_MOST_NAMES] or None


def _listening(root: Path, process: Process) -> tuple[str, ...] | None:
    try:
        paths = processes.listens_on(root, process.pid)
    except OSError:
        return None
    names = (path.rpartition("/")[2] for path in paths if path.startswith(f"{_PLUGIN_SOCKETS}/"))
    return tuple(sorted({name for name in names if name.isprintable() and name != "kubelet.sock"}))[:_MOST_NAMES]


def _stale_folders(
    root: Path, every: Sequence[Process], process: Process, folder: str, delay: float
) -> StaleFolders | None:
    """Return the stale folders; None if the kubelet's folder of pods is unknown.

    It is the one with the folder of HAMi's own pod; that of a running kubelet's flag comes first.
    """
    uid, containers = _pod_uid(root, process), f"{folder}/containers"
    flags = [_host_path(each.flag("root-dir")) for each in every if each.name == KUBELET]
    pods = [f"{kubelet}/pods" for kubelet in (*filter(None, flags), *KUBELETS)]
    pods_folder = next((pods for pods in pods if uid and host_files.exists(root, f"{pods}/{uid}")), "")
    if not pods_folder:
        return None
    known = {entry.name for entry in _entries(root, pods_folder)}
    before = now().wall.timestamp() - delay
    stale = (
        entry.name
        for entry in _entries(root, containers)
        if (match := _CONTAINER_FOLDER.fullmatch(entry.name)) and match[1] not in known
        if _is_stale(Path(entry.path), before)
    )
    return StaleFolders(containers, tuple(sorted(islice(stale, _MOST_STALE))))


def _pod_uid(root: Path, process: Process) -> str:
    """Return the UID of the process's pod from its control group. The systemd driver writes dashes as underscores."""
    try:
        cgroup = host_files.read_whole(root, f"/proc/{process.pid}/cgroup", 1 << 14).decode("ascii", "replace")
    except OSError:
        return ""
    match = _POD_CGROUP.search(cgroup)
    return match[1].replace("_", "-") if match else ""


def _is_stale(folder: Path, before: float) -> bool:
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
    about = _lstat(root, path)
    return max(0.0, now().wall.timestamp() - about.st_mtime) if about is not None else None


HAMI = Probe("hami", read_hami, Hami, (PROCESSES_HIDDEN,))
