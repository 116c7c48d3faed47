"""Synthetic figures of busy GPUs, from a simple model of their power, for `bench slow`.

Assumptions:

- Power is P0 + k * a * (f / fmax)^2.4: `a` is the demand of the work at the highest clock, `k` the quality of the chip
  (normal, 4 %, so its clock at the power limit varies by 1.7 %). The clock falls until the power is at the limit.
- A GPU that waits for the others spins at 30 to 40 % of its dynamic power, and counts as used. Meters of power have a
  constant error of up to 2 % (normal, 1 %). Clocks are sampled for 20 s at both ends of a window: the work of these
  samples varies by 1 %.
- Nodes have 8 GPUs (80 %) or 4, of four products, and are read every 300 s. A quarter have a power limit of 60 to 100 %
  on all GPUs. In a third the rear GPUs are up to 15 K hotter: 3 % more power, clocks up to 4 % lower by software
  thermal slowdown, and hardware thermal slowdown for up to 1 % of the time.
- Work of a pod lasts 8 h on average: steady training (35 %); bursts, busy at both ends of 30 % of the windows (15 %);
  stalls for data of up to 10 % of the samples, in which a GPU's clock may drop to a fifth (15 %); stages of a pipeline,
  of which some work for 60 to 100 % of the time of the others, with up to 15 % more or less demand (20 %); independent
  inference servers, each with its own demand and share of the time (15 %). 16 % of the nodes run two pods with four
  GPUs each.
- The siblings of a slow GPU wait for it, except in inference.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum

from gpu_healthcheck.healthcheck.checks.siblings import Figures

WINDOW_SECONDS = 300.0
_EXPONENT = 2.4
_JOB_WINDOWS = 8 * 3600 / WINDOW_SECONDS


@dataclass(frozen=True)
class Product:
    """Highest clock in MHz, memory clock, power limit and idle power in W."""

    mhz: float
    memory_mhz: float
    limit: float
    idle: float


PRODUCTS = (
    Product(1980, 2619, 700, 90),
    Product(1410, 1593, 400, 60),
    Product(1965, 3996, 1000, 140),
    Product(2520, 9001, 350, 40),
)


class Work(StrEnum):
    """Kinds of work."""

    TRAINING = "steady training"
    BURSTS = "bursts"
    STALLS = "stalls for data"
    PIPELINE = "pipeline"
    INFERENCE = "inference"


_SHARES = {Work.TRAINING: 35, Work.BURSTS: 15, Work.STALLS: 15, Work.PIPELINE: 20, Work.INFERENCE: 15}


class Fault(StrEnum):
    """Causes of a slow GPU."""

    HEAT = "software thermal slowdown"
    LOCK = "a lower maximum clock"
    BRAKE = "power brake for part of the time"
    LIMIT = "a lower power limit"
    MEMORY = "a lower memory clock"
    CHIP = "more power for the same clock"


@dataclass
class Gpu:
    """A GPU: its chip, its meter of power, and the effects of its place in the node."""

    quality: float
    meter: float
    heat: float


@dataclass
class Pod:
    """Work of one pod: demand and share of the time of each GPU."""

    work: Work
    windows_left: int
    demand: list[float]
    duty: list[float]


class BusyNode:
    """A node with one pod, or two pods, and optionally a slow GPU in the first."""

    def __init__(
        self, chance: random.Random, work: Work | None = None, fault: Fault | None = None, slower: float = 0.0
    ) -> None:
        self._chance = chance
        self._work = work
        self._product = chance.choice(PRODUCTS)
        count = 8 if chance.random() < 0.8 else 4
        split = count == 8 and chance.random() < 0.2
        self._sizes = (4, 4) if split else (count,)
        self._limit = self._product.limit * (chance.uniform(0.6, 1) if chance.random() < 0.25 else 1)
        is_hot = chance.random() < 1 / 3
        self._gpus = [
            Gpu(
                max(0.88, min(1.12, chance.gauss(1, 0.04))),
                max(0.98, min(1.02, chance.gauss(1, 0.01))),
                chance.random() if is_hot and index >= count // 2 else 0.0,
            )
            for index in range(count)
        ]
        self._fault, self._slower = fault, slower
        self.slow = chance.randrange(self._sizes[0]) if fault is not None else -1
        self._pods = [self._start(size) for size in self._sizes]

    def window(self) -> list[tuple[int, list[Figures] | None]]:
        """Return the first GPU and the figures of each pod in the next window; None if it was not busy."""
        found: list[tuple[int, list[Figures] | None]] = []
        first = 0
        for index, size in enumerate(self._sizes):
            pod = self._pods[index]
            pod.windows_left -= 1
            if pod.windows_left < 0:
                pod = self._pods[index] = self._start(size)
                found.append((first, None))  # another pod at one end
            else:
                found.append((first, self._figures(pod, first) if self._is_busy(pod) else None))
            first += size
        return found

    def _start(self, size: int) -> Pod:
        chance = self._chance
        work = self._work or chance.choices(list(_SHARES), list(_SHARES.values()))[0]
        usual = self._product.limit * chance.uniform(0.7, 1.8)
        demand, duty = [usual] * size, [chance.uniform(0.8, 1.0)] * size
        if work is Work.PIPELINE:
            least = chance.uniform(0.6, 1.0)
            heavy = chance.randrange(1, size)
            order = chance.sample(range(size), size)
            duty = [1.0 if order[index] < heavy else chance.uniform(least, 1.0) for index in range(size)]
            demand = [usual * chance.uniform(0.85, 1.15) for _ in range(size)]
        elif work is Work.INFERENCE:
            duty = [chance.uniform(0.3, 1.0) for _ in range(size)]
            demand = [usual * chance.uniform(0.5, 1.5) for _ in range(size)]
        windows = 10**9 if self._work else 1 + int(chance.expovariate(1 / _JOB_WINDOWS))
        return Pod(work, windows, demand, duty)

    def _is_busy(self, pod: Pod) -> bool:
        """Whether the samples at both ends show work."""
        if pod.work is Work.BURSTS:
            return self._chance.random() < 0.3
        if pod.work is Work.STALLS:
            return self._chance.random() < 0.6
        return True

    def _figures(self, pod: Pod, first: int) -> list[Figures]:
        chance, top, idle = self._chance, self._product.mhz, self._product.idle
        together = chance.gauss(1, 0.03)
        spin = self._product.limit * chance.uniform(0.3, 0.4)
        stall = chance.uniform(0, 0.1) if pod.work is Work.STALLS else 0.0
        waits = self._fault is not None and first == 0 and pod.work is not Work.INFERENCE
        figures = []
        for at, demand in enumerate(pod.demand):
            gpu, duty = self._gpus[first + at], pod.duty[at]
            is_slow = first + at == self.slow
            if pod.work is Work.INFERENCE:
                duty = pod.duty[at] = min(1.0, max(0.2, duty + chance.gauss(0, 0.05)))
            watts = demand * together * gpu.quality * (1 + 0.03 * gpu.heat)
            clock, power, capped = _run(top, idle, watts, self._limit)
            waiting, waiting_power, waiting_capped = _run(top, idle, spin * gpu.quality, self._limit)
            hot = 1 - 0.04 * gpu.heat * chance.random()
            memory, brake = self._product.memory_mhz, 0.01 * gpu.heat * chance.random()
            if is_slow:
                clock, power, capped, memory, brake = self._slow(clock, power, capped, watts)
                duty = min(1.0, duty / (1 - self._slower)) if waits else duty
            elif waits:
                duty *= (1 - self._slower) / max(1 - self._slower, pod.duty[self.slow])
            if is_slow and self._fault in (Fault.HEAT, Fault.LOCK, Fault.BRAKE):
                waiting *= 1 - self._slower
            # The clock of the samples, and the power of the whole window.
            now = min(1.0, max(0.0, duty * chance.gauss(1, 0.01)))
            mhz = (now * clock + (1 - now) * waiting) * hot * (1 - brake / 2 * (not is_slow)) + chance.gauss(0, 4)
            if stall and chance.random() < 0.5:
                mhz *= 1 - 0.8 * stall * chance.uniform(0.7, 1.0)
            figures.append(
                Figures(
                    mhz,
                    memory,
                    (duty * power + (1 - duty) * waiting_power) * gpu.meter * chance.gauss(1, 0.005),
                    duty * capped + (1 - duty) * waiting_capped,
                    brake,
                )
            )
        return figures

    def _slow(
        self, clock: float, power: float, capped: float, watts: float
    ) -> tuple[float, float, float, float, float]:
        """Return clock, power, share at the power limit, memory clock and share in slowdown of the slow GPU."""
        idle, memory, rest = self._product.idle, self._product.memory_mhz, 1 - self._slower
        lower = clock * rest
        needed = idle + watts * (lower / self._product.mhz) ** _EXPONENT
        match self._fault:
            case Fault.MEMORY:
                return clock, power * 0.95, 0.0, memory * rest, 0.0
            case Fault.BRAKE:
                # Half the clock in the brake.
                return lower, power * (1 - 1.5 * self._slower), capped, memory, 2 * self._slower
            case Fault.CHIP:
                return lower, max(power, self._limit if capped else power), max(capped, 1.0), memory, 0.0
            case Fault.LIMIT:
                return lower, needed, 1.0, memory, 0.0
            case _:
                return lower, needed, 0.0, memory, 0.0


def _run(top: float, idle: float, watts: float, limit: float) -> tuple[float, float, float]:
    """Return clock, power and share of the time at the power limit of a demand at the highest clock."""
    if idle + watts <= limit:
        return top, idle + watts, 0.0
    return top * math.pow((limit - idle) / watts, 1 / _EXPONENT), limit, 1.0
