"""Run one check cycle for each line on standard input, like the agent's worker, and print its result.

`judge` probes once and then judges the same readings twice: with warm caches, the second time counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from kubernetes.client import ApiClient

from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.agent.process.wiring import Agent
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.model import Host
from gpu_healthcheck.healthcheck.settings.reading import read_variables


def main() -> None:
    settings = read_variables(AgentSettings)
    log_as_json(settings.log_level)
    file = MemoryFile(settings.state_dir)
    if not file.acquire():
        sys.exit("another agent has locked the memory")
    # A cluster without requests: the cycle ends before any report.
    agent = Agent(settings, Cluster(ApiClient), file, Telemetry(), write=False)
    agent.host.instance_metadata.ask()
    for line in sys.stdin:
        print(json.dumps(_judge(agent) if line.strip() == "judge" else _cycle(agent)), flush=True)
    agent.end()
    os._exit(0)


def _cycle(agent: Agent) -> dict[str, Any]:
    began = time.monotonic()
    again_seconds = agent.host.cycle.run()
    seconds = time.monotonic() - began
    known = agent.state.known
    unobserved = [row.check for row in known.judgement.verdict.unobserved]
    active = [finding.finding.reason for finding in known.memory.active]
    return {"again": again_seconds, "active": active, "unobserved": unobserved, "wall_ms": seconds * 1000}


def _judge(agent: Agent) -> dict[str, Any]:
    checks = agent.state.known.level_checks
    host = Host(agent.settings.host_root, agent.host.sources.driver.read)
    expected = agent.state.expectation()
    evidence = read_probes(host, checks, read_probes(host, checks))
    judge(checks, evidence, expected)
    began = time.process_time()
    outcomes = judge(checks, evidence, expected)
    seconds = time.process_time() - began
    return {
        "checks": len(outcomes),
        "unobserved": [outcome.check for outcome in outcomes if not outcome.observed],
        "ms": seconds * 1000,
    }


if __name__ == "__main__":
    main()
