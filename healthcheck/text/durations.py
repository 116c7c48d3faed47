"""Parsing of durations in Go's notation: `5m`, `1m30s`, `300s`."""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|h|m|s)){1,4}\Z", re.ASCII)
_WHOLE = re.compile(r"\d{1,7}\Z", re.ASCII)
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)", re.ASCII)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_LONGEST = timedelta(days=365)


def duration(text: str) -> timedelta | None:
    """Parse a duration. Return None for other texts, for zero, and for a year or more."""
    if not _DURATION.match(text):
        return None
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    return timedelta(seconds=seconds) if 0 < seconds < _LONGEST.total_seconds() else None


def shown_seconds(seconds: float) -> str:
    """Return seconds for people: `900`, `0.75`."""
    return f"{round(seconds, 2):g}"


def timeout(text: str) -> float:
    """Parse a timeout in seconds as kubectl parses `--request-timeout`: `90`, `90s`, `2m`. Raises ValueError.

    0 means no timeout.
    """
    if _WHOLE.match(text):
        return float(text)
    if length := duration(text):
        return length.total_seconds()
    if text in ("0h", "0m", "0s"):
        return 0.0
    raise ValueError(f"{text[:80]!r} is not a duration such as 90, 90s, 2m or 1h30m")
