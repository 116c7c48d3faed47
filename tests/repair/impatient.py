"""A reset with short waits for what does not change in a test."""

from __future__ import annotations

import sys

from repair import __main__ as program
from repair import host_programs, steps

if __name__ == "__main__":
    steps.FOREIGN_SECONDS = steps.WORKS_SECONDS = 1.5
    steps.SHUTDOWN_SECONDS = host_programs.SECONDS = 2.0
    sys.exit(program.main())
