"""Events of a reset, and return of a node whose reset was abandoned.

A reset is abandoned if its command is dead, and its Job has ended or never started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.deep.reset_command import (
    LOCK,
    Silence,
    command_in,
    is_abandoned,
    returned,
    switched_off,
)
from gpu_healthcheck.healthcheck.deep.reset_plan import step_events, why_not_offered
from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND, RESET_RESULT, NodeState
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RunRecord

log = structlog.get_logger()

_INTERVAL_SECONDS = 5.0
_PLUGIN_SECONDS = 20.0
"""Time in which a device plugin may advertise the GPUs again."""


class ResetWatch(threading.Thread):
    """Thread that reads the Node while it has the annotation of a reset's command.

    It also reports each step in the record, whether the command or the Job has written it: neither of them needs the
    permission to create Events, and no step is reported twice.
    """

    def __init__(
        self,
        state: AgentState,
        cluster: Cluster,
        folder: Path,
        reporter: Reporter,
    ) -> None:
        super().__init__(name="reset-watch", daemon=True)
        self._state = state
        self._cluster = cluster
        self._folder = folder
        self._reporter = reporter
        self._silence = Silence()
        self._observed: tuple[str | None, bool] = (None, False)
        self._reported: set[str] = set()
        """Names of the Events about the record that was observed last."""
        self._stopping = threading.Event()

    def end(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(_INTERVAL_SECONDS):
            try:
                self.check_node()
            except (ClusterError, OSError) as error:
                log.warning("a reset's marks can't be read or removed now", error=str(error))
            except Exception as error:  # noqa: BLE001 - boundary of this loop
                self._reporter.report_defect("reset-watch", error)

    def check_node(self) -> None:
        """Report new steps, and return the node if its reset is abandoned. Raises ClusterError."""
        shown = self._state.node
        if shown is not None:
            self._report_steps(shown)
        if shown is None or RESET_COMMAND not in shown.annotations:
            self._silence = Silence()
            return
        node, now = self._cluster.nodes.read(shown.name), self._state.now()
        seconds = self._silence.observe(node.annotations, now.monotonic)
        if is_abandoned(node, seconds, self._state.memory.boot_id, now.wall):
            self._return(node)

    def _report_steps(self, node: NodeState) -> None:
        observed = (node.annotations.get(RESET_RESULT), RESET_COMMAND in node.annotations)
        if observed == self._observed:
            return
        self._observed = observed
        events = list(step_events(node, self._state.now().wall))
        for event in events:
            if event.name not in self._reported:
                self._reporter.queue(event)
        self._reported = {event.name for event in events}

    def _return(self, node: NodeState) -> None:
        """Restore the labels and release the claim, with the lock of the Job, so that none starts meanwhile."""
        lock = node_file.lock(self._folder / LOCK)
        if lock is None:
            return  # the Job runs, and returns the node itself
        try:
            annotation = node.annotations[RESET_COMMAND]

            def returning(node: NodeState) -> Mapping[str, Any] | None:
                is_same = node.annotations.get(RESET_COMMAND) == annotation
                command = command_in(node.annotations)
                holder = command.holder if command is not None else ""
                return returned(node, holder, self._state.now().wall) if is_same else None

            off = switched_off(node.labels, node.annotations)
            if self._cluster.nodes.update(node.name, returning) is None:
                return
        finally:
            node_file.unlock(lock)
        step = records.on_node(RunRecord, node, RESET_RESULT).running or "end"
        what = f"the GPU operator's pods switched on again: {', '.join(off)}" if off else "its claim is released"
        left = self._wait_for_plugin(node) if off else ""
        log.warning("an abandoned reset: the node is returned", step=step, operands=off, left=left)
        message = f"step '{step}': neither its command nor its Job is left; {what}"
        self._reporter.warn("GpuResetAbandoned", f"{message}; {left}" if left else message)

    def _wait_for_plugin(self, before: NodeState) -> str:
        """Return why pods can't request GPUs now that the operands are switched on; '' if they can."""
        ends = time.monotonic() + _PLUGIN_SECONDS
        while True:
            why = why_not_offered(self._state.node or before, before)
            if not why or time.monotonic() >= ends or self._stopping.wait(1.0):
                return why
