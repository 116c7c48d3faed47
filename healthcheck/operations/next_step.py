"""Commands that carry out a recommendation for a node, with its ids, by what was tried before.

A reset that has not ended the faults is followed by a reboot, and a reboot by a replacement: no step is repeated for
the same faults.

Pure functions, no I/O. If a platform replaces and reboots nodes automatically, the commands request that from the
platform. This project never runs the commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.attempts import Attempt, Tried, last_attempt, run_on
from gpu_healthcheck.healthcheck.deep.reset_plan import known_failure
from gpu_healthcheck.healthcheck.memory.reason_names import OF_THE_NETWORK
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.hami import CARDS, CORDON, UUID, cordoned
from gpu_healthcheck.healthcheck.node.state import CORDONED_BY, QUARANTINE_RESULT, NodeState
from gpu_healthcheck.healthcheck.operations.drain import cordoned_by

_HYPERPOD_HEALTH = "sagemaker.amazonaws.com/node-health-status"
_HYPERPOD, _KARPENTER, _NODE_GROUP = "sagemaker.amazonaws.com/", "karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup"
_GKE, _GKE_FAULT = "cloud.google.com/gke-nodepool", "cloud.google.com/fault-behavior"
_GKE_WORDS = {
    "NcclWrongResults": "SDC",
    "EfaLoopbackCorrupt": "SDC",
    "NcclSlow": "PERFORMANCE",
    "PcieWidthLow": "PERFORMANCE",
    "DcgmDiagMemoryBandwidth": "PERFORMANCE",
    "DcgmDiagTargetedPower": "PERFORMANCE",
    "DcgmDiagTargetedStress": "PERFORMANCE",
}
"""Fault kinds of GKE: silent data corruption, or a slow machine."""
_REGION = "topology.kubernetes.io/region"
_INSTANCE = re.compile(r"aws:///[a-z0-9-]*/(i-[0-9a-f]{8,17})\Z", re.ASCII)
_REGION_NAME = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}\Z", re.ASCII)
_PENDING_REBOOT = "UnschedulablePendingReboot"
NAME = re.compile(r"[A-Za-z0-9]{1,63}\Z", re.ASCII)
"""Names from a record that may be part of a printed shell command: reasons and causes."""
_MENDS_A_GPU = ("reset", "reboot", "replace")
_GPU = re.compile(r"gpu/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\Z", re.ASCII)


class Platform(StrEnum):
    """Platform that creates the nodes."""

    HYPERPOD = "SageMaker HyperPod"
    KARPENTER = "Karpenter"
    NODE_GROUP = "a managed node group"
    GKE = "Google Kubernetes Engine"
    EC2 = "an EC2 instance"
    OTHER = "an unknown platform"


class NextStep(Struct, frozen=True):
    """Next step for a person. `commands` are whole shell lines.

    `note` is information to read before running them; '' if there is none.
    """

    commands: tuple[str, ...] = ()
    note: str = ""


def platform_of(node: NodeState) -> Platform:
    """Return the platform, by the labels that each platform puts on its nodes, most specific first."""
    if any(key.startswith(_HYPERPOD) for key in node.labels):
        return Platform.HYPERPOD
    if _KARPENTER in node.labels:
        return Platform.KARPENTER
    if _NODE_GROUP in node.labels:
        return Platform.NODE_GROUP
    if _GKE in node.labels:
        return Platform.GKE
    return Platform.EC2 if _instance(node) else Platform.OTHER


def next_step(recommendation: str, node: NodeState, findings: Iterable[FindingRow]) -> NextStep:
    """Return the next step for a recommendation of the record; an empty step if it is unknown.

    `findings` are the record's rows.
    """
    rows = tuple(findings)
    step = _step(recommendation, node, rows)
    if recommendation not in _MENDS_A_GPU:
        return step
    return replace(step, note=" ".join(filter(None, (step.note, cordon_of_card(node, rows)))))


def cordon_of_card(node: NodeState, findings: Iterable[FindingRow]) -> str:
    """Return how to keep using the other GPUs if HAMi shares them and only one is faulty; '' otherwise.

    HAMi registers its GPUs as a JSON list since 2.8. It reads the cordon since 2.10; older versions ignore it.
    """
    serious = [finding for finding in findings if finding.severity is not None and finding.severity >= Severity.RESET]
    bad = {(row.about or {}).get("uuid", "") if _GPU.match(row.subject or "") else "" for row in serious}
    uuid = next(iter(bad)) if len(bad) == 1 else ""
    listed = cordoned(node)
    registered = node.annotations.get(CARDS, "")
    known = registered.lstrip().startswith("[") and f'"{uuid}"' in registered
    if not known or uuid in listed or not all(map(UUID.fullmatch, (uuid, *listed))):
        return ""
    command = f"kubectl annotate node {node.name} {CORDON}={','.join((*listed, uuid))} --overwrite"
    return f"To release the node but keep new pods off this GPU, run `{command}` (needs HAMi 2.10 or newer)."


def _step(recommendation: str, node: NodeState, findings: Sequence[FindingRow]) -> NextStep:
    match recommendation:
        case "return-to-service":
            return _uncordon(node)
        case "reset" | "reboot":
            return _repair(recommendation, node, findings)
        case "replace":
            return replacement(node, findings)
        case "rerun":
            return rerun(node)
    return NextStep()


def _uncordon(node: NodeState) -> NextStep:
    note = _STILL_TAINTED if node.tainted() else ""
    if not node.cordoned or cordoned_by(node):
        return NextStep((f"kubectl uncordon {node.name}",) if node.cordoned else (), note)
    if node.field_managers and not node.cordon_managers and CORDONED_BY in node.annotations:  # one of a listing
        return NextStep((f"gpu-healthcheck status {node.name}",), "It is cordoned.")
    return NextStep((), f"{note} {_OTHERS_CORDON} `kubectl uncordon {node.name}` if its reason has ended.".strip())


def cordon_step(node: NodeState) -> NextStep:
    """Return the step that ends the cordon of a node without a fault; a test first if the last one has not passed."""
    if not node.cordoned:
        return NextStep()
    run, _ = run_on(node, QUARANTINE_RESULT)
    if cordoned_by(node) and run.recommendation != "return-to-service":
        return NextStep((_again(node),), "A quarantine cordoned it, and no passed test has followed.")
    return _uncordon(node)


def rerun(node: NodeState) -> NextStep:
    """Return the step after a run that proved nothing: to read the cause of it, and to test again."""
    run, _ = run_on(node, QUARANTINE_RESULT)
    rows = [row for row in run.unobserved or () if row.cause and NAME.match(row.cause)]
    why = f"{rows[0].check}: {rows[0].cause}: {rows[0].detail}" if rows else "; ".join(run.reasons or ())
    back = f"; to return it untested, `kubectl uncordon {node.name}`" if cordoned_by(node) else ""
    note = f"The last quarantine proved nothing ({why}). Fix that before the next one{back}."
    return NextStep((f"gpu-healthcheck explain {rows[0].cause if rows else 'rerun'}", _again(node)), note)


def _repair(recommendation: str, node: NodeState, findings: Sequence[FindingRow]) -> NextStep:
    """Return the weakest step that was not tried for the active faults."""
    faults = [row for row in findings if row.severity is not None and row.severity >= Severity.RESET]
    if (reason := only_of_the_network(faults)) is not None:
        return NextStep((f"gpu-healthcheck explain {reason}",), _NETWORK)
    attempt = last_attempt(node)
    first = _reset(node, findings) if recommendation == "reset" else _reboot(node)
    match attempt.tried:
        case Tried.REBOOT:
            return _after_reboot(node, faults, attempt)
        case Tried.REFUSED | Tried.NOT_REBOOTED:
            return _reboot_by_hand(node, first, attempt)
        case Tried.RESET:
            step = _reboot(node)
            return replace(step, note=f"A reset has not ended the fault{_because(attempt)}. {step.note}")
    note = f"The last reset changed nothing{_because(attempt)}. Fix that before the next one." if attempt.why else ""
    return replace(first, note=f"{note} {first.note}".strip())


def _after_reboot(node: NodeState, faults: Sequence[FindingRow], attempt: Attempt) -> NextStep:
    step = replacement(node, faults)
    reason = next((row.reason for row in faults if row.reason and NAME.match(row.reason)), "")
    explain = (f"gpu-healthcheck explain {reason}",) if reason else ()
    return NextStep(
        (*explain, *step.commands),
        f"A reboot has not ended the fault{_because(attempt)}. Replace the node, unless the explanation names another "
        f"fix. {step.note}",
    )


def _reboot_by_hand(node: NodeState, first: NextStep, attempt: Attempt) -> NextStep:
    """Return the step for a machine that the command of a reset can't reset or reboot as it is."""
    why, machine = _because(attempt), f"the machine{_called(node)} in another way"
    drain: tuple[str, ...] = ()
    if attempt.tried is Tried.NOT_REBOOTED:
        note = (
            f"It was drained, but not rebooted{why}. Reboot {machine}, or replace it; then `{_again(node)}` tests it."
        )
    else:
        if not node.cordoned:
            drain = (f"kubectl drain {node.name} --ignore-daemonsets --delete-emptydir-data",)
        note = (
            f"The last reset changed nothing{why}. Fix that and run `{first.commands[0]}` again; or drain the node and "
            f"reboot {machine}."
        )
    by_hand = _reboot_command(node)
    return NextStep((*drain, *([by_hand] if by_hand else ())), note)


def _because(attempt: Attempt) -> str:
    return f" ({attempt.why})" if attempt.why else ""


def _reset(node: NodeState, findings: Iterable[FindingRow]) -> NextStep:
    """Return the step that resets the GPUs with findings of RESET.

    A finding on something else, such as an NVSwitch, needs a reboot, and so does a platform on which resets fail.
    """
    faults = [finding for finding in findings if finding.severity is Severity.RESET]
    failure = known_failure(node.provider_id)
    places = [finding.subject or "" for finding in faults if finding.reason not in OF_THE_NETWORK]
    if failure is not None:
        step = _reboot(node)
        return replace(step, note=f"A reset is known to fail here: {failure.why}. {step.note}")
    if not places or not all(map(_GPU.match, places)):
        return _reboot(node)
    return NextStep((f"gpu-healthcheck reset {node.name}", _again(node)))


def only_of_the_network(findings: Sequence[FindingRow]) -> str | None:
    """Return the first reason if all findings are faults of the network, which no reset of the node ends."""
    reasons = [finding.reason for finding in findings]
    return reasons[0] if reasons and OF_THE_NETWORK.issuperset(reasons) else None


def _reboot(node: NodeState) -> NextStep:
    """Return the step that drains and reboots the node, which its host's systemd may refuse."""
    if platform_of(node) is Platform.HYPERPOD and node.labels.get(_HYPERPOD_HEALTH) != _PENDING_REBOOT:
        step = _request(node, _HYPERPOD_HEALTH, _PENDING_REBOOT, _IF_AUTOMATIC)
        return replace(step, commands=(*step.commands, _again(node)))
    command = _reboot_command(node)
    by_hand = f"run `{command}`" if command else f"use another way to reboot the drained machine{_called(node)}"
    note = f"If its host refuses the reboot, {by_hand}."
    return NextStep((f"gpu-healthcheck reset {node.name} --reboot", _again(node)), note)


def replacement(node: NodeState, findings: Iterable[FindingRow]) -> NextStep:
    """Return the step that replaces the node, in the way of its platform."""
    instance = _instance(node)
    match platform_of(node):
        case Platform.HYPERPOD:
            return _request(node, _HYPERPOD_HEALTH, "UnschedulablePendingReplacement", _IF_AUTOMATIC)
        case Platform.KARPENTER:
            note = "Karpenter drains the node, terminates its instance, and creates another when work needs one."
            return NextStep((f"kubectl delete node {node.name}",), note)
        case Platform.GKE:
            return _request(node, _GKE_FAULT, _gke_fault(findings), _IF_RESERVED)
        case Platform.NODE_GROUP | Platform.EC2 if instance:
            command = (
                f"aws autoscaling terminate-instance-in-auto-scaling-group --instance-id {instance} "
                f"--no-should-decrement-desired-capacity{_region(node)}"
            )
            return NextStep((command,), "Its Auto Scaling group then starts another; without one, start it yourself.")
    return NextStep((f"kubectl delete node {node.name}",), f"First take the machine{_called(node)} out of service.")


_STILL_TAINTED = "It is still tainted. Wait: the agent removes the taint when it has read the result."
_OTHERS_CORDON = "It is cordoned by a person or another program:"
_NETWORK = "Its network is at fault, not its GPUs."
_IF_RESERVED = (
    "GKE then deletes A3 and A4 machines of a reservation and repairs their host; delete any other machine from its "
    "instance group."
)
_IF_AUTOMATIC = "HyperPod acts on the label where the cluster's NodeRecovery is Automatic."


def _gke_fault(findings: Iterable[FindingRow]) -> str:
    """Return the fault reason for GKE, by the worst of the findings."""
    worst = max(findings, key=lambda row: row.severity or Severity.PASS, default=None)
    reason = (worst.reason or "") if worst is not None else ""
    return "XID" if reason.startswith("Xid") else _GKE_WORDS.get(reason, "unspecified")


def _request(node: NodeState, label: str, value: str, note: str) -> NextStep:
    """Return the step that requests an action of the platform by a label; to wait, if the node has the label."""
    if node.labels.get(label) == value:
        return NextStep((), f"Wait: the node has the label {label}={value}, which requests it. {note}")
    return NextStep((f"kubectl label node {node.name} {label}={value} --overwrite",), note)


def _again(node: NodeState) -> str:
    return f"gpu-healthcheck quarantine {node.name}"


def _instance(node: NodeState) -> str:
    """Return the instance id from the providerID; '' if its format is unexpected.

    Labels and the providerID become part of a shell line, so only values of the expected format are used.
    """
    match = _INSTANCE.match(node.provider_id)
    return match[1] if match else ""


def _reboot_command(node: NodeState) -> str:
    instance = _instance(node)
    return f"aws ec2 reboot-instances --instance-ids {instance}{_region(node)}" if instance else ""


def _region(node: NodeState) -> str:
    region = node.labels.get(_REGION, "")
    return f" --region {region}" if _REGION_NAME.match(region) else ""


def _called(node: NodeState) -> str:
    return f" ({node.provider_id})" if node.provider_id else ""
