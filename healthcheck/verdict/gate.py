"""Decision of the gate: whether a pod may start on this node, by the verdict that the agent already has. Pure.

The Event GateRefused counts the pods that the gate refused on a node, by the reason of the finding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.model import Severity, counted
from gpu_healthcheck.healthcheck.node.state import TAINT
from gpu_healthcheck.healthcheck.probes.kubelet_pods import Toleration
from gpu_healthcheck.healthcheck.text.moments import timestamp

EVENT = "GateRefused"
_REFUSED = re.compile(r"the gate refused (\d{1,6}) pods? \(([A-Za-z0-9-]{1,64})\)", re.ASCII)


def refused_message(pods: int, reason: str, message: str) -> str:
    """Return the message of the Event. `message`: the answer to the last pod."""
    return f"the gate refused {counted(pods, 'pod')} ({reason}): {message}"


def refusals_in(messages: Iterable[str]) -> dict[str, int]:
    """Return the number of refused pods by reason, from the messages of one node's Events; others do not count."""
    pods: Counter[str] = Counter()
    for message in messages:
        if found := _REFUSED.match(message):
            pods[found[2]] += int(found[1])
    return dict(pods)


_POD_ENDS = (
    "the pod ends, so that its job starts it elsewhere; unless its restartPolicy is Never, delete the pod: it restarts "
    "on this node"
)
_SILENCE = "the pod's GPUs could not be read from the kubelet in time, so all GPUs of the node count"
MOST_FINDINGS = 16
"""Most findings in an answer, the worst first."""


class Decision(StrEnum):
    """Whether the pod starts. `OPEN`: it starts although a finding concerns it."""

    START = "start"
    REFUSE = "refuse"
    OPEN = "open"


class GateFinding(Struct, frozen=True):
    """A finding that concerns the pod. `first_seen` is a timestamp."""

    reason: str
    severity: str
    subject: str
    first_seen: str


class GateAnswer(Struct, frozen=True):
    """Answer to one pod, as JSON. It has verdicts only, no names of pods."""

    schema: int
    node: str
    decision: str
    message: str
    scope: str
    """`pod`: the pod's GPUs and the shared parts of the node. `node`: all of the node, because the pod's GPUs are
    unknown."""
    reason: str = ""
    """Reason of the worst finding, '' without one."""
    findings: tuple[GateFinding, ...] = ()
    check_age_seconds: float | None = None
    """Age of the last check cycle. The kernel log is followed live."""
    kubelet_answered: bool = True
    """False: the pod's GPUs are unknown because the kubelet, or the container runtime, did not answer in time."""
    taint_delayed: bool = False
    """The pod will be refused once the API server has taken the node's taint: ask again."""


class GateState(Struct, frozen=True):
    """State of the node and of the pod at one request."""

    node: str
    active: Sequence[ActiveFinding]
    severity: Severity
    """GATE_SEVERITY."""
    check_age_seconds: float | None
    gpus: frozenset[str] | None = None
    """Subjects of the pod's GPUs; None: unknown."""
    kubelet_answered: bool = True
    is_tainted: bool = False
    are_gpus_tainted: bool = False
    """DeviceTaintRules keep new pods off faulty GPUs, in place of the Node's taint."""
    tolerates: bool | None = None
    """Whether the pod tolerates our taint; None: unknown."""
    is_taint_delayed: bool = False
    """Whether a required taint waits for the API server."""


def decide_gate(state: GateState) -> GateAnswer:
    """Return the answer to a pod: refuse only if the replacement of the pod cannot come back to this node."""
    found = concerned(state)
    if found and (why_open := _why_open(state, found)):
        return _answer(state, found, Decision.OPEN, f"the pod starts, because {why_open}")
    return _answer(state, found, Decision.REFUSE, _POD_ENDS)


def decide_node(state: GateState) -> GateAnswer:
    """Return the answer to a scheduler that drains a node by itself, such as Slurm: a taint does not matter."""
    return _answer(state, concerned(state), Decision.REFUSE, "no job starts here")


def _answer(state: GateState, found: Sequence[ActiveFinding], decision: Decision, end: str) -> GateAnswer:
    """Return the answer with this decision; without findings the pod starts."""
    scope = "node" if state.gpus is None else "pod"
    age = state.check_age_seconds
    checked = "no check cycle has ended yet" if age is None else f"checked {age:.0f} s ago"
    kubelet_silence = "" if state.kubelet_answered else f"; {_SILENCE}"
    if not found:
        subject = "the node" if state.gpus is None else f"the pod's {len(state.gpus)} GPUs and the node's shared parts"
        message = f"{state.node}: no finding of {state.severity.name} or worse on {subject}{kubelet_silence}; {checked}"
        return GateAnswer(
            1,
            state.node,
            Decision.START,
            message,
            scope,
            check_age_seconds=age,
            kubelet_answered=state.kubelet_answered,
        )
    worst = found[0].finding
    index = worst.about.get("index", "")
    name = f"GPU {index} ({worst.subject})" if index else worst.subject
    fault = f"{state.node}: {worst.reason} ({worst.severity.name}) on {name} since {_seconds(found[0].first_seen)}"
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return GateAnswer(
        1,
        state.node,
        decision,
        f"{fault}{more}{kubelet_silence}; {end}",
        scope,
        worst.reason,
        tuple(
            GateFinding(
                active.finding.reason, active.finding.severity.name, active.finding.subject, _seconds(active.first_seen)
            )
            for active in found[:MOST_FINDINGS]
        ),
        age,
        state.kubelet_answered,
        taint_delayed=decision == Decision.OPEN and _waits_for_taint(state),
    )


def concerned(state: GateState) -> list[ActiveFinding]:
    """Return the findings of GATE_SEVERITY or worse on the pod's GPUs or on shared parts, the worst first."""
    found = [
        active
        for active in state.active
        if active.finding.severity >= state.severity and is_on(active.finding.subject, state.gpus)
    ]
    return sorted(found, key=lambda active: (-active.finding.severity, active.first_seen))


def tolerates_taint(tolerations: Iterable[Toleration]) -> bool:
    """Whether one of a pod's tolerations matches our taint, by the scheduler's rules."""
    return any(
        toleration.effect in ("", TAINT["effect"])
        and (
            (toleration.operator == "Exists" and toleration.key in ("", TAINT["key"]))
            or (
                toleration.operator in ("", "Equal")
                and toleration.key == TAINT["key"]
                and toleration.value == TAINT["value"]
            )
        )
        for toleration in tolerations
    )


def is_on(subject: str, gpus: frozenset[str] | None) -> bool:
    """Whether a finding on this subject concerns the pod.

    A MIG instance's subject begins with that of its GPU. Two instances of one GPU do not concern each other.
    """
    if gpus is None or not subject.startswith("gpu/"):
        return True
    return any(f"{subject}/".startswith(f"{gpu}/") or gpu.startswith(f"{subject}/") for gpu in gpus)


def _waits_for_taint(state: GateState) -> bool:
    """Whether the taint is not set yet that would keep the pod's replacement away."""
    return state.is_taint_delayed and state.tolerates is False


def _why_open(state: GateState, found: Sequence[ActiveFinding]) -> str:
    """Return the reason why the pod starts in spite of the findings; '' to refuse it."""
    barred = state.is_tainted or (
        state.are_gpus_tainted and all(active.finding.subject.startswith("gpu/") for active in found)
    )
    if not barred and _waits_for_taint(state):
        return "the node's taint still waits for the API server"
    if not barred:
        return "the node has no taint (see TaintWithheld, ENABLE_TAINT), so the scheduler would choose it again"
    if state.tolerates is None:
        return "its tolerations are unknown: set --tolerates"
    if state.tolerates:
        return "it tolerates the taint of gpu-healthcheck, so the scheduler could choose this node again"
    return ""


def _seconds(moment: datetime) -> str:
    return timestamp(moment.replace(microsecond=0))
