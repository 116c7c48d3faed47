"""`python -m tests.agent.patient_agent`: the agent, with a verdict that waits for its slot in the budget.

Its result then depends on the slots alone, not on the speed of a busy machine.
"""

from __future__ import annotations

import sys

from gpu_healthcheck.agent.node import slot_requests
from gpu_healthcheck.agent.process.agent_program import main
from tests.waiting import GIVE_UP_SECONDS

if __name__ == "__main__":
    vars(slot_requests)["_MOMENT_SECONDS"] = GIVE_UP_SECONDS
    sys.exit(main())
