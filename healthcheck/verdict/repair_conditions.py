"""Conditions for repair systems: reboot required, replacement required, and the condition of the EKS agent.

Pure functions, no I/O. Only conditions that the settings name are written. Conditions of another client are never
overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.eks_reasons import eks_reason
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.node.state import (
    FIELD_MANAGER,
    HARDWARE_READY,
    OUR_WORD,
    REBOOT_REQUIRED,
    REPAIR_CONDITIONS,
    NodeState,
    is_our_condition,
    removed_condition,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent, cut, event_name

_WITHHELD = "RepairWithheld"


class RepairPolicy(Struct, frozen=True):
    """Conditions that the settings name, and the mildest severity for which the hardware counts as not ready."""

    conditions: tuple[str, ...] = ()
    severity: Severity = Severity.ISOLATE


class NodeSummary(Struct, frozen=True):
    """State of the Node besides these conditions: the merge of all records, and whether the taint is set.

    `reason` and `message` are those of the condition GpuHealthy.
    """

    status: Status
    severity: Severity
    reason: str
    message: str
    tainted: bool
    settling: bool
    """Whether a finding that can flicker is still to be confirmed."""
    work: str = ""
    """The quarantine or reset that uses the node: a repair would end it without a result."""
    awaits_reboot: bool = False
    """Whether this reset has drained the node and waits for a reboot."""


class RepairChange(Struct, frozen=True):
    """Conditions for `/status`, and the Events about them once they are written."""

    conditions: tuple[Mapping[str, Any], ...] = ()
    events: tuple[NodeEvent, ...] = ()


NO_REPAIR = RepairChange()


def plan_repair(
    repair: RepairPolicy, summary: NodeSummary, node: NodeState, now: datetime, *, is_news: bool
) -> RepairChange:
    """Compare with the Node and return the conditions to write; a changed message alone only with `is_news`."""
    present = {kind: condition for kind in REPAIR_CONDITIONS if (condition := node.condition(kind)) is not None}
    if not (present or repair.conditions):
        return NO_REPAIR
    ours = {kind for kind, condition in present.items() if is_our_condition(condition)}
    foreign = [kind for kind in repair.conditions if kind in present and kind not in ours]
    gone = [kind for kind in present if kind in ours and kind not in repair.conditions]
    wanted = [_wanted(kind, repair, summary) for kind in repair.conditions if kind not in foreign]
    changed = [
        _timed(condition, present.get(condition["type"], {}), now)
        for condition in wanted
        if condition is not None and _differs(condition, present.get(condition["type"], {}), is_news=is_news)
    ]
    events = (*(_owned(kind, node) for kind in foreign), *_switched_off(gone, node))
    return RepairChange((*changed, *map(removed_condition, gone)), events)


def _wanted(kind: str, repair: RepairPolicy, summary: NodeSummary) -> dict[str, str] | None:
    """Return the condition to write; None if it is unchanged."""
    condition: tuple[str, str, str] | None
    if kind == REBOOT_REQUIRED and summary.awaits_reboot:
        condition = "True", "ResetAwaitsReboot", f"gpu-healthcheck reset has drained this node: {summary.message}"
    elif kind == HARDWARE_READY:
        condition = _hardware_ready(repair, summary)
    else:
        condition = _required(Severity.REBOOT if kind == REBOOT_REQUIRED else Severity.ISOLATE, summary)
    if condition is None:
        return None
    status, reason, message = condition
    return {"type": kind, "status": status, "reason": reason, "message": cut(f"{OUR_WORD}{message}")}


def _required(tier: Severity, summary: NodeSummary) -> tuple[str, str, str]:
    """Return the condition for a tier, from the active findings only.

    A check that could not run neither requests nor cancels a repair.
    """
    if summary.severity is not tier:
        return "False", "NotRequired", f"the severity of this node is not {tier.name}"
    if summary.work:
        return "False", _WITHHELD, f"no repair is requested: {summary.work}"
    return "True", summary.reason, summary.message


def _hardware_ready(repair: RepairPolicy, summary: NodeSummary) -> tuple[str, str, str] | None:
    if summary.severity >= repair.severity:
        if summary.tainted and not summary.work:
            return "False", eks_reason(summary.reason), summary.message
        why = summary.work or f"the node is not tainted: {summary.message}"
        return "Unknown", _WITHHELD, f"no repair is requested: {why}"
    if summary.status is Status.FAIL:
        return "Unknown", "NoRepair", f"{summary.severity.name} requires no repair: {summary.message}"
    if summary.status is Status.UNKNOWN:
        return "Unknown", summary.reason, summary.message
    if summary.settling:
        return None
    return "True", "NvidiaAcceleratedHardwareIsReady", "all checks ran and found no fault that keeps work away"


def _differs(wanted: Mapping[str, str], before: Mapping[str, Any], *, is_news: bool) -> bool:
    keys = ("status", "reason", "message") if is_news else ("status", "reason")
    return any(before.get(key) != wanted[key] for key in keys)


def _timed(wanted: dict[str, str], before: Mapping[str, Any], now: datetime) -> dict[str, str]:
    """Return the condition with its times. They change only with the status: repair systems use them as timers."""
    same = before.get("status") == wanted["status"] and bool(before.get("lastTransitionTime"))
    at = str(before["lastTransitionTime"]) if same else timestamp(now)
    return wanted | {"lastTransitionTime": at, "lastHeartbeatTime": at}


def _owned(kind: str, node: NodeState) -> NodeEvent:
    managers = sorted({manager.name for manager in node.repair_managers.get(kind, ())} - {FIELD_MANAGER})
    owner = ", ".join(managers) or "a program not named in managedFields"
    message = f"the agent does not write {kind}: it belongs to {owner}. Disable one of the two"
    return NodeEvent(event_name(node.name, "owned", kind, owner), "Warning", "ConditionOwnedByOther", cut(message))


def _switched_off(gone: list[str], node: NodeState) -> Iterator[NodeEvent]:
    if gone:
        name = event_name(node.name, "switched-off", *gone, node.resource_version)
        message = f"removed the agent's {' and '.join(gone)}: not in REPAIR_CONDITIONS"
        yield NodeEvent(name, "Normal", "SwitchedOff", message)
