"""Permissions of the agent in the cluster: each refusal is reported once, counted, and tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import structlog

from agent.telemetry import Telemetry
from healthcheck.cluster.errors import ClusterError, Forbidden, Refused

log = structlog.get_logger()


class Permissions:
    """Permissions of the agent, by resource. Thread-safe."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._lock = threading.Lock()
        self._forbidden: set[tuple[str, str]] = set()

    def write(self, resource: str, write: Callable[[], object]) -> bool:
        """Write once. False: the cluster forbids it; other writes continue, and the next cycle retries."""
        return self.permitted(resource, partial(self._counted, resource, write))

    def permitted(self, resource: str, ask: Callable[[], object]) -> bool:
        """Read once. False: the cluster forbids it."""
        try:
            ask()
        except (Forbidden, Refused) as error:
            self.forbid("write", resource, error)
            return False
        self.allow("write", resource)
        return True

    def allow(self, verb: str, resource: str) -> None:
        with self._lock:
            self._forbidden.discard((verb, resource))
            self._telemetry.forbidden.labels(resource).set(any(text == resource for _, text in self._forbidden))

    def forbid(self, verb: str, resource: str, error: ClusterError) -> None:
        with self._lock:
            new = (verb, resource) not in self._forbidden
            self._forbidden.add((verb, resource))
            self._telemetry.forbidden.labels(resource).set(1)
        if new:
            log.error("the cluster forbids a request that the agent needs", resource=resource, answer=str(error))

    def dropped(self, what: str) -> None:
        """Count a request that failed by a fault of this program before it was sent."""
        self._telemetry.set_aside.labels(what).inc()

    def _counted(self, resource: str, write: Callable[[], object]) -> None:
        result = "ok"
        try:
            write()
        except ClusterError as error:
            result = type(error).__name__.lower()
            raise
        finally:
            self._telemetry.requests.labels(resource, result).inc()
