"""Use of GPUs from the DCGM exporter's series in Prometheus: the queries, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from diagnosis.snapshot.samples import EXPORTED, OWN, Pair, pods, samples

USE = "GPU utilization"
"""Name in the list of kinds that may not be visible."""
SERIES = "DCGM_FI_DEV_GPU_UTIL"
_LABELS = "UUID, gpu, Hostname, node, kubernetes_node, pod, namespace, exported_pod, exported_namespace"
_CARDS = f'{SERIES}{{GPU_I_ID=""}}'
"""Query for whole cards only: for MIG instances DCGM has no value, and some exporters write 0."""
NOW = f"max by ({_LABELS}) ({_CARDS})"
IDLE = (
    f"max by ({_LABELS}) (max_over_time({_CARDS}[1h]) and {_CARDS} and {_CARDS} offset 1h"
    f" and count_over_time({_CARDS}[1h]) >= 10) == 0"
)
"""Series at 0 in each sample of an hour, with samples at both ends and at least ten in total."""
THERE = f"count({SERIES})"
_MOST_PERCENT = 100


class GpuUse(Struct, frozen=True):
    """Use of one card. `nodes` and `pods` (namespace and name) come from its labels, the likeliest first."""

    uuid: str
    index: str
    percent: float
    nodes: tuple[str, ...]
    pods: tuple[Pair, ...]


def read_use(series: Iterable[object]) -> tuple[GpuUse, ...]:
    """Read the series of a Prometheus query, without values outside 0 to 100, by which DCGM reports unknown."""
    return tuple(_uses(series))


def _uses(series: Iterable[object]) -> Iterator[GpuUse]:
    for labels, percent in samples(series, _MOST_PERCENT):
        nodes = filter(None, (labels.text(name) for name in ("node", "kubernetes_node", "Hostname")))
        named = pods(labels, EXPORTED, OWN)
        yield GpuUse(labels.text("UUID"), labels.text("gpu"), percent, tuple(nodes), named)
