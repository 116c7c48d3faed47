"""Result of a measure: rows of the table, and the raw figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class CouldNotMeasure(Exception):
    """The measure could not run on this machine, or a measured program failed. The message has the reason."""


@dataclass(frozen=True)
class Row:
    """One line of the table. `met` None: there is no aim, or the run was too short to judge."""

    what: str
    aim: str
    figure: str
    met: bool | None = None


@dataclass(frozen=True)
class Outcome:
    """Result of a measure: its rows and raw figures."""

    rows: tuple[Row, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes on the conditions of the figures."""


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank, which is always a measured value."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def summary(samples: Sequence[float]) -> dict[str, Any]:
    return {
        "count": len(samples),
        "min": round(min(samples), 3),
        "mean": round(statistics.fmean(samples), 3),
        "p50": round(percentile(samples, 0.50), 3),
        "p90": round(percentile(samples, 0.90), 3),
        "p99": round(percentile(samples, 0.99), 3),
        "max": round(max(samples), 3),
    }
