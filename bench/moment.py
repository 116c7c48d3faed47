"""A time inside a line of text that gives the age of the line. As light as the measured code."""

from __future__ import annotations

import re
import time

_WRITTEN = re.compile(r"written at (\d+) ns")


def stamp() -> str:
    return f"written at {time.monotonic_ns()} ns"


def age_ms(text: str) -> float | None:
    """None: the text has no stamp."""
    found = _WRITTEN.search(text)
    return (time.monotonic_ns() - int(found[1])) / 1e6 if found else None
