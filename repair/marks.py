"""Marks of a reset on its Node: the claim and the list of labels, which the command made, and the record."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Unavailable
from gpu_healthcheck.healthcheck.cluster.retries import RetryLimits
from gpu_healthcheck.healthcheck.deep import reset_command
from gpu_healthcheck.healthcheck.deep.claim import Annotations, Claimant, RunKind
from gpu_healthcheck.healthcheck.deep.reset_command import Silence, restored, returned, switched_off, switched_on
from gpu_healthcheck.healthcheck.deep.reset_plan import drained, obstacles, why_not_offered
from gpu_healthcheck.healthcheck.host.program import RunRefused
from gpu_healthcheck.healthcheck.model import Status
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND, RESET_RESULT, NodeState, PatchFor, annotated
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RunRecord
from gpu_healthcheck.repair.record import ResetProgress, ResetStart, render

log = structlog.get_logger()

HELD = timedelta(minutes=15)
"""Duration of a claim between renewals: longer than every step before level 2."""
LONGEST = timedelta(hours=2)
"""Longest claim, which is the time of the Job: no reader accepts one of more than three hours."""
HANDED_OVER = timedelta(minutes=10)
"""Duration of the claim after the last step, until the node is returned."""
AGENT_SECONDS = 25.0
"""Longest wait for the agent, which lifts the taint of the verdict after a successful reset."""
PLUGIN_SECONDS = 20.0
"""Time in which a device plugin may advertise the GPUs again."""
WATCH_SECONDS = 2.0
"""Interval in which the Node is read for signs of life of the command."""
_LOOK_SECONDS = 1.0
_AT_THE_START = RetryLimits(60.0, (Unavailable,), longest_pause=5.0, longest_asked=5.0)
_AT_THE_END = RetryLimits(math.inf, longest_pause=30.0, longest_asked=30.0)


class CommandWatch(threading.Thread):
    """Thread that reads the Node during all steps, and until the end of the process."""

    def __init__(self, read: Callable[[], NodeState]) -> None:
        super().__init__(name="command-watch", daemon=True)
        self._read = read
        self._silence = Silence()

    def run(self) -> None:
        while True:
            with suppress(ClusterError):  # an outage is no silence
                self._silence.observe(self._read().annotations, time.monotonic())
            time.sleep(WATCH_SECONDS)

    @property
    def is_dead(self) -> bool:
        return self._silence.seconds >= reset_command.SILENT_SECONDS


class ResetMarks:
    """Marks of one run. After the command or the agent has returned the node, nothing is written."""

    def __init__(self, cluster: Cluster, node: str, holder: str) -> None:
        self._cluster = cluster
        self._node = node
        self._holder = holder
        self._claimant = Claimant(RunKind.RESET, holder, self._write, _now)
        self._command = CommandWatch(self._read)
        self._is_restoring = False
        self._at = datetime.min.replace(tzinfo=UTC)
        """Time of the record. It advances with each write, because the agent distinguishes records by it."""

    def _read(self) -> NodeState:
        return self._cluster.nodes.read(self._node)

    def _write(self, change: PatchFor) -> NodeState | None:
        def changing(node: NodeState) -> Mapping[str, Any] | None:
            patch = change(node) if RESET_COMMAND in node.annotations else None
            return restored(node, patch) if patch is not None and self._is_restoring else patch

        return self._cluster.nodes.update(self._node, changing)

    def take(self) -> NodeState:
        """Claim the node, or take over the command's claim. Raises RunRefused, ClusterError."""
        taken = _AT_THE_START.ask(self._take)
        self._command.start()
        return taken

    def _take(self) -> NodeState:
        node = self._read()
        if RESET_COMMAND not in node.annotations:
            raise RunRefused("gpu-healthcheck reset has ended, or is of an older version")
        # The command has judged the findings and the platform, and a person may have overruled it there.
        if why := "; ".join(obstacles(node, self._holder, _now())):
            raise RunRefused(why)
        taken = self._claimant.acquire_or_renew(_now() + HELD)
        if taken is None:
            raise RunRefused("another run has just claimed the node")
        return taken

    def pods(self) -> list[Mapping[str, object]]:
        """Return the pods on the node. Raises ClusterError."""
        return list(_AT_THE_START.ask(lambda: self._cluster.pods.list_on(self._node)))

    def operands(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the operator's labels that are on, and those that the command has switched off.

        Raises ClusterError.
        """
        node = _AT_THE_START.ask(self._read)
        return switched_on(node.labels), switched_off(node.labels, node.annotations)

    def drained(self) -> str:
        """Return how the command drained the node; '' if it has not. Raises RunRefused, ClusterError."""
        node = _AT_THE_START.ask(self._read)
        record = records.on_node(RunRecord, node, RESET_RESULT)
        detail = drained(record) if record.holder == self._holder else ""
        if not detail:
            self.must_have_command("the node is not drained")
        return detail

    def must_have_command(self, left: str) -> None:
        """Raise RunRefused, with what is left to do, if the command is dead."""
        if self._command.is_dead:
            raise RunRefused(f"{_silent()}, and {left}; it continues with: gpu-healthcheck reset {self._node}")

    def tell(self, begun: ResetStart, progress: ResetProgress, held: timedelta = HELD) -> None:
        """Write the record and renew the claim. Raises RunRefused if another run owns the node, ClusterError."""
        annotations = self._annotations(begun, progress)
        if _AT_THE_START.ask(lambda: self._claimant.acquire_or_renew(_now() + min(held, LONGEST), annotations)) is None:
            raise RunRefused("another run has claimed the node, or it was returned")

    def note(self, begun: ResetStart, progress: ResetProgress, held: timedelta = HELD) -> None:
        """Write the record after the GPUs were touched: a failure must not end the run."""
        try:
            self.tell(begun, progress, held)
        except (ClusterError, RunRefused) as error:
            log.warning("the Node could not be written", error=str(error))

    def finish(self, begun: ResetStart, progress: ResetProgress) -> None:
        """Write the last record and restore the operator's labels, with retries. Raises ClusterError."""
        annotations = self._annotations(begun, progress)
        self._is_restoring = True
        if _AT_THE_END.ask(lambda: self._claimant.acquire_or_renew(_now() + HANDED_OVER, annotations)) is None:
            _AT_THE_END.ask(lambda: self._claimant.release(annotations))  # writes only the record

    def hand_over(
        self, begun: ResetStart, progress: ResetProgress, before: NodeState, stopping: threading.Event
    ) -> ResetProgress:
        """Wait until the command has returned the node. If it is dead, return the node, and record what is left to do.

        Raises ClusterError.
        """
        ends, is_awaited = time.monotonic() + AGENT_SECONDS, True
        while is_awaited or not self._command.is_dead:
            node = _AT_THE_END.ask(self._read)
            if not self._claimant.has(node) or stopping.wait(_LOOK_SECONDS):
                return progress
            # While the claim is there, the agent checks every 10 s.
            is_awaited = progress.status is Status.PASS and node.tainted() and time.monotonic() < ends
        log.warning("the command is dead, so the node is returned")
        # A device plugin does not start before the taint of the claim is gone.
        _AT_THE_END.ask(self._claimant.release)
        if left := self._wait_for_plugin(before, stopping, is_reset=progress.status is Status.PASS):
            progress = replace(progress, reasons=(*progress.reasons, f"{_silent()}: {left}"))

        def returning(node: NodeState) -> Mapping[str, Any] | None:
            patch = returned(node, self._holder, _now())
            # With the time of the last record, the agent takes it over once.
            return patch and annotated(node, _annotations(begun, progress, node, self._at), patch)

        _AT_THE_END.ask(lambda: self._write(returning))
        return progress

    def _wait_for_plugin(self, before: NodeState, stopping: threading.Event, *, is_reset: bool) -> str:
        """Return why pods can't request the GPUs that they could before, or all after a reset; '' if they can."""
        ends = time.monotonic() + PLUGIN_SECONDS
        while True:
            why = why_not_offered(_AT_THE_END.ask(self._read), before, is_reset=is_reset)
            if not why or time.monotonic() >= ends or stopping.wait(_LOOK_SECONDS):
                return why

    def _annotations(self, begun: ResetStart, progress: ResetProgress) -> Annotations:
        self._at = max(_now(), self._at + timedelta(seconds=1))
        at = self._at
        return lambda node: _annotations(begun, progress, node, at)


def _annotations(begun: ResetStart, progress: ResetProgress, node: NodeState, at: datetime) -> dict[str, str]:
    return {RESET_RESULT: records.dump(render(begun, progress, node, at))}


def _silent() -> str:
    return f"the command has given no sign of life for {reset_command.SILENT_SECONDS:g} s"


def _now() -> datetime:
    return datetime.now(UTC)
