"""The agent, wired as `python -m agent` wires it, but taking records of user space in the kernel log for the kernel's.

That is an argument and never a setting: nobody can make a running agent believe a forgery. On standard input:
`reconnect` closes the connections that wait unused, as the API server does after 90 s, and the end ends the agent.
"""

from __future__ import annotations

import os
import sys

from kubernetes.client import ApiClient

from agent.__main__ import log_as_json
from agent.settings import AgentSettings
from agent.wire import Agent
from healthcheck.cluster import Cluster, connect
from healthcheck.memory_file import MemoryFile
from healthcheck.telemetry import Telemetry, serve

KERNEL, USER = 0, 1


def main() -> None:
    settings = AgentSettings()  # type: ignore[call-arg]
    log_as_json(settings.log_level)
    clients: list[ApiClient] = []

    def connector() -> ApiClient:
        clients.append(connect())
        return clients[-1]

    cluster, telemetry, file = Cluster(connector), Telemetry(), MemoryFile(settings.state_dir)
    if not file.acquire():
        sys.exit("another agent holds the memory")
    agent = Agent(settings, cluster, file, telemetry, facilities=frozenset({KERNEL, USER}))
    serve(telemetry, settings.metrics_port, agent.healthy, agent.ready)
    agent.start()
    for _ in sys.stdin:
        clients[-1].rest_client.pool_manager.clear()
        print("done", flush=True)
    agent.end()
    os._exit(0)


if __name__ == "__main__":
    main()
