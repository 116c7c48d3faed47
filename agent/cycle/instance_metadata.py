"""Instance type from the metadata service, requested until the first answer."""

from __future__ import annotations

from pathlib import Path

import structlog

from agent.state.agent_state import AgentState
from healthcheck.model import ProbeError
from healthcheck.probes import machine

log = structlog.get_logger()


class InstanceMetadata:
    """Reader of the instance type in a thread of its own, because it may take seconds."""

    def __init__(self, root: Path, endpoint: str, state: AgentState) -> None:
        self._root = root
        self._endpoint = endpoint
        self._state = state

    def ask(self) -> None:
        if self._state.known.metadata_type:
            return
        try:
            instance_type = machine.instance_type(self._root, self._endpoint)
        except ProbeError as error:
            log.debug("instance metadata", error=str(error))
            return
        self._state.set_metadata_type(instance_type)
        log.info("instance type", instance_type=instance_type, source="instance metadata")
