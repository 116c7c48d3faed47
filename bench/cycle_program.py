"""Runs one light cycle for each line on standard input, as the agent's light worker does, and answers what it saw."""

from __future__ import annotations

import json
import os
import sys

from kubernetes.client import ApiClient

from agent.__main__ import log_as_json
from agent.settings import AgentSettings
from agent.wire import Agent
from healthcheck.cluster import Cluster
from healthcheck.memory_file import MemoryFile
from healthcheck.telemetry import Telemetry


def main() -> None:
    settings = AgentSettings()  # type: ignore[call-arg]
    log_as_json(settings.log_level)
    file = MemoryFile(settings.state_dir)
    if not file.acquire():
        sys.exit("another agent holds the memory")
    # A cluster that nobody asks: the cycle ends before the telling.
    agent = Agent(settings, Cluster(ApiClient), file, Telemetry(), write=False)
    agent.expectations.ask_imds()
    for _ in sys.stdin:
        again_seconds = agent.cycle.run()
        unobserved = [row.check for row in agent.ledger.snapshot().verdict.unobserved]
        standing = [one.finding.reason for one in agent.ledger.memory.standing]
        print(json.dumps({"again": again_seconds, "standing": standing, "unobserved": unobserved}), flush=True)
    agent.end()
    os._exit(0)


if __name__ == "__main__":
    main()
