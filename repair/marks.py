"""Marks of a reset on its Node: the claim, which the command made, and the record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import structlog

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError, Unavailable
from healthcheck.cluster.retry_limits import RetryLimits
from healthcheck.deep.claim import RunKind
from healthcheck.deep.claimant import Annotations, Claimant
from healthcheck.deep.reset_plan import obstacles
from healthcheck.deep.reset_steps import drained
from healthcheck.host import node_file
from healthcheck.node.state import RESET_RESULT, NodeState
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RunRecord
from repair.record import ResetProgress, ResetStart, render

log = structlog.get_logger()

HELD = timedelta(minutes=15)
"""Duration of a claim between renewals: longer than every step before level 2."""
HANDED_OVER = timedelta(minutes=10)
"""Duration of the claim after the Job: the command returns the node within it, or any later run clears it."""
_LOCK = "reset.lock"
_AT_THE_START = RetryLimits(60.0, (Unavailable,), longest_pause=5.0, longest_asked=5.0)
_AT_THE_END = RetryLimits(math.inf, longest_pause=30.0, longest_asked=30.0)


class NodeNotResettable(Exception):
    """The GPUs can't be reset now. The message has the reason."""


def lock(directory: Path) -> int:
    """Acquire the lock of this machine, which is held until the process ends. Raises NodeNotResettable."""
    try:
        file = node_file.lock(directory / _LOCK)
    except OSError as error:
        raise NodeNotResettable(f"{directory / _LOCK}: {error.strerror}") from error
    if file is None:
        raise NodeNotResettable("another reset is active on this machine")
    return file


class ResetMarks:
    """Marks of one run."""

    def __init__(self, cluster: Cluster, node: str, holder: str) -> None:
        self._cluster = cluster
        self._node = node
        self._holder = holder
        self._claimant = Claimant(RunKind.RESET, holder, partial(cluster.nodes.update, node), _now)
        self._at = datetime.min.replace(tzinfo=UTC)
        """Time of the record. It advances with each write, because the agent distinguishes records by it."""

    def take(self) -> NodeState:
        """Claim the node, or take over the command's claim. Raises NodeNotResettable, ClusterError."""
        return _AT_THE_START.ask(self._take)

    def _take(self) -> NodeState:
        node = self._cluster.nodes.read(self._node)
        # The command has judged the findings and the platform, and a person may have overruled it there.
        if why := "; ".join(obstacles(node, self._holder, _now())):
            raise NodeNotResettable(why)
        taken = self._claimant.hold(_now() + HELD)
        if taken is None:
            raise NodeNotResettable("another run has just claimed the node")
        return taken

    def pods(self) -> list[Mapping[str, object]]:
        """Return the pods on the node. Raises ClusterError."""
        return list(_AT_THE_START.ask(lambda: self._cluster.pods.list_on(self._node)))

    def drained(self) -> str:
        """Return how the command drained the node; '' if it has not. Raises ClusterError."""
        node = _AT_THE_START.ask(lambda: self._cluster.nodes.read(self._node))
        record = records.on_node(RunRecord, node, RESET_RESULT)
        return drained(record) if record.holder == self._holder else ""

    def tell(self, begun: ResetStart, progress: ResetProgress, held: timedelta = HELD) -> None:
        """Write the record and renew the claim. Raises NodeNotResettable if another run owns the node, ClusterError."""
        annotations = self._annotations(begun, progress)
        if _AT_THE_START.ask(lambda: self._claimant.hold(_now() + held, annotations)) is None:
            raise NodeNotResettable("another run has claimed the node")

    def note(self, begun: ResetStart, progress: ResetProgress, held: timedelta = HELD) -> None:
        """Write the record after the GPUs were touched: a failure must not end the run."""
        try:
            self.tell(begun, progress, held)
        except (ClusterError, NodeNotResettable) as error:
            log.warning("the Node could not be written", error=str(error))

    def finish(self, begun: ResetStart, progress: ResetProgress) -> None:
        """Write the last record, with retries, and leave the claim to the command. Raises ClusterError."""
        annotations = self._annotations(begun, progress)
        if _AT_THE_END.ask(lambda: self._claimant.hold(_now() + HANDED_OVER, annotations)) is None:
            _AT_THE_END.ask(lambda: self._claimant.give_back(annotations))  # writes only the record

    def _annotations(self, begun: ResetStart, progress: ResetProgress) -> Annotations:
        self._at = max(_now(), self._at + timedelta(seconds=1))
        at = self._at
        return lambda node: {RESET_RESULT: records.dump(render(begun, progress, node, at))}


def _now() -> datetime:
    return datetime.now(UTC)
