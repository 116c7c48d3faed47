"""Next step for a node of the fleet, from the state of the Node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from gpu_healthcheck.cli import index
from gpu_healthcheck.healthcheck.catalog.policy import step_for
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.deep.attempts import Attempt, came, last_attempt, run_on
from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.deep.reset_plan import needs_reboot, reset_targets
from gpu_healthcheck.healthcheck.memory.reason_names import LOCKED, SLOW, STOPS_PODS
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.node.gpu_resources import listed
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, SEVERITY, STATUS, NodeState
from gpu_healthcheck.healthcheck.operations.drain import cordoned_by
from gpu_healthcheck.healthcheck.operations.next_step import (
    NAME,
    NextStep,
    cordon_of_card,
    cordon_step,
    next_step,
    only_of_the_network,
    replacement,
    rerun,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.record import StandingRecord
from gpu_healthcheck.healthcheck.verdict.taint_decision import accepts_work

_QUARANTINE = "quarantine"
_STATUSES = frozenset(Status)
_ACCEPTS_WORK = (
    "It accepts new work, because the limit of tainted nodes is reached. Cordon it; `kubectl uncordon` it when it is "
    "fixed."
)


def node_step(node: NodeState, record: StandingRecord, silent: bool, now: datetime) -> NextStep:
    """Return the next step. The first command is a cordon if the budget has no slot for a taint that the node needs."""
    if (run := claim_on(node, now)) is not None:
        return NextStep(note=f"Wait: a {run.kind.value} uses it, until {timestamp(run.until)} at most.")
    return idle_step(node, record, silent)


def idle_step(node: NodeState, record: StandingRecord, silent: bool) -> NextStep:
    """Return the next step of a node that no deep test or reset uses, whatever claim an ended one has left."""
    step = _step(node, record, silent)
    if not accepts_work(record.taint, node):
        return step
    return NextStep((f"kubectl cordon {node.name}", *step.commands), f"{_ACCEPTS_WORK} {step.note}")


def _step(node: NodeState, record: StandingRecord, silent: bool) -> NextStep:
    status = node.labels.get(STATUS, "")
    if silent or status not in _STATUSES:
        return agent_step(node)
    if status == Status.FAIL:
        return _fixing_step(node, record)
    if status == Status.UNKNOWN:
        return _explained((row.cause for row in record.unobserved or ()), "A check could not run.")
    return _working_step(node, status, record.findings or ())


def _working_step(node: NodeState, status: str, findings: Sequence[FindingRow]) -> NextStep:
    """Return the step for a node without a fault of RESET or worse."""
    if node.cordoned and run_on(node, QUARANTINE_RESULT)[0].recommendation == "rerun":
        return rerun(node)
    if slow := [row for row in findings if row.reason in SLOW]:
        return _slow_step(node, slow[0])
    cordon = cordon_step(node)
    if status == Status.WARN and not cordon.commands:
        return _actionable_step(node, findings)
    if node.gpu_capacity and node.gpus != node.gpu_capacity and not cordon.commands:
        offered = f"{listed(node.gpus) or 'no GPU'} of {listed(node.gpu_capacity)}"
        return NextStep((f"gpu-healthcheck diagnose node {node.name}",), f"Pods can request {offered}.")
    return cordon


def agent_step(node: NodeState) -> NextStep:
    """Return the step for a node without a working agent, which alone can end its faults."""
    on_it = f"--field-selector spec.nodeName={node.name}"
    agent = f"kubectl get pods -n {NAMESPACE} -l app.kubernetes.io/component=agent"
    commands = (
        f"kubectl get pods -n {NAMESPACE} -o wide {on_it}",
        f"{agent} -o name {on_it} | xargs -r kubectl logs -n {NAMESPACE} --tail=20",
    )
    if STATUS not in node.labels:
        return NextStep(commands, "No agent has reported on it.")
    if node.condition("Ready") is not None and not node.is_ready:
        return NextStep((f"kubectl describe node {node.name}",), "Its kubelet is not Ready, so its agent can't work.")
    fault = " Only a live agent ends its fault." if node.labels[STATUS] == Status.FAIL else ""
    return NextStep(commands, f"Find out why its agent sends no heartbeat.{fault}")


def _slow_step(node: NodeState, row: FindingRow) -> NextStep:
    """Return the step for a GPU that a quarantine has measured as slow: to measure it again, or to replace it."""
    explain, advice = f"gpu-healthcheck explain {row.reason}", _advice_for(row.reason or "")
    if (row.count or 0) > 1:
        step = replacement(node, (row,))
        return NextStep((explain, *step.commands), f"Measured {row.count} times. {advice} {step.note}".strip())
    back = f" `kubectl uncordon {node.name}` returns the node as it is." if cordoned_by(node) else ""
    return NextStep((explain, f"gpu-healthcheck quarantine {node.name}"), f"{advice}{back}")


def _actionable_step(node: NodeState, findings: Sequence[FindingRow]) -> NextStep:
    """Return the step of the worst finding that a person can act on.

    Findings that keep GPU pods from starting come first, and findings without advice last, such as an
    application's Xid. The quarantine that an advice names is a command until it has tested the finding.
    """

    def place(row: FindingRow) -> tuple[bool, bool]:
        return row.reason not in STOPS_PODS, not _advice_for(row.reason or "")

    named = (finding for finding in findings if finding.reason and NAME.match(finding.reason))
    row = min(named, key=place, default=FindingRow())
    reason = row.reason or ""
    stops = "GPU pods can't start. " if reason in STOPS_PODS else ""
    is_locked = LOCKED in (row.detail or "")
    advice = _advice_for(reason) or (f"{LOCKED[0].upper()}{LOCKED[1:]}." if is_locked else "Nothing now.")
    step = _explained((reason,), f"{stops}{advice}")
    if _QUARANTINE not in advice.lower():
        return step
    if came(row) <= run_on(node, QUARANTINE_RESULT)[1]:
        return NextStep(step.commands, f"The last quarantine has not ended it. {step.note}")
    return NextStep((*step.commands, f"gpu-healthcheck quarantine {node.name}"), step.note)


def _advice_for(reason: str) -> str:
    declared = index.reasons().get(reason.lower())
    if declared is not None:
        return declared.reason.action
    return next((entry.meaning for entry in index.words().get(reason.lower(), ()) if entry.kind == index.REASON), "")


def _fixing_step(node: NodeState, record: StandingRecord) -> NextStep:
    """Return the step for the worst severity, or the recommendation of a quarantine run that still applies."""
    findings = record.findings or ()
    severity = Severity.__members__.get(node.labels.get(SEVERITY, ""), Severity.RESET)
    worst = [row for row in findings if row.severity is severity]
    if (reason := only_of_the_network(worst)) is not None:
        return _explained((reason,), _advice_for(reason))
    if worst and all(row.reason in SLOW for row in worst):
        return _slow_step(node, worst[0])
    advice, is_repairable = _recommendation(node, record), severity in (Severity.RESET, Severity.REBOOT)
    if advice == "replace" or (advice in ("reset", "reboot") and is_repairable):
        step = next_step(advice, node, findings)
        return NextStep(step.commands, f"A quarantine run recommends {advice}. {step.note}".strip())
    # The command rejects a node whose agent reports no such finding.
    if is_repairable and (needs_reboot(node) or reset_targets(node, ())):
        step = next_step(severity.name.lower(), node, findings)
        if last_attempt(node) != Attempt():
            return step
    elif advice == "rerun":
        step = rerun(node)
    else:
        step = NextStep((f"gpu-healthcheck quarantine {node.name}",), cordon_of_card(node, findings))
    means = step_for(severity, (row.subject or "" for row in worst))
    return NextStep(step.commands, f"{means[:1].upper()}{means[1:]}. {step.note}".strip())


def _recommendation(node: NodeState, record: StandingRecord) -> str:
    """Return the last quarantine run's recommendation; '' if the machine was replaced or has newer findings."""
    run, at = run_on(node, QUARANTINE_RESULT)
    return (run.recommendation or "") if all(came(finding) <= at for finding in record.findings or ()) else ""


def _explained(words: Iterable[str | None], note: str) -> NextStep:
    word = next((text for text in words if text and NAME.match(text)), "")
    return NextStep((f"gpu-healthcheck explain {word}",) if word else (), note)
