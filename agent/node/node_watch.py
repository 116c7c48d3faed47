"""The agent's own Node, watched instead of polled."""

from __future__ import annotations

import threading

import structlog
import tenacity

from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.node.hami import CORDON
from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON, EVICT, REPAIR_CONDITIONS, WATCHED_LABELS, NodeState

log = structlog.get_logger()

_CAP_SECONDS = 60.0
_AGAIN_SECONDS = 1.0


class NodeWatch(threading.Thread):
    """Thread that updates the state at every change of the Node, until the process ends."""

    def __init__(self, cluster: Cluster, state: AgentState, reporter: Reporter) -> None:
        super().__init__(name="node-watch", daemon=True)
        self._cluster = cluster
        self._state = state
        self._reporter = reporter
        self._stopping = threading.Event()

    def end(self) -> None:
        """Stop at the next message of the server; the thread is a daemon, and the caller does not wait for it."""
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            again = tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(Exception),
                wait=_pause,
                sleep=tenacity.sleep_using_event(self._stopping),
                stop=tenacity.stop_when_event_set(self._stopping),
                before_sleep=self._log_failure,
                retry_error_callback=lambda _: None,
            )
            again(self._watch)

    def _log_failure(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Exception) and not isinstance(error, ClusterError):
            self._reporter.report_defect("watch", error)
        elif state.attempt_number == 1:
            log.warning("the watch on the Node was interrupted", error=str(error))

    def _watch(self) -> None:
        for node in self._cluster.nodes.watch(self._state.node_name):
            if self._stopping.is_set():
                return
            self._show(node)
        # The server ends a watch after an hour. If it ends each watch at once, the pause prevents a tight loop.
        self._stopping.wait(_AGAIN_SECONDS)

    def _show(self, node: NodeState | None) -> None:
        """Set the current Node; None: it is deleted. The run comes last, so that its failure hides no Node."""
        self._state.note_unreadable("")
        before = self._state.node
        if node is None:
            self._state.set_node(None)
            self._state.node_shown.set()
        elif self._state.keep_newer(node):
            self._state.node_shown.set()
            if before is None or _differs(before, node):
                self._state.news.set()
            if before is None:
                self._reporter.retry_now()
        self._state.see_run(node)
        self._state.node_changed.set()


def _differs(before: NodeState, after: NodeState) -> bool:
    """Whether another client changed a field of ours; the kubelet's own writes are ignored."""
    return _ours(before) != _ours(after)


def _ours(node: NodeState) -> tuple[object, ...]:
    return (*marks_of(node), node.condition(), _repair_conditions(node))


def marks_of(node: NodeState) -> tuple[object, ...]:
    """Return the fields of a Node, apart from conditions, whose change by another client needs an answer.

    The annotation of the evict program needs none.
    """
    labels = {key: value for key, value in node.labels.items() if key.startswith(PREFIX) or key in WATCHED_LABELS}
    is_ours = DEVICE_CORDON in node.annotations
    annotations = {
        key: value
        for key, value in node.annotations.items()
        if (key.startswith(PREFIX) and key != EVICT) or (key == CORDON and is_ours)
    }
    return (node.uid, labels, annotations, node.tainted())


def _repair_conditions(node: NodeState) -> list[tuple[object, ...]]:
    """Return the repair conditions without their times, which other writers renew every few minutes."""
    words = ("type", "status", "reason", "message")
    return [
        tuple(condition.get(key) for key in words)
        for condition in node.conditions
        if condition.get("type") in REPAIR_CONDITIONS
    ]


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = (error.retry_after_seconds if isinstance(error, ClusterError) else None) or 0.0
    return max(asked, tenacity.wait_random_exponential(max=_CAP_SECONDS)(state))
