"""Order what is known of one workload by time: its pods, its nodes, and what controllers did. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.target import Target, concerned, pods_of
from gpu_healthcheck.diagnosis.facts.symptoms import ASSIGNED, CREATED, GATE_REFUSAL, GATE_WORDS, shortened
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import Meta, subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Condition, Pod
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT
from gpu_healthcheck.healthcheck.node.evictions import evictions_on
from gpu_healthcheck.healthcheck.node.state import CONDITION, NodeState
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, LATEST
from gpu_healthcheck.healthcheck.verdict.work import POD_DIGITS

_MOST_ROWS, _MOST_NAMES, _LONGEST = 60, 3, 160
_MARGIN = timedelta(minutes=5)
"""A fault may be older than a pod that meets it, and reported in the check cycle after the pod's end."""
_RECORD = "agent's record"
_VERBS = {"Scheduled": " bound", "Started": " started"}
_ROUTINE = frozenset(("Pulling", "Pulled", "Created", "AddedInterface", "SuccessfulAttachVolume"))
_OF_PODS = frozenset(("EvictionAnnounced", "EvictionRefused", "EvictionCancelled", "SlurmMustDrain"))
"""Reasons of our Events about a Node for which there are Events about its pods, too."""


class TimelineRow(Struct, frozen=True):
    """Change of one object, `pod x`, or of several, `2 pods`. `source`: the object or program that has its time."""

    at: datetime
    who: str
    verb: str
    detail: str
    source: str

    @property
    def what(self) -> str:
        return f"{self.who}{self.verb}{f': {self.detail}' if self.detail else ''}"


Rows = Iterator[TimelineRow]


def timeline(snapshot: Snapshot, target: Target) -> tuple[TimelineRow, ...]:
    """Return what happened to the workload or pod, as far as it was read and has a time; () for less than two rows.

    Of more than 60 rows, the middle ones are counted. A pasted text has ages instead of times, and gives no rows.
    """
    rows = tuple(_together(_changes(snapshot, target))) if not snapshot.recognised else ()
    if len(rows) > _MOST_ROWS:
        half, more = _MOST_ROWS // 2, len(rows) - _MOST_ROWS + 1
        return (*rows[:half], TimelineRow(rows[half].at, f"… {more:,} more", "", "", "left out"), *rows[1 - half :])
    return rows if len(rows) > 1 else ()


def _together(changes: Iterable[TimelineRow]) -> Rows:
    """Yield one row for the same change of several objects of a kind within one minute, at the time of the first."""
    in_time = sorted(changes, key=lambda row: row.at)
    keys = ((row.at.replace(second=0, microsecond=0), row.who.partition(" ")[0], row.verb) for row in in_time)
    for (_, kind, _), some in grouped(zip(keys, in_time, strict=True)).items():
        names = sorted({row.who.partition(" ")[2] for row in some}, key=lambda name: (len(name), name))
        if len(names) == 1:
            yield some[0]
            continue
        shown = ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} … {names[-1]}"
        same = f" ({some[0].detail})" if {row.detail for row in some} == {some[0].detail} != {""} else ""
        yield replace(some[0], who=f"{len(names):,} {kind}s", detail=f"{shown}{same}")


def _changes(snapshot: Snapshot, target: Target) -> Rows:
    """Yield the changes of the target, its owners and parts, its pods, and those of their nodes in the same time."""
    pods, subjects, events = pods_of(snapshot, target), concerned(snapshot, target), snapshot.events_about
    own = [row for pod in pods for row in _of_pod(pod)]
    makers = [(one.meta, one.conditions) for one in snapshot.workloads]
    for meta, conditions in (*makers, *((one.meta, one.conditions) for one in snapshot.queued)):
        above = meta.owner and subject(meta.owner.kind, meta.namespace, meta.owner.name)
        if not subjects.isdisjoint((meta.subject, above)):
            own += _of_object(meta.kind, meta, conditions, events.get(meta.subject, ()))
    nodes = {pod.spec.node for pod in pods}
    gone = _gone(snapshot, subjects) if target.kind != "Pod" else ()
    for name in (*(pod.subject for pod in pods), *gone):
        about = [event for event in events.get(name, ()) if event.reason not in _ROUTINE]
        nodes.update(node for event in about for node in ASSIGNED.findall(event.message))
        own += (row for event in about for row in _of_event(event, f"pod {name.rpartition('/')[2]}"))
    yield from own
    begin, last = min((row.at for row in own), default=LATEST), max((row.at for row in own), default=EARLIEST)
    begin, end = begin - _MARGIN, last + _MARGIN if all(pod.over for pod in pods) else LATEST
    for name in sorted(nodes & snapshot.by_node.keys()):
        there = {pod.meta.uid: pod for pod in snapshot.pods_on.get(name, ()) if pod.subject in subjects}
        yield from (row for row in _of_node(snapshot, snapshot.by_node[name], there) if begin <= row.at <= end)


def _gone(snapshot: Snapshot, subjects: frozenset[str]) -> list[str]:
    """Return pods that only Events know, if their names begin with an owner's among the subjects."""
    own = tuple(f"pod/{name.partition('/')[2]}-" for name in subjects if not name.startswith("pod/"))
    others = (f"pod/{one.meta.namespace}/{one.meta.name}-" for one in snapshot.workloads if one.subject not in subjects)
    longer = tuple(name for name in others if name.startswith(own))
    alike = (name for name in snapshot.events_about if name.startswith(own) and not name.startswith(longer))
    return [name for name in alike if name not in snapshot.pod]


def _of_pod(pod: Pod) -> Rows:
    who, scheduled = f"pod {pod.meta.name}", pod.condition("PodScheduled")
    yield from _of_object("pod", pod.meta, (one for one in pod.conditions if one.type == "DisruptionTarget"), ())
    if scheduled is not None and scheduled.status == "True":
        yield from _row(scheduled.since, "Pod", who, " bound", f"node {pod.spec.node}")
    for state in pod.states:
        for ended in filter(None, (state.last_ended, state.ended)):
            if (state.name, ended.exit_code) == GATE_REFUSAL or GATE_WORDS in ended.message:
                yield from _row(ended.at, "Pod", who, " refused by the gate", ended.message)
            elif ended.exit_code or not state.init:
                yield from _row(ended.started, "Pod", who, " started")
                verb = f" ended with exit code {ended.exit_code}"
                yield from _row(ended.at, "Pod", who, verb, f"container {state.name}", ended.reason, ended.message)
        if not state.init:
            yield from _row(state.started, "Pod", who, " restarted" if state.restarts else " started")


def _of_node(snapshot: Snapshot, node: Node, pods: Mapping[str, Pod]) -> Rows:
    """Yield the changes of the node, and of the GPUs and the evictions of these pods there, by UID."""
    for one in node.findings:
        verb = f": {one.reason} {one.severity}"
        yield from _row(one.first_seen, _RECORD, f"node {node.name}", verb, one.subject, one.detail)
    faults = (one for one in node.conditions if one.type in ("Ready", CONDITION) and one.status != "True")
    known = _OF_PODS.union((finding.reason for finding in node.findings), () if node.ready else ("NodeNotReady",))
    about = (event for event in snapshot.events_about.get(node.subject, ()) if event.reason not in known)
    news = (event for event in about if event.warning or event.by == COMPONENT or "Ready" in event.reason)
    yield from _of_object("node", node.meta, faults, news)
    digits = {uid[:POD_DIGITS] for uid in pods}
    for uuid, work in (node.record.work if node.record is not None else {}).items():
        if work.pod in digits and work.state is not None:
            yield from _row(work.since, _RECORD, f"GPU {node.name}/{uuid}", f" {work.state.value}")
    for eviction in evictions_on(NodeState("", annotations=node.meta.annotations), snapshot.now).pods:
        pod = pods.get(eviction.uid or "")
        if pod is not None and not any(event.reason in _OF_PODS for event in snapshot.events_of(pod)):
            state = (str(eviction.state), eviction.obstacle if eviction.why else "")
            yield from _row(eviction.at, "Node", f"pod {pod.meta.name}", ": eviction announced", *state)


def _of_object(kind: str, meta: Meta, conditions: Iterable[Condition], events: Iterable[Event]) -> Rows:
    yield from _row(meta.created, meta.kind, f"{kind} {meta.name}", " created")
    for one in conditions:
        verb = f": {one.type}" if one.status == "True" else f": {one.type}={one.status}"
        yield from _row(one.since, "condition", f"{kind} {meta.name}", verb, one.reason, one.message)
    yield from (row for event in events for row in _of_event(event, f"{kind} {meta.name}"))


def _of_event(event: Event, who: str) -> Rows:
    at, source = event.first or event.last, f"Event of {event.by}" if event.by else "Event"
    if created := CREATED.search(event.message):
        return _row(at, source, f"pod {created[1]}", " created")
    if verb := _VERBS.get(event.reason):
        return _row(at, source, who, verb, *(f"node {node}" for node in ASSIGNED.findall(event.message)[:1]))
    times = f"{event.count} times until {event.last:%H:%M:%S}Z" if event.count > 1 and event.last else ""
    return _row(at, source, who, f": {event.reason}", times, event.message)


def _row(at: datetime | None, source: str, who: str, verb: str, *details: str) -> Rows:
    """Yield the row if its time is known."""
    if at is not None:
        yield TimelineRow(at, who, verb, shortened(": ".join(filter(None, details)), _LONGEST), source)
