"""Processes and programs of this node's host for a reset; programs run in its root or in the driver container's.

They are nvidia-smi, because the container toolkit cannot mount the driver into a pod while a GPU is faulty (NVSentinel
PR 1243), and systemctl, for the fabric manager and a reboot. The driver's libraries are linked for DCGM in the pod.

Processes with open GPU device files, and pods with these GPUs, are only found: nothing here ends a process.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import structlog
from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.command import ChildError, MissedDeadline, Program
from gpu_healthcheck.healthcheck.host.open_devices import OpenDevices
from gpu_healthcheck.healthcheck.host.opening import entries_of, is_gone, names_in, read
from gpu_healthcheck.healthcheck.model import Host, ProbeError, Shortage
from gpu_healthcheck.healthcheck.node.gpu_resources import gpu_pod
from gpu_healthcheck.healthcheck.operations.drain import HolderKind, holder_kind, title
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.driver_files import NVIDIA_MAJOR
from gpu_healthcheck.healthcheck.probes.kubelet_pods import uid_of
from gpu_healthcheck.healthcheck.probes.nvml.library import places_by_version, resolve_inside
from gpu_healthcheck.healthcheck.probes.pod_resources import PodDevices, holds_gpus, read_pod_resources
from gpu_healthcheck.healthcheck.text.printable import printable

log = structlog.get_logger()

_LAST_GPU = 247
"""Last minor number of a GPU; 254 is nvidia-modeset, 255 nvidiactl (open-gpu-kernel-modules, nv-chardev-numbers.h)."""
_SECONDS = 20.0
"""Longest search for the processes: shorter than the pause of the agent's NVML."""
_LONGEST_CGROUP, _LONGEST_NAME = 1 << 14, 64


class Process(Struct, frozen=True):
    """A process with an open device file of a GPU. `pod_uid` is '' outside of pods."""

    pid: int
    name: str
    pod_uid: str = ""


class Holder(Struct, frozen=True):
    """A pod or process that uses a GPU. `pod` is `namespace/name`; '' for a process of the host."""

    kind: HolderKind
    pod: str
    process: str = ""

    def __str__(self) -> str:
        return " of pod ".join(filter(None, (self.process, self.pod)))


def open_in(root: Path, minors: Collection[int]) -> Iterator[Process]:
    """Yield the processes that have these GPUs open, under any name. Raises ProbeError if some are hidden.

    Not seen are a mapping whose file was closed, because its list waits for a process that hangs in the driver, files
    of a thread that shares none with its process, and processes that take too long. The driver refuses to reset a GPU
    that is still in use.
    """
    if not processes.are_the_hosts(root):
        raise ProbeError("the processes of the host are not visible")
    gpus = {minor for minor in minors if minor <= _LAST_GPU}
    ends = time.monotonic() + _SECONDS
    try:
        with OpenDevices(root, NVIDIA_MAJOR) as devices:
            for entry in entries_of(root / "proc"):
                if not (entry.name.isascii() and entry.name.isdigit()):
                    continue
                if time.monotonic() >= ends:  # a container may open millions of files
                    log.warning("the open files of further processes are not read", first=entry.name)
                    return
                if not gpus.isdisjoint(_devices_of(devices, int(entry.name))):
                    yield Process(int(entry.name), *_names(root / "proc" / entry.name))
    except OSError as error:
        raise ProbeError(f"{error.filename}: {error.strerror}") from error
    except ChildError as error:
        raise ProbeError(f"the open files of all processes could not be read: {error}") from error


def _devices_of(devices: OpenDevices, pid: int) -> Collection[int]:
    """Return the minor numbers of its open devices. A file system that does not answer keeps no GPU in use."""
    try:
        return devices.of(pid)
    except MissedDeadline as error:
        if error.pid is not None:
            raise
        log.warning("the open files of a process can't be read", pid=pid, error=str(error))
        return ()


def _names(folder: Path) -> tuple[str, str]:
    try:
        name = printable(read(folder / "comm", 64).decode("utf-8", "replace").strip(), _LONGEST_NAME)
        return name, uid_of(read(folder / "cgroup", _LONGEST_CGROUP))
    except OSError as error:
        if is_gone(error):
            return "", ""
        raise


def assigned(root: Path, uuids: Collection[str]) -> set[str] | None:
    """Return the pods to which the kubelet gave these GPUs, as `namespace/name`; None if it does not answer.

    Devices that are not named by a GPU's UUID (MIG instances, DRA) count as these GPUs.
    """
    try:
        pods = read_pod_resources(Host(root))
    except ProbeError:
        return None
    holding = {pod for pod, _, _ in holds_gpus(pods)}
    names = ((f"{pod.namespace}/{pod.name}", _ids(pod)) for pod in pods)

    def may_be_one(device: str) -> bool:
        return not device.startswith("GPU-") or device.startswith(tuple(uuids))

    return {name for name, ids in names if name in holding and any(map(may_be_one, ids))}


def _ids(pod: PodDevices) -> Iterator[str]:
    for container in pod.containers:
        for devices in container.devices:
            yield from devices.ids
        yield from (claim.name for claim in container.claims)


def holders(
    found: Iterable[Process], given: Collection[str] | None, pods: Iterable[Mapping[str, Any]]
) -> tuple[Holder, ...]:
    """Return pods and processes that use the GPUs. `given` None: unknown, so every GPU pod counts."""
    by_uid = {str(pod["metadata"].get("uid")): pod for pod in pods}
    held = {}
    for process in found:
        pod = by_uid.get(process.pod_uid)
        name = title(pod) if pod is not None else f"unknown ({process.pod_uid})" if process.pod_uid else ""
        kind = holder_kind(pod) if pod is not None else HolderKind.FOREIGN
        held[name, process.pid] = Holder(kind, name, f"process {process.name} (pid {process.pid})")
    seen = {holder.pod for holder in held.values()}
    for pod in by_uid.values():
        name = title(pod)
        at_work = (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        if at_work and name not in seen and gpu_pod(pod) is not None and (given is None or name in given):
            held[name, 0] = Holder(HolderKind.WORKLOAD, name)
    return tuple(held.values())


SECONDS = 60.0
"""Deadline of a program."""
_PATIENCE_SECONDS = 10.0
_LONGEST_MESSAGE = 300


class HostPrograms:
    """Programs of this host, one at a time."""

    def __init__(self) -> None:
        # Without the last variable, systemctl may take the host's root in a pod for a chroot: it then ignores commands,
        # with exit code 0 (systemd, docs/ENVIRONMENT.md).
        variables = {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath), "SYSTEMD_IGNORE_CHROOT": "1"}
        self._program = Program(variables, _PATIENCE_SECONDS)

    def run(self, root: Path, *words: str, seconds: float | None = None) -> tuple[int, str]:
        """Run a program in this root, and return its exit code and output. Raises ProbeError without an end in time."""
        try:
            ended = self._program.run(("chroot", str(root), *words), seconds or SECONDS)
        except (ChildError, Shortage) as error:
            raise ProbeError(f"{words[0]}: {error}") from error
        return ended.code, (ended.out + b"\n" + ended.err).decode("utf-8", "replace")


def message_of(text: str) -> str:
    """Return a program's output in one printable line of limited length."""
    return printable(" ".join(text.split()), _LONGEST_MESSAGE)


# --- nvidia-smi

RESET_SECONDS = 180.0
"""Deadline of a reset. NVSentinel's objective for one GPU is 2 minutes."""
_ROOTS = ("", "run/nvidia/driver")
"""Roots with the driver's programs, below the host's: its own, and the GPU operator's driver container."""
_NVIDIA_SMI = "/usr/bin/nvidia-smi"
FABRIC_MANAGER_UNIT = "nvidia-fabricmanager"
_DONE = re.compile(r"successfully reset")
_NOT_AVAILABLE = 3
"""Exit code: the operation is not available on this device (nvidia-smi manual, return values)."""
_IN_USE = re.compile(r"in use by|being used by", re.IGNORECASE)
_NOT_SUPPORTED = re.compile(r"not supported", re.IGNORECASE)


class ResetOutcome(StrEnum):
    """Result of `nvidia-smi --gpu-reset`."""

    DONE = "done"
    IN_USE = "in use"
    NOT_SUPPORTED = "not supported"
    FAILED = "failed"


class ResetAnswer(Struct, frozen=True):
    """Result of a reset, and nvidia-smi's message in one line."""

    outcome: ResetOutcome
    message: str


def read_reset_answer(code: int, text: str) -> ResetAnswer:
    """Interpret exit code and output. Partial success is a failure: the first cause in the output names it."""
    message = message_of(text)
    if _IN_USE.search(text):
        return ResetAnswer(ResetOutcome.IN_USE, message)
    if code == _NOT_AVAILABLE or _NOT_SUPPORTED.search(text):
        return ResetAnswer(ResetOutcome.NOT_SUPPORTED, message)
    if code == 0 and _DONE.search(text):
        return ResetAnswer(ResetOutcome.DONE, message)
    return ResetAnswer(ResetOutcome.FAILED, message or f"exit code {code}")


@dataclass
class NvidiaSmi:
    """Programs of this host, one at a time. `root` is the host's `/`, `driver` the root with nvidia-smi."""

    root: Path
    driver: Path
    _programs: HostPrograms = field(default_factory=HostPrograms)

    @classmethod
    def find(cls, root: Path) -> Self:
        """Raises ProbeError if there is no nvidia-smi."""
        driver = next((root / place for place in _ROOTS if host_files.is_executable(root / place, _NVIDIA_SMI)), None)
        if driver is None:
            raise ProbeError(f"neither the host nor {_ROOTS[1]} has {_NVIDIA_SMI}")
        return cls(root, driver)

    def reset(self, gpus: Sequence[str]) -> ResetAnswer:
        """Reset these GPUs together; `()` means all of the node."""
        which = ("-i", ",".join(gpus)) if gpus else ()
        try:
            code, text = self._programs.run(self.driver, _NVIDIA_SMI, "--gpu-reset", *which, seconds=RESET_SECONDS)
        except ProbeError as error:
            return ResetAnswer(ResetOutcome.FAILED, str(error))
        return read_reset_answer(code, text)

    def set_persistence(self, gpu: str, *, on: bool) -> None:
        """Switch the persistence mode, for which nvidia-persistenced holds the GPU. Raises ProbeError."""
        code, text = self._programs.run(self.driver, _NVIDIA_SMI, "-i", gpu, "-pm", str(int(on)))
        if code:
            raise ProbeError(f"nvidia-smi -pm: {message_of(text)}")

    def set_fabric_manager(self, *, on: bool) -> None:
        """Start or stop the host's fabric manager. Raises ProbeError."""
        systemctl(self._programs, self.root, "start" if on else "stop", FABRIC_MANAGER_UNIT)


# --- systemd

_RUNS_SYSTEMD = "run/systemd/system"
"""Folder that exists only on hosts whose first process is systemd (sd_booted(3))."""
_SYSTEMCTL = "systemctl"
_IGNORED = re.compile(r"ignoring (?:request|command)", re.IGNORECASE)
"""Output of systemctl, with exit code 0, if it takes the host's root for a chroot."""
_OTHER_WAY = "set REPAIR_CONDITIONS=GpuRebootRequired for a program that reboots nodes, or reboot it by hand"


def must_have_systemd(root: Path) -> None:
    """Raise ProbeError if the host does not run systemd, or has no systemctl to ask it."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if not (root / _RUNS_SYSTEMD).is_dir():
        why = "the host does not run systemd"
    elif not any(host_files.is_executable(root, f"{folder}/{_SYSTEMCTL}") for folder in folders):
        why = f"the host has no {_SYSTEMCTL} in {os.pathsep.join(folders)}"
    else:
        return
    raise ProbeError(f"{why}, so this command can't reboot it: {_OTHER_WAY}")


def request_reboot(root: Path) -> None:
    """Request a reboot, as `systemctl reboot` on the host does. Raises ProbeError if systemd does not accept it.

    The host's services are stopped in order, and an inhibitor is obeyed: --force would skip both.
    """
    try:
        systemctl(HostPrograms(), root, "reboot")
    except ProbeError as error:
        raise ProbeError(f"systemd has not accepted the reboot: {error}: {_OTHER_WAY}") from error


def systemctl(programs: HostPrograms, root: Path, *words: str) -> None:
    """Run systemctl on the host. Raises ProbeError if the request is refused or ignored, or has no answer in time."""
    code, text = programs.run(root, _SYSTEMCTL, *words)
    if code or _IGNORED.search(text):
        raise ProbeError(message_of(text) or f"exit code {code}")


# --- libraries

_LIBRARY = re.compile(r"lib(?:cuda|nvidia-[a-z0-9-]{1,40})\.so\.[0-9.]{1,20}\Z", re.ASCII)
_MOST_LIBRARIES = 512
"""Most libraries of one folder; a driver has about a hundred."""


def link_libraries(root: Path, folder: Path) -> None:
    """Link the host's libraries of the driver into this folder: the host's own folders also have its C library.

    What leads to no regular file is left out: a link in a circle or to nothing, a folder, a pipe that would block the
    loader. Raises OSError if the folder can't be written.
    """
    base = str(root).rstrip("/")
    for place in places_by_version(base):
        try:
            names = [name for name in names_in(resolve_inside(base, place)) if _LIBRARY.match(name)]
        except OSError:
            continue
        for name in names[:_MOST_LIBRARIES]:
            link, file = folder / name, None
            with suppress(OSError):
                file = Path(resolve_inside(base, f"{place}/{name}"))
            if file is not None and file.is_file() and not link.is_symlink():
                link.symlink_to(file)
