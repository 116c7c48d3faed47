"""Taint decision: whether the Node or one of its GPUs is tainted, and the reasons to keep a taint.

Pure functions, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from healthcheck.checks.gpu_count import CHECK as GPU_COUNT
from healthcheck.memory.findings import Memory, gpu_address
from healthcheck.memory.rows import FindingRow
from healthcheck.model import Severity
from healthcheck.node.state import RESULTS, NodeState, is_tested
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import other_severities, read_release
from healthcheck.verdict.record import MOST_KEPT, AgentRecord
from healthcheck.verdict.repair import RepairPolicy
from healthcheck.verdict.verdict import Verdict, merge

DEVICES = "devices"
"""The record's word for our taint where GPUs carry it."""
_UNKNOWN = FindingRow(reason="UnknownFinding", severity=Severity.ISOLATE, subject="node")
"""Stands for the finding behind a taint whose record is lost or unreadable: any check may have set it."""
_LONGEST_NAME = 80


class Rules(Struct, frozen=True):
    """Rules from the settings: no taint below `taint_severity`, no taint at all, or no label."""

    taint_severity: Severity = Severity.RESET
    enable_taint: bool = True
    enable_label: bool = True
    max_unhealthy_percent: int = 20
    """Of the fleet's nodes, how many may carry our taint at the same time."""
    device_taints: bool = False
    """A bad GPU that DRA gives out is tainted instead of the Node."""
    repair: RepairPolicy = field(default_factory=RepairPolicy)
    rewrite_after_seconds: float = 3600.0
    """The Node is written at least this often, so that `last-check` says that somebody still looks."""


def wants_place(verdict: Verdict, node: NodeState, rules: Rules, memory: Memory, *, by_devices: bool = False) -> bool:
    """Whether the Node or one of its GPUs must be tainted, and so needs a slot of the fleet budget."""
    severity = merge(verdict, other_severities(node, memory.acknowledged, memory.taken)[0])[1]
    kept = kept_findings(verdict, node, rules)
    return taint_word(severity, node, rules, kept=bool(kept), tainted=by_devices or node.tainted()) == "set"


def says_devices(node: NodeState) -> bool:
    """Whether the record on the Node states that GPUs are tainted instead of the Node."""
    return records.on_node(AgentRecord, node, RESULTS).taint == DEVICES


def taint_word(severity: Severity, node: NodeState, rules: Rules, *, kept: bool, tainted: bool) -> str:
    """The record's `taint` as if every slot of the budget were free: `set`, `withheld`, `off` or ''.

    `tainted`: our taint is on the Node, or on its devices. `kept`: `kept_findings` names some.
    """
    if not rules.enable_taint:
        return "off"
    if severity < rules.taint_severity and not (kept and tainted):
        return ""
    # HyperPod allows no foreign taint while it tests a node.
    return "withheld" if not tainted and is_tested(node) else "set"


def kept_findings(verdict: Verdict, node: NodeState, rules: Rules) -> tuple[FindingRow, ...]:
    """Return the ended findings for which a taint stays: those whose check or GPU cannot be observed now.

    They are read from the agent's record on the same Node, as findings or as findings kept earlier. A person's release
    keeps none of them, even if they cannot be observed.
    """
    if read_release(node, gestures=rules.enable_label)[0] is not None:
        return ()
    active = {finding.key for finding in verdict.standing}
    kept = [
        row
        for row in _behind_the_taint(node)
        if (row.severity or Severity.PASS) >= rules.taint_severity
        and (row.reason, row.subject) not in active
        and _is_unobserved(row, verdict)
    ]
    return tuple(map(_short, kept[:MOST_KEPT]))


def _behind_the_taint(node: NodeState) -> Iterable[FindingRow]:
    try:
        before = records.parse(AgentRecord, node.annotations.get(RESULTS, ""))
    except records.RecordError:
        return (_UNKNOWN,)
    return (*(before.findings or ()), *(before.kept or ())) if records.is_ours(before) else (_UNKNOWN,)


def _is_unobserved(finding: FindingRow, verdict: Verdict) -> bool:
    if finding.reason == _UNKNOWN.reason:
        return bool(verdict.blind)
    address = gpu_address(finding.subject or "")
    return any(
        (check == finding.check and subject in ("", finding.subject))
        or (address != "" and (subject == f"gpu/{address}" or (subject == "" and check == GPU_COUNT.name)))
        for check, subject in verdict.blind
    )


def _short(finding: FindingRow) -> FindingRow:
    """Return the identifying fields, shortened: the record is limited, and any client may have written it."""
    return FindingRow(
        reason=(finding.reason or "")[:_LONGEST_NAME],
        severity=finding.severity,
        subject=(finding.subject or "")[:_LONGEST_NAME],
        check=(finding.check or "")[:_LONGEST_NAME],
    )
