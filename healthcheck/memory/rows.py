"""What the memory holds as rows of JSON, the same in its file and in the record on the Node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from healthcheck.memory.exit_table import exit_words
from healthcheck.memory.findings import Acknowledgement, Release, Standing
from healthcheck.model import Finding, Nature, Severity
from healthcheck.text.moments import moment, timestamp

_LONGEST_WORD, _LONGEST_SHOWN = 200, 40
_MOST_WHOLE = 10**19
"""As many digits as the kernel's log gives its records."""
_MOST_SECONDS = 1e13
"""More than the kernel's log can say, and few enough that a float keeps the milliseconds."""


def finding_row(standing: Standing) -> dict[str, Any]:
    """What stands; without the boot in which it was seen."""
    finding = standing.finding
    row: dict[str, Any] = {
        "reason": finding.reason,
        "severity": finding.severity.name,
        "subject": finding.subject,
        "about": dict(finding.about),
        "detail": finding.detail,
        "first_seen": timestamp(standing.first_seen),
        "last_seen": timestamp(standing.last_seen),
        "count": standing.count,
        "exit": exit_words(standing),
        "check": standing.check,
        "nature": standing.nature.value,
        "at": round(standing.last_at, 3),
    }
    if standing.seq >= 0:
        row["seq"] = standing.seq
    for key in ("rule", "source"):
        if value := getattr(finding, key):
            row[key] = value
    return row


def standing_in(row: Mapping[str, Any], boot_id: str) -> Standing:
    """Of the boot given where the row names none. Raises KeyError, TypeError, ValueError or OverflowError."""
    finding = Finding(
        reason=str(row["reason"]),
        severity=Severity[row["severity"]],
        subject=str(row["subject"]),
        detail=str(row["detail"]),
        about={str(key): str(value) for key, value in dict(row.get("about", {})).items()},
        rule=str(row.get("rule", "")),
        source=str(row.get("source", "")),
    )
    first, last = (moment(row[key]) for key in ("first_seen", "last_seen"))
    at, count, seq = seconds(row.get("at", 0.0)), whole(row["count"]), whole(row.get("seq", -1))
    boot_id = str(row.get("boot_id", boot_id))
    return Standing(finding, str(row["check"]), Nature(row["nature"]), first, last, count, boot_id, at, seq)


def release_row(release: Release) -> dict[str, Any]:
    """Who, why and when, for people; of what stands in `acknowledged`."""
    return {
        "by": release.by[:_LONGEST_WORD],
        "reason": release.reason[:_LONGEST_WORD],
        "at": timestamp(release.at),
    }


def release_in(row: Mapping[str, Any]) -> Release:
    return Release(str(row["by"]), str(row["reason"]), moment(row["at"]), ())


def acknowledgement_row(one: Acknowledgement) -> dict[str, Any]:
    return {
        "reason": one.reason,
        "subject": one.subject,
        "boot_id": one.boot_id,
        "cursor": one.cursor,
        "last_seen": timestamp(one.last_seen),
    }


def acknowledgement_in(row: Mapping[str, Any]) -> Acknowledgement:
    cursor = row["cursor"]
    return Acknowledgement(
        str(row["reason"]),
        str(row["subject"]),
        str(row["boot_id"]),
        None if cursor is None else whole(cursor),
        moment(row["last_seen"]),
    )


def whole(value: object) -> int:
    """A count, or a place in the log. Raises ValueError."""
    if not isinstance(value, int) or not is_whole(value):
        raise ValueError(f"a whole number of at most 19 digits is wanted, not {str(value)[:_LONGEST_SHOWN]}")
    return value


def is_whole(value: object) -> bool:
    """Whether it is a number that `whole` takes."""
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < _MOST_WHOLE


def seconds(value: object) -> float:
    """Of a monotonic clock. Raises ValueError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int | float) or not is_number or not abs(value) <= _MOST_SECONDS:
        raise ValueError(f"a number of seconds is wanted, not {str(value)[:_LONGEST_SHOWN]}")
    return float(value)
