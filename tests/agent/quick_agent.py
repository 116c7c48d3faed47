"""`python -m tests.agent.quick_agent`: the agent, with cycles five times as often as CHECK_INTERVAL."""

from __future__ import annotations

import sys

from agent.cycle import check_cycle as cycle
from agent.node import pod_reporter, reset_watch
from agent.process import schedule
from agent.process.agent_program import main
from healthcheck.checks import driver_reasons
from healthcheck.deep import reset_command

TIMES = 5


class _Sooner(schedule._Every):
    """Shortened interval of each periodic job, including the read of the ConfigMap's files."""

    def __init__(self, seconds: float, jitter_seconds: int = 0) -> None:
        super().__init__(seconds / TIMES, jitter_seconds)


def hurry() -> None:
    """Shorten the delay of repeated observations accordingly."""
    vars(schedule)["_Every"] = _Sooner
    vars(cycle)["AGAIN_SECONDS"] = cycle.AGAIN_SECONDS / TIMES
    vars(pod_reporter)["REREAD_SECONDS"] = 1.0
    vars(reset_command)["SILENT_SECONDS"] = 2.0
    vars(reset_watch).update(_LOOK_SECONDS=0.2, _PLUGIN_SECONDS=1.0)
    vars(driver_reasons)["MISMATCH_SECONDS"] = 3 * vars(cycle)["AGAIN_SECONDS"]


if __name__ == "__main__":
    hurry()
    sys.exit(main())
