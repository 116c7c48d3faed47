"""Marks of a quarantine run on its Node: the claim, the record, and the end of the claim.

The owner of the lock on the host is the only quarantine run there, so another claim belongs to a dead run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import structlog
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.driver import being_changed
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Unavailable
from gpu_healthcheck.healthcheck.cluster.retries import RetryLimits
from gpu_healthcheck.healthcheck.deep.claim import Claim, Claimant, RunKind
from gpu_healthcheck.healthcheck.host.program import RunRefused
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, RESULTS, NodeState, PatchFor, is_tested
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import has_adopted
from gpu_healthcheck.healthcheck.verdict.record import RunRecord
from gpu_healthcheck.quarantine.quarantine_record import KIND, QuarantineProgress, RunStart, render

log = structlog.get_logger()

HELD = timedelta(minutes=15)
"""Duration of a claim between renewals: a killed run blocks the node no longer than this."""
_MOST_NAMED = 3
_AGAIN_SECONDS = 1.0
_AT_THE_START = RetryLimits(60.0, (Unavailable,), longest_pause=5.0, longest_asked=5.0)
"""Retry time at the start: the Job is not restarted because of a short outage."""
_AT_THE_END = RetryLimits(math.inf, longest_pause=30.0, longest_asked=30.0)
"""Longest pause between retries of the result: the kubelet ends a terminating pod after 150 s, whatever the server
requests.
"""


class QuarantineMarks:
    """Marks of one run. Used by the testing and the watching thread, one write at a time."""

    def __init__(self, cluster: Cluster, node: str, holder: str) -> None:
        self._cluster = cluster
        self._node = node
        self._claimant = Claimant(RunKind.QUARANTINE, holder, self._write, _now, _gives_way)
        self._writing = threading.Lock()
        self._known: tuple[RunStart, QuarantineProgress] | None = None
        self.is_heard = True
        """Whether the last write succeeded; after a failed write, the next renewal is due earlier."""
        self._at = datetime.min.replace(tzinfo=UTC)
        """Time of the record.

        It advances by at least a second with each result, because the agent distinguishes records by it.
        """

    def why_not(self, node: NodeState, *, force: bool) -> str:
        """Return the reason why the node can't be tested now; '' without one. Raises ClusterError."""
        claim = self._claimant.claim_on(node)
        if claim is not None:
            until = timestamp(claim.until)
            return f"a deep test ({claim.kind.value}, {claim.holder}) owns the node until {until}"
        if is_tested(node):
            return "HyperPod tests the node"
        if changed := being_changed(node.labels):
            return f"the node's driver is being replaced: {changed}"
        if pods := [] if force else list(self._cluster.pods.list_with_gpus(self._node)):
            return f"GPU pods are still on the node: {named(pods, _MOST_NAMED)}; quarantine-run --force tests anyway"
        return ""

    def take(self, *, force: bool) -> NodeState:
        """Claim the node. Raises RunRefused, ClusterError."""
        return _AT_THE_START.ask(lambda: self._take(force=force))

    def _take(self, *, force: bool) -> NodeState:
        if why := self.why_not(self._cluster.nodes.read(self._node), force=force):
            self._refuse(why)
        taken = self._claimant.acquire_or_renew(_now() + HELD)
        if taken is None:
            raise RunRefused("another deep test has just taken the node")
        # By now, the API server lists a pod that was bound before the taint was set.
        if why := self.why_not(taken, force=force):
            self._refuse(why)
        return taken

    def _refuse(self, why: str) -> NoReturn:
        """Remove our marks and raise: a lost write or a dead run may have left them."""
        self._claimant.release()
        raise RunRefused(why)

    def tell(self, begun: RunStart, progress: QuarantineProgress) -> None:
        """Write the current record. After an outage of the API server, the next write contains it."""
        self._keep(begun, progress)
        self.hold()

    def hold(self) -> bool:
        """Renew the claim with the current record. False: another run owns the node."""
        try:
            is_ours = self._claimant.acquire_or_renew(_now() + HELD, self._record) is not None
        except ClusterError as error:
            log.warning("the Node could not be written; retrying", error=str(error))
            self.is_heard = False
            return True
        self.is_heard = True
        return is_ours

    def wait_until_taken(self, seconds: float) -> None:
        """Wait until the node's agent has adopted the findings, so that its taint is set before ours is removed.

        The wait is bounded, and skipped on a node without an agent.
        """
        RetryLimits(seconds).until(self._is_taken, _AGAIN_SECONDS)

    def _is_taken(self) -> bool:
        try:
            node = self._cluster.nodes.read(self._node)
        except ClusterError:
            return False
        return RESULTS not in node.annotations or has_adopted(node, KIND, timestamp(self._at))

    def finish(self, begun: RunStart, progress: QuarantineProgress) -> RunRecord:
        """Write the last record and release the node in one write, with retries.

        Raises ClusterError on a permanent failure.
        """
        self._keep(begun, progress)
        retries = replace(
            _AT_THE_END, say=lambda error: log.warning("the result could not be written yet", error=str(error))
        )
        node = retries.ask(lambda: self._claimant.release(self._record))
        assert node is not None
        return records.parse(RunRecord, node.annotations[QUARANTINE_RESULT])

    def _keep(self, begun: RunStart, progress: QuarantineProgress) -> None:
        with self._writing:
            before = self._known[1] if self._known else None
            self._known = (begun, progress)
            if before is None or (before.results, before.stopped) != (progress.results, progress.stopped):
                self._at = max(_now(), self._at + timedelta(seconds=1))

    def _record(self, node: NodeState) -> Mapping[str, str]:
        known = self._known
        return {QUARANTINE_RESULT: records.dump(render(*known, node, self._at))} if known else {}

    def _write(self, change: PatchFor) -> NodeState | None:
        """Patch the Node, one thread at a time. None: nothing to write. Raises ClusterError."""
        with self._writing:
            return self._cluster.nodes.update(self._node, change)


def _gives_way(claim: Claim) -> bool:
    """Whether the claim is of a quarantine run: ours, or that of a dead run, because this process has the lock."""
    return claim.kind is RunKind.QUARANTINE


def _now() -> datetime:
    return datetime.now(UTC)
