"""A moment inside a line of text, so that whoever reads the line knows how old it is. As light as what is measured."""

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
