"""Timestamp in a line of text, to compute the line's age; as cheap as the measured code."""

from __future__ import annotations

import re
import time

_WRITTEN = re.compile(r"written at (\d+) ns")


def stamp() -> str:
    return f"written at {time.monotonic_ns()} ns"


def age_ms(text: str) -> float | None:
    """Return the age of the text by its timestamp, in milliseconds; None without a timestamp."""
    found = _WRITTEN.search(text)
    return (time.monotonic_ns() - int(found[1])) / 1e6 if found else None
