"""Some of many by name, as a sentence has them."""

from __future__ import annotations

from collections.abc import Iterable


def named(many: Iterable[object], most: int) -> str:
    """The first of them, with commas between, and how many more there are; '' for none."""
    words = [str(one) for one in many]
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")
