"""Return of a node whose reset was abandoned: its command is dead, and its Job has ended, or never started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from agent.state.agent_state import AgentState
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError
from healthcheck.deep.reset_command import LOCK, Silence, command_in, is_abandoned, returned, switched_off
from healthcheck.host import node_file
from healthcheck.node.state import RESET_COMMAND, RESET_RESULT, NodeState
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RunRecord

log = structlog.get_logger()

_LOOK_SECONDS = 5.0


class AbandonedReset(threading.Thread):
    """Thread that reads the Node while it has the annotation of a reset's command."""

    def __init__(
        self,
        state: AgentState,
        cluster: Cluster,
        folder: Path,
        warn: Callable[[str, str], None],
        report_defect: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(name="abandoned-reset", daemon=True)
        self._state = state
        self._cluster = cluster
        self._folder = folder
        self._warn = warn
        self._report_defect = report_defect
        self._silence = Silence()
        self._stopping = threading.Event()

    def end(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                self.look()
            except (ClusterError, OSError) as error:
                log.warning("a reset's marks can't be read or removed now", error=str(error))
            except Exception as error:  # noqa: BLE001 - boundary of this loop
                self._report_defect("abandoned-reset", error)

    def look(self) -> None:
        """Return the node if its reset is abandoned. Raises ClusterError."""
        shown = self._state.node
        if shown is None or RESET_COMMAND not in shown.annotations:
            self._silence = Silence()
            return
        node, now = self._cluster.nodes.read(shown.name), self._state.now()
        seconds = self._silence.observe(node.annotations, now.monotonic)
        if is_abandoned(node, seconds, self._state.memory.boot_id, now.wall):
            self._return(node)

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
        what = f"operands switched on: {', '.join(off)}" if off else "its claim is released"
        log.warning("an abandoned reset: the node is returned", step=step, operands=off)
        self._warn("GpuResetAbandoned", f"step '{step}': neither its command nor its Job is left; {what}")
