"""Access to the API server: permissions and outages, each reported once at its start and at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import structlog
from msgspec import Struct

from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, Refused, Unauthorized

log = structlog.get_logger()
_UNAVAILABLE = "the API server is unavailable; the newest verdict is kept"
_REJECTED = "the API server does not accept the agent's token; the newest verdict is kept"


class Outage:
    """Outages of the API server, each logged once at its start and at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[str] = set()

    def away(self, waiter: str, error: ClusterError) -> None:
        with self._lock:
            if not self._waiting:
                log.warning(_REJECTED if isinstance(error, Unauthorized) else _UNAVAILABLE, error=str(error))
            self._waiting.add(waiter)

    def back(self, waiter: str) -> None:
        with self._lock:
            if self._waiting == {waiter}:
                log.info("the API server is available again; the Node is up to date")
            self._waiting.discard(waiter)


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
            self._telemetry.forbidden.labels(resource).set(
                any(forbidden == resource for _, forbidden in self._forbidden)
            )

    def forbid(self, verb: str, resource: str, error: ClusterError) -> None:
        with self._lock:
            new = (verb, resource) not in self._forbidden
            self._forbidden.add((verb, resource))
            self._telemetry.forbidden.labels(resource).set(1)
        if new:
            log.error("the cluster forbids a request that the agent needs", resource=resource, answer=str(error))

    def _counted(self, resource: str, write: Callable[[], object]) -> None:
        result = "ok"
        try:
            write()
        except ClusterError as error:
            result = type(error).__name__.lower()
            raise
        finally:
            self._telemetry.requests.labels(resource, result).inc()


class ApiServer(Struct, frozen=True):
    """Access to the API server. With `write` False (a dry run or a standby), writes are logged and not sent."""

    cluster: Cluster
    permissions: Permissions
    outage: Outage
    write: bool = True
