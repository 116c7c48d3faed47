"""Events of either API, which the cluster keeps for about an hour."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.healthcheck.text.boundary import At, Moment, Text, text, value_at

_TIMES = ("deprecatedFirstTimestamp", "eventTime", "metadata.creationTimestamp")


def _about(event: object) -> str:
    """Return the object of an event of `v1` or `events.k8s.io/v1`. Raises ValueError for an event without an object."""
    about = value_at(event, "involvedObject") or value_at(event, "regarding")
    kind, namespace, name = (text(value_at(about, key) or "") for key in ("kind", "namespace", "name"))
    if not kind or not name:
        raise ValueError("an Event about no object")
    return subject(kind, namespace, name)


class Event(Struct, frozen=True):
    """Event. `about`: the object, as a diagnosis names it; `by`: the reporting component."""

    about: Annotated[str, At(""), _about]
    uid: Annotated[str, At("involvedObject.uid", "regarding.uid")] = ""
    warning: Annotated[bool, At("type"), lambda kind: kind == "Warning"] = False
    reason: str = ""
    message: Annotated[Text, At("message", "note")] = ""
    count: Annotated[int, At("count", "series.count", "deprecatedCount")] = 1
    last: Annotated[
        Moment,
        At("series.lastObservedTime", "lastTimestamp", "deprecatedLastTimestamp", *_TIMES[1:]),
    ] = None
    by: Annotated[str, At("source.component", "reportingComponent", "reportingController")] = ""
    first: Annotated[Moment, At("firstTimestamp", *_TIMES)] = None
