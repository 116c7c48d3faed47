"""Find faulty nodes, tainted or not, and nodes in maintenance, each with the steps to return it to work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_healthcheck.diagnosis.facts.commands import command, explain, kubectl
from gpu_healthcheck.diagnosis.facts.symptoms import older
from gpu_healthcheck.diagnosis.model import CauseSeverity, Family, FoundCause, Search
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.deep.claim import claim_in
from gpu_healthcheck.healthcheck.deep.reset_command import switched_off
from gpu_healthcheck.healthcheck.deep.reset_plan import Step
from gpu_healthcheck.healthcheck.model import Severity, counted
from gpu_healthcheck.healthcheck.node.state import (
    CONDITION,
    MAINTENANCE,
    RESET_RESULT,
    RUN,
    STARTUP,
    UNHEALTHY,
    NodeState,
)
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.gate import EVENT, refusals_in
from gpu_healthcheck.healthcheck.verdict.record import RunRecord

_MOST_FAULTS = 3
_NO_SLOT = "it has no taint, because the limit of tainted nodes is reached"
_CORDON_INSTEAD = "it is cordoned; it has no taint, because the limit of tainted nodes is reached"
_FIRST_LOOK = 10.0
"""Minutes: a driver may be built first."""

_fault = Family(None)
ACCEPTS_WORK = _fault(
    "FaultyNodeAcceptsWork",
    "A GPU node has a fault that requires a taint, and accepts new pods: the limit of tainted nodes is reached.",
    "Cordon the node. Then fix the tainted nodes, or raise MAX_UNHEALTHY_PERCENT if all faults are real.",
    source="`taint` of the agent's record is `withheld`",
    urgent=2,
)
KEPT_FROM_WORK = _fault(
    "NodeKeptFromWork",
    "A fault keeps work off a GPU node: by gpu-healthcheck's taint, or by a cordon instead of it.",
    "Follow the finding's action; after a repair, `gpu-healthcheck release` returns the node to work.",
)
IN_MAINTENANCE = _fault(
    "NodeUnderDiagnosis",
    "A test or reset of gpu-healthcheck has ended and left its taint: no new pod starts on the node.",
    "Find out why the node's agent does not remove the taint.",
    severity=CauseSeverity.LOW,
)
OPERANDS_OFF = _fault(
    "OperandsSwitchedOff",
    "A reset ended before it switched the GPU operator's pods on again, so they do not run on the node.",
    "Run the reset again: it continues, and restores the labels.",
    severity=CauseSeverity.HIGH,
)
REBOOT_LEFT_OFF = _fault(
    "ResetLeftOffAtReboot",
    "A reset requested a reboot of the node, and ended before the node returned from it.",
    "Run the reset again: it continues after the reboot, or requests it again with --reboot.",
    severity=CauseSeverity.HIGH,
)
NOT_LOOKED = _fault(
    "NodeAwaitsFirstLook",
    "A new node gets no work until gpu-healthcheck's first check.",
    "Check the agent pod on the node.",
    severity=CauseSeverity.MEDIUM,
)


def find_taints(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each node with a taint of ours, or with a fault for which the budget has no slot.

    A deep diagnostic that may be active, or a first check cycle that may be due, yields nothing.
    """
    for node in snapshot.nodes:
        if node.accepts_work_on_faults:
            yield _accepting(node)
        elif node.lacks_taint and node.cordoned:
            yield _kept_from_work(node, _CORDON_INSTEAD, snapshot.events_about.get(node.subject, ()))
        for taint in node.taints:
            if taint.key == UNHEALTHY:
                yield _kept_from_work(node, f"taint {UNHEALTHY}", snapshot.events_about.get(node.subject, ()))
            elif taint.key == MAINTENANCE and claim_in(node.meta.annotations.get(RUN, ""), snapshot.now) is None:
                evidence = (f"taint {taint}", f"annotation {RUN} names no run that may still be active")
                yield FoundCause(IN_MAINTENANCE, node.subject, evidence, (_look_at_agent(node),))
            elif taint.key == STARTUP and older(snapshot, node.meta.created, _FIRST_LOOK):
                yield FoundCause(NOT_LOOKED, node.subject, (f"taint {taint}",), (_look_at_agent(node),))


def find_unfinished_resets(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the nodes on which a reset has left operands switched off or a reboot requested, if none may be active."""
    for node in snapshot.nodes:
        annotations = node.meta.annotations
        if claim_in(annotations.get(RUN, ""), snapshot.now) is not None:
            continue
        record = records.on_node(RunRecord, NodeState("", annotations=annotations), RESET_RESULT)
        if record.running == Step.REBOOT:
            shown = (f"annotation {RESET_RESULT} has the step '{Step.REBOOT}' of a reset that has ended",)
            again = command("gpu-healthcheck", "reset", node.name, "--reboot")
            yield FoundCause(REBOOT_LEFT_OFF, node.subject, shown, (f"Continue the reset: {again}",))
        if off := switched_off(node.meta.labels, annotations):
            evidence = tuple(f"label {label}=false, set by a reset that has ended" for label in off)
            again = command("gpu-healthcheck", "reset", node.name)
            labels = (kubectl("label", node.meta, f"{label}=true", "--overwrite") for label in off)
            remedy = (f"Continue the reset: {again}", *(f"Or restore it: {line}" for line in labels))
            yield FoundCause(OPERANDS_OFF, node.subject, evidence, remedy)


def _look_at_agent(node: Node) -> str:
    where = f"--field-selector=spec.nodeName={node.name}"
    pods = command("kubectl", "-n", "gpu-healthcheck", "get", "pods", "-o", "wide", where)
    return f"Check the agent pod, which removes the taint: {pods}"


def release_of(node: str) -> str:
    """Return the complete release command: without a reason it is refused."""
    return command("gpu-healthcheck", "release", node, "--reason", "after repair")


def _accepting(node: Node) -> FoundCause:
    faults = [f"{fault.reason} {fault.severity} on {fault.subject}" for fault in node.faults[:_MOST_FAULTS]]
    if (more := len(node.faults) - _MOST_FAULTS) > 0:
        faults.append(f"and {counted(more, 'further finding')} of RESET or worse")
    cordon = f"Keep new pods off the node: {command('kubectl', 'cordon', node.name)}"
    return FoundCause(ACCEPTS_WORK, node.subject, (*faults, _NO_SLOT), (cordon, *_fixes(node), _uncordon(node)))


def _kept_from_work(node: Node, by: str, events: Iterable[Event]) -> FoundCause:
    condition = node.condition(CONDITION)
    evidence = [by]
    if condition is not None:
        evidence.append(f"condition {condition}")
    refused = refusals_in(event.message for event in events if event.reason == EVENT)
    evidence += (f"the gate refused {counted(pods, 'pod')} for {reason}" for reason, pods in refused.items())
    own = (_uncordon(node),) if node.cordoned and not node.withheld else ()
    return FoundCause(KEPT_FROM_WORK, node.subject, tuple(evidence), (*_fixes(node), *own))


def _fixes(node: Node) -> Iterator[str]:
    condition = node.condition(CONDITION)
    if condition is not None and condition.reason:
        yield f"See the action for {condition.reason}: {explain(condition.reason)}"
    if any(finding.severity == Severity.RESET.name and finding.subject.startswith("gpu/") for finding in node.findings):
        yield f"Reset its GPU: {command('gpu-healthcheck', 'reset', node.name)}"
    yield f"When the node is fixed: {release_of(node.name)}"


def _uncordon(node: Node) -> str:
    return f"Then let it accept work again: {command('kubectl', 'uncordon', node.name)}"


SEARCHES = (
    Search((ACCEPTS_WORK, KEPT_FROM_WORK, IN_MAINTENANCE, NOT_LOOKED), ("Node",), find_taints),
    Search((OPERANDS_OFF, REBOOT_LEFT_OFF), ("Node",), find_unfinished_resets),
)
