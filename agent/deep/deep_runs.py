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

from agent.deep.level_2 import Level2
from agent.deep.marks import KIND, DeepTestMarks, OwnNode
from agent.state.agent_state import AgentState
from agent.state.failures import Failures
from agent.telemetry import Telemetry
from healthcheck.checks.dcgm_diag import LEVEL_2
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError
from healthcheck.deep.deep_record import CompletedRun, render
from healthcheck.deep.diagnostic import Diagnostic, look_deeply
from healthcheck.deep.due import OVERDUE_INTERVALS, is_overdue, is_swept, last_deep_test
from healthcheck.model import Now, Outcome, Probe, ProbeError, Severity, Unobserved
from healthcheck.node.state import NodeState
from healthcheck.probes.nvml.gpus import NVML
from healthcheck.text.moments import timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import has_taken
from healthcheck.verdict.record import RunRecord

log = structlog.get_logger()

LOOK_AGAIN_SECONDS = 300.0
"""After a moment at which the node could not be tested: it was busy, or something stood in the way."""
NOT_HERE_SECONDS = 3600.0
"""Until somebody looks again whether there is a dcgmi, or an interval."""
SETTLE_SECONDS = 600.0
"""So long after its start an agent tests nothing: a fleet that restarts must not be tested at once."""
FIRST_RETRY_SECONDS = 600.0
"""After a run that could not run; twice as long after each further one, up to the interval."""
MAINTENANCE_SECONDS = 10.0
"""After the taint: a pod that was bound before it has its GPUs by then, as the kubelet tells it."""
WATCH_SECONDS = 1.0
"""Between two looks for a pod that came all the same, while a run goes on: it has its GPUs before it begins."""
_MARGIN_SECONDS = 300.0
"""Of a run's deadline, beyond what DCGM itself may take: to end it, and to tell."""
_TAKEN_SECONDS = 10.0
"""For a result that asks for a taint, until the node writer has it."""
_WRITE_AGAIN_SECONDS = 10.0
"""While a result waits for a cluster that does not answer."""
_LAST_SECONDS = 50.0
"""Of an agent that has to end: DCGM takes up to 40 s to stop its tests in a hostengine, and the kubelet kills after 60.
"""
_JITTER = 0.1
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 60.0
"""For a light look, which may have to wait for another one, or for the driver."""
_BLIND_SECONDS = 15.0
"""So long the kubelet may not answer during a test, which loads the node; it may be restarted, too."""


class DeepIntervals(Struct, frozen=True):
    """Seconds; a test makes them short."""

    settle: float = SETTLE_SECONDS
    look_again: float = LOOK_AGAIN_SECONDS
    maintenance: float = MAINTENANCE_SECONDS
    watch: float = WATCH_SECONDS
    look: float = _LOOK_SECONDS
    blind: float = _BLIND_SECONDS
    taken: float = _TAKEN_SECONDS


WAITS = DeepIntervals()


class LightCycles(Protocol):
    """Who looks in between."""

    def look_soon(self) -> None:
        """Start a check cycle soon: its process list shows who uses the GPUs."""


class DeepTests:
    """Runs on the deep worker, one call of `attempt` at a time; `tidy` and `end` come from other threads."""

    def __init__(
        self,
        state: AgentState,
        cluster: Cluster,
        level_2: Level2,
        looks: LightCycles,
        telemetry: Telemetry,
        folder: Path | None,
        waits: DeepIntervals = WAITS,
    ) -> None:
        self._state = state
        self._level_2 = level_2
        self._looks = looks
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
        """Test the node if it is due and may be tested. Returns in how many seconds to come again."""
        self._at_rest.clear()
        try:
            if self._stopping.is_set():
                return self._waits.look_again
            self._marks.tell_kept()
            return self._attempt()
        except ClusterError as error:
            self._log("the cluster does not answer", error=str(error))
            return _WRITE_AGAIN_SECONDS if self._marks.has_kept else self._waits.look_again
        finally:
            self._at_rest.set()

    def tidy(self) -> None:
        """Remove the marks of a dead run from the Node, and measure the time since the last deep diagnostic."""
        self._marks.clear()
        node, now = self._state.node, self._state.now().wall
        if node is not None:
            self._measure(node, now)

    def end(self) -> None:
        """End a run that goes on, and wait for that, though not for ever: the next start gives the node back too."""
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
            return self._waits.look_again
        if (seconds := self._seconds_until_due(node, interval, now)) > 0:
            return min(seconds, NOT_HERE_SECONDS)
        if why := self._hindrance(node):
            self._log("no deep test now", why=why)
            return self._waits.look_again
        if (blocked := self._level_2.engine().blocked) is not None:
            return self._leave_out(blocked)
        return self._run()

    def _leave_out(self, blocked: Unobserved) -> float:
        """Record why the test that is due is not run. The node is not taken for that."""
        outcome = Outcome(LEVEL_2.name, LEVEL_2.group, unobserved=(blocked,))
        self._marks.tell(self._record(outcome, self._state.now().wall), give_back=True)
        return self._could_not_run(outcome)

    def _seconds_until_due(self, node: NodeState, interval: float, now: Now) -> float:
        """0 or less: now. Never right after a start, and spread over the fleet by the Node's own number."""
        share = zlib.crc32((node.uid or node.name).encode()) / 2**32
        since_start = now.monotonic - self._started.monotonic
        test = last_deep_test(node, now.wall)
        if test is not None:
            # A sweep gives way to work that needs the GPUs. A level 2 of the agent's own does not hear of such work.
            intervals = OVERDUE_INTERVALS if is_swept(node) else 1 + _JITTER * share
            due = (test.at - now.wall).total_seconds() + interval * intervals
        else:
            # Its place in the interval, the same at each start, so that restarts neither hasten nor starve it.
            phase = (self._started.wall.timestamp() - share * interval) % interval
            due = interval - phase - since_start
        return max(due, self._waits.settle - since_start, self._retry_at - now.monotonic)

    def _hindrance(self, node: NodeState) -> str:
        """Why the node may not be tested now, '' when it may."""
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
            run = self._marks.take(longest)
            if run is None:
                return self._waits.look_again
            log.info("deep test: the node is ours", until=timestamp(run.until))
            return self._test()
        finally:
            self._telemetry.deep_running.set(0)
            self._marks.give_back()

    def _test(self) -> float:
        self._stopping.wait(self._waits.maintenance)
        if self._stopping.is_set() or (why := _users_or_why(self._used_now)):
            self._log("no deep test now", why="the agent ends" if self._stopping.is_set() else why)
            return self._waits.look_again
        started = self._state.now().wall
        outcome = self._diagnose()
        if outcome is None:
            self._telemetry.deep_runs.labels("stopped").inc()
            return self._waits.look_again
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
        """Who uses the GPUs, by a look that began after this. Raises ProbeError."""
        asked = self._state.now().monotonic
        self._looks.look_soon()
        while (last := self._state.last_look) is None or last.at < asked:
            late = self._state.now().monotonic - asked >= self._waits.look
            if late or self._stopping.wait(_POLL_SECONDS):
                raise ProbeError("no check cycle has ended since its taint")
        return self._level_2.users()

    def _diagnose(self) -> Outcome | None:
        """Return the outcome of the diagnostic; None if it was stopped for work, by a person, or at the agent's end."""
        diagnostic = self._diagnostic = self._last_diagnostic = self._level_2.diagnostic()
        self._answered = self._state.now().monotonic
        outcomes: list[Outcome] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                outcomes.append(look_deeply(diagnostic, self._state.expectation(), self._nvml()))
            except Exception as error:  # noqa: BLE001 - raised below, where the node is given back
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
            return "the agent ends"
        if not self._marks.is_ours():
            return "another client removed our claim of the node"
        now = self._state.now().monotonic
        try:
            held_by = self._level_2.pods()
        except ProbeError as error:
            blind = now - self._answered >= self._waits.blind
            return f"it is unknown whether a pod has arrived: {error}" if blind else ""
        self._answered = now
        return held_by

    def _could_not_run(self, outcome: Outcome) -> float:
        """All of it, or a part: neither a pass nor a fault, and tried again, later each time."""
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
        # The taint of its verdict has to stand before ours for the test goes.
        self._marks.tell(record, give_back=False)
        deadline = self._state.now().monotonic + self._waits.taken
        while self._state.now().monotonic < deadline and not self._stopping.wait(_POLL_SECONDS):
            node = self._state.node
            if node is not None and has_taken(node, KIND, record.timestamp):
                return

    def _record(self, outcome: Outcome, started: datetime) -> RunRecord:
        memory = self._state.memory
        ran = CompletedRun(
            self._state.node_name, "agent", started, self._state.now().wall, memory.machine, memory.boot_id
        )
        return render(outcome, ran)

    @property
    def _interval(self) -> float:
        """In seconds; 0: the agent tests nothing."""
        return self._state.settings.values.dcgm_l2_interval_seconds

    def _nvml(self) -> dict[Probe[Any], Any]:
        """Return the NVML reading of the last cycle; it shows a GPU that DCGM leaves out."""
        look = self._state.known.driver_look
        return {NVML: look} if look is not None else {}

    def _measure(self, node: NodeState, now: datetime) -> None:
        test = last_deep_test(node, now)
        tested_at, status = (test.at.timestamp(), test.status) if test else (0.0, "")
        is_late = is_overdue(node, test, timedelta(seconds=self._interval), now)
        self._telemetry.show_deep(tested_at, status, is_overdue=is_late)

    def _log(self, event: str, **more: str) -> None:
        """Once for the same: it is tried again and again."""
        words = json.dumps([event, more])
        if words != self._logged:
            self._logged = words
            log.info("deep test", what=event, **more)


def _own_node(cluster: Cluster, state: AgentState, level_2: Level2) -> OwnNode:
    name = state.node_name
    read, update = partial(cluster.read_node, name), partial(cluster.update_node, name)
    return OwnNode(read, update, lambda: state.node, level_2.are_claimed)


def _users_or_why(ask: Callable[[], str]) -> str:
    """Return the users of the GPUs, or the reason why they are unknown: an unread list is not an empty list."""
    try:
        return ask()
    except ProbeError as error:
        return f"it is unknown whether it is idle: {error}"
