"""Metrics of the program."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from gpu_healthcheck.healthcheck.host.metrics_page import Metric
from gpu_healthcheck.healthcheck.node.evictions import EvictionState, NodeEvictions

_RESULTS = ("requested", "refused", "failed")
_NAMESPACE = "gpu_healthcheck"
METRICS = (
    Metric(
        f"{_NAMESPACE}_evictions_total",
        "counter",
        ("result",),
        "Program evict: evictions of pods. refused: by a disruption budget, a policy or a missing permission. "
        "failed: without an answer.",
    ),
    Metric(f"{_NAMESPACE}_evictions_waiting", "gauge", (), "Program evict: pods whose eviction is announced."),
    Metric(f"{_NAMESPACE}_evictions_refused", "gauge", (), "Program evict: pods whose eviction is refused now."),
    Metric(f"{_NAMESPACE}_evict_nodes", "gauge", (), "Program evict: nodes with announced or requested evictions."),
)


class Metrics:
    """All metrics, created at zero so that the first increment is visible."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        total, *gauges = METRICS
        self._evictions = Counter(total.name, total.meaning, total.labels, registry=self.registry)
        for result in _RESULTS:
            self._evictions.labels(result)
        self._waiting, self._refused, self._nodes = (
            Gauge(row.name, row.meaning, registry=self.registry) for row in gauges
        )

    def count(self, result: str) -> None:
        self._evictions.labels(result).inc()

    def show(self, nodes: Iterable[NodeEvictions]) -> None:
        """Set the gauges to the current evictions of all Nodes."""
        found = [node for node in nodes if node.pods]
        self._nodes.set(len(found))
        self._waiting.set(sum(len(node.in_state(EvictionState.ANNOUNCED)) for node in found))
        self._refused.set(sum(len(node.in_state(EvictionState.REFUSED)) for node in found))
