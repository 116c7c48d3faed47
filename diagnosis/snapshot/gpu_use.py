"""Use of GPUs from Prometheus: the queries, and their results.

The recording rules of the PrometheusRule read the series of the DCGM exporter, whatever its release names them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from msgspec import Struct

from gpu_healthcheck.healthcheck.text.boundary import LONGEST_NAME, attempt, texts, value_at

USE = "GPU utilization"
"""Name in the list of kinds that may not be visible."""
SERIES = "gpu_healthcheck:gpu_utilization:ratio"
"""Utilization of whole GPUs, with the names of the node and of the workload's pod."""
RULES = "kubernetes/overlays/monitoring/prometheus-rule.yaml"
IDLE = f"max_over_time({SERIES}[1h]) == 0 and {SERIES} and {SERIES} offset 1h and count_over_time({SERIES}[1h]) >= 10"
"""Series at 0 in each sample of an hour, with samples at both ends and at least ten in total."""
AN_HOUR_AGO = f"count({SERIES} offset 1h)"
EXPORTED = 'count({__name__=~"DCGM_FI_DEV_GPU_UTIL(_RATIO)?", GPU_I_ID=""})'
"""Series of the exporter from which the rules record, by either name."""


Pair = tuple[str, str]
EXPORTED_POD: Pair = ("exported_namespace", "exported_pod")
OWN_POD: Pair = ("namespace", "pod")
"""Pod labels. If Prometheus keeps its own, `pod` is the exporter's and `exported_pod` the workload's."""
_MOST_SERIES = 200_000
_LONGEST = 40


class GpuUse(Struct, frozen=True):
    """Use of one card. `node` and `pods` (namespace and name) come from its labels.

    `node` is the name of the exporter's pod if nothing tells the exporter its node.
    """

    uuid: str
    index: str
    percent: float
    node: str
    pods: tuple[Pair, ...]


def read_use(series: Iterable[object]) -> tuple[GpuUse, ...]:
    """Read the series of a Prometheus query, without values outside 0 to 1."""
    return tuple(_uses(series))


def _uses(series: Iterable[object]) -> Iterator[GpuUse]:
    for labels, ratio in samples(series, 1):
        percent = round(100 * ratio, 2)
        uuid, index, node = (labels.get(key, "") for key in ("UUID", "gpu", "node"))
        yield GpuUse(uuid, index, percent, node, pods(labels, OWN_POD))


def samples(series: Iterable[object], most: float) -> Iterator[tuple[Mapping[str, str], float]]:
    """Yield labels and number of each sample in a vector, from 0 to `most`.

    Exporters write numbers beyond this range for unknown.
    """
    for one in islice(series, _MOST_SERIES):
        number = _number(value_at(one, "value"))
        labels = attempt(partial(texts, longest=LONGEST_NAME), value_at(one, "metric"))
        if number is not None and 0 <= number <= most:
            yield labels or {}, number


def pods(labels: Mapping[str, str], *pairs: Pair) -> tuple[Pair, ...]:
    """Return namespace and name from each existing pair of labels, the likeliest first."""
    named = ((labels.get(namespace, ""), labels.get(pod, "")) for namespace, pod in pairs)
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
