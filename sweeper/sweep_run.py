"""`gpu-healthcheck sweep-run`, the program of a sweep Job's pod: one deep diagnostic of its node, and the record.

It writes only that annotation. The agent adopts the record and owns labels, taint and condition.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog import dcgm
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound, Unavailable
from gpu_healthcheck.healthcheck.cluster.retries import RetryLimits
from gpu_healthcheck.healthcheck.deep.deep_record import CompletedRun, render
from gpu_healthcheck.healthcheck.deep.diagnostic import run_diagnostic
from gpu_healthcheck.healthcheck.deep.due import is_verdict, keeping_verdict
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, Options, exit_code, stop_at_signals
from gpu_healthcheck.healthcheck.host.streams import complain
from gpu_healthcheck.healthcheck.model import ProbeError, Unobserved
from gpu_healthcheck.healthcheck.node.state import SWEEP_RESULT, NodeState, annotated
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm, level_2_patience_seconds
from gpu_healthcheck.healthcheck.probes.kernel_log import boot_id
from gpu_healthcheck.healthcheck.probes.nvml.driver import read_driver_once
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import SettingsError, complain_of_environment, read_variables
from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.healthcheck.text.moments import is_future
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import adopted_records_on
from gpu_healthcheck.healthcheck.verdict.record import RunRecord
from gpu_healthcheck.sweeper.settings import SweepRunSettings, cluster_values

log = structlog.get_logger()

T = TypeVar("T")
_NVML_SECONDS = 30.0
_PATIENCE_SECONDS = 45.0
"""Longest wait for dcgmi after SIGTERM: the kubelet kills the pod after 60 s."""
_LAST_SECONDS = 50.0
"""Longest time to write a verdict after SIGTERM."""
_WRITE_SECONDS = 1.5
"""Longest time to write a record without a verdict, after the end of dcgmi."""
_CLOSELY_SECONDS = 0.25
_KIND = "sweep-result"
_WITHOUT_DCGM = "the image of the sweeps has no dcgmi: use the image with DCGM, even if the agents use the slim one"
_MOST_NAMED, _LONGEST_ROW = 4, 160


@dataclass
class SweepRun:
    """One test of the node of this pod."""

    cluster: Cluster
    settings: SweepRunSettings
    values: NodeSettings
    stop: threading.Event
    """Set at SIGTERM: other work needs the GPUs, or the Job's time is over."""

    def __post_init__(self) -> None:
        values = self.values
        self._patience_seconds = min(level_2_patience_seconds(values.dcgm_host), _PATIENCE_SECONDS)
        self._diagnostic = Dcgm(values.dcgm_host, values.dcgm_timeout_seconds, patience_seconds=self._patience_seconds)
        # Deadline of the Job, kept here in case no controller enforces it.
        self._deadline = time.monotonic() + values.dcgm_timeout_seconds + values.job_timeout_seconds
        self._has_verdict = False
        threading.Thread(target=self._end_at_stop, name="stop", daemon=True).start()

    def _end_at_stop(self) -> None:
        """End after SIGTERM even during a wait for the driver or the cluster: other work waits for the GPUs."""
        self.stop.wait()
        stopped_at = time.monotonic()
        self._diagnostic.stop()
        while (left := stopped_at + self._last_seconds - time.monotonic()) > 0:
            time.sleep(min(left, _CLOSELY_SECONDS))
        log.warning("stopped before the result was written", has_verdict=self._has_verdict)
        sys.stderr.flush()
        os._exit(COULD_NOT)

    @property
    def _last_seconds(self) -> float:
        return _LAST_SECONDS if self._has_verdict else self._patience_seconds + _WRITE_SECONDS

    def run(self) -> RunRecord:
        """Test the node, write the record and return it. Raises ClusterError if it could not be written."""
        node = self._patiently(partial(self.cluster.nodes.read, self.settings.node_name))
        record = self._test(node)
        self._has_verdict = is_verdict(record)
        log.info("tested", node=node.name, record=as_json(record))
        self._patiently(partial(self._write, node.uid, record))
        return record

    def _test(self, node: NodeState) -> RunRecord:
        started = clock.now().wall
        nvml_facts = {NVML: self._names()}
        outcome = run_diagnostic(self._diagnostic, Expectation(policy=self.values.policy), nvml_facts)
        if not outcome.configured:
            # Without DCGM a sweep tests nothing, so the result is not a pass.
            outcome = replace(outcome, unobserved=(Unobserved(dcgm.NOT_INSTALLED, _WITHOUT_DCGM),))
        ran = CompletedRun(node.name, "sweep", started, clock.now().wall, node.machine, self._boot_id())
        return render(outcome, ran)

    def _names(self) -> DriverReading:
        """Return NVML's names of the GPUs, read before DCGM uses them: all other parts use these names."""
        reading = read_driver_once(self.settings.host_root, _NVML_SECONDS)
        if reading.stuck_pid is not None:
            log.warning("a process is stuck in the driver and remains", pid=reading.stuck_pid)
        return reading

    def _boot_id(self) -> str:
        try:
            return boot_id(self.settings.host_root)
        except ProbeError as error:
            log.warning("the boot can't be identified", error=str(error))
            return ""

    def _write(self, uid: str, record: RunRecord) -> None:
        """Write the record, unless the Node has one that takes precedence. Raises ClusterError."""

        def result(node: NodeState) -> dict[str, Any] | None:
            if node.uid != uid:
                raise NotFound(f"the Node {node.name} was replaced since the test began")
            if why := why_not(node, record, clock.now().wall):
                log.warning("the present record is kept", why=why)
                return None
            return annotated(node, {SWEEP_RESULT: records.dump(keeping_verdict(record, node))})

        self.cluster.nodes.update(self.settings.node_name, result)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Return the answer of a request with retries: an outage must not lose the result of a test of many minutes."""
        # Forbidden is retried too: an API server that has just started has not loaded its roles yet.
        errors = (Unavailable, Conflict, Forbidden)
        return RetryLimits(self._deadline - time.monotonic(), errors, sleep=self._pause, say=_log_retry).ask(ask)

    def _pause(self, seconds: float) -> None:
        """Pause that ends with SIGTERM; later pauses are short."""
        if self.stop.is_set():
            time.sleep(min(seconds, _CLOSELY_SECONDS))
        else:
            self.stop.wait(seconds)


def main(arguments: list[str] | None = None) -> int:
    """Run the program.

    Exit code: 0 with any verdict; 2 if the test could not run or its record could not be written.
    """
    Options("sweep-run", __doc__).parse_args(arguments)
    try:
        settings = read_variables(SweepRunSettings)
    except SettingsError as error:
        return complain_of_environment("sweep-run", error)
    log_as_json(settings.log_level)
    stop = stop_at_signals()
    try:
        record = SweepRun(Cluster(), settings, cluster_values(settings.config_dir), stop).run()
    except ClusterError as error:
        complain("sweep-run", str(error))
        return COULD_NOT
    sys.stderr.flush()
    sys.stdout.write(in_words(record) + "\n")
    return 0 if is_verdict(record) else COULD_NOT


def why_not(node: NodeState, record: RunRecord, now: datetime) -> str:
    """Return why the record on the Node is kept; '' if the new one replaces it."""
    on_node = records.on_node(RunRecord, node, SWEEP_RESULT)
    at, ended = records.time_of(on_node), records.time_of(record)
    if at is None:
        return ""
    if ended is not None and ended < at and not is_future(at, now):
        return "it is newer: the node was tested again before this result could be written"
    if is_verdict(on_node) and not is_verdict(record) and adopted_records_on(node).get(_KIND) != on_node.timestamp:
        return "the agent has not adopted its verdict yet, and this test has no verdict"
    return ""


def in_words(record: RunRecord) -> str:
    """Return the record as one line for the pod's log."""
    found = [f"{finding.reason} on {finding.subject}: {finding.detail}" for finding in record.findings or ()]
    unobserved = [f"{row.cause}: {row.detail}" for row in record.unobserved or ()]
    rows = [row[:_LONGEST_ROW] for row in (*found, *unobserved)]
    more = [f"and {len(rows) - _MOST_NAMED} more"] if len(rows) > _MOST_NAMED else []
    summary = "; ".join((f"severity {record.severity}", *rows[:_MOST_NAMED], *more))
    return f"{record.node}: {record.suite}: {record.status}, {summary}"


def _log_retry(error: BaseException) -> None:
    log.warning("retrying the request", error=str(error))


if __name__ == "__main__":
    sys.exit(exit_code(main))
