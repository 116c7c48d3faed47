"""The cluster's RuntimeClasses: listed at the start and about hourly; the last valid list is kept."""

from __future__ import annotations

import random

import structlog

from agent.node.api_server import ApiServer
from agent.state.agent_state import AgentState
from healthcheck.cluster.errors import ClusterError, Forbidden

log = structlog.get_logger()

LISTED_AGAIN_SECONDS = 3600.0
_JITTER = 0.1
"""Random share of the interval, so that agents that started together do not list at the same time."""


class RuntimeClasses:
    """Thread that lists the RuntimeClasses into the state."""

    def __init__(self, api: ApiServer, state: AgentState) -> None:
        self._api = api
        self._state = state
        self._due_at = state.now().monotonic

    def list_when_due(self) -> None:
        """List the RuntimeClasses once an hour, whatever the result.

        A request without an answer is repeated the next time.
        """
        if self._state.now().monotonic < self._due_at:
            return
        try:
            self._state.set_runtime_classes(self._api.cluster.settings.list_runtime_classes())
        except Forbidden as error:
            self._api.permissions.forbid(error.verb, error.resource, error)
        except ClusterError as error:
            log.debug("RuntimeClasses", error=str(error))
            return
        else:
            self._api.permissions.allow("list", "runtimeclasses")
        spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
        self._due_at = self._state.now().monotonic + LISTED_AGAIN_SECONDS * spread
