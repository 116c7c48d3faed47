"""Both clocks of this machine, read together."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from gpu_healthcheck.healthcheck.model import Now


def now() -> Now:
    return Now(datetime.now(UTC), time.monotonic())
