"""Work of each GPU, from the driver's samples of successive check cycles. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.model import Now
from gpu_healthcheck.healthcheck.probes.kubelet_pods import LocalPod
from gpu_healthcheck.healthcheck.probes.nvml.gpus import SUCCESS, DriverReading, Gpu, Gpus, Load
from gpu_healthcheck.healthcheck.verdict.work import LONGEST, POD_DIGITS, Work, WorkRow

LEAST_BUSY_PERCENT, MOST_MEMORY_PERCENT, MOST_POWER = 99, 1, 0.25
"""Signature of a kernel that polls: each sample of the GPU and of its memory, and power in parts of the default limit.

Measured on an H200 with a limit of 700 W (driver 580.159.04), in eight forms of waiting: 100 %, 0 %, and 0.18 to 0.20.
The real load closest to it, many tiny kernels, had 28 %, 0 % and 0.20. Other products are unmeasured.
"""
LEAST_SECONDS, LEAST_CYCLES = 600.0, 2
"""Shortest time that a GPU waits or idles before it is named: NCCL may need minutes to initialise a large job."""
_SHORTEST_SECONDS, _SILENT_SECONDS = 5.0, 900.0
"""Time between two reads below which the energy counter is too coarse; silence of the driver that ends a row."""
_LEAST_SAMPLES = 10
MOST_NAMED = LONGEST // 113
"""Most rows of a record: each has up to 113 bytes of JSON."""


class GpuWork(Struct, frozen=True):
    """Work of a GPU at the last read of the driver; None if it works, or if that is unknown.

    `since` is the first of the reads that all show it, and `cycles` their number after the first. `…_at` are seconds of
    CLOCK_MONOTONIC.
    """

    gpu: Gpu
    read_at: float
    work: Work | None
    since: datetime
    since_at: float
    cycles: int = 0

    @property
    def seconds(self) -> float:
        return self.read_at - self.since_at

    @property
    def is_due(self) -> bool:
        return self.work is not None and self.cycles >= LEAST_CYCLES and self.seconds >= LEAST_SECONDS


class GpuPod(Struct, frozen=True):
    """A running pod of the node, with the subjects of its GPUs."""

    pod: LocalPod
    uid: str
    gpus: frozenset[str]


class NamedWork(Struct, frozen=True):
    """A GPU that waits or idles, its row in the record, and the pod that holds it alone; None if there is none."""

    work: GpuWork
    row: WorkRow
    holder: GpuPod | None

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the GPU's index and UUID, and namespace and name of the pod."""
        names = (self.holder.pod.namespace, self.holder.pod.name) if self.holder else ("", "")
        return (str(self.work.gpu.index), self.work.gpu.uuid, *names)


def work_seen(before: Mapping[str, GpuWork], reading: DriverReading, now: Now) -> dict[str, GpuWork]:
    """Return the work of each GPU by UUID, after one more read of the driver.

    A read without an answer changes nothing: the energy counter bridges it.
    """
    if not isinstance(reading.answer, Gpus):
        return {uuid: work for uuid, work in before.items() if now.monotonic - work.read_at <= _SILENT_SECONDS}
    gpus = [gpu for gpu in reading.answer.gpus if gpu.error == SUCCESS]
    return {gpu.uuid: _after(before.get(gpu.uuid), gpu, reading.read_at, now.wall) for gpu in gpus}


def _after(before: GpuWork | None, gpu: Gpu, read_at: float, now: datetime) -> GpuWork:
    first = GpuWork(gpu, read_at, _work(gpu), now.replace(microsecond=0), read_at)
    if before is None or first.work is not before.work:
        return first
    seconds = read_at - before.read_at
    if seconds < _SHORTEST_SECONDS:
        return before
    if first.work is Work.WAITING and not _saved_power(before.gpu.load or Load(), gpu.load or Load(), seconds):
        return first
    return replace(first, since=before.since, since_at=before.since_at, cycles=before.cycles + 1)


def _work(gpu: Gpu) -> Work | None:
    """Return the work in the driver's samples of about 20 s."""
    load = gpu.load or Load()
    samples, memory = load.utilisation, load.memory_utilisation
    if samples is None or samples.count < _LEAST_SAMPLES or (gpu.mig_mode and gpu.mig_mode.current):
        return None
    if samples.greatest == 0:
        return Work.IDLE
    is_idle_memory = memory is not None and memory.greatest is not None and memory.greatest <= MOST_MEMORY_PERCENT
    return Work.WAITING if (samples.least or 0) >= LEAST_BUSY_PERCENT and is_idle_memory else None


def _saved_power(before: Load, after: Load, seconds: float) -> bool:
    """Whether the mean power between two reads is that of a GPU that waits; without the counter, both present values.

    False if it is unknown, and if the counter went back because the driver was loaded again.
    """
    if after.default_power_limit_milliwatts is None:
        return False
    most = MOST_POWER * after.default_power_limit_milliwatts
    if before.energy_millijoules is not None and after.energy_millijoules is not None:
        return 0 <= after.energy_millijoules - before.energy_millijoules <= most * seconds
    powers = (before.power_milliwatts, after.power_milliwatts)
    return all(power is not None and power <= most for power in powers)


def named_works(works: Iterable[GpuWork], pods: Iterable[GpuPod], now: datetime) -> dict[str, NamedWork]:
    """Return the GPUs to name by UUID, of those whose work is due.

    A GPU waits, whatever holds it; it idles only under a pod, and not before the pod's start. A GPU whose pods all
    expect it is left out.
    """
    named: dict[str, NamedWork] = {}
    for work in works:
        holders = [pod for pod in pods if work.gpu.subject in pod.gpus]
        is_idle = work.work is Work.IDLE
        started = max([0, *(pod.pod.started for pod in holders if is_idle)])
        is_new = is_idle and (not holders or now.timestamp() - started < LEAST_SECONDS)
        if is_new or (holders and all(pod.pod.expects_waiting for pod in holders)):
            continue
        holder = holders[0] if len(holders) == 1 else None
        since = max(work.since, datetime.fromtimestamp(started, UTC))
        row = WorkRow(state=work.work, since=since, pod=holder.uid[:POD_DIGITS] if holder else None)
        named[work.gpu.uuid] = NamedWork(work, row, holder)
    return named


def waiting_pods(waiting: Sequence[NamedWork]) -> dict[tuple[str, ...], float]:
    """Return the seconds for which all GPUs of a pod wait, by the pod's namespace and name."""
    seconds = {entry.work.gpu.subject: entry.work.seconds for entry in waiting}
    holders = {entry.labels[2:]: entry.holder.gpus for entry in waiting if entry.holder}
    return {names: min(map(seconds.__getitem__, gpus)) for names, gpus in holders.items() if gpus <= seconds.keys()}
