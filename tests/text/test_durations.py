"""Lengths of time as Go writes them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_healthcheck.healthcheck.text.durations import duration, shown_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("300s", 300), ("90.5s", 90.5), ("500ms", 0.5)]
    + [(name, None) for name in ("", "5", "0s", "-5m", "m", "5 m", "9" * 40 + "h", "999999999h", "5m" * 9)],
)
def test_a_duration_is_read_as_go_writes_it(text: str, seconds: float | None) -> None:
    assert duration(text) == (timedelta(seconds=seconds) if seconds is not None else None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.751088, "0.75"), (0.1, "0.1"), (2.0, "2"), (900.0, "900"), (9000.0, "9000")]
)
def test_seconds_have_no_digits_beyond_hundredths(seconds: float, text: str) -> None:
    assert shown_seconds(seconds) == text
