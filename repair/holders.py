"""Processes with open GPU device files, and pods with these GPUs. Nothing here ends a process."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from healthcheck.host.kernel_files import is_gone, read
from healthcheck.host.opening import entries_of, refuse_shortage
from healthcheck.model import Host, ProbeError
from healthcheck.node.gpu_resources import gpu_pod
from healthcheck.operations.gpu_holders import HolderKind, holder_kind, title
from healthcheck.probes.container_runtime import processes
from healthcheck.probes.kubelet_pods import uid_of
from healthcheck.probes.pod_resources import PodDevices, holds_gpus, read_pod_resources
from healthcheck.text.printable import printable

_NVIDIA_MAJOR = 195
"""Major number of /dev/nvidia0 and following (Linux, admin-guide/devices.txt)."""
_MOST_GPUS = 254
_DEVICE = re.compile(r"/dev/nvidia([0-9]{1,3})(?: \(deleted\))?\Z", re.ASCII)
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
    """Yield the processes with open device files of these minor numbers. Raises ProbeError if some are hidden."""
    if not processes.are_the_hosts(root):
        raise ProbeError("the processes of the host are not visible")
    own = os.getpid()
    try:
        for entry in entries_of(root / "proc"):
            pid = entry.name
            if pid.isascii() and pid.isdigit() and int(pid) != own and _has_open(root / "proc" / pid / "fd", minors):
                yield Process(int(pid), *_names(root / "proc" / pid))
    except OSError as error:
        raise ProbeError(f"{error.filename}: {error.strerror}") from error


def _has_open(folder: Path, minors: Collection[int]) -> bool:
    try:
        return any(_minor(entry.path) in minors for entry in entries_of(folder))
    except OSError as error:
        if is_gone(error):
            return False
        raise


def _minor(link: str) -> int:
    """Return the minor number of the GPU's device file behind this link; -1 for other files.

    Only links into a /dev are followed: a file on a network that does not answer would block.
    """
    try:
        name = os.readlink(link)  # noqa: PTH115 - thousands of links
    except OSError:
        return -1
    if not name.startswith("/dev/"):
        return -1
    try:
        about = os.stat(link)  # noqa: PTH116
    except OSError as error:
        refuse_shortage(error)
    else:
        if stat.S_ISCHR(about.st_mode):
            return os.minor(about.st_rdev) if _is_gpu(about.st_rdev) else -1
    named = _DEVICE.match(name)
    return int(named[1]) if named else -1


def _is_gpu(device: int) -> bool:
    return os.major(device) == _NVIDIA_MAJOR and os.minor(device) <= _MOST_GPUS


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
    return {name for name, ids in names if name in holding and any(_is_one_of(text, uuids) for text in ids)}


def _ids(pod: PodDevices) -> Iterator[str]:
    for container in pod.containers:
        for devices in container.devices:
            yield from devices.ids
        yield from (claim.name for claim in container.claims)


def _is_one_of(device: str, uuids: Collection[str]) -> bool:
    return not device.startswith("GPU-") or any(device.startswith(uuid) for uuid in uuids)


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
