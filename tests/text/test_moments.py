"""Times as text: a written time is read back, and an unrepresentable one is rejected on reading."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.text.moments import (
    EARLIEST,
    LATEST,
    ago,
    exact,
    held,
    is_future,
    moment,
    moment_or_none,
    timestamp,
)
from tests.examples import WALL

ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ANYWHERE = st.datetimes(timezones=ZONES)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("2026-11-21T01:02:03Z", WALL),
        ("2026-11-21T01:02:03+00:00", WALL),
        ("2026-11-21T03:02:03.000000+02:00", WALL),
        ("1970-01-01T00:00:00Z", EARLIEST),
        ("9998-12-31T23:59:59.999999Z", LATEST),
    ],
)
def test_moment_reads_a_time_with_its_zone(text: str, means: datetime) -> None:
    assert (moment(text), moment(text).tzinfo) == (means, UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-11-21T01:02:03",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+00:01",
        "9999-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2026-11-21T01:02:03Z" + " " * 40,
        "\ud800",
        20261121,
        None,
        b"2026-11-21T01:02:03Z",
    ],
)
def test_moment_refuses_invalid_and_unsupported_times(text: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        moment(text)
    assert moment_or_none(text) is None


@given(at=ANYWHERE)
def test_a_written_time_is_read_back(at: datetime) -> None:
    assert moment(exact(at)) == held(at)
    assert moment(timestamp(at)) == held(at).replace(microsecond=0)


@given(at=ANYWHERE)
def test_held_keeps_supported_times(at: datetime) -> None:
    assert EARLIEST <= held(at) <= LATEST
    if 1971 <= at.year <= 9997:
        assert held(at) == at


@given(seconds=st.floats(0, 1e300))
def test_ago_stays_in_the_supported_range(seconds: float) -> None:
    assert EARLIEST <= ago(WALL, seconds) <= WALL


@pytest.mark.parametrize(("minutes", "future"), [(-60, False), (5, False), (5.1, True)])
def test_is_future_allows_for_different_clocks(minutes: float, future: bool) -> None:
    assert is_future(WALL + timedelta(minutes=minutes), WALL) is future
