"""Symptoms of a pod from its containers, events and logs, and signatures that identify a cause. Pure.

A signature is a pattern with the sources in which it may occur. A word in a program's log is thus never mistaken for a
message of the kubelet. Messages from before the pod made progress are not taken for its present problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.model import Cause, Signature, TextSource
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.nodes import RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import ContainerEnd, ContainerState, Pod, condition_in
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, timestamp

_PROGRESS = frozenset(("Pulling", "Pulled", "Created", "Started"))
"""Event reasons after volumes are mounted and the sandbox is created; earlier failures are then over."""
_MOST_LOG = 64 * 1024
"""Number of last characters of a log to search: the error is near the end."""
_PAST = timedelta(days=1)
_DONE = frozenset(("Complete", "Completed", "SuccessCriteriaMet"))
"""Conditions of a finished Job or JobSet."""
GATE_REFUSAL = ("gpu-gate", 75)
"""Container of the gate, and its exit code for a pod that may not start."""
GATE_WORDS = "the pod ends, so that its job starts it elsewhere"
"""Words of the gate about such a pod, also in a container of another name."""
CREATED = re.compile(r"Created pod: (\S{1,253})")
ASSIGNED = re.compile(r"Successfully assigned \S{1,320} to (\S{1,253})")
"""Messages of a job's controller, and of a scheduler."""
_COUNTED = frozenset(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"))
"""Kinds with interchangeable pods, of which the ready ones are counted."""
Row = tuple[Cause, Signature]
_SHOWN = 300
_LONGEST_DETAIL = 160
"""Longest text in a piece of evidence."""


class Symptom(Struct, frozen=True):
    """One text about a pod.

    `reason` is that of an event or a state. `container` is '' if the text is about the whole pod.
    """

    place: TextSource
    reason: str
    text: str
    container: str = ""
    at: datetime | None = None
    count: int = 1

    def __str__(self) -> str:
        """Format as a piece of evidence."""
        owner = f" of {self.container}" if self.container else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        message = ": ".join(filter(None, (self.reason, shortened(self.text))))
        return f"{self.place.value}{owner}{times}: {message}"


class Recognised(Struct, frozen=True):
    """Match of a signature in a symptom. `quote` is the surrounding text.

    `groups` are the texts that the groups of the pattern matched.
    """

    cause: Cause
    symptom: Symptom
    quote: str
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Format as a piece of evidence; of a long text, only the quoted part."""
        return str(self.symptom if len(self.symptom.text) <= _SHOWN else replace(self.symptom, text=self.quote))


class RecognisedPod(Struct, frozen=True):
    """Pod with the match that explains it."""

    pod: Pod
    known: Recognised


def texts_in(source: TextSource, causes: Iterable[Cause]) -> tuple[Row, ...]:
    """Return the texts of the causes that may occur in a source, in order."""
    return tuple((cause, text) for cause in causes for text in cause.texts if source in text.sources)


def recognised(rows: Iterable[Row], symptoms: Iterable[Symptom]) -> Recognised | None:
    """Return the match of the first row whose text occurs in any symptom.

    If it occurs in several symptoms, the newest is used.
    """
    texts = tuple(symptoms)
    for cause, signature in rows:
        for symptom in texts:
            found = signature.search(symptom.text) if symptom.place in signature.sources else None
            if found is not None:
                groups = tuple(group or "" for group in found.groups())
                return Recognised(cause, symptom, _quote(found), groups)
    return None


def subject_of(snapshot: Snapshot, pod: Pod, cause: Cause) -> str:
    """Return the object to change: the pod's node, or the object that a person wrote."""
    return f"node/{pod.spec.node}" if cause.of_node and pod.spec.node else snapshot.line(pod.meta)[-1]


def standing_events(snapshot: Snapshot, pod: Pod) -> tuple[Event, ...]:
    """Return the warnings about this pod after which it made no progress, the newest first."""
    about = snapshot.events_of(pod)
    went_on = max(
        (event.last for event in about if not event.warning and event.reason in _PROGRESS and event.last), default=None
    )
    stands = (event for event in reversed(about) if event.warning)
    # Progress in the same second is ignored: the kubelet pulls an image, then fails to start it.
    return tuple(event for event in stands if went_on is None or event.last is None or event.last >= went_on)


def of_events(events: Iterable[Event], *reasons: str) -> tuple[Symptom, ...]:
    """Return the events with one of the reasons as symptoms; all events if no reason is given."""
    return tuple(
        Symptom(TextSource.EVENT, event.reason, event.message, "", event.last, event.count)
        for event in events
        if not reasons or event.reason in reasons
    )


def of_state(state: ContainerState) -> Iterator[Symptom]:
    """Yield symptoms of a container that does not run: why it waits, and how it ended."""
    if state.waiting:
        yield Symptom(TextSource.WAITING, state.waiting, state.message, state.name)
    for ended in (state.ended, state.last_ended):
        if ended is not None:
            yield of_end(state, ended)


def of_end(state: ContainerState, ended: ContainerEnd) -> Symptom:
    """Return the symptom of an end. The message may be the end of the log, with escaped line ends."""
    return Symptom(TextSource.ENDED, ended.reason, ended.message.replace("\\n", "\n"), state.name, ended.at)


def of_log(snapshot: Snapshot, pod: Pod, container: str, lines: int = 0) -> Iterator[Symptom]:
    """Yield the end of a container's log, if there is one. `lines`: number of last lines; 0 for all."""
    log = snapshot.logs.get((pod.subject, container), "")[-_MOST_LOG:]
    if lines:
        log = "\n".join([line for line in log.splitlines() if line.strip()][-lines:])
    if log:
        yield Symptom(TextSource.LOG, "", log, container)


def replaced(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a pod that ended is only left over.

    Its purpose is fulfilled, or its workload works without it, or its end is long past.
    """
    end = _end(pod)
    if pod.meta.deleted is not None or (end is not None and snapshot.now - end > _PAST) or _had_succeeded(pod):
        return True
    above = snapshot.line(pod.meta)[1:]
    makers = [workload for subject in above if (workload := snapshot.workload.get(subject)) is not None]
    if any(
        maker.wanted == 0 or any(condition_in(maker.conditions, kind, "True") for kind in _DONE) for maker in makers
    ):
        return True
    counted = [maker for maker in makers if maker.meta.kind in _COUNTED and maker.wanted is not None]
    if counted:
        return all(_ready(snapshot, workload) >= (workload.wanted or 0) for workload in counted)
    # A pod that was created earlier, as its peer, does not replace it.
    working = _working(snapshot).get(above[-1], ()) if above else ()
    return bool(working) and end is not None and working[-1] > end


def _ready(snapshot: Snapshot, maker: Workload) -> int:
    """Return how many pods of the workload work, by the workload's count, or by the pods if the count lags behind."""
    return max(maker.ready or 0, len(_working(snapshot).get(snapshot.line(maker.meta)[-1], ())))


@lru_cache(maxsize=1)
def _working(snapshot: Snapshot) -> Mapping[str, Sequence[datetime]]:
    """Return, by the object that a person wrote, when its pods that work were created, the newest last."""
    return {
        subject: sorted(pod.meta.created or EARLIEST for pod in pods if _works(pod))
        for subject, pods in snapshot.pods_under.items()
    }


def shortened(text: str, longest: int = _SHOWN) -> str:
    """Return the text on one line, cut in the middle: the end of a message has the path or the error number."""
    message = " ".join(text.split())
    if len(message) <= longest:
        return message
    begin = longest // 3
    return f"{message[:begin]}…{message[begin + 1 - longest :]}"


def older(snapshot: Snapshot, at: datetime | None, minutes: float) -> bool:
    """Whether the time is longer ago than `minutes`. An unknown time counts as longer ago."""
    return at is None or snapshot.now - at > timedelta(minutes=minutes)


def scheduled_at(pod: Pod) -> datetime | None:
    """Return the time when the pod was bound to its node."""
    condition = pod.condition("PodScheduled")
    return (condition.since if condition is not None and condition.status == "True" else None) or pod.meta.created


def is_stuck(pod: Pod) -> bool:
    """Whether the pod has a node, has not ended, and one of its containers does not run."""
    if pod.over or not pod.spec.node or pod.meta.deleted is not None:
        return False
    stateless = not pod.states and pod.phase != "Running"
    return stateless or any(state.waiting or (state.ended and state.ended.exit_code) for state in pod.states)


def ended_of(state: ContainerState) -> ContainerEnd | None:
    """Return the end of the last run that has ended."""
    return state.ended or state.last_ended


def _quote(found: re.Match[str]) -> str:
    """Return the line with the match, shortened for people: text before the match, the match, and the line's end."""
    text, start = found.string, found.start()
    line, end = text.rfind("\n", 0, start) + 1, text.find("\n", found.end())
    whole = text[line : end if end >= 0 else len(text)]
    if len(whole) <= _SHOWN:
        return shortened(whole)
    begin = max(line, start - _SHOWN // 3)
    before = ("…" if begin > line else "") + text[begin:start]
    return before + shortened(whole[start - line :], _SHOWN - len(before))


def _works(pod: Pod) -> bool:
    if pod.phase == "Succeeded":
        return True
    own = [state for state in pod.states if not state.init]
    return pod.phase == "Running" and pod.meta.deleted is None and all(state.ready for state in own)


def _had_succeeded(pod: Pod) -> bool:
    """Whether all containers ended with success: a kubelet that restarts may reject the ended pod once more."""
    own = [state for state in pod.states if not state.init]
    return bool(own) and all(state.ended is not None and state.ended.exit_code == 0 for state in own)


def _end(pod: Pod) -> datetime | None:
    """Return when the pod ended, from its containers.

    If none reports it, use the last change of the pod's conditions, or its creation.
    """
    ends = [state.ended.at for state in pod.states if state.ended is not None and state.ended.at is not None]
    changes = [condition.since for condition in pod.conditions if condition.since is not None]
    return max(ends or changes, default=pod.meta.created)


def since_and_detail(finding: RecordFinding) -> str:
    """Return when the agent's finding began, and its detail, as the end of a line."""
    since = f" since {timestamp(finding.first_seen)}" if finding.first_seen is not None else ""
    return f"{since}{f': {shortened(finding.detail, _LONGEST_DETAIL)}' if finding.detail else ''}"
