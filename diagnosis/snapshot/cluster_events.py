"""Read Events of either API, which the cluster keeps for about an hour."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import subject


class Event(Struct, frozen=True):
    """Event. `about`: the object, as a diagnosis names it; `by`: the reporting component."""

    about: str
    uid: str
    warning: bool
    reason: str
    message: str
    count: int = 1
    last: datetime | None = None
    by: str = ""
    first: datetime | None = None


def read_event(raw: Fields) -> Event:
    """Read an event of `v1` or `events.k8s.io/v1`. Raises ValueError for an event without an object."""
    about = raw.at("involvedObject") if raw.has("involvedObject") else raw.at("regarding")
    kind, name = about.text("kind"), about.text("name")
    if not kind or not name:
        raise ValueError("an Event about no object")
    message = raw.message("message") or raw.message("note")
    count = raw.number("count") or raw.number("series", "count") or raw.number("deprecatedCount") or 1
    times = ("series", "lastObservedTime"), ("lastTimestamp",), ("deprecatedLastTimestamp",), ("eventTime",)
    created = raw.moment("metadata", "creationTimestamp")
    last = next((at for path in times if (at := raw.moment(*path))), created)
    first = raw.moment("firstTimestamp") or raw.moment("deprecatedFirstTimestamp") or raw.moment("eventTime") or created
    by = raw.text("source", "component") or raw.text("reportingComponent") or raw.text("reportingController")
    return Event(
        subject(kind, about.text("namespace"), name),
        about.text("uid"),
        raw.text("type") == "Warning",
        raw.text("reason"),
        message,
        count,
        last,
        by,
        first,
    )
