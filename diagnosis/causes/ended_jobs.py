"""Find workloads that have ended, with the finding of their last pod's node then, and pods that the gate has refused.

These causes are shown only for the workload itself and its pods: old Jobs and pods are no problem of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import explain, logs
from gpu_healthcheck.diagnosis.facts.symptoms import (
    ASSIGNED,
    CREATED,
    GATE_REFUSAL,
    GATE_WORDS,
    shortened,
    since_and_detail,
)
from gpu_healthcheck.diagnosis.model import CauseSeverity, Family, FoundCause, Link, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import Condition, Pod, condition_in
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload
from gpu_healthcheck.healthcheck.operations.pod_removal import WITH_RETRIES
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, timestamp

_ended = Family(None)
FAILED = _ended(
    "JobFailed",
    "A Job, JobSet, PyTorchJob or MPIJob has failed: it creates no further pods.",
    "Fix the reason of its failure, then create it again.",
    source="condition Failed",
)
COMPLETE = _ended(
    "JobComplete",
    "A Job, JobSet, PyTorchJob or MPIJob has completed: it creates no further pods.",
    "To run it again, create it again from its manifest.",
    severity=CauseSeverity.LOW,
    source="condition Complete, Completed or Succeeded",
)
ENDS = frozenset((FAILED, COMPLETE))
REFUSED = Family(Link.STARTED)(
    "GateRefusedPod",
    "The gate refused the pod before its start, because its node is faulty. A refused pod does not start again.",
    "Its job starts another pod elsewhere. A pod without a job: create it again; the taint keeps it off this node.",
    source="init container gpu-gate, exit code 75",
)
_COMPLETE = ("Complete", "Completed", "Succeeded")
_AGAIN = "Then create it again from its manifest."
_BY_REASON = {
    "BackoffLimitExceeded": "To survive the loss of a pod, raise `backoffLimit`, and ignore evictions: docs/gate.md.",
    "PodFailurePolicy": "Correct the program, or the rule of its podFailurePolicy that the message names.",
    "DeadlineExceeded": "Raise `activeDeadlineSeconds`, or find out why it took longer.",
}
"""Fixes by the reason of the condition Failed (batch/v1, `JobReason…`)."""
_LATER = timedelta(minutes=5)
"""The agent may report a fault in the check cycle after the failure that it causes."""
_HEALTH_EVENT, _EVICTION = "GpuHealth", "EvictionAnnounced"
_MOST_FINDINGS, _LONGEST = 3, 160


class _LastPod(Struct, frozen=True):
    """Last pod of an ended workload: `pod` is None if it is gone, and events name it."""

    subject: str
    node: str
    pod: Pod | None = None
    evicted: str = ""
    """Event that announced its eviction."""


def find_ended(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the workloads that have failed or completed."""
    for workload in snapshot.workloads:
        if workload.meta.kind not in WITH_RETRIES:
            continue
        failed = condition_in(workload.conditions, "Failed", "True")
        if failed is not None:
            yield _failed(snapshot, workload, failed)
            continue
        complete = (condition_in(workload.conditions, kind, "True") for kind in _COMPLETE)
        if (condition := next(filter(None, complete), None)) is not None:
            yield FoundCause(COMPLETE, workload.subject, (_shown(condition),), (COMPLETE.remedy,))


def _failed(snapshot: Snapshot, workload: Workload, condition: Condition) -> FoundCause:
    pods = _pods_of(snapshot).get(workload.subject, ())
    last = _last_pod(snapshot, workload, pods)
    evidence: list[str] = [_shown(condition)]
    remedy: list[str] = []
    if last is not None:
        at = (_end(last.pod) if last.pod is not None else None) or condition.since
        findings = _findings_at(snapshot.by_node.get(last.node), at)
        then = [
            f"node/{last.node} had then: {one.reason} {one.severity} on {one.subject}{since_and_detail(one)}"
            for one in findings
        ]
        then = then or [_state_at(snapshot, last.node, at)]
        evidence += (_last_shown(last), *then)
        remedy += (f"See the action for {one.reason}: {explain(one.reason)}" for one in findings[:1])
        remedy += [f"Read the log of its last pod: {logs(last.pod.meta, '--tail=100')}"] if last.pod else []
    remedy += [*filter(None, (_BY_REASON.get(condition.reason),)), _AGAIN]
    # A JobSet fails with one of its Jobs.
    because = origins((FAILED,), *(one.subject for one in _beneath(snapshot).get(workload.subject, ())))
    affected = tuple(pod.subject for pod in pods)
    return FoundCause(FAILED, workload.subject, tuple(evidence), tuple(remedy), affected, because_of=because)


@lru_cache(maxsize=1)
def _pods_of(snapshot: Snapshot) -> Mapping[str, Sequence[Pod]]:
    """Return pods by the subject of each of their owners."""
    return grouped((owner, pod) for pod in snapshot.pods for owner in snapshot.line(pod.meta)[1:])


@lru_cache(maxsize=1)
def _beneath(snapshot: Snapshot) -> Mapping[str, Sequence[Workload]]:
    return grouped((owner, one) for one in snapshot.workloads for owner in snapshot.line(one.meta)[1:2])


def _last_pod(snapshot: Snapshot, workload: Workload, pods: Sequence[Pod]) -> _LastPod | None:
    placed = [pod for pod in pods if pod.spec.node]
    if placed:
        # A pod that failed explains the end better than one that ended with the workload.
        last = max(placed, key=lambda pod: (pod.phase == "Failed", _end(pod) or pod.meta.created or EARLIEST))
        return _LastPod(last.subject, last.spec.node, last)
    for event in reversed(snapshot.events_about.get(workload.subject, ())):
        if event.uid in ("", workload.meta.uid) and (created := CREATED.search(event.message)):
            name = f"pod/{workload.meta.namespace}/{created[1]}"
            about = snapshot.events_about.get(name, ())
            node = next((assigned[1] for one in about if (assigned := ASSIGNED.search(one.message))), "")
            evicted = next((f"{one.reason}: {one.message}" for one in about if one.reason == _EVICTION), "")
            return _LastPod(name, node, evicted=evicted) if node else None
    return None


def _end(pod: Pod) -> datetime | None:
    ends = (state.ended.at for state in pod.states if state.ended is not None and state.ended.at is not None)
    return max(ends, default=None)


def _last_shown(last: _LastPod) -> str:
    shown = f"its last pod {last.subject} ran on node/{last.node}"
    if last.pod is None:
        return f"{shown}, and is gone" + (f"; {shortened(last.evicted, _LONGEST)}" if last.evicted else "")
    ends = (state.ended for state in last.pod.states if state.ended is not None and state.ended.exit_code)
    if (ended := next(ends, None)) is not None:
        shown += f", exit code {ended.exit_code}"
        shown += f": {shortened(ended.message, _LONGEST)}" if ended.message else ""
    disrupted = last.pod.condition("DisruptionTarget")
    return f"{shown}; {_shown(disrupted)}" if disrupted is not None and disrupted.status == "True" else shown


def _findings_at(node: Node | None, at: datetime | None) -> list[RecordFinding]:
    """Return the node's findings that were active at that time, those of RESET or worse first."""
    if node is None or at is None:
        return []
    then = [one for one in node.findings if one.first_seen is not None and one.first_seen <= at + _LATER]
    return sorted(then, key=lambda one: one not in node.faults)[:_MOST_FINDINGS]


def _state_at(snapshot: Snapshot, name: str, at: datetime | None) -> str:
    """Return what our agent's Events report of a node at that time, if its record has no finding from then."""
    node = snapshot.by_node.get(name)
    events = [
        event
        for event in snapshot.events_about.get(f"node/{name}", ())
        if event.reason.startswith(_HEALTH_EVENT) and at is not None and (event.first or EARLIEST) <= at + _LATER
    ]
    if events and events[-1].warning:
        return f"node/{name} had then, by its event {events[-1].reason}: {shortened(events[-1].message, _LONGEST)}"
    if node is None or node.record is None:
        why = "it is gone, or was not read" if node is None else "no agent has written a record there"
        return f"could not check what node/{name} had then: {why}"
    return f"the record of node/{name} has no finding from then; findings that have ended are not kept in it"


def _shown(condition: Condition) -> str:
    since = f" since {timestamp(condition.since)}" if condition.since is not None else ""
    return ": ".join(filter(None, (f"{condition.type}{since}", condition.reason, shortened(condition.message))))


def find_refused(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the failed pods whose gate refused them, with its message."""
    for pod in snapshot.pods:
        for state in pod.states if pod.phase == "Failed" else ():
            ended = state.ended
            if ended is not None and ((state.name, ended.exit_code) == GATE_REFUSAL or GATE_WORDS in ended.message):
                message = shortened(ended.message) or f"container {state.name}: exit code {ended.exit_code}"
                yield FoundCause(REFUSED, pod.subject, (message,), (REFUSED.remedy,))


SEARCHES = (Search((FAILED, COMPLETE), ("Pod",), find_ended), Search((REFUSED,), ("Pod",), find_refused))
