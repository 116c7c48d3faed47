"""Use of GPUs from Prometheus: the queries, and their results.

The recording rules of the PrometheusRule read the series of the DCGM exporter, whatever its release names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from diagnosis.snapshot.samples import OWN, Pair, pods, samples

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
        yield GpuUse(labels.text("UUID"), labels.text("gpu"), percent, labels.text("node"), pods(labels, OWN))
