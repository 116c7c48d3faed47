"""Rows for programs and pagers."""

from __future__ import annotations

import pytest

from gpu_healthcheck.cli.output.columns import aligned, aligned_within


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], ""),
        ([("a", "b"), ("long", "c")], "a     b\nlong  c\n"),
        ([("a", ""), ("", "")], "a\n\n"),
        ([("計", "b"), ("abc", "c")], "計   b\nabc  c\n"),
        ([("one\ntwo\x1b[2J", "b")], "one\\ntwo\\x1b[2J  b\n"),
    ],
)
def test_columns_are_aligned_and_escaped(rows: list[tuple[str, ...]], message: str) -> None:
    assert aligned(rows) == message


def test_columns_limit_the_width_of_a_long_cell() -> None:
    message = aligned([("x" * 16_000, "end"), *(("a", "b"),) * 1000])

    assert message.startswith("x" * 16_000 + "  end\n")
    assert len(message) < 150_000


def test_folded_columns_wrap_the_last_cell() -> None:
    assert (
        aligned_within([("a", "b"), ("Xid79", "fell off the bus")], 18) == "a      b\nXid79  fell off\n       the bus\n"
    )
    assert aligned_within([("a" * 30, "xx yy zz aa")], 20).splitlines()[1:] == [" " * 32 + "aa"]
