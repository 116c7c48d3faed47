"""Waiting for what another process, thread or machine does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

GIVE_UP_SECONDS = 180.0
"""No test asserts a time: this is when it stops to wait for what never comes."""

T = TypeVar("T")


def eventually(ask: Callable[[], T | None], why: Callable[[], object] = lambda: "") -> T:
    """The first true answer. A machine that stood still while we waited is no reason to give up."""
    began, looks = time.monotonic(), 0
    while not (answer := ask()):
        waited, looks = time.monotonic() - began, looks + 1
        if waited > GIVE_UP_SECONDS < looks:
            raise AssertionError(f"never true within {GIVE_UP_SECONDS:g} s: {why()}")
        time.sleep(min(0.01 + waited / 20, 0.25))
    return answer
