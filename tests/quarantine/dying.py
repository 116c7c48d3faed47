"""A quarantine run, ended by `kill -9` at one of its own writes; KILL_AT as of a sweeper's."""

from __future__ import annotations

import sys

from gpu_healthcheck.quarantine import __main__ as program
from tests.sweeper.dying import die_at_writes

if __name__ == "__main__":
    die_at_writes()
    sys.exit(program.main())
