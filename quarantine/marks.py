"""What a quarantine run writes on its Node: that it has the node, its record, and the node given back.

Whoever holds the lock on the host is the only quarantine run there: a mark of another one is of a run that died.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import structlog
import tenacity

from healthcheck.checks.driver import being_changed
from healthcheck.cluster.client import Cluster, NodeChange
from healthcheck.cluster.errors import ClusterError, Conflict, Unavailable
from healthcheck.deep import claim as runs
from healthcheck.deep.claim import Claim, Kind
from healthcheck.node.gpu_resources import GpuPod
from healthcheck.node.state import QUARANTINE_RESULT, RESULTS, RUN, NodeState, is_tested
from healthcheck.text.moments import timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import taken_on
from quarantine.record import KIND, Begun, Progress, is_blind, render

log = structlog.get_logger()

HELD = timedelta(minutes=15)
"""So long the node is held at a time: a run that was killed without a word keeps it no longer."""
_LOCK = "quarantine.lock"
_MOST_NAMED = 3
_CAP_SECONDS = 30.0
_TAKEN_AGAIN_SECONDS = 1.0
_TAKE_SECONDS, _TAKE_AGAIN_SECONDS = 60.0, 5.0
"""A Job is not started a second time for an API server that is away for a moment."""


class Refusal(Exception):
    """The node can't be tested now. The message says what stands in the way."""


def lock(directory: Path) -> int:
    """The lock of this machine, kept until the process ends however it ends. Raises Refusal."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refusal("another quarantine run is at work on this machine") from None
    except OSError as error:
        raise Refusal(f"{directory / _LOCK}: {error.strerror}") from error
    return file


class Marks:
    """Used by the thread that tests and by the one that watches it, one write at a time."""

    def __init__(self, cluster: Cluster, node: str, holder: str) -> None:
        self._cluster = cluster
        self._node = node
        self._holder = holder
        self._writing = threading.Lock()
        self._told: tuple[Begun, Progress] | None = None
        self.is_heard = True
        """Whether the cluster took the last write: where it did not, the next one is not to wait."""
        self._at = datetime.min.replace(tzinfo=UTC)
        """Of the record: it moves on with each result, by a second at least, as the agent tells records apart by it."""

    def why_not(self, node: NodeState, *, force: bool) -> str:
        """What stands in the way of a test now, '' for nothing. Raises ClusterError."""
        held = runs.claim_on(_without_dead(node), _now())
        if held is not None:
            until = timestamp(held.until)
            return f"a deep run ({held.kind.value}, {held.holder}) has the node until {until}"
        if is_tested(node):
            return "HyperPod tests the node"
        if changed := being_changed(node.labels):
            return f"the node's driver is being changed: {changed}"
        if pods := [] if force else list(self._cluster.list_gpu_pods(self._node)):
            return f"GPU pods are still on the node: {_named(pods)}; quarantine-run --force tests beside them"
        return ""

    def take(self, *, force: bool) -> NodeState:
        """Have the node. Raises Refusal, ClusterError."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Unavailable),
            wait=tenacity.wait_random_exponential(max=_TAKE_AGAIN_SECONDS),
            stop=tenacity.stop_after_delay(_TAKE_SECONDS),
            reraise=True,
        )
        return again(self._take, force=force)

    def _take(self, *, force: bool) -> NodeState:
        if why := self.why_not(self._cluster.read_node(self._node), force=force):
            self._refuse(why)
        taken = self._write(lambda node: runs.take(_without_dead(node), self._run(), _now()))
        if taken is None:
            raise Refusal("a deep run has just taken the node")
        # A pod that was bound before the taint stood holds its GPUs by now, as the API server tells it.
        if why := self.why_not(taken, force=force):
            self._refuse(why)
        return taken

    def _refuse(self, why: str) -> NoReturn:
        """With no mark left: ours may stand already, by a write whose answer was lost, or that of a run that died."""
        self._write(_given_back)
        raise Refusal(why)

    def tell(self, begun: Begun, progress: Progress) -> None:
        """The record as it is now. An API server that is away hears it with what is told next."""
        self._keep(begun, progress)
        self.hold()

    def hold(self) -> bool:
        """Hold the node for longer, and tell what is told. False: another run has it."""
        try:
            is_ours = self._write(self._held) is not None
        except ClusterError as error:
            log.warning("the Node could not be written; it is tried again", error=str(error))
            self.is_heard = False
            return True
        self.is_heard = True
        return is_ours

    def wait_until_taken(self, seconds: float) -> None:
        """Until the node's agent has taken over what was found, so that its taint stands before ours goes.

        At most so long, and not at all where no agent ever was.
        """
        again = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda taken: not taken),
            wait=tenacity.wait_fixed(_TAKEN_AGAIN_SECONDS),
            stop=tenacity.stop_after_delay(seconds),
            retry_error_callback=lambda _: None,
        )
        again(self._is_taken)

    def _is_taken(self) -> bool:
        try:
            node = self._cluster.read_node(self._node)
        except ClusterError:
            return False
        return RESULTS not in node.annotations or taken_on(node).get(KIND) == timestamp(self._at)

    def wait_until_seen(self, begun: Begun, seconds: float, stopping: threading.Event) -> None:
        """Until the agent's look sees all of the node: one beside a test, which loads driver and devices, may not have.

        At most so long, and not at all where the look saw all, or no agent ever was.
        """
        again = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda seen: not seen),
            wait=tenacity.wait_fixed(_TAKEN_AGAIN_SECONDS),
            stop=tenacity.stop_after_delay(seconds) | tenacity.stop_when_event_set(stopping),
            sleep=tenacity.sleep_using_event(stopping),
            retry_error_callback=lambda _: None,
        )
        again(self._is_seen, begun)

    def _is_seen(self, begun: Begun) -> bool:
        try:
            return not is_blind(begun, self._cluster.read_node(self._node), _now())
        except ClusterError:
            return False

    def finish(self, begun: Begun, progress: Progress) -> dict[str, Any]:
        """The last record, and the node given back in the same write, as soon as the cluster takes it.

        Raises ClusterError where it never will.
        """
        self._keep(begun, progress)
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((Unavailable, Conflict)),
            wait=tenacity.wait_random_exponential(max=_CAP_SECONDS),
            before_sleep=lambda state: log.warning("the result could not be written yet", error=_error(state)),
            reraise=True,
        )
        node = again(self._write, self._ended)
        assert node is not None
        return records.load(node.annotations[QUARANTINE_RESULT])

    def _keep(self, begun: Begun, progress: Progress) -> None:
        with self._writing:
            before = self._told[1] if self._told else None
            self._told = (begun, progress)
            if before is None or (before.results, before.stopped) != (progress.results, progress.stopped):
                self._at = max(_now(), self._at + timedelta(seconds=1))

    def _run(self) -> Claim:
        return Claim(Kind.QUARANTINE, self._holder, _now() + HELD)

    def _held(self, node: NodeState) -> Mapping[str, Any] | None:
        patch = runs.take(_without_dead(node), self._run(), _now())
        return patch and self._with_record(patch, node)

    def _ended(self, node: NodeState) -> Mapping[str, Any]:
        patch = runs.give_back(node, self._run()) or {"metadata": {"resourceVersion": node.resource_version}}
        return self._with_record(patch, node)

    def _with_record(self, patch: Mapping[str, Any], node: NodeState) -> Mapping[str, Any]:
        if self._told is None:
            return patch
        text = records.dump(render(*self._told, node, self._at))
        metadata = patch["metadata"]
        annotations = {**metadata.get("annotations", {}), QUARANTINE_RESULT: text}
        return {**patch, "metadata": {**metadata, "annotations": annotations}}

    def _write(self, change: NodeChange) -> NodeState | None:
        """One at a time, of two threads. None: the Node needed nothing. Raises ClusterError."""
        with self._writing:
            return self._cluster.update_node(self._node, change)


def _without_dead(node: NodeState) -> NodeState:
    """The Node without the mark of a quarantine run: it is ours, or of one that died (we have the lock)."""
    held = runs.claim_on(node, _now())
    if held is None or held.kind is not Kind.QUARANTINE:
        return node
    return replace(node, annotations={key: value for key, value in node.annotations.items() if key != RUN})


def _given_back(node: NodeState) -> Mapping[str, Any] | None:
    held = runs.claim_on(node, _now())
    return runs.give_back(node, held) if held is not None and held.kind is Kind.QUARANTINE else None


def _named(pods: list[GpuPod]) -> str:
    more = f" and {len(pods) - _MOST_NAMED} more" if len(pods) > _MOST_NAMED else ""
    return ", ".join(map(str, pods[:_MOST_NAMED])) + more


def _error(state: tenacity.RetryCallState) -> str:
    return str(state.outcome.exception()) if state.outcome else ""


def _now() -> datetime:
    return datetime.now(UTC)
