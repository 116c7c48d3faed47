"""The cluster's RuntimeClasses: listed at the start and about hourly, and the last good list kept."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

import structlog

from agent.permissions import Access
from healthcheck.checks.expectation import RuntimeClass
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError, Forbidden
from healthcheck.node.state import SelectiveClass, runtime_classes
from healthcheck.telemetry import Telemetry

log = structlog.get_logger()

LISTED_AGAIN_SECONDS = 3600.0
_JITTER = 0.1
"""So that a fleet that started together does not ask in step."""


class RuntimeClasses:
    def __init__(self, cluster: Cluster, telemetry: Telemetry, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._access = Access(telemetry)
        self._clock = clock
        self._due_at = clock()
        self._classes: list[SelectiveClass] | None = None

    def on(self, labels: Mapping[str, str]) -> tuple[RuntimeClass, ...] | None:
        """Those that pods on a node with these labels may name; None while nobody could list them."""
        classes = self._classes
        return None if classes is None else runtime_classes(classes, labels)

    def list_when_due(self) -> None:
        """One listing an hour, whatever comes of it; but one that nobody answered is tried again the next time."""
        if self._clock() < self._due_at:
            return
        try:
            self._classes = self._cluster.list_runtime_classes()
        except Forbidden as error:
            self._access.forbid(error.verb, error.resource, error)
        except ClusterError as error:
            log.debug("RuntimeClasses", error=str(error))
            return
        else:
            self._access.allow("list", "runtimeclasses")
        spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
        self._due_at = self._clock() + LISTED_AGAIN_SECONDS * spread
