"""Next step for a node of the fleet, from the state of the Node. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from cli import index
from healthcheck.catalog.steps import step_for
from healthcheck.cluster.names import NAMESPACE
from healthcheck.deep.claim import claim_on
from healthcheck.deep.reset_plan import needs_reboot, reset_targets
from healthcheck.memory.known_names import LOCKED, STOPS_PODS
from healthcheck.memory.rows import FindingRow
from healthcheck.model import Nature, Severity, Status
from healthcheck.node.state import QUARANTINE_RESULT, SEVERITY, STATUS, NodeState, is_of_another_machine
from healthcheck.operations.next_step import NextStep, cordon_of_card, next_step, only_of_the_network
from healthcheck.text.moments import EARLIEST, timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RunRecord, StandingRecord
from healthcheck.verdict.taint_decision import accepts_work

_NAME = re.compile(r"[A-Za-z0-9]{1,63}\Z", re.ASCII)
"""Names from a record that may be part of a printed shell command: reasons and causes."""
_STATUSES = frozenset(Status)
_ACCEPTS_WORK = "It accepts new work: no slot for its taint is free. Cordon it; `kubectl uncordon` it when it is fixed."


def node_step(node: NodeState, record: StandingRecord, silent: bool, now: datetime) -> NextStep:
    """Return the next step. The first command is a cordon if the budget has no slot for a taint that the node needs."""
    if (run := claim_on(node, now)) is not None:
        return NextStep(note=f"A deep run ({run.kind.value}) uses it until {timestamp(run.until)}.")
    step = _step(node, record, silent)
    if not accepts_work(record.taint, node):
        return step
    return NextStep((f"kubectl cordon {node.name}", *step.commands), f"{_ACCEPTS_WORK} {step.note}")


def _step(node: NodeState, record: StandingRecord, silent: bool) -> NextStep:
    status = node.labels.get(STATUS, "")
    if status == Status.FAIL:
        return _fixing_step(node, record)
    if silent or status not in _STATUSES:
        command = f"kubectl get pods -n {NAMESPACE} -o wide --field-selector spec.nodeName={node.name}"
        return NextStep(
            (command,), "Find out why its agent sends no heartbeat." if silent else "No agent has reported on it."
        )
    if status == Status.UNKNOWN:
        return _explained((row.cause for row in record.unobserved or ()), "A check could not run.")
    if status == Status.WARN:
        return _actionable_step(record.findings or ())
    return NextStep()


def _actionable_step(findings: Iterable[FindingRow]) -> NextStep:
    """Return the step of the worst finding that a person can act on.

    Findings that keep GPU pods from starting come first, and findings without advice last, such as an
    application's Xid.
    """
    named = [finding.reason for finding in findings if finding.reason and _NAME.match(finding.reason)]
    reason = min(named, key=lambda name: (name not in STOPS_PODS, not _advice_for(name)), default="")
    stops = "GPU pods can't start. " if reason in STOPS_PODS else ""
    is_locked = any(finding.reason == reason and LOCKED in (finding.detail or "") for finding in findings)
    advice = _advice_for(reason) or (f"{LOCKED[0].upper()}{LOCKED[1:]}." if is_locked else "Nothing now.")
    return _explained((reason,), f"{stops}{advice}")


def _advice_for(reason: str) -> str:
    declared = index.reasons().get(reason.lower())
    if declared is not None:
        return declared.reason.action
    return next((entry.meaning for entry in index.words().get(reason.lower(), ()) if entry.kind == index.REASON), "")


def _fixing_step(node: NodeState, record: StandingRecord) -> NextStep:
    """Return the recommendation of a quarantine run if it still applies; otherwise the action of the severity."""
    findings = record.findings or ()
    severity = Severity.__members__.get(node.labels.get(SEVERITY, ""), Severity.RESET)
    worst = [row for row in findings if row.severity is severity]
    if (reason := only_of_the_network(worst)) is not None:
        return _explained((reason,), _advice_for(reason))
    advice = _advice(node, record)
    step = next_step(advice, node, findings)
    if step != NextStep():
        return NextStep(step.commands, f"A quarantine run recommends {advice}. {step.note}".strip())
    means = step_for(severity, (row.subject or "" for row in worst))
    # The command rejects a node whose agent reports no such finding.
    if severity in (Severity.RESET, Severity.REBOOT) and (needs_reboot(node) or reset_targets(node, ())):
        step = next_step(severity.name.lower(), node, findings)
    else:
        step = NextStep((f"gpu-healthcheck quarantine {node.name}",), cordon_of_card(node, findings))
    return NextStep(step.commands, f"{means[:1].upper()}{means[1:]}. {step.note}".strip())


def _advice(node: NodeState, record: StandingRecord) -> str:
    """Return the last quarantine run's recommendation; '' if the machine was replaced or has newer findings."""
    run = records.on_node(RunRecord, node, QUARANTINE_RESULT)
    at = records.time_of(run)
    if at is None or is_of_another_machine(run.machine, node):
        return ""
    return (run.recommendation or "") if all(_came(finding) <= at for finding in record.findings or ()) else ""


def _came(row: FindingRow) -> datetime:
    """Return the time when the finding was new: first observation of a level, last observation of an event."""
    return (row.last_seen if row.nature is Nature.EVENT else row.first_seen) or EARLIEST


def _explained(words: Iterable[str | None], note: str) -> NextStep:
    word = next((text for text in words if text and _NAME.match(text)), "")
    return NextStep((f"gpu-healthcheck explain {word}",) if word else (), note)
