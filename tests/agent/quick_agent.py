"""`python -m tests.agent.quick_agent`: the agent, with cycles five times as often as CHECK_INTERVAL."""

from __future__ import annotations

import sys

from gpu_healthcheck.agent import check_cycle as cycle
from gpu_healthcheck.agent.node import pod_reporter, reset_watch
from gpu_healthcheck.agent.process import schedule, wiring
from gpu_healthcheck.agent.process.agent_program import main
from gpu_healthcheck.healthcheck.checks import driver_reasons
from gpu_healthcheck.healthcheck.deep import reset_command

TIMES = 5


class _ShortSchedule(schedule.Schedule):
    """Schedule with a shortened interval."""

    def _seconds_to_next(self, again_seconds: float | None, elapsed_seconds: float) -> float:
        seconds = super()._seconds_to_next(again_seconds, elapsed_seconds)
        return seconds if seconds == again_seconds else seconds / TIMES


def hurry() -> None:
    """Shorten the delays of repeated observations, and of the read of the ConfigMap's files, accordingly."""
    vars(wiring)["Schedule"] = _ShortSchedule
    vars(schedule)["CONFIG_CHECK_SECONDS"] = schedule.CONFIG_CHECK_SECONDS / TIMES
    vars(cycle)["AGAIN_SECONDS"] = cycle.AGAIN_SECONDS / TIMES
    vars(pod_reporter)["REREAD_SECONDS"] = 1.0
    vars(reset_command)["SILENT_SECONDS"] = 2.0
    vars(reset_watch).update(_INTERVAL_SECONDS=0.2, _PLUGIN_SECONDS=1.0)
    vars(driver_reasons)["MISMATCH_SECONDS"] = 3 * vars(cycle)["AGAIN_SECONDS"]


if __name__ == "__main__":
    hurry()
    sys.exit(main())
