"""Agent as started by `python -m agent`, but it accepts log records of user space as records of the kernel.

This is an argument, not a setting, so that a running agent cannot be made to accept a forgery. Each line of standard
input closes idle connections, as the API server does after 90 s; the end of input ends the agent.
"""

from __future__ import annotations

import os
import sys

from kubernetes.client import ApiClient

from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.agent.process.wiring import Agent
from gpu_healthcheck.agent.telemetry import Telemetry, serve
from gpu_healthcheck.healthcheck.catalog.tables import read_all
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.settings.reading import read_variables

KERNEL, USER = 0, 1


def main() -> None:
    read_all()
    settings = read_variables(AgentSettings)
    log_as_json(settings.log_level)
    clients: list[ApiClient] = []

    def connector() -> ApiClient:
        clients.append(connect())
        return clients[-1]

    cluster, telemetry, file = Cluster(connector), Telemetry(), MemoryFile(settings.state_dir)
    if not file.acquire():
        sys.exit("another agent has locked the memory")
    agent = Agent(settings, cluster, file, telemetry, facilities=frozenset({KERNEL, USER}))
    serve(telemetry, settings.metrics_port, agent.healthy, agent.ready, {})
    agent.start()
    for _ in sys.stdin:
        clients[-1].rest_client.pool_manager.clear()
        print("done", flush=True)
    agent.end()
    os._exit(0)


if __name__ == "__main__":
    main()
