"""Refusals for a user that root does not get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's rights, where we have them; to be left before another thread opens anything."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
