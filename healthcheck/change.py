"""The verdict and the Node as it is, compared: what has to be written, if anything. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from healthcheck import record as records
from healthcheck.model import PREFIX, Severity, Status
from healthcheck.verdict import Verdict, merge

STATUS, SEVERITY, LAST_CHECK = (f"{PREFIX}/{key}" for key in ("status", "severity", "last-check"))
RESULTS, SWEEP_RESULT, QUARANTINE_RESULT = (
    f"{PREFIX}/{key}" for key in ("results", "sweep-result", "quarantine-result")
)
UNHEALTHY = f"{PREFIX}/unhealthy"
TAINT = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
CONDITION = "GpuHealthy"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_LONGEST_MESSAGE = 1024
_MOST_EVENTS = 32
"""In one write. A node with more new findings than this has its story in the record."""
_DEEP_CHECK = "sagemaker.amazonaws.com/deep-health-check-status"
WATCHED_LABELS = (_DEEP_CHECK,)
"""Foreign labels that change the plan."""
_EVENT_REASONS = {
    Status.PASS: "GpuHealthPass",
    Status.WARN: "GpuHealthWarn",
    Status.FAIL: "GpuHealthFail",
    Status.UNKNOWN: "GpuHealthUnknown",
}
_CONDITION_STATUS = {Status.PASS: "True", Status.WARN: "True", Status.FAIL: "False", Status.UNKNOWN: "Unknown"}


@dataclass(frozen=True, slots=True)
class NodeState:
    """The Node as the API server last showed it. `taints` and `conditions` are plain API objects."""

    name: str
    uid: str = ""
    resource_version: str = ""
    machine: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, Any]] = ()
    conditions: Sequence[Mapping[str, Any]] = ()

    def condition(self) -> Mapping[str, Any] | None:
        return next((one for one in self.conditions if one.get("type") == CONDITION), None)

    def tainted(self) -> bool:
        return any(_is_ours(taint) for taint in self.taints)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings allow: no taint below `taint_severity`, none at all, or no label."""

    taint_severity: Severity = Severity.RESET
    enable_taint: bool = True
    enable_label: bool = True
    rewrite_after_seconds: float = 3600.0
    """The Node is written at least this often, so that `last-check` says that somebody still looks."""


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about the Node. `name` is made from what it tells, so that telling it twice makes one."""

    name: str
    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What to write: the merge patch of the Node, the condition for `/status`, the Events. None: nothing to write."""

    patch: Mapping[str, Any] | None = None
    condition: Mapping[str, Any] | None = None
    events: tuple[Event, ...] = ()
    complaints: tuple[str, ...] = ()
    """What somebody else wrote on the Node and nobody can read."""


def plan(verdict: Verdict, record: Mapping[str, Any], node: NodeState, rules: Rules, now: datetime) -> NodeChange:
    """Compare and say what to write. `record` is the agent's own, rendered without its `taint`."""
    others, complaints = _other_severities(node)
    status, severity = merge(verdict, others)
    blind = status is Status.UNKNOWN or bool(verdict.unobserved)
    taints, taint_word = _taints(severity, node, rules, blind=blind)
    before, complaint = _record_before(node)
    told = {**record, "taint": taint_word} if taint_word else dict(record)
    patch = _patch(_labels(status, severity, rules, now), told, taints, node)
    news = _is_news(patch, told, before, rules, now)
    # The transition first: a flood of findings must not push it out.
    events = (*_transition(status, verdict, told, before, node), *_new_findings(told, before, node))
    return NodeChange(
        patch if news else None,
        _condition(status, severity, verdict, node, now),
        (*_switched_off(node, rules), *events)[:_MOST_EVENTS] if news else (),
        (*complaints, *complaint),
    )


def _labels(status: Status, severity: Severity, rules: Rules, now: datetime) -> dict[str, str | None]:
    if not rules.enable_label:
        return {STATUS: None, SEVERITY: None, LAST_CHECK: None}
    return {STATUS: status.value, SEVERITY: severity.name, LAST_CHECK: f"{now:%Y-%m-%dT%H%M%SZ}"}


def _taints(
    severity: Severity, node: NodeState, rules: Rules, *, blind: bool
) -> tuple[list[Mapping[str, Any]] | None, str]:
    """The whole new list, or None to leave it; and what the record says of our taint."""
    has = node.tainted()
    # Could-not-look never lifts a taint.
    wanted = severity >= rules.taint_severity or (blind and has)
    # HyperPod allows no foreign taint while it tests a node.
    withheld = wanted and not has and node.labels.get(_DEEP_CHECK) == "InProgress"
    wanted = wanted and not withheld and rules.enable_taint
    word = "set" if wanted else "off" if not rules.enable_taint else "withheld" if withheld else ""
    if wanted == has:
        return None, word
    foreign = [taint for taint in node.taints if not _is_ours(taint)]
    return ([*foreign, TAINT] if wanted else foreign), word


def _is_ours(taint: Mapping[str, Any]) -> bool:
    # Key and effect are a taint's identity: with another effect it is somebody else's, and not ours to lift.
    return (taint.get("key"), taint.get("effect")) == (TAINT["key"], TAINT["effect"])


def _patch(
    labels: Mapping[str, str | None],
    record: Mapping[str, Any],
    taints: list[Mapping[str, Any]] | None,
    node: NodeState,
) -> dict[str, Any]:
    changed = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    patch: dict[str, Any] = {
        "metadata": {
            "resourceVersion": node.resource_version,
            "labels": changed,
            "annotations": {RESULTS: records.dump(record)},
        }
    }
    if taints is not None:
        patch["spec"] = {"taints": taints}
    return patch


def _is_news(
    patch: Mapping[str, Any],
    record: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    rules: Rules,
    now: datetime,
) -> bool:
    labels = patch["metadata"]["labels"]
    if "spec" in patch or before is None or any(key != LAST_CHECK or value is None for key, value in labels.items()):
        return True
    if records.signature(record) != records.signature(before):
        return True
    return _age_seconds(before, now) >= rules.rewrite_after_seconds


def _age_seconds(before: Mapping[str, Any], now: datetime) -> float:
    try:
        age = (now - datetime.fromisoformat(str(before["timestamp"]))).total_seconds()
    except (KeyError, ValueError, TypeError):
        return float("inf")
    # A record from the future is a clock that jumped: write it anew.
    return age if age >= -60 else float("inf")


def _condition(
    status: Status, severity: Severity, verdict: Verdict, node: NodeState, now: datetime
) -> dict[str, Any] | None:
    state = _CONDITION_STATUS[status]
    reason, message = _headline(status, severity, verdict)
    before = node.condition()
    condition = {"type": CONDITION, "status": state, "reason": reason, "message": message}
    if before and all(before.get(key) == value for key, value in condition.items()):
        return None
    if before is None or before.get("status") != state:
        # Neighbours time their repair by it: it moves on a transition and never else.
        condition["lastTransitionTime"] = condition["lastHeartbeatTime"] = records.timestamp(now)
    return condition


def _headline(status: Status, severity: Severity, verdict: Verdict) -> tuple[str, str]:
    """The condition's reason and message: the worst finding first, what could not be seen after it."""
    told = [f"{one.finding.reason} on {one.finding.subject}: {one.finding.detail}" for one in verdict.standing]
    blind = [f"{row.check} could not look: {row.cause.detail}" for row in verdict.unobserved]
    if status is Status.UNKNOWN and verdict.unobserved:
        return verdict.unobserved[0].cause.cause, cut("; ".join(blind + told))
    if verdict.standing and verdict.severity is severity:
        return verdict.standing[0].finding.reason, cut("; ".join(told + blind))
    if severity > Severity.PASS:
        return "DeepDiagnosticFailed", cut("; ".join([f"a deep diagnostic's record says {severity.name}", *told]))
    return "NoFault", "every check that belongs to this node looked and found no fault"


def cut(message: str) -> str:
    """At most as many bytes as a condition or an Event may hold."""
    raw = message.encode("utf-8", "replace")
    if len(raw) <= _LONGEST_MESSAGE:
        return raw.decode()
    return raw[: _LONGEST_MESSAGE - 3].decode("utf-8", "ignore") + "..."


def _new_findings(record: Mapping[str, Any], before: Mapping[str, Any] | None, node: NodeState) -> Iterator[Event]:
    known = {_identity(one) for one in records.findings_in(before or {})}
    for one in records.findings_in(record):
        if _identity(one) not in known:
            message = cut(f"{one['severity']}: {one['subject']}: {one['detail']}")
            yield Event(event_name(node.name, *_identity(one)), "Warning", one["reason"], message)


def _identity(finding: Mapping[str, Any]) -> tuple[str, str, str]:
    return (str(finding.get("reason")), str(finding.get("subject")), str(finding.get("first_seen")))


def _transition(
    status: Status, verdict: Verdict, record: Mapping[str, Any], before: Mapping[str, Any] | None, node: NodeState
) -> Iterator[Event]:
    told = node.labels.get(STATUS)
    # Where labels are off, the condition is the merge of all records, though it knows no `warn`.
    same = (node.condition() or {}).get("status") == _CONDITION_STATUS[status] and before is not None
    if status.value == told or (told is None and same):
        return
    _, message = _headline(status, verdict.severity, verdict)
    kind = "Normal" if status in (Status.PASS, Status.WARN) else "Warning"
    name = event_name(node.name, status.value, str(record["timestamp"]), str(record["boot_id"]))
    yield Event(name, kind, _EVENT_REASONS[status], message)


def _switched_off(node: NodeState, rules: Rules) -> Iterator[Event]:
    """ENABLE_TAINT or ENABLE_LABEL became false: what was ours is taken away, once, and said."""
    taken = [
        word
        for word, off in (
            ("taint", not rules.enable_taint and node.tainted()),
            ("labels", not rules.enable_label and STATUS in node.labels),
        )
        if off
    ]
    if taken:
        name = event_name(node.name, "switched-off", *taken, node.resource_version)
        yield Event(name, "Normal", "SwitchedOff", f"removed our {' and '.join(taken)}: the settings switch them off")


def event_name(node: str, *parts: str) -> str:
    """The same parts give the same name: what is told twice is one Event."""
    digest = hashlib.blake2s("\0".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()
    return f"{node[:200]}.{digest}"


def _record_before(node: NodeState) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    text = node.annotations.get(RESULTS)
    if text is None:
        return None, ()
    try:
        return records.load(text), ()
    except records.RecordError as error:
        return None, (f"annotation {RESULTS}: {error}; it is written anew",)


def _other_severities(node: NodeState) -> tuple[list[Severity], list[str]]:
    severities, complaints = [], []
    for key in (SWEEP_RESULT, QUARANTINE_RESULT):
        if key not in node.annotations:
            continue
        try:
            severities.append(records.severity_in(records.load(node.annotations[key])))
        except records.RecordError as error:
            complaints.append(f"annotation {key}: {error}; it is passed over")
    return severities, complaints
