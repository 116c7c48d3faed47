"""All programs, where a reset's command is dead after seconds without a sign of life; KILL_AT as of a quarantine's."""

from __future__ import annotations

import os

from gpu_healthcheck.agent.node import reset_watch
from gpu_healthcheck.cli.__main__ import main
from gpu_healthcheck.healthcheck.deep import reset_command
from gpu_healthcheck.repair import marks
from tests.cli.dying import DyingAtWrites
from tests.sweeper.dying import die_at_writes

SILENT_SECONDS = 5.0

if __name__ == "__main__":
    vars(reset_command).update(SILENT_SECONDS=SILENT_SECONDS, RENEWED_SECONDS=0.5)
    vars(reset_watch).update(_INTERVAL_SECONDS=0.5, _PLUGIN_SECONDS=3.0)
    marks.WATCH_SECONDS = 0.5
    if "KILL_AT" in os.environ:
        die_at_writes(DyingAtWrites)
    main()
