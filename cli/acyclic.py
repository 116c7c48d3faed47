"""Switch off garbage collection while the objects of a cluster are read: there are millions, and none has a cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def acyclic() -> Iterator[None]:
    """Reference counting still frees objects. Garbage collection would double the duration."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
