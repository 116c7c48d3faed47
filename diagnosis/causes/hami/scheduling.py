"""Find pods that HAMi's scheduler could not bind.

Either its extender does not answer, or its decision can't be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.hami.denials import CHART
from gpu_healthcheck.diagnosis.causes.hami.hami_nodes import LOCK_STALE
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting, refusal, unplaced, unschedulable
from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.components import Role
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject
from gpu_healthcheck.diagnosis.facts.pod_stage import StageKind, stage
from gpu_healthcheck.diagnosis.hami.installation import Installation, installation_of, is_scheduled, is_there
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Certainty, Family, FoundCause, Link, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.pods import ContainerState, Pod

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
_REASONS = frozenset(("FilteringFailed", "FilteringSucceed", "BindingFailed", "BindingSucceed"))
_LASTS = timedelta(minutes=2)
_LONGEST = 300


def find_unbound(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the step that fails for waiting pods: a step before or after HAMi's filter."""
    for waiting in unschedulable(snapshot):
        installation = installation_of(snapshot, waiting.pods[0]) if waiting.hami else None
        if installation is not None:
            yield from _unbound(snapshot, installation, waiting)
    for pod in unplaced(snapshot):
        # The pod's condition holds kube-scheduler's error. Here there is no condition yet.
        installation = installation_of(snapshot, pod)
        if (
            installation is not None
            and not pod.spec.gates
            and not refusal(snapshot, pod)
            and is_scheduled(snapshot, pod)
        ):
            event = newest_event(snapshot, (pod,))
            if event is not None and event.reason == "FilteringSucceed":
                yield from _filtered(snapshot, installation, event, snapshot.line(pod.meta)[-1], (pod.subject,))


def newest_event(snapshot: Snapshot, pods: Iterable[Pod]) -> Event | None:
    """Return the newest event of HAMi's scheduler about any of the pods."""
    events = [event for pod in pods for event in snapshot.events_of(pod) if event.reason in _REASONS]
    return max(events, key=lambda event: str(event.last), default=None)


def _unbound(snapshot: Snapshot, installation: Installation, waiting: Waiting) -> Iterator[FoundCause]:
    call = _CALLED.search(waiting.message)
    if call is not None:
        yield _unanswered(snapshot, installation, waiting, call)
        return
    event = newest_event(snapshot, waiting.pods)
    if event is not None and event.reason == "BindingFailed":
        yield from _not_written(installation, waiting, event.message, failed=True)
    elif waiting.fit is None:
        yield from _not_written(installation, waiting, waiting.message, failed=False)
    elif (event is not None and event.reason == "FilteringSucceed") and all(
        reason.about is ReasonSubject.OTHER for reason in waiting.fit.reasons
    ):
        since = f"kube-scheduler since: {waiting.message[:_LONGEST]}"
        yield from _filtered(snapshot, installation, event, waiting.workload, waiting.names, since)


def _unanswered(snapshot: Snapshot, installation: Installation, waiting: Waiting, call: re.Match[str]) -> FoundCause:
    verb, error = call.groups()
    evidence = [f"the scheduler, at /{verb}: {error[:_LONGEST]}"]
    for pod in installation.scheduler_pods:
        at = stage(pod, snapshot.now)
        evidence += [f"{pod.subject}: {at}"] if at.kind is not StageKind.READY else []
        evidence += [
            f"{pod.subject}: container {state.name} was restarted {_restarts(state)}"
            for state in pod.states
            if state.restarts
        ]
    cause, remedy = EXTENDER, [f"Read the extender's log: {_logs(installation)}"]
    if _LATE.search(error):
        cause = EXTENDER_SLOW
        remedy.append(
            "Check its CPU limit. With --profiling it serves /debug/pprof on its https port, 443 of its Service."
        )
    if "x509" in error:
        secret = f"{installation.name}-scheduler-tls"
        remedy.insert(0, f"Its certificate is not valid for 127.0.0.1: check the Secret {secret}.")
    nodes = (f"node/{pod.spec.node}" for pod in installation.scheduler_pods)
    because = origins((NOT_READY[Role.HAMI_SCHEDULER],), installation.subject, *nodes)
    return waiting.found(cause, *evidence, subject=installation.subject, remedy=tuple(remedy), because_of=because)


def _restarts(state: ContainerState) -> str:
    ended = state.last_ended
    how = f", last ended {ended.reason or 'with'} exit code {ended.exit_code}" if ended is not None else ""
    return f"{state.restarts} times{how}"


def _not_written(installation: Installation, waiting: Waiting, message: str, *, failed: bool) -> Iterator[FoundCause]:
    """Yield a failed write when a pod is bound.

    A lock within its time expires on its own. A lock that persists is reported for its node.
    """
    evidence = f"HAMi's scheduler: {message[:_LONGEST]}"
    if (match := _FORBIDDEN.search(message)) is not None:
        yield _forbidden(installation, waiting, evidence, match)
    elif _SERVER.search(message):
        remedy = ("Check the API server and etcd: health, latency, and throttled requests.",)
        subject = installation.subject
        yield waiting.found(WRITE_FAILS, evidence, subject=subject, remedy=remedy, certainty=Certainty.LIKELY)
    elif not _LOCKED.search(message) and (failed or "bind" in message.lower()):
        remedy = (f"Read its errors: {_logs(installation)}",)
        nodes = re.findall(r"node ([a-z0-9.-]{1,253}) ", message[:_LONGEST])
        because = origins((LOCK_STALE,), *(f"node/{name}" for name in nodes))
        yield waiting.found(BIND_FAILS, evidence, remedy=remedy, certainty=Certainty.LIKELY, because_of=because)


def _forbidden(installation: Installation, waiting: Waiting, evidence: str, match: re.Match[str]) -> FoundCause:
    user, verb, resource = match.groups()
    account = _ACCOUNT.match(user)
    to_change = subject("ServiceAccount", account[1], account[2]) if account else installation.subject
    remedy = (
        f"Check its permissions: {command('kubectl', 'auth', 'can-i', verb, resource, f'--as={user}')}",
        "Upgrade the whole release: its ClusterRole has the permissions of this version.",
    )
    return waiting.found(NO_RIGHT, evidence, subject=to_change, remedy=remedy)


def _filtered(
    snapshot: Snapshot, installation: Installation, event: Event, workload: str, pods: tuple[str, ...], *since: str
) -> Iterator[FoundCause]:
    """Yield a workload that was not bound although HAMi found a node."""
    if event.last is None or snapshot.now - event.last < _LASTS:
        return
    evidence = (f"HAMi's scheduler: {event.message[:_LONGEST]}", *since)
    remedy = (f"Read the log of the scheduler's other plugins about the pod: {_logs(installation, 'kube-scheduler')}",)
    yield FoundCause(FILTERED_ONLY, workload, evidence, remedy, pods, Certainty.LIKELY)


def _logs(installation: Installation, container: str = "vgpu-scheduler-extender") -> str:
    name = installation.scheduler.meta.name if installation.scheduler is not None else f"{installation.name}-scheduler"
    return command("kubectl", "-n", installation.namespace, "logs", f"deployment/{name}", "-c", container, "--tail=100")


AT_BINDING: tuple[Cause, ...] = (NO_RIGHT, WRITE_FAILS, BIND_FAILS, FILTERED_ONLY)
SEARCHES = (Search((EXTENDER, EXTENDER_SLOW, *AT_BINDING), ("Pod",), find_unbound, is_there),)
