"""Comparison of the GPUs that one pod holds, in one window between two reads: which are slower than the others.

Pure functions over figures. A GPU that waits for its siblings runs at full clocks with less power. A GPU that works
harder has lower clocks only at its power limit. So a lower clock counts if something else holds it down. Power,
temperature and rates of transfers depend on the work, and never count by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gpu_healthcheck.healthcheck.probes.gpu_pods import LEAST_DIFFERENCE, clocks_differ

LEAST_SIBLINGS = 4
"""Fewest GPUs, including the judged one, that are compared."""
MOST_DEVIATIONS = 5.0
"""Distance from the siblings' median, in standard deviations, above which a value is an outlier."""
OUTLIERS, WINDOWS = 3, 6
"""Windows with an outlier among the last judged ones that make a finding."""
_PER_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""
_LEAST_MHZ = 15.0
"""Step of NVIDIA's clocks, and the least standard deviation of a clock."""
_LEAST_SHARE = 0.02
"""Least standard deviation of a part of the time: a tenth is then an outlier."""
_CAPPED, _ALWAYS_CAPPED, _LESS_POWER = 0.1, 0.9, 0.88
"""Parts of the time at the power limit, and part of the siblings' power.

At the power limit, harder work lowers the clock. Of a GPU that is always there with less power than its siblings, the
limit itself is lower.
"""


class Figures(Struct, frozen=True):
    """Figures of one GPU in one window. None: not reported."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    capped: float | None = None
    """Part of the time at the power limit."""
    hardware_slowdown: float | None = None
    """Part of the time in hardware thermal slowdown or power brake."""


class Deviation(Struct, frozen=True):
    """A figure by which a GPU is slower than its siblings, with their median."""

    name: str
    value: float
    median: float


def slower(figures: Sequence[Figures]) -> list[tuple[Deviation, ...] | None]:
    """Return for each GPU the figures by which it is slower than the others; `()` for none, None for an unknown clock.

    The GPUs are of one product, do the work of one pod and were busy.
    """
    clocks, watts = [gpu.sm_mhz for gpu in figures], [gpu.watts for gpu in figures]
    known = [clock is not None and power is not None for clock, power in zip(clocks, watts, strict=True)]
    is_enough = sum(known) >= LEAST_SIBLINGS
    found: list[tuple[Deviation, ...] | None] = [() if clock and is_enough else None for clock in known]
    for index, low in _low(clocks):
        if found[index] is not None and not _works_harder(index, figures):
            found[index] = (*(found[index] or ()), Deviation("sm_mhz", *low))
    for index, low in _low([gpu.memory_mhz for gpu in figures]):
        found[index] = (*(found[index] or ()), Deviation("memory_mhz", *low))
    for index, high in _high([gpu.hardware_slowdown for gpu in figures]):
        found[index] = (*(found[index] or ()), Deviation("hardware_slowdown", *high))
    return found


def are_alike(figures: Sequence[Figures]) -> bool:
    """Whether no GPU can be slower than others, whichever of them are compared."""
    shares = [gpu.hardware_slowdown for gpu in figures]
    clocks = ([gpu.sm_mhz for gpu in figures], [gpu.memory_mhz for gpu in figures])
    return not any(map(clocks_differ, clocks)) and not _shares_differ(shares)


def is_slow(outliers: Sequence[bool]) -> bool | None:
    """Return whether a GPU is slow, by its last judged windows; None if they are too few."""
    slow = sum(outliers)
    if slow >= OUTLIERS:
        return True
    return False if len(outliers) - slow > WINDOWS - OUTLIERS else None


def median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _low(clocks: Sequence[float | None]) -> list[tuple[int, tuple[float, float]]]:
    """Return index, value and the others' median of each clock that is too low."""
    if _are_few(clocks) or not clocks_differ(clocks):
        return []
    found = []
    for index, clock in enumerate(clocks):
        if clock is None:
            continue
        usual, deviation = _spread_of_others(clocks, index, _LEAST_MHZ)
        if usual - clock > max(LEAST_DIFFERENCE * usual, MOST_DEVIATIONS * deviation):
            found.append((index, (clock, usual)))
    return found


def _high(shares: Sequence[float | None]) -> list[tuple[int, tuple[float, float]]]:
    """Return index, value and the others' median of each part of the time that is too long."""
    if _are_few(shares) or not _shares_differ(shares):
        return []
    found = []
    for index, share in enumerate(shares):
        if share is None:
            continue
        usual, deviation = _spread_of_others(shares, index, _LEAST_SHARE)
        if share - usual > max(LEAST_DIFFERENCE, MOST_DEVIATIONS * deviation):
            found.append((index, (share, usual)))
    return found


def _are_few(values: Sequence[float | None]) -> bool:
    return len(values) - values.count(None) < LEAST_SIBLINGS


def _shares_differ(shares: Sequence[float | None]) -> bool:
    known = [share for share in shares if share is not None]
    return bool(known) and max(known) - min(known) > LEAST_DIFFERENCE


def _spread_of_others(values: Sequence[float | None], index: int, least: float) -> tuple[float, float]:
    """Return the median and the standard deviation of the other values."""
    other_values = [value for at, value in enumerate(values) if value is not None and at != index]
    usual = median(other_values)
    return usual, max(_PER_DEVIATION * median([abs(value - usual) for value in other_values]), least)


def _works_harder(index: int, figures: Sequence[Figures]) -> bool:
    """Whether the GPU's power explains its low clock."""
    capped, own = figures[index].capped, figures[index].watts or 0.0
    usual = median([gpu.watts for at, gpu in enumerate(figures) if at != index and gpu.watts is not None])
    if capped is None:
        return own > usual
    return capped > _CAPPED and (capped < _ALWAYS_CAPPED or own > usual * _LESS_POWER)
