"""Pods that held the GPUs at the last reads of the driver, to compare the GPUs of one pod with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.nvml.gpus import SNAPSHOT_SECONDS, SUCCESS, DriverReading, Gpu, Gpus, ThrottledTime
from healthcheck.probes.pod_gpus import gpus_of_pod
from healthcheck.probes.pod_resources import PodDevices, read_pod_resources
from healthcheck.text.printable import printable

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
