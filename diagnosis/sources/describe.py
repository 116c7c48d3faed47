"""Read the text of `kubectl describe` of a pod or node into an object of the Kubernetes API.

The keys of a container are recognised by their names, so that a text without its indentation is read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct

from gpu_healthcheck.diagnosis.sources.tables import EventRow, event_row
from gpu_healthcheck.healthcheck.text.moments import timestamp

Fields = dict[str, Any]
_OF_POD = (
    *("Priority", "Priority Class Name", "Runtime Class Name", "Service Account", "Node", "Start Time"),
    *("Termination Grace Period", "SeccompProfile", "LocalhostProfile", "IP", "IPs", "Controlled By"),
    *("NominatedNodeName", "Resources", "Status", "Reason", "Message"),
)
_CONTAINERS = ("Init Containers", "Containers", "Ephemeral Containers")
_AFTER_CONTAINERS = (
    *("Readiness Gates", "Conditions", "Volumes", "QoS Class", "Node-Selectors", "Tolerations"),
    *("Topology Spread Constraints", "SchedulingGroup", "Events"),
)
_OF_NODE = (
    *("Roles", "CreationTimestamp", "Taints", "Unschedulable", "Lease", "Addresses", "Capacity", "Allocatable"),
    *("System Info", "PodCIDR", "PodCIDRs", "ProviderID", "Non-terminated Pods", "Allocated resources"),
)
_LAST = ("Events", "Tolerations", "Allocated resources")
"""Last keys of a text. kubectl prints no events if it describes several objects."""
_TOP = frozenset(("Name", "Namespace", "Labels", "Annotations", *_OF_POD, *_CONTAINERS, *_AFTER_CONTAINERS, *_OF_NODE))
_SECTIONS = frozenset((*_CONTAINERS, *_AFTER_CONTAINERS))
_AFTER_SECTIONS = _SECTIONS.union(_OF_NODE)
_KEY = re.compile(r"\s*([A-Za-z][\w /-]{0,40}?):(?:\s+(.*))?\Z")
_NAME_LINE = re.compile(r"\s*([a-z0-9][a-z0-9.-]{0,252}):\s*\Z")
_PAIR = re.compile(r"\s*([\w./-]{1,320}):\s+(\S.*)\Z")
_STATES = {"State": "state", "Last State": "lastState"}
_STATE_NAMES = {"Waiting": "waiting", "Running": "running"}
_STATE_KEYS = {"Reason": "reason", "Message": "message", "Exit Code": "exitCode", "Started": "startedAt"} | {
    "Finished": "finishedAt",
    "Signal": "signal",
}
_CONTAINER_KEYS = frozenset(
    (
        *("Container ID", "Image", "Image ID", "Port", "Ports", "Host Port", "Host Ports", "SeccompProfile"),
        *("LocalhostProfile", "Command", "Args", "Ready", "Restart Count", "Limits", "Requests", "Liveness"),
        *("Readiness", "Startup", "Environment Variables from", "Environment", "Mounts", "Devices", *_STATES),
        *_STATE_KEYS,
    )
)
_PROBES = {"Liveness": "livenessProbe", "Startup": "startupProbe"}
_PROBE = re.compile(r"delay=(\d{1,6})s timeout=(\d{1,6})s period=(\d{1,6})s #success=\d{1,6} #failure=(\d{1,6})")
_PROBE_KEYS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold")
_MAPS = {"Limits": "limits", "Requests": "requests", "Environment": "env"}
_TOLERATION = re.compile(
    r"(?P<key>(?!op=)[^=:\s]*)(?:=(?P<value>[^:\s]*))?(?::(?P<effect>\w+))?(?:\s*op=(?P<operator>\w+))?(?:\s+for\s.*)?\Z"
)
_CUT = re.compile(r"\s*[\w./-]{1,320}:\Z")
_TAINT = re.compile(r"(?P<key>[^=:\s]+)(?:=(?P<value>[^:\s]*))?:(?P<effect>\w+)\Z")
_DATE = r"\w{3}, \d\d? \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"
DATES = re.compile(_DATE)
_CONDITION = re.compile(rf"\s*(\S+)\s+(True|False|Unknown)(?:\s+{_DATE}\s+({_DATE})\s+(\S+)(?:\s+(.*))?)?\Z")
_POD_ON_NODE = re.compile(r"\s*(\S+)\s+(\S+)\s+(\S+) \(\d+%\)\s+(\S+) \(\d+%\)\s+(\S+) \(\d+%\)\s+(\S+) \(\d+%\)")
_AMOUNT = re.compile(r"\s*([\w./-]+/[\w.-]+)\s+(\d{1,9})\s+\d+\s*\Z")
_SYSTEM_INFO = {
    "Container Runtime Version": "containerRuntimeVersion",
    "Kubelet Version": "kubeletVersion",
    "OS Image": "osImage",
    "Kernel Version": "kernelVersion",
    "Architecture": "architecture",
}
_NONE = ("", "<none>", "<unset>")
_MOST_JOINED, _MOST_DIGITS, _NARROWEST = 20, 10, 60
OTHER_PODS = "other-pods"
"""Name of the pod that stands for all others on a node."""


class Described(Struct):
    """Object of a text. `whole`: whether the text reaches its end; `others`: pods that a node's text lists."""

    raw: Fields
    events: list[EventRow]
    whole: bool
    others: list[Fields]


def read_described(lines: Sequence[str]) -> Described | None:
    """Return the pod or node that the lines describe; None for another kind."""
    fields = _fields(unbroken(lines))
    events = event_rows(fields.get("Events", ())[1:])
    if not fields.keys().isdisjoint(("Roles", "System Info")):
        return Described(_node(fields), events, not fields.keys().isdisjoint(_LAST), list(_pods_of(fields)))
    if not fields.keys().isdisjoint(("Containers", "Init Containers", "Node", "QoS Class")):
        return Described(_pod(fields), events, not fields.keys().isdisjoint(_LAST), [])
    return None


def event_rows(lines: Iterable[str]) -> list[EventRow]:
    """Return the events of the lines, each with the further lines of its message."""
    rows: list[EventRow] = []
    joined = 0
    for line in lines:
        row = event_row(line)
        if row is not None:
            rows.append(row)
            joined = 0
        elif rows and line.strip() and joined < _MOST_JOINED:
            rows[-1].message += f" {line.strip()}"
            joined += 1
    return rows


def unbroken(lines: Sequence[str]) -> list[str]:
    """Return the lines as they were before a terminal broke them at its width, within words."""
    width = max(map(len, lines), default=0)
    whole: list[str] = []
    is_full = False
    for line in lines:
        if is_full and line.strip() and not (line.startswith("  ") or _KEY.match(line) or event_row(line)):
            whole[-1] += line
        else:
            whole.append(line)
        is_full = len(line) == width >= _NARROWEST
    return whole


def requested(pod: Fields, resource: str) -> int:
    """Return how much of an extended resource the pod requests."""
    amounts = (one["resources"]["requests"].get(resource, "0") for one in pod["spec"]["containers"])
    return sum(int(amount) for amount in amounts if amount.isdigit() and len(amount) < _MOST_DIGITS)


def moment_of(text: str) -> datetime | None:
    """Return the time as `describe` prints it; None for another text."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC) if DATES.fullmatch(text.strip()) else None
    except (ValueError, OverflowError):
        return None


def _fields(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines of each key at the top level: its value first."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    fields: dict[str, list[str]] = {}
    current = ""
    for line in lines:
        found = _KEY.match(line) if line[indent : indent + 1].strip() and not line[:indent].strip() else None
        allowed = _AFTER_SECTIONS if current in _SECTIONS else _TOP
        if found is not None and found[1] in allowed and found[1] not in fields:
            current = found[1]
            fields[current] = [found[2] or ""]
        elif current:
            fields[current].append(line)
    return fields


def _pod(fields: dict[str, list[str]]) -> Fields:
    spec: Fields = {"nodeSelector": _pairs(fields.get("Node-Selectors", ()))}
    status: Fields = {}
    for key, name in (("Runtime Class Name", "runtimeClassName"), ("Priority Class Name", "priorityClassName")):
        spec[name] = _value(fields, key)
    spec["serviceAccountName"] = _value(fields, "Service Account")
    spec["nodeName"] = _value(fields, "Node").partition("/")[0]
    spec["tolerations"] = [
        _named(found) for line in _values(fields, "Tolerations") if (found := _TOLERATION.match(line))
    ]
    for key, to in (("Init Containers", "initContainers"), ("Containers", "containers")):
        parts = list(_containers(fields.get(key, ())))
        spec[to] = [one for one, _ in parts]
        status[f"{to[:-1]}Statuses"] = [state for _, state in parts if "state" in state]
    spec["volumes"] = list(_volumes(fields.get("Volumes", ())))
    status["reason"], status["message"] = _value(fields, "Reason"), " ".join(_values(fields, "Message"))
    status["nominatedNodeName"] = _value(fields, "NominatedNodeName")
    status["conditions"] = list(_conditions(fields.get("Conditions", ())))
    metadata = _metadata(fields)
    phase = _value(fields, "Status").split(" ")[0]
    if started := moment_of(_value(fields, "Start Time")):
        metadata["creationTimestamp"] = status["startTime"] = timestamp(started)
    if phase == "Terminating":
        phase = "Running"
        metadata["deletionTimestamp"] = timestamp(started or datetime.now(UTC))
    status["phase"] = phase
    kind, _, owner = _value(fields, "Controlled By").partition("/")
    if owner:
        metadata["ownerReferences"] = [{"kind": kind, "name": owner, "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _metadata(fields: dict[str, list[str]]) -> Fields:
    annotations = (_PAIR.match(line) for line in _values(fields, "Annotations"))
    return {
        "name": _value(fields, "Name"),
        "namespace": _value(fields, "Namespace"),
        "labels": _pairs(fields.get("Labels", ())),
        "annotations": {found[1]: found[2] for found in annotations if found},
    }


def _containers(lines: Sequence[str]) -> Iterator[tuple[Fields, Fields]]:
    """Yield each container, and its status."""
    begins = [
        number
        for number, line in enumerate(lines[:-1])
        if _NAME_LINE.match(line) and lines[number + 1].strip().startswith(("Container ID:", "Image:"))
    ]
    for number, begin in enumerate(begins):
        end = begins[number + 1] if number + 1 < len(begins) else len(lines)
        yield _container(lines[begin].strip().rstrip(":"), lines[begin + 1 : end])


def _container(name: str, lines: Sequence[str]) -> tuple[Fields, Fields]:
    spec: Fields = {"name": name, "resources": {"limits": {}, "requests": {}}}
    status: Fields = {"name": name, "ready": False, "restartCount": 0}
    key = ""
    state: Fields = {}
    maps: dict[str, dict[str, str]] = {"limits": {}, "requests": {}, "env": {}}
    for line in lines:
        found = _KEY.match(line)
        if found is not None and found[1] in _CONTAINER_KEYS and (found[1] not in _STATE_KEYS or state):
            key, value = found[1], (found[2] or "").strip()
            if key in _STATES:
                state = status[_STATES[key]] = {_STATE_NAMES.get(value, "terminated"): {}}
            elif key in _STATE_KEYS and state:
                _set(next(iter(state.values())), _STATE_KEYS[key], value)
            elif key == "Image":
                spec["image"] = value
            elif key in _PROBES and (numbers := _PROBE.search(value)):
                spec[_PROBES[key]] = dict(zip(_PROBE_KEYS, map(int, numbers.groups()), strict=True))
            elif key == "Ready":
                status["ready"] = value == "True"
            elif key == "Restart Count" and value.isdigit():
                status["restartCount"] = int(value[:9])
        elif key in _MAPS and (pair := _PAIR.match(line)):
            maps[_MAPS[key]][pair[1]] = pair[2]
        elif key == "Message" and state:
            end = next(iter(state.values()))
            end["message"] = f"{end.get('message', '')}\n{line.strip()}"
    # The kubelet uses the limit of a resource that is not requested.
    spec["resources"] = {"limits": maps["limits"], "requests": maps["limits"] | maps["requests"]}
    spec["env"] = [{"name": variable, "value": value} for variable, value in maps["env"].items()]
    return spec, status


def _set(state: Fields, key: str, value: str) -> None:
    if key in ("exitCode", "signal"):
        if re.fullmatch(r"-?\d{1,9}", value):
            state[key] = int(value)
    elif key.endswith("At"):
        at = moment_of(value)
        if at is not None and at.year > 1:
            state[key] = timestamp(at)
    else:
        state[key] = value


def _conditions(lines: Sequence[str]) -> Iterator[Fields]:
    for line in lines:
        found = _CONDITION.match(line)
        if found is not None:
            since = moment_of(found[3] or "")
            at = {"lastTransitionTime": timestamp(since)} if since else {}
            yield {"type": found[1], "status": found[2], "reason": found[4] or "", "message": found[5] or "", **at}


def _volumes(lines: Sequence[str]) -> Iterator[Fields]:
    for number, line in enumerate(lines[:-1]):
        if not (_NAME_LINE.match(line) and lines[number + 1].strip().startswith("Type:")):
            continue
        following = (_PAIR.match(other) for other in lines[number + 1 : number + 5])
        pairs = {found[1]: found[2] for found in following if found}
        name = {"name": line.strip().rstrip(":")}
        if "ClaimName" in pairs and pairs.get("Type", "").startswith("PersistentVolumeClaim"):
            yield name | {"persistentVolumeClaim": {"claimName": pairs["ClaimName"]}}
        elif "Path" in pairs and pairs.get("Type", "").startswith("HostPath"):
            yield name | {"hostPath": {"path": pairs["Path"]}}


def _node(fields: dict[str, list[str]]) -> Fields:
    metadata = _metadata(fields)
    metadata.pop("namespace")
    metadata["cut"] = [line.strip(" :") for line in fields.get("Annotations", ()) if _CUT.match(line)]
    if created := moment_of(_value(fields, "CreationTimestamp")):
        metadata["creationTimestamp"] = timestamp(created)
    taints = (_TAINT.match(line) for line in _values(fields, "Taints"))
    status = {key.lower(): dict(_colons(fields.get(key, ()))) for key in ("Capacity", "Allocatable")}
    info = dict(_colons(fields.get("System Info", ())))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {
            "taints": [_named(found) for found in taints if found],
            "unschedulable": _value(fields, "Unschedulable") == "true",
        },
        "status": status
        | {
            "conditions": list(_conditions(fields.get("Conditions", ()))),
            "nodeInfo": {to: info[key] for key, to in _SYSTEM_INFO.items() if key in info},
        },
    }


def _pods_of(fields: dict[str, list[str]]) -> Iterator[Fields]:
    """Yield the pods on a node, and one pod that has the extended resources that all of them own."""
    on = {"nodeName": _value(fields, "Name")}
    for line in fields.get("Non-terminated Pods", ()):
        if found := _POD_ON_NODE.match(line):
            requests = {"cpu": found[3], "memory": found[5]}
            yield _other(found[2], found[1], on, requests)
    amounts = {found[1]: found[2] for line in fields.get("Allocated resources", ()) if (found := _AMOUNT.match(line))}
    if owned := {name: number for name, number in amounts.items() if number != "0"}:
        yield _other(OTHER_PODS, "", on, owned)


def _other(name: str, namespace: str, on: Fields, requests: Fields) -> Fields:
    containers = [{"name": "main", "resources": {"requests": requests, "limits": requests}}]
    metadata = {"name": name, "namespace": namespace}
    # Whether its containers work is unknown.
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "ready": False, "state": {"running": {}}}]}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **on}, "status": status}


def _value(fields: dict[str, list[str]], key: str) -> str:
    value = fields.get(key, [""])[0].strip()
    return "" if value in _NONE else value


def _values(fields: dict[str, list[str]], key: str) -> list[str]:
    return [line.strip() for line in fields.get(key, ()) if line.strip() not in _NONE]


def _pairs(lines: Iterable[str]) -> dict[str, str]:
    parts = (line.strip().partition("=") for line in lines)
    return {key: value for key, equals, value in parts if equals and " " not in key}


def _colons(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, colon, value = line.strip().partition(":")
        if colon and value.strip():
            yield key, value.strip()


def _named(found: re.Match[str]) -> Fields:
    named = {key: text for key, text in found.groupdict().items() if text}
    if found.re is _TOLERATION and "operator" not in named:
        named["operator"] = "Equal" if "value" in named else "Exists"
    return named
