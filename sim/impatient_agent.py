"""`python -m sim.impatient_agent`: the agent with an NVML deadline of 5 seconds instead of 60."""

from __future__ import annotations

import sys

from gpu_healthcheck.agent.process.agent_program import main
from gpu_healthcheck.healthcheck.probes.nvml import driver

DEADLINE_SECONDS = 5.0

if __name__ == "__main__":
    vars(driver)["DEADLINE_SECONDS"] = DEADLINE_SECONDS
    sys.exit(main())
