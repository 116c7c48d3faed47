"""How much GPUs are used, as the DCGM exporter's series in a Prometheus tell it: the questions, and their answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from diagnosis.snapshot.reading import Fields

USE = "GPU utilization"
"""Its name beside the kinds of objects that may not be visible."""
SERIES = "DCGM_FI_DEV_GPU_UTIL"
_LABELS = "UUID, gpu, Hostname, node, kubernetes_node, pod, namespace, exported_pod, exported_namespace"
_CARDS = f'{SERIES}{{GPU_I_ID=""}}'
"""Of whole cards: of MIG instances DCGM has no such number, and some exporters write 0 for them."""
NOW = f"max by ({_LABELS}) ({_CARDS})"
IDLE = (
    f"max by ({_LABELS}) (max_over_time({_CARDS}[1h]) and {_CARDS} and {_CARDS} offset 1h"
    f" and count_over_time({_CARDS}[1h]) >= 10) == 0"
)
"""At 0 in every sample of an hour in which the same series was there: at its beginning, its end, and ten times."""
THERE = f"count({SERIES})"
_MOST_SERIES = 200_000


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One card. `nodes` and `pods` (namespace and name) are what its labels say, the likeliest first.

    Where Prometheus keeps its own labels, `pod` is the exporter's, and the workload's is `exported_pod`.
    """

    uuid: str
    index: str
    percent: float
    nodes: tuple[str, ...]
    pods: tuple[tuple[str, str], ...]


def read_use(series: Iterable[object]) -> tuple[GpuUse, ...]:
    """Of a vector. A value that is no percentage is left out: DCGM has numbers of its own for what it does not know."""
    return tuple(_uses(islice(series, _MOST_SERIES)))


def _uses(series: Iterable[object]) -> Iterator[GpuUse]:
    for one in series:
        percent = _percent(one.get("value")) if isinstance(one, dict) else None
        if percent is not None:
            labels = Fields(one).at("metric")
            nodes = filter(None, (labels.text(name) for name in ("node", "kubernetes_node", "Hostname")))
            pairs = (("exported_namespace", "exported_pod"), ("namespace", "pod"))
            pods = ((labels.text(namespace), labels.text(pod)) for namespace, pod in pairs)
            named = tuple(pair for pair in pods if all(pair))
            yield GpuUse(labels.text("UUID"), labels.text("gpu"), percent, tuple(nodes), named)


def _percent(value: object) -> float | None:
    """Of a sample: a time, and a number as text."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str) or len(value[1]) > 40:
        return None
    try:
        number = float(value[1])
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= 100 else None
