"""Comparison of the verdict with the present Node, and the writes that follow from it.

Pure functions, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from gpu_healthcheck.healthcheck.memory.findings import gpu_address
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.node import hami
from gpu_healthcheck.healthcheck.node.state import (
    CONDITION,
    LAST_CHECK,
    RELEASE,
    RESULTS,
    SEVERITY,
    STARTUP,
    STATUS,
    TAINT,
    NodeState,
    is_our_taint,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import undescribed_records
from gpu_healthcheck.healthcheck.verdict.budget import HELD, SlotGrant
from gpu_healthcheck.healthcheck.verdict.node_events import (
    CONDITION_STATUS,
    NodeEvent,
    headline,
    new_findings,
    switched_off,
    transition,
    withheld,
)
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord
from gpu_healthcheck.healthcheck.verdict.repair_conditions import NO_REPAIR, NodeSummary, RepairChange, plan_repair
from gpu_healthcheck.healthcheck.verdict.taint_decision import DEVICES, SET, AgentView, Rules, TaintDecision
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict

_RECOUNT_SECONDS = 30.0
"""Shortest interval between two writes of the Node that only update the count of a repeated fault."""
_MOST_EVENTS = 32
"""Most Events of one write. If there are more new findings, all of them are in the record."""


class NodePatch(Struct, frozen=True):
    """Writes to apply: the merge patch of the Node, the condition for `/status`, and the Events.

    None means that there is nothing to write.
    """

    patch: Mapping[str, Any] | None = None
    condition: Mapping[str, Any] | None = None
    events: tuple[NodeEvent, ...] = ()
    complaints: tuple[str, ...] = ()
    """Errors in annotations of the Node that can't be read."""
    repair: RepairChange = NO_REPAIR


def plan(
    view: AgentView, decision: TaintDecision, node: NodeState, grant: SlotGrant = HELD, *, may_cordon: bool = True
) -> NodePatch:
    """Compare the agent's view with the Node and return the writes. `may_cordon`: HAMi's list may be changed.

    A release on the Node has been applied by now, so the write of the record that contains it also removes it. The same
    applies to the deep records that the record names.
    """
    verdict, rules, now = view.verdict, view.rules, view.now
    decision = decision.granted(node, grant)
    status, severity, taint_state = decision.status, decision.severity, decision.word
    kept = decision.kept if taint_state in (SET, DEVICES) else ()
    if severity >= rules.taint_severity:  # the Node's taint needs no other reason; a GPU's own cordon does
        kept = tuple(row for row in kept if taint_state == DEVICES and gpu_address(row.subject or ""))
    record, annotation = astuple(records.render_text(verdict, view.memory, view.identity, now, taint_state, kept))
    taints = _taints(node, wanted=taint_state == SET, started=_has_started(status, verdict))
    before, complaint = _record_before(node)
    cordons = hami.cordon_change(node, grant.cordons if taint_state == DEVICES else ()) if may_cordon else {}
    patch = _patch(_labels(status, severity, rules, now), {RESULTS: annotation, **cordons}, taints, node)
    # Foreign content in our record is removed.
    is_ours = before is not None and records.is_whole(node.annotations[RESULTS])
    is_news = _is_news(patch, record, before if is_ours else None, rules, now)
    undescribed = undescribed_records(node, view.memory.adopted_records)
    reason, message = headline(status, severity, verdict, record.kept or (), undescribed)
    # The Event of the transition comes first, so that the limit never drops it.
    events = (
        *switched_off(node, taint=rules.enable_taint, labels=rules.enable_label),
        *withheld(record, before, node, grant),
        *transition(status, message, record, before, node),
        *new_findings(record, before, node),
    )
    condition = _condition(CONDITION_STATUS[status], reason, message, node, now)
    summary = NodeSummary(
        status,
        severity,
        reason,
        message,
        tainted=taint_state == SET,
        settling=verdict.settling,
        work=view.work,
        awaits_reboot=view.awaits_reboot,
    )
    return NodePatch(
        patch if is_news else None,
        condition if is_news or not _says_the_same(condition, node) else None,
        events[:_MOST_EVENTS] if is_news else (),
        (*decision.complaints, *complaint),
        plan_repair(rules.repair, summary, node, now, is_news=is_news),
    )


def _says_the_same(condition: Mapping[str, Any] | None, node: NodeState) -> bool:
    """Whether the condition is unchanged except for its message.

    The message quotes the last line of an event, which changes with each record of a flood.
    """
    before = node.condition()
    if before is None or condition is None:
        return condition is None
    return all(before.get(k) == condition[k] for k in ("status", "reason"))


def _labels(status: Status, severity: Severity, rules: Rules, now: datetime) -> dict[str, str | None]:
    if not rules.enable_label:
        return {STATUS: None, SEVERITY: None, LAST_CHECK: None}
    return {STATUS: status.value, SEVERITY: severity.name, LAST_CHECK: f"{now:%Y-%m-%dT%H%M%SZ}"}


def _has_started(status: Status, verdict: Verdict) -> bool:
    """Whether a check cycle over the whole node succeeded. A cycle with findings still to be confirmed has not."""
    return status in (Status.PASS, Status.WARN) and not verdict.settling


def _taints(node: NodeState, *, wanted: bool, started: bool) -> list[Mapping[str, Any]] | None:
    """Return the complete new list of taints; None if it is unchanged."""
    kept = [
        taint
        for taint in node.taints
        if not (is_our_taint(taint) and not wanted) and not (taint.get("key") == STARTUP and started)
    ]
    new = [*kept, TAINT] if wanted and not node.tainted() else kept
    return None if new == list(node.taints) else new


def _patch(
    labels: Mapping[str, str | None],
    annotations: dict[str, str | None],
    taints: list[Mapping[str, Any]] | None,
    node: NodeState,
) -> dict[str, Any]:
    changed = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    if RELEASE in node.annotations:
        annotations[RELEASE] = None
    patch: dict[str, Any] = {
        "metadata": {
            "resourceVersion": node.resource_version,
            "labels": changed,
            "annotations": annotations,
        }
    }
    if taints is not None:
        patch["spec"] = {"taints": taints}
    return patch


def _is_news(
    patch: Mapping[str, Any],
    record: AgentRecord,
    before: AgentRecord | None,
    rules: Rules,
    now: datetime,
) -> bool:
    labels, annotations = patch["metadata"]["labels"], patch["metadata"]["annotations"]
    if "spec" in patch or before is None or annotations.keys() - {RESULTS}:
        return True
    if any(key != LAST_CHECK or value is None for key, value in labels.items()):
        return True
    if records.signature(record) != records.signature(before):
        return True
    has_recurred = records.recurrence(record) != records.recurrence(before)
    return _age_seconds(before, now) >= (_RECOUNT_SECONDS if has_recurred else rules.rewrite_after_seconds)


def _age_seconds(before: AgentRecord, now: datetime) -> float:
    at = records.time_of(before)
    age = (now - at).total_seconds() if at is not None else math.inf
    # A record from the future means that the clock jumped: write it again.
    return age if age >= -60 else math.inf


def _condition(state: str, reason: str, message: str, node: NodeState, now: datetime) -> dict[str, Any] | None:
    before = node.condition()
    condition = {"type": CONDITION, "status": state, "reason": reason, "message": message}
    if before and all(before.get(key) == value for key, value in condition.items()):
        return None
    if before is None or before.get("status") != state:
        # Integrations use it to time repairs, so it changes only on a transition.
        condition["lastTransitionTime"] = condition["lastHeartbeatTime"] = timestamp(now)
    return condition


def _record_before(node: NodeState) -> tuple[AgentRecord | None, tuple[str, ...]]:
    text = node.annotations.get(RESULTS)
    if text is None:
        return None, ()
    try:
        return records.parse(AgentRecord, text), ()
    except records.RecordError as error:
        return None, (f"annotation {RESULTS}: {error}; it is rewritten",)
