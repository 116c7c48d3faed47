"""Wait for a condition on a node, with a deadline and a reason."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpu_healthcheck.sim.control_plane.build import ControlPlaneError

if TYPE_CHECKING:
    from collections.abc import Callable


class RealNodeError(ControlPlaneError):
    """The node cannot be created, started or queried; the message has the reason."""


def wait_until(true: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Wait. Give up only after that many seconds and as many attempts, because the machine may stall."""
    deadline, looks = time.monotonic() + seconds, 0
    while not true():
        looks += 1
        if time.monotonic() > deadline and looks > seconds:
            raise RealNodeError(why())
        time.sleep(0.1)
