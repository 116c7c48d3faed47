"""Results of Prometheus: samples with their labels, and the pods that these may name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice

from diagnosis.snapshot.json_fields import Fields

Pair = tuple[str, str]
EXPORTED: Pair = ("exported_namespace", "exported_pod")
OWN: Pair = ("namespace", "pod")
"""Pod labels. If Prometheus keeps its own, `pod` is the exporter's and `exported_pod` the workload's."""
_MOST_SERIES = 200_000
_LONGEST = 40


def samples(series: Iterable[object], most: float) -> Iterator[tuple[Fields, float]]:
    """Yield labels and number of each sample in a vector, from 0 to `most`.

    Exporters write numbers beyond this range for unknown.
    """
    for one in islice(series, _MOST_SERIES):
        number = _number(one.get("value")) if isinstance(one, dict) else None
        if number is not None and 0 <= number <= most:
            yield Fields(one).at("metric"), number


def pods(labels: Fields, *pairs: Pair) -> tuple[Pair, ...]:
    """Return namespace and name from each existing pair of labels, the likeliest first."""
    named = ((labels.text(namespace), labels.text(pod)) for namespace, pod in pairs)
    return tuple(pair for pair in named if all(pair))


def _number(value: object) -> float | None:
    """Parse the number of a sample, which is a time and a number as text."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str) or len(value[1]) > _LONGEST:
        return None
    try:
        number = float(value[1])
    except ValueError:
        return None
    return number if math.isfinite(number) else None
