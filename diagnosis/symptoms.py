"""What a pod's containers, events and logs say of its trouble, and the signatures by which it is known. Pure.

A signature is a pattern with the places where it may stand, so that a word in a program's log is never taken for one
of the kubelet's, nor what was said before things went on for what is wrong now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import Enum
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.cause import Cause
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.events import Event
from diagnosis.snapshot.pods import Condition, ContainerState, Ended, Pod
from diagnosis.snapshot.workloads import Workload

_PROGRESS = frozenset(("Pulling", "Pulled", "Created", "Started"))
"""What the kubelet notes once a pod's volumes are mounted and its sandbox stands: what failed before it works now."""
_MOST_LOG = 64 * 1024
"""Of a log its end: what broke a container stands there."""
_PAST = timedelta(days=1)
_DONE = frozenset(("Complete", "Completed", "SuccessCriteriaMet"))
"""Conditions of a Job or a JobSet that has what it was for."""
_COUNTED = frozenset(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"))
"""Their pods are each as good as the other, and counted while they are ready."""
_SHOWN = 300
"""Of a text as a piece of evidence."""


class Place(Enum):
    """Where a text stands. The value is what a person reads."""

    POD = "pod"
    EVENT = "event"
    WAITING = "waiting"
    ENDED = "ended"
    LOG = "log"


class Symptom(Struct, frozen=True):
    """One text about a pod. `reason` is an event's or a state's; `container` '' where it is about the whole pod."""

    place: Place
    reason: str
    text: str
    container: str = ""
    at: datetime | None = None
    count: int = 1

    def __str__(self) -> str:
        """As a piece of evidence."""
        who = f" of {self.container}" if self.container else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        told = ": ".join(filter(None, (self.reason, shortened(self.text))))
        return f"{self.place.value}{who}{times}: {told}"


class Signature(Struct, frozen=True):
    """By which a cause is known: a pattern, and where it may stand. `source` says who writes it."""

    pattern: str
    cause: Cause
    places: frozenset[Place]
    source: str

    def search(self, text: str) -> re.Match[str] | None:
        """Letter case does not matter: versions differ in it."""
        return _compiled(self.pattern).search(text)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """When it is first looked for: most diagnoses look for few."""
    return re.compile(pattern, re.IGNORECASE)


class Recognised(Struct, frozen=True):
    """A signature in a symptom. `quote` is the text around it, `groups` what the pattern took out of it."""

    cause: Cause
    symptom: Symptom
    quote: str
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a piece of evidence: of a text that is long, the part that tells."""
        return str(self.symptom if len(self.symptom.text) <= _SHOWN else replace(self.symptom, text=self.quote))


def signature(pattern: str, cause: Cause, source: str, *places: Place) -> Signature:
    return Signature(pattern, cause, frozenset(places), source)


def recognised(signatures: Iterable[Signature], symptoms: Iterable[Symptom]) -> Recognised | None:
    """The first signature, in the order of the table, that stands in any of the symptoms: the newest of these."""
    told = tuple(symptoms)
    for one in signatures:
        for symptom in told:
            found = one.search(symptom.text) if symptom.place in one.places else None
            if found is not None:
                groups = tuple(group or "" for group in found.groups())
                return Recognised(one.cause, symptom, _around(found), groups)
    return None


def standing_events(snapshot: Snapshot, pod: Pod) -> tuple[Event, ...]:
    """The warnings about this very pod after which it has come no further, the newest first."""
    about = [one for one in snapshot.events_about.get(pod.subject, ()) if one.uid in ("", pod.meta.uid)]
    went_on = max((one.last for one in about if not one.warning and one.reason in _PROGRESS and one.last), default=None)
    stands = (one for one in reversed(about) if one.warning)
    # What went on in the same second says nothing: the kubelet pulls an image, then fails to start it.
    return tuple(one for one in stands if went_on is None or one.last is None or one.last >= went_on)


def of_events(events: Iterable[Event], *reasons: str) -> tuple[Symptom, ...]:
    """Those with one of the reasons; all where none is given."""
    return tuple(
        Symptom(Place.EVENT, one.reason, one.message, "", one.last, one.count)
        for one in events
        if not reasons or one.reason in reasons
    )


def of_state(state: ContainerState) -> Iterator[Symptom]:
    """What a container that does not run says of why: what it waits for, and how it ended."""
    if state.waiting:
        yield Symptom(Place.WAITING, state.waiting, state.message, state.name)
    for ended in (state.ended, state.last_ended):
        if ended is not None:
            yield of_end(state, ended)


def of_end(state: ContainerState, ended: Ended) -> Symptom:
    """A message may be the end of its log; the lines' ends stand there written out."""
    return Symptom(Place.ENDED, ended.reason, ended.message.replace("\\n", "\n"), state.name, ended.at)


def of_log(snapshot: Snapshot, pod: Pod, container: str, lines: int = 0) -> Iterator[Symptom]:
    """The end of a container's log, where there is any; `lines`: only so many of its last."""
    log = snapshot.logs.get((pod.subject, container), "")[-_MOST_LOG:]
    if lines:
        log = "\n".join([line for line in log.splitlines() if line.strip()][-lines:])
    if log:
        yield Symptom(Place.LOG, "", log, container)


def replaced(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a pod that ended only lies there: what it was for is done, or works without it, or is long past."""
    end = _end(pod)
    if pod.meta.deleted is not None or (end is not None and snapshot.now - end > _PAST):
        return True
    above = snapshot.line(pod.meta)[1:]
    makers = [one for subject in above if (one := snapshot.workload.get(subject)) is not None]
    if any(_is_done(one.conditions) or one.wanted == 0 for one in makers):
        return True
    counted = [one for one in makers if one.meta.kind in _COUNTED and one.wanted is not None]
    if counted:
        return all(_ready(snapshot, one) >= (one.wanted or 0) for one in counted)
    return bool(above) and any(_works(one) and _after(one, end) for one in snapshot.pods_under.get(above[-1], ()))


def _ready(snapshot: Snapshot, maker: Workload) -> int:
    """How many of its pods work: by its own count, or by the pods, where that is behind."""
    return max(maker.ready or 0, sum(map(_works, snapshot.pods_under.get(snapshot.line(maker.meta)[-1], ()))))


def shortened(text: str, longest: int = _SHOWN) -> str:
    told = " ".join(text.split())
    return told if len(told) <= longest else f"{told[: longest - 1]}…"


def older(snapshot: Snapshot, at: datetime | None, minutes: float) -> bool:
    """Whether it was longer ago than that. What nobody dates is."""
    return at is None or snapshot.now - at > timedelta(minutes=minutes)


def scheduled_at(pod: Pod) -> datetime | None:
    """Since when it has had a node."""
    told = pod.condition("PodScheduled")
    return (told.since if told is not None and told.status == "True" else None) or pod.meta.created


def is_stuck(pod: Pod) -> bool:
    """Whether it has a node, has not ended, and some container of it does not run."""
    if pod.over or not pod.spec.node or pod.meta.deleted is not None:
        return False
    untold = not pod.states and pod.phase != "Running"
    return untold or any(one.waiting or (one.ended and one.ended.exit_code) for one in pod.states)


def ended_of(state: ContainerState) -> Ended | None:
    """How its last run ended that did."""
    return state.ended or state.last_ended


def _around(found: re.Match[str]) -> str:
    """The line that it stands in, and no more of it than a person wants."""
    text, start = found.string, found.start()
    begin = max(text.rfind("\n", 0, start) + 1, start - _SHOWN // 2)
    end = text.find("\n", found.end())
    return shortened(text[begin : end if end >= 0 else len(text)])


def _is_done(conditions: Iterable[Condition]) -> bool:
    return any(one.type in _DONE and one.status == "True" for one in conditions)


def _works(pod: Pod) -> bool:
    if pod.phase == "Succeeded":
        return True
    own = [one for one in pod.states if not one.init]
    return pod.phase == "Running" and pod.meta.deleted is None and all(one.ready for one in own)


def _end(pod: Pod) -> datetime | None:
    """When it ended, as its containers say; where none has, when its state last changed, or when it was made."""
    ends = [one.ended.at for one in pod.states if one.ended is not None and one.ended.at is not None]
    changes = [one.since for one in pod.conditions if one.since is not None]
    return max(ends or changes, default=pod.meta.created)


def _after(pod: Pod, end: datetime | None) -> bool:
    """A pod that was made beside it, as its fellow, takes nobody's place."""
    return end is not None and pod.meta.created is not None and pod.meta.created > end
