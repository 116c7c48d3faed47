"""Waiting for something on a node, with an end and a reason."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sim.control_plane.build import ControlPlaneError

if TYPE_CHECKING:
    from collections.abc import Callable


class RealNodeError(ControlPlaneError):
    """The node could not be had, started or asked; the message says why."""


def wait_until(true: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Gives up after that many seconds and as many looks: a machine that stood still meanwhile is no reason."""
    deadline, looks = time.monotonic() + seconds, 0
    while not true():
        looks += 1
        if time.monotonic() > deadline and looks > seconds:
            raise RealNodeError(why())
        time.sleep(0.1)
