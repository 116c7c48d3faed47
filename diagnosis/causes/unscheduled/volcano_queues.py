"""Find groups of GPU pods that Volcano has not admitted to their queue; a Volcano Job has no pods until then."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

from diagnosis.causes.unscheduled.queues import NO_SCHEDULER
from diagnosis.causes.unscheduled.waiting import group_of
from diagnosis.facts.commands import command
from diagnosis.facts.gpu_requests import asks_for_gpus, is_gpu
from diagnosis.facts.placement import ZERO
from diagnosis.facts.quantity import amount, shown
from diagnosis.model import CauseSeverity, Family, FoundCause, Link, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.volcano import GroupQueue, PodGroup
from healthcheck.text.naming import named

_queued = Family(Link.QUEUED, severity=CauseSeverity.MEDIUM)
HELD = _queued(
    "VolcanoHoldsGroup",
    "Volcano has not admitted a group of pods to its queue: no pod is scheduled, and a Volcano Job creates none.",
    "Check the group's queue: whether it is open, and whether its quota covers the group's request.",
    source="https://volcano.sh/en/docs/podgroup/: phases Pending and Inqueue; "
    "https://volcano.sh/en/docs/queue/: capability",
)
_PATIENCE, _IN_LINE = timedelta(minutes=2), timedelta(minutes=10)
"""Longer patience for temporary obstacles: waiting for others is normal in a queue."""
_CLOSED = ("Closed", "Closing")
_MOST = 5
_PREFIXES = ("requests.", "limits.")


def find_groups(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield each group that waits, with its queue as the subject if the queue must be changed."""
    waiting = [each for each in snapshot.pod_groups if each.phase == "Pending" and each.meta.deleted is None]
    pods = snapshot.pods if waiting else ()
    of_gpus = {(pod.meta.namespace, group_of(pod)) for pod in pods if asks_for_gpus(pod.spec)}
    queues = {each.meta.name: each for each in snapshot.group_queues}
    for group in waiting:
        if not _names_gpus(group) and (group.meta.namespace, group.meta.name) not in of_gpus:
            continue
        queue = queues.get(group.queue)
        lasting = list(_lasting(snapshot, group, queue, named(sorted(queues), _MOST) if queue is None else ""))
        young = timedelta() if group.meta.created is None else snapshot.now - group.meta.created
        if young > (_PATIENCE if lasting else _IN_LINE):
            yield _held(snapshot, group, queue, lasting)


def _held(snapshot: Snapshot, group: PodGroup, queue: GroupQueue | None, lasting: list[str]) -> FoundCause:
    owner = group.meta.owner
    made_by = subject(owner.kind, group.meta.namespace, owner.name) if owner is not None else group.meta.subject
    where = subject("Queue", "", group.queue) if lasting else group.meta.subject
    look = command(
        "kubectl", "-n", group.meta.namespace, "describe", "podgroups.scheduling.volcano.sh", group.meta.name
    )
    see = command("kubectl", "describe", "queues.scheduling.volcano.sh", group.queue)
    remedy = (f"Check its queue's quota and use: {see}", f"Check the group's total request: {look}")
    evidence = (f"{group.meta.subject}: phase Pending, queue {group.queue}", *lasting, *_given(group, queue))
    because = origins((NO_SCHEDULER,), made_by, group.meta.subject)
    return FoundCause(HELD, where, (*evidence, *_said(snapshot, group)), remedy, (made_by,), because_of=because)


def _lasting(snapshot: Snapshot, group: PodGroup, queue: GroupQueue | None, known: str) -> Iterator[str]:
    """Yield obstacles that remain, however long the group waits. `known`: the queues that exist."""
    if queue is None:
        if snapshot.sees("Queue"):
            yield f"queue {group.queue} does not exist; existing queues: {known or 'none'}"
        return
    if queue.state in _CLOSED:
        yield f"{queue.meta.subject} is {queue.state}: it accepts no further groups"
    for name, asked, most in _bounded(group, queue):
        if asked > most:
            yield f"the group requests {shown(name, asked)} {name} at once, and the queue may have {shown(name, most)}"


def _given(group: PodGroup, queue: GroupQueue | None) -> Iterator[str]:
    for name, asked, most in _bounded(group, queue) if queue is not None else ():
        given = amount(queue.given.get(name, "0")) or ZERO if queue is not None else ZERO
        if given + asked > most >= asked:
            message = f"{shown(name, given)} of {shown(name, most)} {name} are allocated"
            yield f"queue {group.queue}: {message}, and the group requests {shown(name, asked)}"


def _bounded(group: PodGroup, queue: GroupQueue) -> Iterator[tuple[str, Decimal, Decimal]]:
    """Yield the resources that the queue limits, each with the group's request and the limit."""
    for name, text in group.least.items():
        asked, most = amount(text), amount(queue.most.get(name, ""))
        if asked is not None and most is not None:
            yield name, asked, most


def _said(snapshot: Snapshot, group: PodGroup) -> Iterator[str]:
    """Yield Volcano's newest message about the group: an event of any type, or a condition."""
    noted = [event for event in snapshot.events_about.get(group.meta.subject, ()) if event.reason == "Unschedulable"]
    conditions = [
        each for each in group.conditions if each.type == "Unschedulable" and each.status == "True" and each.message
    ]
    words = [event.message for event in (noted or conditions)[-1:]]
    yield from (f"Volcano: {word}" for word in words)


def _names_gpus(group: PodGroup) -> bool:
    return any(is_gpu(_plain(name)) for name in group.least)


def _plain(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)
