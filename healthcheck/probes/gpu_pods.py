"""Pods that held the GPUs at the last reads of the driver, to compare the GPUs of one pod with each other.

The GPUs of a pod follow from the device ids of the device plugins and of NVIDIA's DRA driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError
from gpu_healthcheck.healthcheck.probes.nvml.gpus import (
    SNAPSHOT_SECONDS,
    SUCCESS,
    DriverReading,
    Gpu,
    Gpus,
    ThrottledTime,
)
from gpu_healthcheck.healthcheck.probes.pod_resources import DRA_DRIVER, PodDevices, is_gpu, read_pod_resources
from gpu_healthcheck.healthcheck.text.printable import printable

_WHOLE = re.compile(r"(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:::[0-9]+)?\Z", re.ASCII)
"""Device of NVIDIA's device plugin: a GPU by UUID, or a time-sliced or MPS share of it (`::N`)."""
_MIG = re.compile(r"(MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:::[0-9]+)?\Z", re.ASCII)
"""MIG instance by its own UUID, since R470, or a share of it."""
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/[0-9]+/[0-9]+\Z", re.ASCII)
_BY_MINOR = re.compile(r"nvidia([0-9]{1,3})(?:/(?:gi|vgpu)[0-9]+)*\Z", re.ASCII)
"""Device of GKE's device plugin: the minor number, and a part of the GPU."""
_DRA = re.compile(r"gpu-([0-9]{1,3})(?:-mig-[0-9a-z.+-]+)?\Z", re.ASCII)
"""Device of NVIDIA's DRA driver: the minor number, and a MIG instance."""


def gpus_of_pod(
    pod: PodDevices,
    gpus: Collection[Gpu],
    former: Mapping[str, str] = MappingProxyType({}),
    hami_gpus: Collection[str] = (),
) -> frozenset[str] | None:
    """Return the subjects of the pod's GPUs and MIG instances; None if it has none, or if a device can't be assigned.

    `former`: subjects by UUID of GPUs that may not answer any more. `hami_gpus`: UUIDs by HAMi's annotation, because
    HAMi's device ids name no certain GPU.
    """
    by_id = {**former, **{gpu.uuid: gpu.subject for gpu in gpus}}
    for gpu in gpus:
        by_id |= {uuid: f"{gpu.subject}/gi{instance}" for uuid, instance in (gpu.mig_devices or {}).items()}
    by_minor = {str(gpu.minor): gpu.subject for gpu in gpus if gpu.minor is not None}
    found = {by_id.get(uuid, "") for uuid in hami_gpus}
    for container in pod.containers if not hami_gpus else ():
        ids = [device_id for devices in container.devices if is_gpu(devices.resource) for device_id in devices.ids]
        claimed = [
            device.device for claim in container.claims for device in claim.devices if device.driver == DRA_DRIVER
        ]
        for device_id in ids:
            uuid, minor = (
                _WHOLE.match(device_id) or _MIG.match(device_id) or _OLD_MIG.match(device_id),
                _BY_MINOR.match(device_id),
            )
            found.add((by_id.get(uuid[1], "") if uuid else "") or (by_minor.get(minor[1], "") if minor else ""))
        for device_id in claimed:
            minor = _DRA.match(device_id)
            found.add(by_minor.get(minor[1], "") if minor else "")
    return frozenset(found) if found and "" not in found else None


LEAST_BUSY_GPUS = 4
"""Fewest busy GPUs for which the kubelet is asked: with fewer there is nothing to compare."""
LEAST_BUSY_PERCENT = 90.0
LEAST_DIFFERENCE = 0.1
"""Difference of two clocks in parts of the higher one, or time in hardware slowdown, above which pods matter."""
_LEAST_SAMPLES = 10
_ASKED_SECONDS = 3600.0
"""Time after a difference in which the kubelet is asked: a window needs the pods at both ends."""


class GpuPods(Struct, frozen=True):
    """Pods of the GPUs at the time `at` of a read of the driver (`DriverReading.read_at`)."""

    at: float
    pods: Mapping[str, str] = field(default_factory=dict)
    """`namespace/name` by the GPU's subject, for GPUs of exactly one pod."""
    error: str = ""
    """Error of the kubelet; '' if it answered."""


def is_busy(gpu: Gpu) -> bool:
    """Whether the GPU was used for at least 90 % of the time that the driver's samples cover, about 20 s."""
    samples = gpu.load.utilisation if gpu.load is not None else None
    return samples is not None and samples.count >= _LEAST_SAMPLES and samples.mean >= LEAST_BUSY_PERCENT


def clocks_differ(clocks: Iterable[float | None]) -> bool:
    """Whether the lowest of these clocks is far below the highest."""
    known = [clock for clock in clocks if clock is not None]
    return bool(known) and min(known) < (1 - LEAST_DIFFERENCE) * max(known)


def may_differ(reading: DriverReading, gpus: Sequence[Gpu]) -> bool:
    """Whether some of these GPUs may be slower than others, by their clocks now or slowdown since the last snapshot."""
    loads = [gpu.load for gpu in gpus if gpu.load is not None]
    if clocks_differ([load.mean_sm_mhz for load in loads]) or clocks_differ([load.mean_memory_mhz for load in loads]):
        return True
    if not reading.history:
        return False
    before = {gpu.uuid: gpu.throttled for gpu in reading.history[-1].gpus}
    least = LEAST_DIFFERENCE * 1e9 * (reading.read_at - reading.history[-1].at)
    return any(_slowdown(gpu.throttled) - _slowdown(before.get(gpu.uuid)) > least for gpu in gpus)


def _slowdown(time: ThrottledTime | None) -> int:
    """Return the nanoseconds in hardware thermal slowdown and power brake."""
    return 0 if time is None else (time.hardware_thermal or 0) + (time.power_brake or 0)


class GpuPodsReader:
    """Reader of the pods at the snapshots of the driver's history.

    The kubelet is asked only while busy GPUs differ, because its answer takes a process.
    """

    def __init__(self, root: Path, read: Callable[[Host], tuple[PodDevices, ...]] = read_pod_resources) -> None:
        self._host = Host(root)
        self._read = read
        self._kept: tuple[GpuPods, ...] = ()
        self._differed_at: float | None = None

    def read(self, reading: DriverReading) -> tuple[GpuPods, ...]:
        """Return the pods at the snapshots of this reading's history and, if it is due, at this reading."""
        times = {snapshot.at for snapshot in reading.history}
        self._kept = tuple(kept for kept in self._kept if kept.at in times)
        if isinstance(reading.answer, Gpus) and is_due(reading):
            gpus = [gpu for gpu in reading.answer.gpus if gpu.error == SUCCESS]
            busy = [gpu for gpu in gpus if is_busy(gpu)]
            if len(busy) >= LEAST_BUSY_GPUS and self._matter(reading, busy):
                self._kept += (read_pods_of(self._host, reading.read_at, gpus, self._read),)
        return self._kept

    def _matter(self, reading: DriverReading, busy: list[Gpu]) -> bool:
        """Whether the busy GPUs differ or did so recently."""
        if may_differ(reading, busy):
            self._differed_at = reading.read_at
        return self._differed_at is not None and reading.read_at - self._differed_at < _ASKED_SECONDS


def read_pods_of(
    host: Host,
    at: float,
    gpus: list[Gpu],
    read: Callable[[Host], tuple[PodDevices, ...]] = read_pod_resources,
) -> GpuPods:
    """Ask the kubelet for the pods of these GPUs, read at this time."""
    try:
        pods = read(host)
    except ProbeError as error:
        return GpuPods(at, error=printable(str(error)))
    return GpuPods(at, pods_by_gpu(pods, gpus))


def is_due(reading: DriverReading) -> bool:
    """Whether this reading becomes a snapshot of the history."""
    return not reading.history or reading.read_at - reading.history[-1].at >= SNAPSHOT_SECONDS


def pods_by_gpu(pods: tuple[PodDevices, ...], gpus: list[Gpu]) -> dict[str, str]:
    """Return the pod of each GPU, without GPUs that several pods share."""
    found: dict[str, str] = {}
    shared: set[str] = set()
    for pod in pods:
        for subject in gpus_of_pod(pod, gpus) or ():
            if subject in found:
                shared.add(subject)
            found[subject] = f"{pod.namespace}/{pod.name}"
    return {subject: name for subject, name in found.items() if subject not in shared}


def read_gpu_pods(host: Host) -> tuple[GpuPods, ...]:
    pods: tuple[GpuPods, ...] = host.ask_gpu_pods() if host.ask_gpu_pods is not None else ()
    return pods


GPU_PODS = Probe("gpu-pods", read_gpu_pods, tuple[GpuPods, ...])
