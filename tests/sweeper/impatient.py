"""A sweeper that gives up sooner: PATIENCE_SECONDS where nobody answers, FORBIDDEN_SECONDS where it may not ask."""

from __future__ import annotations

import os
import sys

from sweeper import patience
from sweeper.__main__ import main

if __name__ == "__main__":
    for name in ("PATIENCE_SECONDS", "FORBIDDEN_SECONDS"):
        if name in os.environ:
            vars(patience)[f"_{name}"] = float(os.environ[name])
    sys.exit(main())
