"""Metrics, /healthz and /readyz. No label has values that grow without bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import choose_encoder

from healthcheck.host.http_server import HttpServer, Page
from healthcheck.model import Sighting, Status

_NAMESPACE = "gpu_healthcheck"


@dataclass(frozen=True, slots=True)
class Metric:
    """One of ours, as whoever reads /metrics sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class Telemetry:
    """Every metric of an agent, made at zero so that the first increment is seen."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics: list[Metric] = []
        """All of them, for docs/metrics.md and `explain`."""
        counter, gauge = self._counter, self._gauge
        self.severity = gauge("node_severity", "Verdict of the node: 0 PASS, 1 MONITOR, 2 RESET, 3 REBOOT, 4 ISOLATE.")
        self.status = gauge("node_status", "1 for the status that the agent gives its node.", ("status",))
        self.findings = gauge("standing_findings", "Findings that stand.", ("severity",))
        self.unobserved = gauge("unobserved", "1 for a check that could not look.", ("check",))
        self.look_seconds = gauge("look_duration_seconds", "Wall time of the last light look.")
        self.probe_seconds = gauge("probe_seconds", "Time of the last reading of a source.", ("probe",))
        self.check_seconds = gauge("check_seconds", "Time of a check's last judgement of what was read.", ("check",))
        self.check_failures = counter("check_failures_total", "Judgements that failed by a fault of ours.", ("check",))
        self.look_time = gauge("last_look_timestamp_seconds", "When the last light look ended.")
        self.looks = counter("looks_total", "Light looks that ended.")
        self.missed = counter("driver_deadlines_missed_total", "Looks at NVML that did not come back in time.")
        self.driver = gauge("driver_info", "1: the driver and the library that was asked.", ("version", "library"))
        self.stuck = gauge("stuck_children", "Processes that are stuck in the driver and can't be ended.")
        self.records = counter("kernel_log_records_total", "Kernel log records read.")
        self.lost = counter("kernel_log_lost_records_total", "Kernel log records overwritten before they were read.")
        self.refused = counter("kernel_log_refused_records_total", "Records that user space wrote, not the kernel.")
        self.unreadable = counter("kernel_log_unreadable_records_total", "Lines of the log that are no record.")
        self.xids = counter("xids_total", "Xid lines by code; codes outside the catalogue count as unknown.", ("code",))
        self.sxids = counter("sxids_total", "SXid lines by code; unknown codes count as unknown.", ("code",))
        self.driver_lines = counter("driver_messages_total", "Driver lines without a number, by meaning.", ("reason",))
        self.requests = counter("cluster_writes_total", "Writes to the API server by result.", ("resource", "result"))
        self.forbidden = gauge(
            "forbidden", "1 for a resource that the cluster forbids us to write, or to list.", ("resource",)
        )
        self.pending = gauge("verdict_pending", "1 while a verdict waits to be written to the node.")
        self.withheld = gauge("taint_withheld", "1 while the fleet budget has no place for this node's taint.")
        self.record_left_out = gauge("record_left_out", "1 while the Node has no room for the agent's record.")
        self.bad_settings = gauge("bad_settings", "1 for a key of the configuration that is not allowed.", ("key",))
        self.unknown_settings = gauge("unknown_settings", "Keys of the configuration that are no setting.")
        self.bad_annotations = counter("bad_annotations_total", "Annotations on the node that are no record.")
        self.set_aside = counter("set_aside_total", "Input that could not be taken, by what it is.", ("what",))
        self.memory_errors = counter("memory_file_errors_total", "Failed reads and writes of the node-local memory.")
        self.standby = gauge("standby", "1 while another agent of this node holds the memory.")
        for status in Status:
            self.status.labels(status.value)
        for what in ("kernel-log-record", "annotation", "memory", "event", "heartbeat"):
            self.set_aside.labels(what)
        self._make_deep_metrics()

    def _make_deep_metrics(self) -> None:
        counter, gauge = self._counter, self._gauge
        self.deep_time = gauge("deep_last_test_timestamp_seconds", "When the node was last tested deeply; 0: never.")
        self.deep_result = gauge("deep_last_test_status", "1 for the status of the last deep test.", ("status",))
        self.deep_running = gauge("deep_running", "1 while the agent holds its node for a deep test.")
        self.deep_overdue = gauge("deep_overdue", "1: not tested deeply for three intervals.")
        self.deep_runs = counter("deep_runs_total", "Deep tests of the agent by result.", ("result",))
        for result in (Status.PASS, Status.WARN, Status.FAIL, Status.UNKNOWN):
            self.deep_runs.labels(result.value)
        for why in ("could-not-run", "stopped"):
            self.deep_runs.labels(why)

    def show_status(self, status: Status) -> None:
        for one in Status:
            self.status.labels(one.value).set(one is status)

    def show_deep(self, status: str) -> None:
        """The status of the last deep test; '' where there was none."""
        for one in (Status.PASS, Status.WARN, Status.FAIL):
            self.deep_result.labels(one.value).set(one.value == status)

    def count(self, sighting: Sighting) -> None:
        """One line of the log, whether it is a fault or not."""
        reason = sighting.reason
        for prefix, counter in (("SXid", self.sxids), ("Xid", self.xids)):
            if reason.startswith(prefix):
                counter.labels(reason.removeprefix(prefix) if sighting.known else "unknown").inc()
                return
        self.driver_lines.labels(reason).inc()

    def show_times(self, probes: Mapping[str, float], checks: Mapping[str, float]) -> None:
        """How long each source and each check of the last look took; those that it had not leave."""
        for gauge, seconds in ((self.probe_seconds, probes), (self.check_seconds, checks)):
            gauge.clear()
            for name, took in seconds.items():
                gauge.labels(name).set(took)

    def show_driver(self, version: str, library: str) -> None:
        """The driver of now; a label of an earlier one leaves."""
        self.driver.clear()
        self.driver.labels(version, library).set(1)

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        told = self._declared(name, "counter", labels, text)
        return Counter(told.name, text, told.labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        told = self._declared(name, "gauge", labels, text)
        return Gauge(told.name, text, told.labels, registry=self.registry)

    def _declared(self, name: str, kind: str, labels: Iterable[str], text: str) -> Metric:
        self.metrics.append(Metric(f"{_NAMESPACE}_{name}", kind, tuple(labels), text))
        return self.metrics[-1]


def serve(telemetry: Telemetry, port: int, healthy: Callable[[], bool], ready: Callable[[], bool]) -> int:
    """Serve /metrics, /healthz and /readyz in the background. Returns the port. Raises OSError when it is taken."""
    pages = {
        "/metrics": lambda accept: _exposition(telemetry.registry, accept),
        "/healthz": lambda _: _word(healthy()),
        "/readyz": lambda _: _word(ready()),
    }
    server = HttpServer(pages, port)
    server.start()
    return server.port


def _exposition(registry: CollectorRegistry, accept: str) -> Page:
    encode, content_type = choose_encoder(accept)
    return Page(HTTPStatus.OK, content_type, encode(registry))


def _word(well: bool) -> Page:
    status, word = (
        (HTTPStatus.OK, b"ok\n") if well else (HTTPStatus.SERVICE_UNAVAILABLE, b"no light look ended in time\n")
    )
    return Page(status, "text/plain", word)
