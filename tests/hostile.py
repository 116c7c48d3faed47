"""Hostile text, for all code that shows text of other writers."""

from __future__ import annotations

from hypothesis import strategies as st

HOSTILE = (
    "[/x]",
    "[bold red]BOLD[/bold red]",
    "[link=https://example.com]here[/link]",
    "\\[/x]",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "\u202egnp.exe\u2066\u2069\u061c\u200e\u200f",
    "zero\u200bwidth\ufeff",
    "half \ud83d a pair\udfff",
    "one\ntwo\r\nthree\tfour\x0b\x0c\x7f\x00",
    "\u2028\u2029\x85\x1c",
    "計算ノード",
)
"""One of each kind that has broken a program."""
ANY_TEXT = st.text(st.characters() | st.characters(categories=("Cs", "Cf", "Cc", "Zl", "Zp", "Co"))) | st.sampled_from(
    HOSTILE
)
