"""The agent's own Node, watched instead of polled."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
import tenacity

from healthcheck.checks.examine import failure
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError, Unavailable
from healthcheck.node.state import NodeState

log = structlog.get_logger()

_CAP_SECONDS = 60.0
_AGAIN_SECONDS = 1.0


class Watcher(threading.Thread):
    """Shows `saw` the Node at every change, for as long as the process lives."""

    def __init__(self, cluster: Cluster, node_name: str, saw: Callable[[NodeState | None], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self._cluster = cluster
        self._node_name = node_name
        self._saw = saw
        self._stopping = threading.Event()

    def end(self) -> None:
        """Stop as soon as the server says something; the thread is a daemon and nobody waits for it."""
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            again = tenacity.Retrying(
                # A Node that nobody can read is shown again at its next change, which must not find us gone.
                retry=tenacity.retry_if_exception_type(Exception),
                wait=_pause,
                sleep=tenacity.sleep_using_event(self._stopping),
                stop=tenacity.stop_when_event_set(self._stopping),
                before_sleep=_say,
                retry_error_callback=lambda _: None,
            )
            again(self._watch)

    def _watch(self) -> None:
        for node in self._cluster.watch_node(self._node_name):
            if self._stopping.is_set():
                return
            self._saw(node)
        # The server ends a watch after an hour; one that ends it at once must not be asked in a tight loop.
        self._stopping.wait(_AGAIN_SECONDS)


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = (error.retry_after_seconds if isinstance(error, Unavailable) else None) or 0.0
    return max(asked, tenacity.wait_random_exponential(max=_CAP_SECONDS)(state))


def _say(state: tenacity.RetryCallState) -> None:
    if state.attempt_number == 1 and state.outcome:
        error = state.outcome.exception()
        told = str(error)
        if isinstance(error, Exception) and not isinstance(error, ClusterError):
            told = failure(error)
        log.warning("the watch on the node broke off", error=told)
