"""A sweep's test of a node, ended by `kill -9` at its own write; KILL_AT as of a sweeper's."""

from __future__ import annotations

import sys

from gpu_healthcheck.sweeper import sweep_run as program
from tests.sweeper.dying import die_at_writes

if __name__ == "__main__":
    die_at_writes()
    sys.exit(program.main([]))
