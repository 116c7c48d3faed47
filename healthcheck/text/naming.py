"""Shortened lists of names for sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice


def named(many: Iterable[object], most: int) -> str:
    """Return the first names, separated by commas, and the number of the others; '' if there are none."""
    counted = many if isinstance(many, Collection) else tuple(many)
    more = len(counted) - most
    return ", ".join(map(str, islice(counted, most))) + (f" and {more} more" if more > 0 else "")
