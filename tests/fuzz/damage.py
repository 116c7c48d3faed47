"""How bytes and JSON are broken: some replaced, left out or put in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


def damaged(text: bytes, damages: Sequence[tuple[int, int, bytes]]) -> bytes:
    for place, length, instead in damages:
        at = place % (len(text) + 1)
        text = text[:at] + instead + text[at + length :]
    return text


def forge(content: Any, place: list[int], instead: Any, is_key: bool) -> None:
    """Go down as the numbers say, and put something else there, or leave it out."""
    for depth, number in enumerate(place):
        if not isinstance(content, dict | list) or not content:
            return
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        key = keys[number % len(keys)]
        if depth == len(place) - 1 or not isinstance(content[key], dict | list):
            if is_key:
                del content[key]
            else:
                content[key] = instead
            return
        content = content[key]


byte_damages = st.tuples(st.integers(0, 1 << 16), st.integers(0, 8), st.binary(max_size=8))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
places = st.lists(st.integers(0, 50), min_size=1, max_size=4)
