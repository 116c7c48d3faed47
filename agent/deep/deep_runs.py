"""The agent's own level 2: when it is due, whether the node may be tested now, and the run itself."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec import Struct

from gpu_healthcheck.agent.deep.level_2 import Level2
from gpu_healthcheck.agent.deep.marks import KIND, DeepTestMarks, OwnNode
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Failures
from gpu_healthcheck.agent.telemetry import DeepRun, Telemetry
from gpu_healthcheck.healthcheck.checks.dcgm_diag import LEVEL_2
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.deep.deep_record import CompletedRun, render
from gpu_healthcheck.healthcheck.deep.diagnostic import Diagnostic, run_diagnostic
from gpu_healthcheck.healthcheck.deep.due import OVERDUE_INTERVALS, is_overdue, is_swept, last_deep_test
from gpu_healthcheck.healthcheck.model import Now, Outcome, Probe, ProbeError, Severity, Unobserved
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, SWEEP_RESULT, NodeState
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import has_adopted
from gpu_healthcheck.healthcheck.verdict.record import RunRecord

log = structlog.get_logger()

CHECK_AGAIN_SECONDS = 300.0
"""Retry delay when the node was busy or could not be tested."""
NOT_HERE_SECONDS = 3600.0
"""Delay until the next check for dcgmi or for a non-zero interval."""
SETTLE_SECONDS = 600.0
"""Delay after the agent's start: a fleet that restarts must not be tested all at once."""
FIRST_RETRY_SECONDS = 600.0
"""Retry delay after a run that could not run; doubles each time, up to the interval."""
MAINTENANCE_SECONDS = 10.0
"""Delay after the taint: by then, the kubelet lists the GPUs of a pod that was bound before it."""
WATCH_SECONDS = 1.0
"""Pause between two checks for a pod that arrived in spite of the taint; its GPUs are assigned before it starts."""
_MARGIN_SECONDS = 300.0
"""Margin of a run's deadline beyond DCGM's own time, to end and report it."""
_ADOPTION_SECONDS = 10.0
"""Longest wait until the node writer has set the taint of a result."""
_WRITE_AGAIN_SECONDS = 10.0
"""Retry delay of a result while the API server does not answer."""
_LAST_SECONDS = 50.0
"""Longest wait at the agent's end: DCGM takes up to 40 s to stop tests in a hostengine; the kubelet kills after 60 s.
"""
_JITTER = 0.1
_POLL_SECONDS = 0.1
_CYCLE_SECONDS = 60.0
"""Longest wait for a light cycle, which may wait for another cycle or for the driver."""
_RUNS = {SWEEP_RESULT: "sweep", QUARANTINE_RESULT: "quarantine"}
_KUBELET_SILENCE_SECONDS = 15.0
"""Longest time without an answer of the kubelet during a test, which loads the node. The kubelet may also restart."""


class DeepIntervals(Struct, frozen=True):
    """Durations in seconds; tests use shorter ones."""

    settle: float = SETTLE_SECONDS
    check_again: float = CHECK_AGAIN_SECONDS
    maintenance: float = MAINTENANCE_SECONDS
    watch: float = WATCH_SECONDS
    cycle: float = _CYCLE_SECONDS
    kubelet_silence: float = _KUBELET_SILENCE_SECONDS
    adoption: float = _ADOPTION_SECONDS


WAITS = DeepIntervals()


class LightCycles(Protocol):
    """The scheduler of check cycles."""

    def start_cycle_soon(self) -> None:
        """Start a check cycle soon: its process list shows who uses the GPUs."""


class DeepTests:
    """Deep diagnostics of this node. The deep worker calls `attempt`; other threads call `tidy` and `end`."""

    def __init__(
        self,
        state: AgentState,
        cluster: Cluster,
        level_2: Level2,
        cycles: LightCycles,
        telemetry: Telemetry,
        folder: Path | None,
        waits: DeepIntervals = WAITS,
    ) -> None:
        self._state = state
        self._level_2 = level_2
        self._cycles = cycles
        self._telemetry = telemetry
        self._failures = Failures(telemetry)
        self._waits = waits
        self._started = state.now()
        self._retries, self._retry_at = 0, 0.0
        self._diagnostic: Diagnostic | None = None
        self._last_diagnostic: Diagnostic | None = None
        self._stopping = threading.Event()
        self._marks = DeepTestMarks(_own_node(cluster, state, level_2), state.now, folder, self._stopping)
        self._at_rest = threading.Event()
        self._at_rest.set()
        self._answered = 0.0
        self._logged = ""

    def attempt(self) -> float:
        """Test the node if it is due and may be tested. Returns the seconds until the next call."""
        self._at_rest.clear()
        try:
            if self._stopping.is_set():
                return self._waits.check_again
            self._marks.tell_kept()
            return self._attempt()
        except ClusterError as error:
            self._log("the cluster does not answer", error=str(error))
            return _WRITE_AGAIN_SECONDS if self._marks.has_kept else self._waits.check_again
        finally:
            self._at_rest.set()

    def tidy(self) -> None:
        """Remove the marks of a dead run from the Node, and measure the time since the last deep diagnostic."""
        self._marks.clear()
        node, now = self._state.node, self._state.now().wall
        if node is not None:
            self._measure(node, now)

    def end(self) -> None:
        """End the run, and wait for its end for a limited time; otherwise the next start releases the node."""
        self._stopping.set()
        diagnostic = self._diagnostic
        if diagnostic is not None:
            diagnostic.stop()
        self._at_rest.wait(_LAST_SECONDS)

    def _attempt(self) -> float:
        interval = self._interval
        node, now = self._state.node, self._state.now()
        if not interval or self._level_2.is_absent():
            return NOT_HERE_SECONDS
        if node is None:
            return self._waits.check_again
        if (seconds := self._seconds_until_due(node, interval, now)) > 0:
            return min(seconds, NOT_HERE_SECONDS)
        if why := self._hindrance(node):
            self._log("no deep test now", why=why)
            return self._waits.check_again
        if (blocked := self._level_2.engine().blocked) is not None:
            return self._leave_out(blocked)
        return self._run()

    def _leave_out(self, blocked: Unobserved) -> float:
        """Record why the due test is not run, without a claim on the node."""
        outcome = Outcome(LEVEL_2.name, LEVEL_2.group, unobserved=(blocked,))
        self._marks.tell(self._record(outcome, self._state.now().wall), give_back=True)
        return self._could_not_run(outcome)

    def _seconds_until_due(self, node: NodeState, interval: float, now: Now) -> float:
        """Return the seconds until the test; 0 or less: now. Never right after a start; spread by UID."""
        share = zlib.crc32((node.uid or node.name).encode()) / 2**32
        since_start = now.monotonic - self._started.monotonic
        test = last_deep_test(node, now.wall)
        if test is not None:
            # A sweep ends for work that needs the GPUs. The agent's own level 2 does not notice such work.
            intervals = OVERDUE_INTERVALS if is_swept(node) else 1 + _JITTER * share
            due = (test.at - now.wall).total_seconds() + interval * intervals
        else:
            # The offset in the interval is the same after each start, so restarts neither advance nor delay the test.
            phase = (self._started.wall.timestamp() - share * interval) % interval
            due = interval - phase - since_start
        return max(due, self._waits.settle - since_start, self._retry_at - now.monotonic)

    def _hindrance(self, node: NodeState) -> str:
        """Return the reason against a test now; '' without one."""
        if why := self._marks.hindrance(node):
            return why
        if (severity := self._state.known.severity_on(node)) >= Severity.RESET:
            return f"its verdict is {severity.name}"
        if self._last_diagnostic is not None and (pid := self._last_diagnostic.stuck_pid) is not None:
            return f"process {pid} of an earlier test can't be killed"
        return _users_or_why(self._level_2.users)

    def _run(self) -> float:
        longest = self._state.settings.values.dcgm_timeout_seconds + _MARGIN_SECONDS
        self._telemetry.deep_running.set(1)
        try:
            run = self._marks.acquire(longest)
            if run is None:
                return self._waits.check_again
            log.info("deep test: claimed the node", until=timestamp(run.until))
            return self._test()
        finally:
            self._telemetry.deep_running.set(0)
            self._marks.release()

    def _test(self) -> float:
        self._stopping.wait(self._waits.maintenance)
        if self._stopping.is_set() or (why := _users_or_why(self._used_now)):
            self._log("no deep test now", why="the agent is stopping" if self._stopping.is_set() else why)
            return self._waits.check_again
        started = self._state.now().wall
        outcome = self._diagnose()
        if outcome is None:
            self._telemetry.deep_runs.labels("stopped").inc()
            return self._waits.check_again
        self._failures.account((outcome,))
        if not outcome.configured:
            return NOT_HERE_SECONDS
        if outcome.findings or outcome.observed:
            self._write_result(outcome, started)
        if not outcome.observed:
            return self._could_not_run(outcome)
        self._retries, self._retry_at = 0, 0.0
        return min(self._interval, NOT_HERE_SECONDS)

    def _used_now(self) -> str:
        """Return the users of the GPUs, by a cycle that starts after this call. Raises ProbeError."""
        asked = self._state.now().monotonic
        self._cycles.start_cycle_soon()
        while (last := self._state.last_evidence) is None or last.at < asked:
            late = self._state.now().monotonic - asked >= self._waits.cycle
            if late or self._stopping.wait(_POLL_SECONDS):
                raise ProbeError("no check cycle has ended since the taint was set")
        return self._level_2.users()

    def _diagnose(self) -> Outcome | None:
        """Return the outcome of the diagnostic; None if it was stopped for work, by a person, or at the agent's end."""
        diagnostic = self._diagnostic = self._last_diagnostic = self._level_2.diagnostic()
        self._answered = self._state.now().monotonic
        outcomes: list[Outcome] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                outcomes.append(run_diagnostic(diagnostic, self._state.expectation(), self._nvml()))
            except Exception as error:  # noqa: BLE001 - raised below, after the release of the node
                failed.append(error)

        worker = threading.Thread(target=work, name="diagnose", daemon=True)
        worker.start()
        stopped = ""
        while worker.is_alive():
            worker.join(self._waits.watch)
            if not stopped and worker.is_alive() and (stopped := self._why_stop()):
                log.warning("deep test: stopped", why=stopped)
                diagnostic.stop()
        self._diagnostic = None
        if failed:
            raise failed[0]
        return None if stopped or self._stopping.is_set() else outcomes[0]

    def _why_stop(self) -> str:
        if self._stopping.is_set():
            return "the agent is stopping"
        if not self._marks.is_ours():
            return "another client removed our claim of the node"
        now = self._state.now().monotonic
        try:
            held_by = self._level_2.pods()
        except ProbeError as error:
            is_silent = now - self._answered >= self._waits.kubelet_silence
            return f"it is unknown whether a pod was started: {error}" if is_silent else ""
        self._answered = now
        return held_by

    def _could_not_run(self, outcome: Outcome) -> float:
        """Record a test that could not run in whole or in part: neither pass nor fault. Retries get longer delays."""
        seconds = min(FIRST_RETRY_SECONDS * 2.0**self._retries, self._interval)
        self._retries = min(self._retries + 1, 16)
        self._retry_at = self._state.now().monotonic + seconds
        self._telemetry.deep_runs.labels("could-not-run").inc()
        causes = [f"{unobserved.cause.name}: {unobserved.detail}" for unobserved in outcome.unobserved]
        log.warning("deep test: could not run", causes=causes[:8], again_seconds=seconds)
        return seconds

    def _write_result(self, outcome: Outcome, started: datetime) -> None:
        record = self._record(outcome, started)
        self._telemetry.deep_runs.labels(str(record.status)).inc()
        log.info("deep test: done", status=str(record.status), severity=record.severity)
        self._marks.keep(record)
        if records.severity_of(record) < Severity.RESET:
            self._marks.tell(record, give_back=True)
            return
        # The taint of the verdict must be set before the taint of the test is removed.
        self._marks.tell(record, give_back=False)
        deadline = self._state.now().monotonic + self._waits.adoption
        while self._state.now().monotonic < deadline and not self._stopping.wait(_POLL_SECONDS):
            node = self._state.node
            if node is not None and has_adopted(node, KIND, record.timestamp):
                return

    def _record(self, outcome: Outcome, started: datetime) -> RunRecord:
        memory = self._state.memory
        ran = CompletedRun(
            self._state.node_name, "agent", started, self._state.now().wall, memory.machine, memory.boot_id
        )
        return render(outcome, ran)

    @property
    def _interval(self) -> float:
        """Interval in seconds; 0: no tests."""
        return self._state.settings.values.dcgm_l2_interval_seconds

    def _nvml(self) -> dict[Probe[Any], Any]:
        """Return the NVML reading of the last cycle; it shows a GPU that DCGM leaves out."""
        reading = self._state.known.driver_reading
        return {NVML: reading} if reading is not None else {}

    def _measure(self, node: NodeState, now: datetime) -> None:
        test = last_deep_test(node, now)
        tested_at, status = (test.at.timestamp(), test.status) if test else (0.0, "")
        is_late = is_overdue(node, test, timedelta(seconds=self._interval), now)
        self._telemetry.show_deep(tested_at, status, is_overdue=is_late)
        self._telemetry.show_runs({kind: run for name, kind in _RUNS.items() if (run := _last_run(node, name))})

    def _log(self, event: str, **more: str) -> None:
        """Log a repeated reason once."""
        words = json.dumps([event, more])
        if words != self._logged:
            self._logged = words
            log.info("deep test", what=event, **more)


def _last_run(node: NodeState, annotation: str) -> DeepRun | None:
    """Return the run of the Node's record, whichever program wrote it; None if it states no time or no status."""
    record = records.on_node(RunRecord, node, annotation)
    ended = records.time_of(record)
    if ended is None or record.status is None:
        return None
    seconds = (ended - record.started).total_seconds() if record.started is not None else None
    return DeepRun(record.status, ended.timestamp(), seconds)


def _own_node(cluster: Cluster, state: AgentState, level_2: Level2) -> OwnNode:
    name = state.node_name
    read, update = partial(cluster.nodes.read, name), partial(cluster.nodes.update, name)
    return OwnNode(read, update, lambda: state.node, level_2.are_claimed)


def _users_or_why(ask: Callable[[], str]) -> str:
    """Return the users of the GPUs, or the reason why they are unknown: an unread list is not an empty list."""
    try:
        return ask()
    except ProbeError as error:
        return f"it is unknown whether it is idle: {error}"
