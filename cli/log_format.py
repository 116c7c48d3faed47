"""Log of a running pod in readable form. Its content is untrusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from healthcheck.text.printable import printable

_NEVER = datetime.min.replace(tzinfo=UTC)
_LONGEST = 500
_SAID_ELSEWHERE = ("event", "level", "timestamp", "logger")


class LogLines:
    """Remove repeated lines from a log that is read repeatedly, each time from the second of its last line."""

    def __init__(self) -> None:
        self._last = (_NEVER, "")

    @property
    def since(self) -> datetime | None:
        """Return the start of the next read; None for the beginning."""
        return self._last[0] if self._last[1] else None

    def take(self, text: str) -> Iterator[str]:
        """Yield the new lines of `text` that begin with a time; lines without one are skipped."""
        for line in text.split("\n"):
            stamp, _, message = line.partition(" ")
            try:
                at = datetime.fromisoformat(stamp)
            except ValueError:
                continue
            # Of two lines in one microsecond, the text of the timestamp decides: it may have more digits.
            if at.tzinfo and (at, stamp) > self._last:
                self._last = (at, stamp)
                yield words(message)


def words(line: str) -> str:
    """Return a JSON log line as words, without empty values; any other line unchanged. At most 500 characters."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or "event" not in entry:
        return printable(line, _LONGEST)
    entries = ((key, value) for key, value in entry.items() if key not in _SAID_ELSEWHERE)
    rest = ", ".join(f"{key} {_plain(value)}" for key, value in entries if value not in ("", [], {}, None))
    level = f"{entry['level']}: " if entry.get("level") not in ("info", "debug", None) else ""
    return printable(f"{level}{entry['event']}{f' ({rest})' if rest else ''}", _LONGEST)


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return "; ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
