"""Read rows of kubectl's tables of events and pods, whatever the number of blanks between their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from msgspec import Struct

_AGE = r"(?:<unknown>|<invalid>|(?:\d{1,6}[ydhms]){1,4})"
_SEEN = rf"(?P<last>{_AGE})(?:[ ]\(x(?P<count>\d{{1,9}})[ ]over[ ](?P<first>{_AGE})\))?"
_TYPE = r"(?P<type>Normal|Warning)\s+(?P<reason>[A-Z][\w.]{1,100})"
_BY = r"\d?[a-z][\w./-]{1,100}(?:,[ ]\S{1,253})?"
_NAME = r"[a-z0-9][a-z0-9.-]{0,252}"
_OF_DESCRIBE = re.compile(rf"\s*{_TYPE}\s+{_SEEN}\s+(?:(?P<by>{_BY})\s+)?(?P<message>\S.*)")
_OF_GET = re.compile(
    rf"\s*(?:(?P<namespace>{_NAME})\s+)?{_SEEN}\s+{_TYPE}\s+(?P<kind>[A-Za-z]{{2,60}})(?:\.[\w.-]{{1,100}})?"
    rf"/(?P<name>{_NAME})\s+(?P<message>\S.*)"
)
_OF_OLD_GET = re.compile(
    rf"\s*(?:(?P<namespace>{_NAME})\s+)?(?P<last>{_AGE})\s+(?P<first>{_AGE})\s+(?P<count>\d{{1,9}})\s+"
    rf"(?P<name>{_NAME}?)\.[0-9a-f]{{12,20}}\s+(?P<kind>[A-Z]\w{{2,60}})\s+(?:spec\.\S{{1,200}}\s+)?"
    rf"{_TYPE}\s+(?P<by>{_BY})\s+(?P<message>\S.*)"
)
"""Rows of kubectl up to 1.13."""
_WIDE = re.compile(
    rf"(?:\S{{1,253}}\s+)?(?P<by>{_BY})\s\s+(?P<message>\S.*?)(?<=\S)\s\s+(?P<first>{_AGE})\s+(?P<count>\d{{1,9}})\s+\S+\s*\Z"
)
"""End of a row of `get events -o wide`: SUBOBJECT, SOURCE, MESSAGE, FIRST SEEN, COUNT, NAME."""
_POD = re.compile(
    rf"\s*(?:(?P<namespace>{_NAME})\s+)?(?:pod/)?(?P<name>{_NAME})\s+(?P<ready>\d{{1,4}}/\d{{1,4}})\s+(?P<status>[A-Z]\S{{2,100}})"
    rf"\s+\d{{1,9}}(?:[ ]\({_AGE}[ ]ago\))?\s+(?P<age>{_AGE})(?:\s+\S{{1,60}}\s+(?P<node>\S{{1,253}}))?(?:\s|\Z)"
)
_SECONDS = {"y": 365 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}


class EventRow(Struct):
    """One row of a table of events. `kind`, `namespace` and `name` are '' if the row does not name its object."""

    warning: bool
    reason: str
    last: timedelta | None
    message: str
    by: str = ""
    count: int = 1
    first: timedelta | None = None
    kind: str = ""
    namespace: str = ""
    name: str = ""


class PodRow(Struct, frozen=True):
    """One row of `get pods`."""

    namespace: str
    name: str
    ready: bool
    status: str
    age: timedelta | None
    node: str = ""


def event_row(line: str) -> EventRow | None:
    """Return the row of an event as `describe`, `get events` or `events` print it; None for another line."""
    if "Normal" not in line and "Warning" not in line:
        return None
    if "`" in line:  # a row within a sentence
        line = max(line.split("`"), key=len)
    found = _OF_DESCRIBE.match(line) or _OF_GET.match(line) or _OF_OLD_GET.match(line)
    if found is None:
        return None
    parts = {key: text for key, text in found.groupdict().items() if text}
    if found.re is _OF_GET and (wide := _WIDE.match(parts["message"])):
        parts |= wide.groupdict()
    last = age(parts["last"])
    return EventRow(
        parts["type"] == "Warning",
        parts["reason"],
        last,
        parts["message"].rstrip(),
        parts.get("by", ""),
        int(parts.get("count", "1")),
        age(parts["first"]) if "first" in parts else last,
        parts.get("kind", ""),
        parts.get("namespace", ""),
        parts.get("name", ""),
    )


def pod_row(line: str) -> PodRow | None:
    """Return the row of a pod as `get pods` prints it; None for another line."""
    found = _POD.match(line)
    if found is None:
        return None
    running, _, containers = found["ready"].partition("/")
    node = "" if "<" in (found["node"] or "<") else found["node"]
    return PodRow(
        found["namespace"] or "", found["name"], running == containers, found["status"], age(found["age"]), node
    )


def age(text: str) -> timedelta | None:
    """Return the age that kubectl prints as `3m12s`; None for an unknown one."""
    parts = re.findall(r"(\d{1,6})([ydhms])", text)
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    return timedelta(seconds=min(seconds, 100 * _SECONDS["y"])) if parts else None


def oldest(rows: Iterable[EventRow]) -> timedelta:
    """Return the age of the first of the events; 0 if none has an age."""
    return max((row.first for row in rows if row.first is not None), default=timedelta())
