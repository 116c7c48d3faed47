"""Taint decision: whether the Node or one of its GPUs is tainted, and the reasons to keep a taint.

Pure functions, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.gpu_count import CHECK as GPU_COUNT
from gpu_healthcheck.healthcheck.memory.findings import Memory, gpu_address
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.node.state import RESULTS, NodeState, is_tested
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import other_severities, read_release
from gpu_healthcheck.healthcheck.verdict.budget import SlotGrant
from gpu_healthcheck.healthcheck.verdict.record import MOST_KEPT, AgentRecord, Identity
from gpu_healthcheck.healthcheck.verdict.repair_conditions import RepairPolicy
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, merge, worst

SET, WITHHELD, DEVICES = "set", "withheld", "devices"
"""Values of the record's `taint`; with `devices`, GPUs carry the taint, or a cordon, instead of the Node."""
_UNKNOWN = FindingRow(reason="UnknownFinding", severity=Severity.ISOLATE, subject="node")
"""Placeholder for the finding behind a taint with a lost or unreadable record: any check may have set the taint."""
_LONGEST_NAME = 80


class Rules(Struct, frozen=True):
    """Settings that limit writes: no taint below `taint_severity`, no taint at all, or no label."""

    taint_severity: Severity = Severity.RESET
    enable_taint: bool = True
    enable_label: bool = True
    max_unhealthy_percent: int = 20
    """Largest share of the fleet's nodes, in percent, that may carry our taint at the same time."""
    budget_label: str = ""
    """Node label for each value of which that share may be tainted, too."""
    device_taints: bool = False
    """Taint a faulty GPU instead of its Node if DRA allocates the GPU; cordon it if HAMi shares it."""
    evict_severity: Severity | None = None
    """Lowest severity at which the taint of a GPU evicts the pods that claim it; None: it evicts none."""
    repair: RepairPolicy = field(default_factory=RepairPolicy)
    rewrite_after_seconds: float = 3600.0
    """Longest interval between two writes of the Node: a recent `last-check` shows that the agent runs."""


class AgentView(Struct, frozen=True):
    """All inputs of a write except the Node."""

    verdict: Verdict
    memory: Memory
    identity: Identity
    rules: Rules
    now: datetime
    work: str = ""
    """The quarantine or reset that uses the node, for the message of a repair condition; '' if there is none."""
    awaits_reboot: bool = False
    """Whether the reset that uses the node waits for a reboot."""
    hami_runs: bool | None = None
    """Whether HAMi's processes run on the node; None if they were not read."""


class TaintDecision(Struct, frozen=True):
    """Decision about our taint on one Node, with the Node's status and severity by all records.

    `word` is the record's `taint`: `set`, `withheld`, `off`, `devices`, or '' for none.
    """

    status: Status
    severity: Severity
    word: str = ""
    kept: tuple[FindingRow, ...] = ()
    """Ended findings for which a taint stays."""
    deep_severity: Severity = Severity.PASS
    """Worst severity of the deep records that the agent has not adopted."""
    complaints: tuple[str, ...] = ()
    """Errors in deep records on the Node that can't be read."""

    @property
    def wants_taint(self) -> bool:
        """Whether the Node or one of its GPUs must be tainted, and so needs a slot of the fleet budget."""
        return self.word == SET

    def granted(self, node: NodeState, grant: SlotGrant) -> TaintDecision:
        """Return the decision under this grant: `devices`, or `withheld` without a slot."""
        if self.wants_taint and grant.by_devices:
            return replace(self, word=DEVICES)
        if self.wants_taint and not node.tainted() and not grant.held:
            return replace(self, word=WITHHELD)
        return self


def decide_taint(view: AgentView, node: NodeState, *, by_devices: bool = False) -> TaintDecision:
    """Return the decision as if every slot of the budget were free. `by_devices`: rules taint GPUs of the node now."""
    memory, rules = view.memory, view.rules
    deep_severities, complaints = other_severities(node, memory.acknowledged, memory.adopted_records)
    status, severity = merge(view.verdict, deep_severities)
    kept = kept_findings(view.verdict, node, rules)
    word = _word(severity, node, rules, kept=bool(kept), tainted=by_devices or node.tainted())
    return TaintDecision(status, severity, word, kept, worst(deep_severities), complaints)


def accepts_work(word: str | None, node: NodeState) -> bool:
    """Whether a Node with this word in its record takes new pods because the budget has no slot for its taint."""
    return word == WITHHELD and not node.tainted() and not node.cordoned and not is_tested(node)


def says_devices(node: NodeState) -> bool:
    """Whether the record on the Node states that GPUs are tainted instead of the Node."""
    return records.on_node(AgentRecord, node, RESULTS).taint == DEVICES


def _word(severity: Severity, node: NodeState, rules: Rules, *, kept: bool, tainted: bool) -> str:
    if not rules.enable_taint:
        return "off"
    if severity < rules.taint_severity and not (kept and tainted):
        return ""
    # HyperPod allows no foreign taint while it tests a node.
    return WITHHELD if not tainted and is_tested(node) else SET


def kept_findings(verdict: Verdict, node: NodeState, rules: Rules) -> tuple[FindingRow, ...]:
    """Return the ended findings for which a taint stays: those whose check or GPU cannot be observed now.

    They are read from the agent's record on the same Node, as findings or as findings kept earlier. After a person's
    release none is kept, even if it cannot be observed.
    """
    if read_release(node, by_label=rules.enable_label)[0] is not None:
        return ()
    active = {finding.key for finding in verdict.active}
    kept = [
        row
        for row in _behind_the_taint(node)
        if (row.severity or Severity.PASS) >= rules.taint_severity
        and (row.reason, row.subject) not in active
        and _is_unobserved(row, verdict)
    ]
    return tuple(map(_short, kept[:MOST_KEPT]))


def _behind_the_taint(node: NodeState) -> Iterable[FindingRow]:
    before = records.on_node(AgentRecord, node, RESULTS)
    return (*(before.findings or ()), *(before.kept or ())) if records.is_ours(before) else (_UNKNOWN,)


def _is_unobserved(finding: FindingRow, verdict: Verdict) -> bool:
    if finding.reason == _UNKNOWN.reason:
        return bool(verdict.unobserved_subjects)
    address = gpu_address(finding.subject or "")
    return any(
        (check == finding.check and subject in ("", finding.subject))
        or (address != "" and (subject == f"gpu/{address}" or (subject == "" and check == GPU_COUNT.name)))
        for check, subject in verdict.unobserved_subjects
    )


def _short(finding: FindingRow) -> FindingRow:
    """Return the identifying fields, shortened: the record is limited, and any client may have written it."""
    return FindingRow(
        reason=(finding.reason or "")[:_LONGEST_NAME],
        severity=finding.severity,
        subject=(finding.subject or "")[:_LONGEST_NAME],
        check=(finding.check or "")[:_LONGEST_NAME],
    )
