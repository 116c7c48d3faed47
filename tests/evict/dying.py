"""`python -m tests.evict.dying`: the program evict, ended by `kill -9` at one of its writes (KILL_AT, as a sweeper)."""

from __future__ import annotations

import sys

from gpu_healthcheck.evict.__main__ import main
from tests.sweeper.dying import die_at_writes

if __name__ == "__main__":
    die_at_writes()
    sys.exit(main())
