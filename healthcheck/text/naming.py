"""Shortened lists of names for sentences."""

from __future__ import annotations

from collections.abc import Iterable


def named(many: Iterable[object], most: int) -> str:
    """Return the first names, separated by commas, and the number of the others; '' if there are none."""
    words = [str(one) for one in many]
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")
