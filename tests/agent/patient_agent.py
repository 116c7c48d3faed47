"""`python -m tests.agent.patient_agent`: the agent, whose verdict waits for its place in the budget.

What it says then rests on the places alone, and not on how soon a busy machine answers.
"""

from __future__ import annotations

import sys

from agent import slot_requests
from agent.agent_program import main
from tests.waiting import GIVE_UP_SECONDS

if __name__ == "__main__":
    vars(slot_requests)["_MOMENT_SECONDS"] = GIVE_UP_SECONDS
    sys.exit(main())
