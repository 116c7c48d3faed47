"""A reset with short waits for what does not change in a test; SILENT is the time after which its command is dead."""

from __future__ import annotations

import os
import sys

from gpu_healthcheck.healthcheck.deep import reset_command
from gpu_healthcheck.repair import __main__ as program
from gpu_healthcheck.repair import host_programs, marks, steps

if __name__ == "__main__":
    steps.FOREIGN_SECONDS = steps.WORKS_SECONDS = 1.5
    steps.SHUTDOWN_SECONDS = host_programs.SECONDS = 2.0
    reset_command.SILENT_SECONDS = float(os.environ.get("SILENT", reset_command.SILENT_SECONDS))
    marks.PLUGIN_SECONDS, marks.WATCH_SECONDS = 1.0, 0.2
    sys.exit(program.main())
