"""A sweeper that gives up sooner: PATIENCE_SECONDS without an answer, FORBIDDEN_SECONDS without permission."""

from __future__ import annotations

import os
import sys

from msgspec.structs import replace

from gpu_healthcheck.sweeper import sweep
from gpu_healthcheck.sweeper.__main__ import main

_PATIENCE = {"PATIENCE_SECONDS": "_PATIENCE", "FORBIDDEN_SECONDS": "_AT_ITS_START"}

if __name__ == "__main__":
    for name, patience in _PATIENCE.items():
        if name in os.environ:
            vars(sweep)[patience] = replace(vars(sweep)[patience], seconds=float(os.environ[name]))
    sys.exit(main())
