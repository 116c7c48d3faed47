"""Metrics, /healthz and /readyz. No label has values that grow without bound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.healthcheck.host.http_server import HttpServer, Page, Pages, Request
from gpu_healthcheck.healthcheck.host.metrics_page import Metric, metrics_page
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.model import Finding, KernelEvent, Severity, Status
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict.gate import Decision

MOST_FINDINGS = 64
"""Most findings with a series of their own, worst first; the others are counted."""
_LONGEST_LABEL = 128
SET_ASIDE = (
    *("kernel-log-record", "event", "heartbeat"),
    *("verdict", "watch", "slot", "device-rules", "judge", "deep-processes", "pods"),
)
"""Kinds of skipped input: one object, or what a part of the agent was doing when it failed."""
_NAMESPACE = "gpu_healthcheck"
_STATUSES = (Status.PASS, Status.WARN, Status.FAIL, Status.UNKNOWN)
_TAINT_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds in seconds: a fault in the kernel log is tainted at once, one of a check cycle within minutes."""
_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}

Values = Mapping[tuple[str, ...], float]
"""Values of one metric, by its label values."""


class DeepRun(Struct, frozen=True):
    """Result of the last deep run of one kind. `seconds` is None if its start is not recorded."""

    status: str
    ended_at: float
    seconds: float | None


class Snapshot(Collector):
    """Metrics that are updated together: a scrape shows either all values of an update or none."""

    def __init__(self) -> None:
        self._metrics: list[Metric] = []
        self._values: Mapping[str, Values] = {}
        self._telling = threading.Lock()

    def declare(self, metric: Metric) -> None:
        """Add a metric. Without labels, its value is 0 until the first update."""
        self._metrics.append(metric)
        self.tell({metric.name: {} if metric.labels else {(): 0}})

    def tell(self, values: Mapping[str, Values]) -> None:
        """Replace the values of these metrics."""
        with self._telling:
            self._values = {**self._values, **values}

    def collect(self) -> Iterator[Family]:
        values = self._values
        for metric in self._metrics:
            family = _FAMILIES[metric.kind](metric.name, metric.meaning, labels=metric.labels)
            for labels, value in values[metric.name].items():
                family.add_metric(labels, value)
            yield family


class Telemetry:
    """All metrics of an agent, created at zero so that the first increment is visible."""

    def __init__(self) -> None:
        # The creation time of a counter is not a fact about the node, and would double the series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.metrics: list[Metric] = []
        """All metrics, for docs/metrics.md and `explain`."""
        self._snapshot = Snapshot()
        self.registry.register(self._snapshot)
        self._make_snapshot_metrics()
        self._make_metrics()
        self._make_deep_metrics()
        for family in ProcessCollector(registry=self.registry).collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.metrics.append(Metric(name, family.type, (), family.documentation))

    def _make_snapshot_metrics(self) -> None:
        shown = self._shown
        self._severity = shown("node_severity", "Verdict of the node: 0 PASS, 1 MONITOR, 2 RESET, 3 REBOOT, 4 ISOLATE.")
        self._status = shown("node_status", "1 for the current status of the node.", "status")
        self._standing = shown("standing_findings", "Active findings.", "severity")
        self._finding = shown(
            "finding",
            f"1 while this finding is active. Of more than {MOST_FINDINGS}, only the worst have a series.",
            *("reason", "tier", "subject", "gpu", "UUID"),
        )
        self._first_seen = shown(
            "finding_first_seen_timestamp_seconds",
            "Time of the first observation of an active finding that has a series.",
            *("reason", "subject"),
        )
        self._left_out = shown("findings_left_out", "Active findings without a series of their own.")
        self._unobserved = shown("unobserved", "1 for a check that could not run.", "check")
        switch = "Absent without METRICS_TIMINGS=true."
        self._probe_seconds = shown("probe_seconds", f"Duration of the last read of a source. {switch}", "probe")
        self._check_seconds = shown("check_seconds", f"Duration of a check's last judgement. {switch}", "check")
        self._tainted = shown(
            "tainted", "1 while our taint is on the node or on its faulty GPUs. Absent until the Node is read."
        )
        self._slots_used = shown(
            "budget_slots_used", "Nodes that count as tainted, at this agent's last count. Absent before it."
        )
        self._slots_allowed = shown(
            "budget_slots_allowed",
            "Most tainted nodes for the fleet's size (MAX_UNHEALTHY_PERCENT), at that count. Absent before it.",
        )
        self._efa_errors = shown(
            "efa_errors_total",
            "Error counters of the EFA devices that are not 0, since the EFA driver was loaded.",
            *("device", "counter"),
            kind="counter",
        )
        self._rdma_errors = shown(
            "rdma_errors_total",
            "Error counters of the GPU fabric's mlx5 ports that are not 0, since the driver was loaded.",
            *("device", "counter"),
            kind="counter",
        )
        self._throttled = shown(
            "throttled_seconds_total",
            "Time for which a GPU's clocks were reduced, since the driver was loaded, if not 0.",
            *("reason", "gpu", "UUID"),
            kind="counter",
        )
        self._ecc_corrected = shown(
            "ecc_corrected_errors_total",
            "Corrected ECC errors of a GPU's DRAM since the driver was loaded, if not 0.",
            *("gpu", "UUID"),
            kind="counter",
        )
        self._driver = shown(
            "driver_info", "1: version of the driver and of the library that was read.", "version", "library"
        )
        self._limits = shown(
            "gpu_slowdown_celsius", "Temperature from which this GPU reduces its clocks.", "gpu", "UUID"
        )
        self._gpu_waiting = shown(
            "gpu_waiting_seconds",
            "Time for which a GPU has waited, always busy without use of memory or power; from ten minutes on.",
            *("gpu", "UUID", "namespace", "pod"),
        )
        self._pod_waiting = shown(
            "pod_waiting_seconds", "Time for which all GPUs of a pod on this node have waited.", "namespace", "pod"
        )
        self._node = shown(
            "node_info",
            "1: the node's instance type, by which the alerts compare nodes. Absent if unknown.",
            "instance_type",
        )
        self._build = shown("build_info", "1: the agent's version.", "version")
        run = "the last run of this kind: sweep (also the agent's own level 2) or quarantine"
        self._run_time = shown("deep_run_timestamp_seconds", f"End of {run}.", "kind")
        self._run_seconds = shown("deep_run_duration_seconds", f"Duration of {run}.", "kind")
        self._run_status = shown("deep_run_status", f"1 for the status of {run}.", "kind", "status")
        self._deep_time = shown("deep_last_test_timestamp_seconds", "Time of the node's last deep test; 0: never.")
        self._deep_status = shown("deep_last_test_status", "1 for the status of the last deep test.", "status")
        self._deep_overdue = shown("deep_overdue", "1: the last deep test is older than three intervals.")
        self._snapshot.tell(
            {
                self._build: {(__version__,): 1},
                self._status: {(status.value,): 0 for status in _STATUSES},
                **{name: {} for name in (self._tainted, self._slots_used, self._slots_allowed)},
            }
        )

    def _make_metrics(self) -> None:
        counter, gauge = self._counter, self._gauge
        self.cycle_seconds = gauge("look_duration_seconds", "Duration of the last light check cycle.")
        self.check_failures = counter(
            "check_failures_total", "Judgements that failed by a defect of this program.", ("check",)
        )
        self.cycle_time = gauge("last_look_timestamp_seconds", "End of the last light check cycle.")
        self.cycles = counter("looks_total", "Completed light check cycles.")
        self.missed = counter("driver_deadlines_missed_total", "NVML reads that exceeded their deadline.")
        self.stuck = gauge("stuck_children", "Processes that are stuck in the driver and can't be ended.")
        self.records = counter("kernel_log_records_total", "Kernel log records read.")
        self.lost = counter("kernel_log_lost_records_total", "Kernel log records overwritten before they were read.")
        self.refused = counter(
            "kernel_log_refused_records_total", "Records of the kernel log written by user space, not by the kernel."
        )
        self.unreadable = counter("kernel_log_unreadable_records_total", "Malformed lines of the kernel log.")
        # A code has no series before its first line: 155 series of each node would always be 0
        # (docs/decisions/notes.md).
        self.xids = counter(
            "xids_total",
            "Xid lines by code and, if the line names a known one, GPU; codes outside the catalogue count as unknown.",
            ("code", "gpu", "UUID"),
        )
        self.sxids = counter("sxids_total", "SXid lines by code; unknown codes count as unknown.", ("code",))
        self.driver_lines = counter("driver_messages_total", "Driver lines without a number, by meaning.", ("reason",))
        self.unread_driver_lines = counter(
            "unread_driver_lines_total", "Lines in which NVIDIA's driver reports an error that no rule judges."
        )
        self.requests = counter("cluster_writes_total", "Writes to the API server by result.", ("resource", "result"))
        self.forbidden = gauge(
            "forbidden", "1 for a resource that the cluster forbids the agent to write or to list.", ("resource",)
        )
        self.pending = gauge("verdict_pending", "1 while a verdict waits to be written to the node.")
        self.fault_to_taint = self._histogram(
            "fault_to_taint_seconds",
            "Time from the first observation of a fault to our taint on the Node.",
            _TAINT_BUCKETS,
        )
        self.withheld = gauge(
            "taint_withheld", "1 while this faulty node has no taint, because the limit of tainted nodes is reached."
        )
        self.device_taints = gauge(
            "device_taints", "DeviceTaintRules, or cordons of HAMi, that replace this node's taint."
        )
        self.device_taints_failed = gauge(
            "device_taints_failed", "1 while the node is tainted because its faulty GPUs could not be tainted."
        )
        self.record_left_out = gauge("record_left_out", "1 while the Node has no room for the agent's record.")
        self.bad_settings = gauge(
            "bad_settings", "1 for a key whose value is not allowed: its last valid value counts.", ("key",)
        )
        self.unknown_settings = gauge("unknown_settings", "Unknown keys of the configuration.")
        self.bad_annotations = counter("bad_annotations_total", "Unreadable annotations on the node.")
        self.set_aside = counter("set_aside_total", "Skipped input, by kind.", ("what",))
        self.memory_errors = counter("memory_file_errors_total", "Failed reads and writes of the node-local memory.")
        self.gate_answers = counter(
            "gate_answers_total",
            "Pods of this node that asked the gate, by decision; a pod counts once for each decision and finding.",
            ("decision",),
        )
        self.gate_failed_open = counter(
            "gate_failed_open_total",
            "Pods of this node that the gate let start in spite of a finding: no taint keeps them away.",
        )
        self.standby = gauge("standby", "1 while another agent of this node holds the lock of the memory.")
        for what in SET_ASIDE:
            self.set_aside.labels(what)
        for decision in Decision:
            self.gate_answers.labels(decision)

    def _make_deep_metrics(self) -> None:
        self.deep_running = self._gauge("deep_running", "1 while the agent's own deep test runs on the node.")
        self.deep_runs = self._counter("deep_runs_total", "Deep tests of the agent by result.", ("result",))
        for result in (*_STATUSES, "could-not-run", "stopped"):
            self.deep_runs.labels(str(result))

    def show_verdict(
        self, severity: Severity, status: Status, active: Sequence[ActiveFinding], unobserved_groups: Mapping[str, bool]
    ) -> None:
        """Update the agent's verdict.

        `unobserved_groups` maps each group of checks to whether one of its checks could not run.
        """
        worst_first = sorted(active, key=lambda finding: -finding.finding.severity)
        shown = worst_first[:MOST_FINDINGS]
        tiers = [finding.finding.severity for finding in active]
        self._snapshot.tell(
            {
                self._severity: {(): severity},
                self._status: {(member.value,): member is status for member in _STATUSES},
                self._standing: {(tier.name,): tiers.count(tier) for tier in Severity},
                self._finding: {_labels(finding.finding): 1 for finding in shown},
                self._first_seen: {
                    tuple(map(_label, finding.key)): finding.first_seen.timestamp() for finding in shown
                },
                self._left_out: {(): len(worst_first[MOST_FINDINGS:])},
                self._unobserved: {(check,): is_unobserved for check, is_unobserved in unobserved_groups.items()},
            }
        )

    def show_deep(self, tested_at: float, status: str, *, is_overdue: bool) -> None:
        """Set the last deep test; 0 and '' without one."""
        statuses = (Status.PASS, Status.WARN, Status.FAIL)
        self._snapshot.tell(
            {
                self._deep_time: {(): tested_at},
                self._deep_status: {(member.value,): member.value == status for member in statuses},
                self._deep_overdue: {(): is_overdue},
            }
        )

    def show_runs(self, runs: Mapping[str, DeepRun]) -> None:
        """Replace the last deep runs, by kind."""
        self._snapshot.tell(
            {
                self._run_time: {(kind,): run.ended_at for kind, run in runs.items()},
                self._run_seconds: {(kind,): run.seconds for kind, run in runs.items() if run.seconds is not None},
                self._run_status: {
                    (kind, status.value): status.value == run.status
                    for kind, run in runs.items()
                    for status in _STATUSES
                },
            }
        )

    def show_taint(self, *, tainted: bool, slots: tuple[int, int] | None) -> None:
        """Set whether our taint keeps work away, and the slots of the fleet budget: used and allowed, if counted."""
        values: dict[str, Values] = {self._tainted: {(): tainted}}
        if slots is not None:
            values |= {self._slots_used: {(): slots[0]}, self._slots_allowed: {(): slots[1]}}
        self._snapshot.tell(values)

    def show_efa_errors(self, counters: Mapping[tuple[str, str], int]) -> None:
        """Replace the error counters, by device and counter. Those at 0 would be most series of a healthy node."""
        self._snapshot.tell({self._efa_errors: {key: value for key, value in counters.items() if value}})

    def show_rdma_errors(self, counters: Mapping[tuple[str, str], int]) -> None:
        """Replace the error counters of mlx5 ports, by device and counter."""
        values: Values = {(_label(device), name): value for (device, name), value in counters.items() if value}
        self._snapshot.tell({self._rdma_errors: values})

    def show_times(self, probes: Mapping[str, float], checks: Mapping[str, float]) -> None:
        """Update the durations of the sources and checks of the last cycle.

        Sources and checks that were not in the cycle are removed.
        """
        self._snapshot.tell(
            {
                self._probe_seconds: {(name,): seconds for name, seconds in probes.items()},
                self._check_seconds: {(name,): seconds for name, seconds in checks.items()},
            }
        )

    def show_waiting(self, gpus: Values, pods: Values) -> None:
        """Replace the seconds of waiting, by the labels of each metric. The names of pods are valid in the API."""
        self._snapshot.tell({self._gpu_waiting: gpus, self._pod_waiting: pods})

    def show_node(self, instance_type: str) -> None:
        """Set the node's instance type; '' if it is unknown."""
        self._snapshot.tell({self._node: {(_label(instance_type),): 1} if instance_type else {}})

    def show_driver(
        self,
        version: str,
        library: str,
        limits: Mapping[tuple[str, str], float],
        throttled: Mapping[tuple[str, str, str], float],
        corrected: Mapping[tuple[str, str], int],
    ) -> None:
        """Set the current driver; its GPUs' limits by index and UUID; their throttled time by reason, index and UUID.

        `corrected` are corrected ECC errors by index and UUID. Values of an earlier driver are removed.
        """
        self._snapshot.tell(
            {
                self._driver: {(_label(version), _label(library)): 1},
                self._limits: {(_label(gpu), _label(uuid)): celsius for (gpu, uuid), celsius in limits.items()},
                self._throttled: {tuple(map(_label, labels)): value for labels, value in throttled.items() if value},
                self._ecc_corrected: {tuple(map(_label, gpu)): count for gpu, count in corrected.items() if count},
            }
        )

    def show_no_driver(self) -> None:
        """Remove the values of the last driver, because no driver answers."""
        self._snapshot.tell({name: {} for name in (self._driver, self._limits, self._throttled, self._ecc_corrected)})

    def count(self, event: KernelEvent, gpus: Mapping[str, Mapping[str, str]]) -> None:
        """Count one line of the log, whether it is a fault or not. `gpus`: the node's GPUs by address."""
        reason = event.reason
        code = reason.partition("Xid")[2] if event.known else "unknown"
        if reason.startswith("SXid"):
            self.sxids.labels(code).inc()
        elif reason.startswith("Xid"):
            gpu = gpus.get(event.subject.removeprefix("gpu/"), {})
            self.xids.labels(code, _label(gpu.get("index", "")), _label(gpu.get("uuid", ""))).inc()
        else:
            self.driver_lines.labels(reason).inc()

    def _counter(self, name: str, help_text: str, labels: Iterable[str] = ()) -> Counter:
        metric = self._declared(name, "counter", labels, help_text)
        return Counter(metric.name, help_text, metric.labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: Iterable[str] = ()) -> Gauge:
        metric = self._declared(name, "gauge", labels, help_text)
        return Gauge(metric.name, help_text, metric.labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
        metric = self._declared(name, "histogram", (), help_text)
        return Histogram(metric.name, help_text, buckets=buckets, registry=self.registry)

    def _shown(self, name: str, help_text: str, *labels: str, kind: str = "gauge") -> str:
        """Declare a metric that is updated together with others, and return its name."""
        metric = self._declared(name, kind, labels, help_text)
        self._snapshot.declare(metric)
        return metric.name

    def _declared(self, name: str, kind: str, labels: Iterable[str], help_text: str) -> Metric:
        self.metrics.append(Metric(f"{_NAMESPACE}_{name}", kind, tuple(labels), help_text))
        return self.metrics[-1]


def _labels(finding: Finding) -> tuple[str, ...]:
    """Return the labels of a finding.

    The index and UUID of a GPU match those of the DCGM exporter's series; they are empty if unknown.
    """
    about = finding.about
    words = (finding.reason, finding.severity.name, finding.subject, about.get("index", ""), about.get("uuid", ""))
    return tuple(map(_label, words))


def _label(text: str) -> str:
    return printable(text, _LONGEST_LABEL)


def serve(telemetry: Telemetry, port: int, healthy: Callable[[], bool], ready: Callable[[], bool], pages: Pages) -> int:
    """Serve /metrics, /healthz, /readyz and `pages` in the background.

    Returns the port. Raises OSError if the port is in use.
    """

    async def health(_: Request) -> Page:
        return _health_page(healthy())

    async def readiness(_: Request) -> Page:
        return _health_page(ready())

    ours = {"/metrics": metrics_page(telemetry.registry), "/healthz": health, "/readyz": readiness}
    server = HttpServer({**pages, **ours}, port)
    server.start()
    return server.port


def _health_page(healthy: bool) -> Page:
    status, text = (
        (HTTPStatus.OK, b"ok\n") if healthy else (HTTPStatus.SERVICE_UNAVAILABLE, b"no light look ended in time\n")
    )
    return Page(status, "text/plain", text)
