"""Series of reads of GPUs, from the measured forms of work and of waiting on an H200 (700 W, driver 580.159.04)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gpu_healthcheck.healthcheck.model import Now
from gpu_healthcheck.healthcheck.probes.kubelet_pods import LocalPod
from gpu_healthcheck.healthcheck.probes.nvml.gpus import DriverReading, Gpu, Gpus, Load, Mode, Samples
from gpu_healthcheck.healthcheck.verdict.work import WorkRow
from gpu_healthcheck.healthcheck.verdict.work_seen import GpuPod, GpuWork, NamedWork, named_works, work_seen

START = datetime(2026, 11, 29, 14, 0, tzinfo=UTC)
UUID = "GPU-00000000-51e0-4000-8000-000000000001"
LIMIT_MILLIWATTS = 700_000
PERIOD, SAMPLES = 1 / 6, 120
"""Seconds between two samples of the driver, and their number in its buffer."""


class Form(NamedTuple):
    """Percent of the time in which the GPU and its memory are busy, and power in parts of the default limit."""

    busy: float
    memory: float
    power: float


WAITS, PRODUCTS, COPIES = Form(100, 0, 0.19), Form(99, 23, 1.0), Form(99, 100, 0.8)
DECODING, TINY, LOADER = Form(98, 88, 0.8), Form(28, 0, 0.2), Form(0, 0, 0.19)
OPEN, CLOSED = Form(0, 0, 0.18), Form(0, 0, 0.12)
"""Idle, with and without a context."""


@dataclass
class Work:
    """Phases of a GPU as seconds and form, repeated from the first one if `repeats`, else the last one stays."""

    phases: Sequence[tuple[float, Form]]
    repeats: bool = False

    def __post_init__(self) -> None:
        self._length = sum(seconds for seconds, _ in self.phases)
        self._joules = sum(seconds * form.power for seconds, form in self.phases)

    def at(self, seconds: float) -> Form:
        left = seconds % self._length if self.repeats else seconds
        for length, form in self.phases:
            if left < length:
                return form
            left -= length
        return self.phases[-1][1]

    def energy(self, seconds: float) -> float:
        """Seconds at the full limit since the start."""
        rounds, left = divmod(seconds, self._length) if self.repeats else (0.0, seconds)
        used = rounds * self._joules
        for length, form in self.phases:
            used += min(left, length) * form.power
            left -= min(left, length)
        return used + left * self.phases[-1][1].power


def samples(work: Work, end: float, kind: int, noise: random.Random | None = None) -> Samples:
    values = []
    for number in range(SAMPLES):
        percent = work.at(max(end - number * PERIOD, 0.0))[kind]
        spread = noise.uniform(-2, 2) if noise is not None and 0 < percent < 100 else 0.0
        values.append(round(min(max(percent + spread, 0), 100)))
    return Samples(SAMPLES, round(SAMPLES * PERIOD * 1e6), sum(values), min(values), max(values))


def gpu_at(work: Work, at: float, noise: random.Random | None = None, index: int = 0) -> Gpu:
    busy = samples(work, at, 0, noise)
    load = Load(utilisation=busy)
    if busy.total:
        load = Load(
            power_milliwatts=round(work.at(at).power * LIMIT_MILLIWATTS),
            energy_millijoules=round(work.energy(at) * LIMIT_MILLIWATTS),
            utilisation=busy,
            memory_utilisation=samples(work, at, 1, noise),
            default_power_limit_milliwatts=LIMIT_MILLIWATTS,
        )
    address, uuid = f"0000:{index:02x}:00.0", f"{UUID[:-2]}{index + 1:02x}"
    mode = Mode(current=False, pending=False)
    return Gpu(index, address=address, uuid=uuid, name="NVIDIA H200", load=load, mig_mode=mode)


def pod_of(*indices: int, name: str = "train-3", started: float = -3600.0, expects: bool = False) -> GpuPod:
    """Return the pod that holds these GPUs, started so many seconds after START."""
    pod = LocalPod("ml", name, expects_waiting=expects, started=int(START.timestamp() + started))
    return GpuPod(pod, f"{name:-<8}-uid", frozenset(f"gpu/0000:{index:02x}:00.0" for index in indices))


POD = pod_of(0)


class Cycle(NamedTuple):
    """A check cycle so many seconds after START, and the GPUs that it names."""

    at: float
    named: dict[str, NamedWork]

    @property
    def rows(self) -> dict[str, WorkRow]:
        return {uuid: entry.row for uuid, entry in self.named.items()}


def cycles(
    reads: Sequence[tuple[float, Sequence[Gpu] | DriverReading]],
    pods: Sequence[GpuPod] = (POD,),
    wall_jumps: float = 0.0,
) -> Iterator[Cycle]:
    """Judge these reads at their seconds after START. The wall clock jumps in the middle."""
    seen: dict[str, GpuWork] = {}
    for number, (at, gpus) in enumerate(reads):
        wall = START + timedelta(seconds=at + (wall_jumps if number > len(reads) // 2 else 0.0))
        reading = (
            gpus if isinstance(gpus, DriverReading) else DriverReading(Gpus("580", "lib", tuple(gpus)), read_at=at)
        )
        seen = work_seen(seen, reading, Now(wall, at))
        yield Cycle(at, named_works([work for work in seen.values() if work.is_due], pods, wall))


def every(
    interval: float, work: Work, until: float, noise: random.Random | None = None
) -> list[tuple[float, list[Gpu]]]:
    """Return the reads of one GPU at this interval."""
    number = int(until / interval) + 1
    return [(count * interval, [gpu_at(work, count * interval, noise)]) for count in range(number)]
