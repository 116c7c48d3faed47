"""Formatting and parsing of times. Each format that this module writes can be parsed by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
"""Latest supported time: a year before the limit of datetime, so that zones and sums do not exceed the limit."""
CLOCKS_APART = timedelta(minutes=5)
"""Accepted difference between the clocks of two machines. A time beyond it is in the future."""
_LONGEST = 40


def moment(text: object) -> datetime:
    """Parse a time with its zone, into UTC. Raises ValueError for invalid or unsupported times."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ValueError(f"expected a time such as 2026-11-21T01:02:03Z, not {_shown(text)}")
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError(f"{text!r}: a time without a time zone")
        at = at if at.tzinfo is UTC else at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not EARLIEST <= at <= LATEST:
        raise ValueError(f"{text!r}: only the years from {EARLIEST.year} to {LATEST.year} are supported")
    return at


def moment_or_none(text: object) -> datetime | None:
    try:
        return None if text is None else moment(text)
    except ValueError:
        return None


def timestamp(at: datetime) -> str:
    """Format a time to the second, as in records."""
    return f"{held(at).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def exact(at: datetime) -> str:
    """Format a time to the microsecond. Reading it back yields the same time."""
    return f"{held(at).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def held(at: datetime) -> datetime:
    """Return the time in UTC, limited to the supported range.

    A clock that was never set can show any time.
    """
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        return EARLIEST if at.year < EARLIEST.year else LATEST
    return min(max(at, EARLIEST), LATEST)


def ago(now: datetime, seconds: float) -> datetime:
    """Return the time that many seconds earlier, limited to the supported range."""
    try:
        return held(now - timedelta(seconds=seconds))
    except OverflowError:
        return EARLIEST


def is_future(at: datetime, now: datetime) -> bool:
    """Whether the time is further in the future than the accepted difference between clocks."""
    return at > now + CLOCKS_APART


def _shown(text: object) -> str:
    return repr(text[:_LONGEST]) if isinstance(text, str) else f"a {type(text).__name__}"
