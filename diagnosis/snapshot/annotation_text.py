"""Parse words and numbers in HAMi's annotations as Go would. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from healthcheck.text.moments import EARLIEST, LATEST
from healthcheck.text.printable import printable

LONGEST_TEXT = 64 * 1024
MOST_PARTS = 1024
"""Maximum entries of one annotation: cards of a node, containers of a pod, UUIDs of a list."""
_LONGEST_WORD = 200
_MOST = (1 << 31) - 1
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def word(text: str) -> str:
    return printable(text, _LONGEST_WORD)


def whole(text: str) -> int:
    """Parse a non-negative number of 32 bits. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > _MOST:
        raise ValueError(f"{word(text)!r} is not a whole number of 32 bits")
    return int(text)


def flag(text: str) -> bool:
    """Parse a boolean. Raises ValueError."""
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{word(text)!r} is neither true nor false")
    return text in _TRUE


def listed(text: str) -> tuple[str, ...]:
    """Return the words between commas that are not empty."""
    words = (name.strip() for name in text[:LONGEST_TEXT].split(",")[:MOST_PARTS])
    return tuple(word(name) for name in words if name)


def epoch(text: str) -> datetime | None:
    """Parse seconds since 1970."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        return None
    seconds = int(text)
    return datetime.fromtimestamp(seconds, UTC) if EARLIEST.timestamp() < seconds < LATEST.timestamp() else None
