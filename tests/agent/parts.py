"""Parts of an agent for tests without a cluster: a reporter that keeps the reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from gpu_healthcheck.agent.node.api_server import ApiServer, Outage, Permissions
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.settings.reading import read_variables


def api_server(cluster: Cluster, telemetry: Telemetry | None = None) -> ApiServer:
    return ApiServer(cluster, Permissions(telemetry or Telemetry()), Outage())


def agent_settings(node: str, config: Path, **variables: object) -> AgentSettings:
    """Return the settings of an agent with this Node and ConfigMap folder in its manifest."""
    with pytest.MonkeyPatch.context() as manifest:
        for key, value in {"NODE_NAME": node, "CONFIG_DIR": config, **variables}.items():
            manifest.setenv(key, str(value))
        return read_variables(AgentSettings)


class Reports(Reporter):
    """Writes nothing."""

    def __init__(self, state: AgentState) -> None:
        super().__init__(api_server(Cluster(ApiClient)), state, Telemetry())
        self.warnings: list[tuple[str, str]] = []

    def warn(self, reason: str, message: str) -> None:
        self.warnings.append((reason, message))
        super().warn(reason, message)
