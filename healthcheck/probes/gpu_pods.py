"""Pods that held the GPUs at the last reads of the driver, to compare the GPUs of one pod with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.nvml.gpus import SNAPSHOT_SECONDS, SUCCESS, DriverReading, Gpu, Gpus
from healthcheck.probes.pod_gpus import gpus_of_pod
from healthcheck.probes.pod_resources import PodDevices, read_pod_resources
from healthcheck.text.printable import printable

LEAST_BUSY_GPUS = 4
"""Fewest busy GPUs for which the kubelet is asked: with fewer there is nothing to compare."""
LEAST_BUSY_PERCENT = 90.0
_LEAST_SAMPLES = 10


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


class GpuPodsReader:
    """Reader of the pods for each snapshot of the driver's history in which enough GPUs are busy."""

    def __init__(self, root: Path, read: Callable[[Host], tuple[PodDevices, ...]] = read_pod_resources) -> None:
        self._host = Host(root)
        self._read = read
        self._kept: tuple[GpuPods, ...] = ()

    def look(self, reading: DriverReading) -> tuple[GpuPods, ...]:
        """Return the pods at the snapshots of this reading's history and, if it is due, at this reading."""
        times = {snapshot.at for snapshot in reading.history}
        self._kept = tuple(entry for entry in self._kept if entry.at in times)
        if isinstance(reading.answer, Gpus) and is_due(reading):
            gpus = [gpu for gpu in reading.answer.gpus if gpu.error == SUCCESS]
            if sum(is_busy(gpu) for gpu in gpus) >= LEAST_BUSY_GPUS:
                self._kept += (self._ask(reading.read_at, gpus),)
        return self._kept

    def _ask(self, at: float, gpus: list[Gpu]) -> GpuPods:
        try:
            pods = self._read(self._host)
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
