"""Outages of the API server for all parts that use it. Start and end are logged once."""

from __future__ import annotations

import threading

import structlog

from healthcheck.cluster.errors import ClusterError

log = structlog.get_logger()


class Outage:
    """Outages of the API server, each logged once at its start and at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[str] = set()

    def away(self, owner: str, error: ClusterError) -> None:
        with self._lock:
            if not self._waiting:
                log.warning("the API server is unavailable; the newest verdict is kept", error=str(error))
            self._waiting.add(owner)

    def back(self, owner: str) -> None:
        with self._lock:
            if self._waiting == {owner}:
                log.info("the API server is available again; the Node is up to date")
            self._waiting.discard(owner)
