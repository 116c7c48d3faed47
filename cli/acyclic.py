"""Cycles are not looked for while a cluster's facts are read: millions of objects, none of which holds a cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def acyclic() -> Iterator[None]:
    """Objects go when nothing refers to them any more. To look for cycles meanwhile takes as long as all else does."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
