"""`python -m tests.agent.work_agent`: the hurried agent, which names a GPU that waits or idles after seconds."""

from __future__ import annotations

import sys

from gpu_healthcheck.agent.node import work_observer
from gpu_healthcheck.agent.process.agent_program import main
from gpu_healthcheck.healthcheck.verdict import work_seen
from tests.agent.quick_agent import hurry

if __name__ == "__main__":
    hurry()
    vars(work_seen).update(LEAST_SECONDS=5.0, _SHORTEST_SECONDS=0.5)
    vars(work_observer)["RETRY_SECONDS"] = 1.0
    sys.exit(main())
