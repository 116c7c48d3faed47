"""Pods of which a text shows only events or a row of a table, as far as these describe them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot import KINDS
from gpu_healthcheck.diagnosis.sources.tables import EventRow, PodRow, oldest
from gpu_healthcheck.healthcheck.text.boundary import entries, value_at
from gpu_healthcheck.healthcheck.text.moments import timestamp

_KINDS = {kind.lower(): kind for kind in KINDS}
_SHORT = {"po": "Pod", "no": "Node", "deploy": "Deployment", "rs": "ReplicaSet", "ds": "DaemonSet"}
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}\Z")
_ASSIGNED = re.compile(r"Successfully assigned (?:([a-z0-9-]{1,63})/)?([a-z0-9][a-z0-9.-]{0,252}) to (\S{1,253}?)\.?\Z")
_OF_POD = re.compile(r"\b(?:in|for) pod \"?([a-z0-9][a-z0-9.-]{0,252})_([a-z0-9-]{1,63})\(")
_CONTAINER = re.compile(r"container[ =]\"?([a-z0-9][a-z0-9-]{0,62})\"? (?:in )?pod\b")
_PROBE_KILLS = re.compile(r"[Cc]ontainer (?:([a-z0-9][a-z0-9-]{0,62}) )?failed (?:liveness|startup) probe")
_RESOURCE = re.compile(r"\b([a-z0-9.-]{1,100}/(?:gpu|mig-[\w.]{1,30}|vgpu|gpumem|efa|shared-gpu)[\w.-]{0,40})")
_ABOUT_GPUS = re.compile(
    r"nvidia|UnexpectedAdmissionError|\bv?gpu|cuda|\bmig-|\bcdi\b|\bNVML\b|Allocate failed|device plugin"
    r"|healthy devices|vllm|sglang|\btgi\b|triton|ollama|llama|text-generation|tensorrt|torch|\bllm\b",
    re.IGNORECASE,
)
_REJECTED = re.compile(r"UnexpectedAdmissionError|OutOf\S+|TopologyAffinityError|NodeAffinity|AdmissionFailed|Evicted")
_WAITING = re.compile(
    r"\w{2,40}(?:BackOff|Error|ErrImagePull|ErrImageNeverPull)|Error|ErrImagePull|ContainerCreating|PodInitializing"
)
_PHASES = {"Completed": "Succeeded", "Succeeded": "Succeeded", "Failed": "Failed", "Evicted": "Failed"}
_LONGEST, _MOST_READ = 1000, 50
_WAITS = re.compile(r"Error: ((?:Err)?Image\w{4,30}|\w{4,40}(?:Error|BackOff))\Z")
_BY_KUBELET = frozenset(
    (
        *("FailedCreatePodSandBox", "FailedMount", "BackOff", "Failed", "Pulling", "Pulled", "Created", "Started"),
        *("FailedPrepareDynamicResources", "Unhealthy", "Killing", "UnexpectedAdmissionError", "NetworkNotReady"),
    )
)
_OF_RESTARTS = ("BackOff", "Unhealthy", "Killing")
UNKNOWN_POD, UNKNOWN_NODE, UNKNOWN_CONTAINER = "POD", "NODE", "CONTAINER"
"""Placeholders for the names that a text does not show."""
Fields = dict[str, Any]
_NOT_LISTED = PodRow("", "", False, "", None)
_KARPENTER = "karpenter"
"""Writer of events FailedScheduling that is no scheduler: it binds no pod."""
_GPU, _FAILED_SCHEDULING = "nvidia.com/gpu", "FailedScheduling"
_REFUSALS = (_FAILED_SCHEDULING, "FilteringFailed")
_OF_HAMI = ("hami.io/", "nvidia.com/gpumem", "nvidia.com/gpucores")
WAITED = timedelta(minutes=30)
"""Assumed further age of a pod: a person copies what lasts."""


class Named(Struct, frozen=True):
    """Object that a command or an event names; '' for what is not named."""

    verb: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    container: str = ""


def name_of(words: Sequence[str]) -> Named:
    """Return the verb and the object of a kubectl command."""
    options = {"-n": "", "--namespace": "", "-c": "", "--container": ""}
    plain: list[str] = []
    before = ""
    for word in words[:40]:
        key, equals, value = word.partition("=")
        if before in options:
            options[before], before = word, ""
        elif key in options:
            options[key], before = value, "" if equals else key
        elif not word.startswith("-"):
            plain.append(word)
    verb = plain[0] if plain else ""
    rest = [part for word in plain[1:] for part in word.split("/")]
    kind = "Pod" if verb == "logs" and "/" not in "".join(plain[1:2]) else _kind(rest.pop(0) if rest else "")
    name = rest[0] if rest and _NAME.match(rest[0]) else ""
    return Named(verb, kind, options["-n"] or options["--namespace"], name, options["-c"] or options["--container"])


def scheduler_of(events: Iterable[EventRow], keys: Iterable[str] = ()) -> str:
    """Return the scheduler that wrote an event, else the one whose annotations or resources the pod has."""
    by = [row.by for row in events if row.reason in (*_REFUSALS, "Scheduled")]
    by = [name for name in by if name not in ("", "kubelet", _KARPENTER)]
    is_of_hami = any(key.startswith(_OF_HAMI) for key in keys)
    return by[-1] if by else "hami-scheduler" if is_of_hami else "default-scheduler"


def unscheduled(message: str) -> dict[str, str]:
    """Return the condition of a pod that a scheduler refused."""
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


def last_refusal(events: Iterable[EventRow]) -> str:
    """Return the last text of a scheduler that refused the pod, else of Karpenter or HAMi's filter; '' without one."""
    tries = [row for row in events if row.reason in _REFUSALS]
    tries.sort(key=lambda row: row.reason == _FAILED_SCHEDULING and row.by != _KARPENTER)
    return tries[-1].message if tries else ""


def kind_of(row: EventRow) -> str:
    """Return the kind of the row's object as in the API."""
    return _kind(row.kind) or row.kind.capitalize()


def assumed_pod(
    name: str,
    rows: Sequence[tuple[EventRow, Named]],
    listed: PodRow | None,
    manifest: Fields | None,
    log: str,
    now: datetime,
) -> Fields:
    """Return the pod as far as its events, its row of `get pods`, its manifest and its log show it."""
    events, listed = [row for row, _ in rows], listed or _NOT_LISTED
    assigned = next((found for row in events if (found := _ASSIGNED.match(row.message))), None)
    inside = next((found for row in events if (found := _OF_POD.search(row.message))), None)
    shown = (assigned[2], assigned[1]) if assigned else inside.groups() if inside else (UNKNOWN_POD, "")
    spaces = (*(named.namespace for _, named in rows), listed.namespace, shown[1])
    by_kubelet = [row.by for row in events if row.by.startswith("kubelet") or row.reason in _BY_KUBELET]
    node = listed.node or (assigned[3] if assigned else "")
    node = node or next((by.partition(", ")[2] for by in by_kubelet if ", " in by), "")
    node = node or (UNKNOWN_NODE if by_kubelet or listed.status not in ("", "Pending") else "")
    spec: Fields = dict(manifest["spec"]) if manifest else {}
    spec = spec or {"containers": [_container(events, f"{name} {listed.status} {log}")]}
    spec |= {"nodeName": node, "schedulerName": scheduler_of(events)}
    metadata = {
        "name": name or shown[0],
        "namespace": next(filter(None, spaces), "default"),
        "creationTimestamp": timestamp(now - max(oldest(events), listed.age or timedelta()) - WAITED),
    }
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": _status(events, listed, spec)}


def _kind(word: str) -> str:
    low = word.lower()
    return _KINDS.get(low) or _KINDS.get(low.removesuffix("s")) or _SHORT.get(low, "")


def _container(events: Sequence[EventRow], others: str) -> Fields:
    """Return a container that requests the resource which the messages name, or a GPU if they are about one."""
    messages = " ".join((others, *(row.reason + " " + row.message[:_LONGEST] for row in events[:_MOST_READ])))
    resource = _RESOURCE.search(messages)
    requests = {resource[1]: "1"} if resource else {_GPU: "1"} if _ABOUT_GPUS.search(messages) else {}
    named = _CONTAINER.search(messages) or _PROBE_KILLS.search(messages)
    return {"name": (named and named[1]) or UNKNOWN_CONTAINER, "resources": {"limits": requests, "requests": requests}}


def _status(events: Sequence[EventRow], listed: PodRow, spec: Fields) -> Fields:
    rejected = next((row for row in events if _REJECTED.fullmatch(row.reason)), None)
    if rejected is not None:
        return {"phase": "Failed", "reason": rejected.reason, "message": rejected.message}
    if _REJECTED.fullmatch(listed.status):
        return {"phase": "Failed", "reason": listed.status}
    refusal = last_refusal(events)
    if not spec["nodeName"] and (refusal or listed.status):
        return {"phase": "Pending", "conditions": [unscheduled(refusal)]}
    if listed.status in _PHASES:
        return {"phase": _PHASES[listed.status]}
    if not listed.status and _has_started(events):
        return {"phase": "Running"}
    of_init, _, reason = listed.status.rpartition(":")
    waiting = _waiting(events) or ({"reason": reason} if _WAITING.fullmatch(reason) else {})
    if not waiting and not listed.ready and any(_PROBE_KILLS.search(row.message) for row in events):
        waiting = {"reason": "CrashLoopBackOff"}
    state = {"waiting": waiting} if waiting else {"running": {}} if listed.status == "Running" else {}
    names = [str(value_at(one, "name")) for one in entries(spec.get("containers"))]
    states = [{"name": name, "ready": listed.ready, "state": state} for name in names[:1] if state]
    phase = "Running" if listed.status in ("Running", "CrashLoopBackOff", "Error") else "Pending"
    return {"phase": phase, "initContainerStatuses" if of_init == "Init" else "containerStatuses": states}


def _has_started(events: Sequence[EventRow]) -> bool:
    """Whether a container has started after all failures, and without a restart."""
    started = min((row.last for row in events if row.reason == "Started" and row.last is not None), default=None)
    failures = [row for row in events if row.warning or row.reason in _OF_RESTARTS]
    ended = started is not None and all(row.last is not None and row.last > started for row in failures)
    return ended and not any(row.reason in _OF_RESTARTS for row in failures)


def _waiting(events: Sequence[EventRow]) -> dict[str, str]:
    """Return why the container waits, by the kubelet's last failure; empty if it has not come so far."""
    for row in reversed(events):
        if row.reason == "BackOff" and "restarting failed container" in row.message:
            failed = [one.message for one in events if one.reason == "Failed" and "Error: failed to" in one.message]
            return {"reason": "RunContainerError", "message": failed[-1]} if failed else {"reason": "CrashLoopBackOff"}
        if row.reason == "Failed" and (known := _WAITS.match(row.message)):
            return {"reason": known[1]}
        if row.reason == "Failed":
            reason = "ErrImagePull" if "pull image" in row.message else "RunContainerError"
            return {"reason": reason, "message": row.message}
    return {}
