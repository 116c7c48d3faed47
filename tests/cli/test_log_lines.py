"""A pod's log, read repeatedly: each line is returned once, whatever it contains."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpu_healthcheck.cli.node_job import LogLines, log_line

FIRST, SECOND, THIRD = (f"2026-11-21T12:00:00.00000000{digit}Z" for digit in "123")


def test_log_lines_are_yielded_once() -> None:
    lines = LogLines()

    assert lines.since is None
    assert list(lines.take(f"{FIRST} a\n{SECOND} b\n")) == ["a", "b"]
    assert lines.since == datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert list(lines.take(f"{FIRST} a\n{SECOND} b\n{THIRD} c\n")) == ["c"]


def test_log_lines_without_a_time_are_skipped() -> None:
    assert list(LogLines().take(f"unable to retrieve container logs\n\n2026-11-21T12:00:00 a\n{FIRST} b")) == ["b"]


def test_log_lines_end_only_at_newlines() -> None:
    assert list(LogLines().take(f"{FIRST} a\u2028b\x1cc\n")) == [r"a\u2028b\x1cc"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"event": "test: ended", "level": "info", "timestamp": "t", "test": "x", "found": [], "seen": ["a", "b"]}',
            "test: ended (test x, seen a; b)",
        ),
        (
            '{"event": "x", "a": null, "b": {"c": 1}, "d": [1, "e"], "f": 0}',
            'x (b {"c": 1}, d [1, "e"], f 0)',
        ),
        ('{"event": "no DCGM", "level": "warning"}', "warning: no DCGM"),
        ('{"message": "somebody else\'s JSON"}', '{"message": "somebody else\'s JSON"}'),
        ("[1, 2]", "[1, 2]"),
        ("plain", "plain"),
        ("[" * 100_000, "[" * 499 + "…"),
        ("x" * 10_000, "x" * 499 + "…"),
    ],
)
def test_log_line_is_readable(line: str, message: str) -> None:
    assert log_line(line) == message
