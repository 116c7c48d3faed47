"""Find pods that HAMi's scheduler could not bind.

Either its extender does not answer, or its decision can't be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta

from diagnosis.causes.components import NOT_READY
from diagnosis.causes.hami.denials import CHART
from diagnosis.causes.hami.hami_nodes import LOCK_STALE
from diagnosis.causes.unscheduled.waiting import Waiting, refusal, unplaced, unschedulable
from diagnosis.facts.commands import command
from diagnosis.facts.components import Role
from diagnosis.facts.fit_error import ReasonSubject
from diagnosis.facts.pod_stage import StageKind, stage
from diagnosis.hami.installation import Installation, installation_of, is_scheduled, is_there
from diagnosis.model import Cause, CauseSeverity, Certainty, Family, FoundCause, Link, Search, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.cluster_events import Event
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.pods import ContainerState, Pod

_scheduled = Family(Link.SCHEDULED)
_SCHEDULER = "HAMi, pkg/scheduler/scheduler.go"
EXTENDER = _scheduled(
    "HamiExtenderUnreachable",
    "kube-scheduler in HAMi's pod gets no response from HAMi's extender, so it schedules no GPU pod.",
    "Check the container vgpu-scheduler-extender: its restarts and its log.",
    source=f"{CHART}/configmapnew.yaml: urlPrefix of the extender",
)
EXTENDER_SLOW = _scheduled(
    "HamiExtenderSlow",
    "HAMi's extender responds to kube-scheduler too late, so pods are not scheduled, or only sometimes.",
    "Check its CPU limit; with --profiling it serves /debug/pprof on its https port.",
    severity=CauseSeverity.MEDIUM,
    source=f"{CHART}/configmapnew.yaml: httpTimeout",
)
NO_RIGHT = _scheduled(
    "HamiMayNotWrite",
    "HAMi's scheduler lacks the permission to write to pods or nodes, so no pod is bound.",
    "Restore its service account's permissions from the chart's ClusterRole.",
    source=f"{_SCHEDULER}, Bind",
)
WRITE_FAILS = _scheduled(
    "HamiWriteFails",
    "The API server or etcd rejects the writes of HAMi's scheduler at binding.",
    "Check the API server and etcd; HAMi retries.",
    source=f"{_SCHEDULER}, Bind",
)
BIND_FAILS = _scheduled(
    "HamiBindingFails",
    "HAMi has found a node for the pod but can't bind it there.",
    "Read the reason in its message.",
    source=f"{_SCHEDULER}, Bind: the event BindingFailed",
)
FILTERED_ONLY = _scheduled(
    "HamiFilteredNotBound",
    "HAMi has found a node with cards for the pod, but another scheduler rule prevents the binding.",
    "Read the log of the container kube-scheduler in HAMi's scheduler pod for this pod.",
    severity=CauseSeverity.MEDIUM,
    source=f"{_SCHEDULER}: the event FilteringSucceed",
)


_CALLED = re.compile(r"Post \\?\"https?://[^ \"]{1,200}/(filter|bind)\\?\": (.{1,600})", re.ASCII | re.DOTALL)
"""Message of kube-scheduler about an extender that did not respond."""
_LATE = re.compile(r"deadline exceeded|Client\.Timeout|timed? ?out", re.ASCII | re.IGNORECASE)
_FORBIDDEN = re.compile(
    r"forbidden: User \\?\"([^\"\\]{1,300})\\?\" cannot (\w{1,20}) resource \\?\"(\w[\w/.-]{0,79})\\?\"", re.ASCII
)
_LOCKED = re.compile(r"has been locked within|node \S{1,253} is locked|node ?lock", re.ASCII | re.IGNORECASE)
_SERVER = re.compile(
    r"etcdserver: |object has been modified|too many requests|Internal error occurred|context deadline exceeded"
    r"|connection refused|the server is currently unable|request timed out|Timeout: ",
    re.ASCII | re.IGNORECASE,
)
_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9-]{1,63}):([a-z0-9.-]{1,253})\Z", re.ASCII)
_OF_HAMI = frozenset(("FilteringFailed", "FilteringSucceed", "BindingFailed", "BindingSucceed"))
_LASTS = timedelta(minutes=2)
_MOST = 300


def find_unbound(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the step that fails for waiting pods: a step before or after HAMi's filter."""
    for waiting in unschedulable(snapshot):
        own = installation_of(snapshot, waiting.pods[0]) if waiting.hami else None
        if own is not None:
            yield from _judged(snapshot, own, waiting)
    for pod in unplaced(snapshot):
        # The pod's condition holds kube-scheduler's error. Here there is no condition yet.
        own = installation_of(snapshot, pod)
        if own is not None and not pod.spec.gates and not refusal(snapshot, pod) and is_scheduled(snapshot, pod):
            last = newest_event(snapshot, (pod,))
            if last is not None and last.reason == "FilteringSucceed":
                yield from _filtered(snapshot, own, last, (snapshot.line(pod.meta)[-1], (pod.subject,)))


def newest_event(snapshot: Snapshot, pods: Iterable[Pod]) -> Event | None:
    """Return the newest event of HAMi's scheduler about any of the pods."""
    events = [event for pod in pods for event in snapshot.events_of(pod) if event.reason in _OF_HAMI]
    return max(events, key=lambda event: str(event.last), default=None)


def _judged(snapshot: Snapshot, installation: Installation, waiting: Waiting) -> Iterator[FoundCause]:
    called = _CALLED.search(waiting.message)
    if called is not None:
        yield _unanswered(snapshot, installation, waiting, called)
        return
    last = newest_event(snapshot, waiting.pods)
    failed = last is not None and last.reason == "BindingFailed"
    text = last.message if last is not None and failed else waiting.message
    if failed or waiting.fit is None:
        yield from _unwritten(installation, waiting, text, failed=failed)
    elif (
        last is not None
        and last.reason == "FilteringSucceed"
        and all(reason.says is ReasonSubject.OTHER for reason in waiting.fit.reasons)
    ):
        since = (f"kube-scheduler since: {waiting.message[:_MOST]}",)
        yield from _filtered(snapshot, installation, last, (waiting.workload, waiting.names), since)


def _unanswered(snapshot: Snapshot, installation: Installation, waiting: Waiting, called: re.Match[str]) -> FoundCause:
    cause = EXTENDER_SLOW if _LATE.search(called[2]) else EXTENDER
    evidence = [f"the scheduler, at /{called[1]}: {called[2][:_MOST]}", *_extender(snapshot, installation)]
    remedy = [f"Read the extender's log: {_logs(installation)}"]
    if cause is EXTENDER_SLOW:
        remedy.append(
            "Check its CPU limit. With --profiling it serves /debug/pprof on its https port, 443 of its Service."
        )
    if "x509" in called[2]:
        remedy.insert(
            0, f"Its certificate is not valid for 127.0.0.1: check the Secret {installation.name}-scheduler-tls."
        )
    nodes = (f"node/{pod.spec.node}" for pod in installation.scheduler_pods)
    because = origins((NOT_READY[Role.HAMI_SCHEDULER],), installation.subject, *nodes)
    return waiting.found(cause, *evidence, subject=installation.subject, remedy=tuple(remedy), because_of=because)


def _extender(snapshot: Snapshot, installation: Installation) -> Iterator[str]:
    for pod in installation.scheduler_pods:
        at = stage(pod, snapshot.now)
        if at.kind is not StageKind.READY:
            yield f"{pod.subject}: {at}"
        yield from (
            f"{pod.subject}: container {state.name} was restarted {_ends(state)}"
            for state in pod.states
            if state.restarts
        )


def _ends(state: ContainerState) -> str:
    last = state.last_ended
    how = f", last ended {last.reason or 'with'} exit code {last.exit_code}" if last is not None else ""
    return f"{state.restarts} times{how}"


def _unwritten(installation: Installation, waiting: Waiting, text: str, *, failed: bool) -> Iterator[FoundCause]:
    """Yield a failed write when a pod is bound.

    A lock within its time expires on its own. A lock that persists is reported for its node.
    """
    forbidden = _FORBIDDEN.search(text)
    evidence = (f"HAMi's scheduler: {text[:_MOST]}",)
    if forbidden is not None:
        yield _forbidden(installation, waiting, evidence, forbidden)
    elif _LOCKED.search(text) and not _SERVER.search(text):
        return
    elif _SERVER.search(text):
        remedy = ("Check the API server and etcd: health, latency, and throttled requests.",)
        yield waiting.found(
            WRITE_FAILS, *evidence, subject=installation.subject, remedy=remedy, certainty=Certainty.LIKELY
        )
    elif failed or "bind" in text.lower():
        remedy = (f"Read its errors: {_logs(installation)}",)
        because = origins((LOCK_STALE,), *(f"node/{name}" for name in _nodes_in(text)))
        yield waiting.found(BIND_FAILS, *evidence, remedy=remedy, certainty=Certainty.LIKELY, because_of=because)


def _forbidden(
    installation: Installation, waiting: Waiting, evidence: tuple[str, ...], match: re.Match[str]
) -> FoundCause:
    user, verb, resource = match.groups()
    account = _ACCOUNT.match(user)
    where = subject("ServiceAccount", account[1], account[2]) if account else installation.subject
    remedy = (
        f"Check its permissions: {command('kubectl', 'auth', 'can-i', verb, resource, f'--as={user}')}",
        "Upgrade the whole release: its ClusterRole has the permissions of this version.",
    )
    return waiting.found(NO_RIGHT, *evidence, subject=where, remedy=remedy)


def _filtered(
    snapshot: Snapshot,
    installation: Installation,
    last: Event,
    result: tuple[str, tuple[str, ...]],
    since: tuple[str, ...] = (),
) -> Iterator[FoundCause]:
    """Yield a pod that was not bound although HAMi found a node. `result`: the workload, and its pods."""
    if last.last is None or snapshot.now - last.last < _LASTS:
        return
    evidence = (f"HAMi's scheduler: {last.message[:_MOST]}", *since)
    remedy = (f"Read the log of the scheduler's other plugins about the pod: {_logs(installation, 'kube-scheduler')}",)
    yield FoundCause(FILTERED_ONLY, result[0], evidence, remedy, result[1], Certainty.LIKELY)


def _logs(installation: Installation, container: str = "vgpu-scheduler-extender") -> str:
    name = installation.scheduler.meta.name if installation.scheduler is not None else f"{installation.name}-scheduler"
    return command("kubectl", "-n", installation.namespace, "logs", f"deployment/{name}", "-c", container, "--tail=100")


def _nodes_in(text: str) -> list[str]:
    return re.findall(r"node ([a-z0-9.-]{1,253}) ", text[:_MOST])


CAUSES: tuple[Cause, ...] = (EXTENDER, EXTENDER_SLOW, NO_RIGHT, WRITE_FAILS, BIND_FAILS, FILTERED_ONLY)
SEARCHES = (Search(CAUSES, ("Pod",), find_unbound, is_there),)
