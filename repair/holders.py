"""Processes with open GPU device files, and pods with these GPUs. Nothing here ends a process."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from healthcheck.host.command import ChildError, MissedDeadline
from healthcheck.host.kernel_files import is_gone, read
from healthcheck.host.open_devices import OpenDevices
from healthcheck.host.opening import entries_of
from healthcheck.model import Host, ProbeError
from healthcheck.node.gpu_resources import gpu_pod
from healthcheck.operations.gpu_holders import HolderKind, holder_kind, title
from healthcheck.probes.container_runtime import processes
from healthcheck.probes.device_files import NVIDIA_MAJOR
from healthcheck.probes.kubelet_pods import uid_of
from healthcheck.probes.pod_resources import PodDevices, holds_gpus, read_pod_resources
from healthcheck.text.printable import printable

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
