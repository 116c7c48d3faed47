"""Faults of a fleet as a whole, from the findings in its Nodes' records. Pure.

The group of nodes in which the faults concentrate, one command line for all faulty nodes, and the slow GPUs by rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpu_healthcheck.cli.fleet import Fleet, FleetFinding, FleetRow
from gpu_healthcheck.cli.node_groups import Concentration, concentration, dividing
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.text.printable import printable

_LONGEST = 120
_MOST_NODES = 20
"""Most nodes in one command line."""
_WITHOUT_VERDICT = ("", Status.UNKNOWN)
UNHEARD = "nodes without a current verdict"
_NODE = '"$node"'
_MANY = f"gpu-healthcheck quarantine {_NODE}"
"""The command that accepts several nodes."""


class FaultPattern(Struct, frozen=True):
    """Faulty nodes that have a group in common. `reason` is '' if they have several."""

    found: Concentration
    reason: str
    command: str
    """Command line for `nodes`; '' if they are too many, or need different commands."""
    nodes: frozenset[str]

    @property
    def where(self) -> str:
        """Return the first half of a sentence; `size` is the other one."""
        return group_sentence(self.found, "faulty nodes")[0]

    @property
    def size(self) -> str:
        size = group_sentence(self.found, "faulty nodes")[1]
        return f"{size} All {self.found.inside} have one reason: {self.reason}." if self.reason else size


def group_sentence(found: Concentration, noun: str) -> tuple[str, str]:
    """Return the group in which the nodes concentrate, and its size, as the two halves of a sentence."""
    where = f"{found.inside} of {found.among} {noun} are in {found.grouping} {printable(found.group, _LONGEST)}"
    return where, f", which has {found.size} of the {found.total} nodes."


def fault_pattern(rows: Sequence[FleetRow]) -> FaultPattern | None:
    """Return the pattern of the faulty nodes; None if chance explains where they are."""
    faulty = [place for place, row in enumerate(rows) if row.status == Status.FAIL]
    groups = [row.groups for row in rows]
    found = concentration(groups, dividing(groups), faulty) if len(faulty) > 1 else None
    if found is None:
        return None
    inside = [rows[place] for place in faulty if groups[place].get(found.grouping) == found.group]
    reasons = {row.reason for row in inside}
    reason = printable(reasons.pop(), _LONGEST) if len(reasons) == 1 else ""
    # A node that a run uses has no step.
    todo = {row.node: command for row in inside if (command := _repair(row))}
    if len(set(todo.values())) != 1 or len(todo) > _MOST_NODES:
        return FaultPattern(found, reason, "", frozenset())
    command, names = next(iter(todo.values())), " ".join(todo)
    line = command.replace(_NODE, names) if command == _MANY else f"for node in {names}; do {command} || break; done"
    return FaultPattern(found, reason, line, frozenset(todo))


def unheard_group(rows: Sequence[FleetRow]) -> Concentration | None:
    """Return the group in which the nodes without a current verdict concentrate, as after a loss of power."""
    groups = [row.groups for row in rows]
    unheard = [place for place, row in enumerate(rows) if row.silent or row.status in _WITHOUT_VERDICT]
    return concentration(groups, dividing(groups), unheard) if len(unheard) > 1 else None


def _repair(row: FleetRow) -> str:
    """Return the first command after a cordon, with a variable instead of the node's name."""
    words = next(iter(row.next_step.commands[row.accepts_work :]), "").split(" ")
    return " ".join(_NODE if word == row.node else word for word in words) if row.node in words else ""


SLOW = frozenset(
    {
        "ClocksHardwareSlowdown",
        "ClocksThermalSlowdown",
        "EccCorrectedStorm",
        "GpuComputeSlow",
        "GpuCopySlow",
        "GpuSlowerThanSiblings",
        "PowerBrake",
        "ThermalThrottling",
    }
)
"""Reasons for which a GPU works, but slower than others."""
_LOSS = re.compile(r"\b(100|\d{1,2})(?:\.\d{1,3})? ?%", re.ASCII)
"""First percentage in the detail of such a finding: its worst figure comes first."""


class SlowGpu(Struct, frozen=True):
    """One GPU with findings that it is slow."""

    node: str
    instance_type: str
    gpu: str
    """Index of the GPU; its PCI address if the index is unknown."""
    subject: str
    about: Mapping[str, str]
    loss_percent: int | None
    """Largest part of its speed, or of its time, that the GPU loses at least; None: unknown."""
    severity: str
    reasons: tuple[str, ...]
    """Largest loss first."""
    since: str
    detail: str
    """Figures of the first reason."""


def loss_text(gpu: SlowGpu) -> str:
    """Return the loss for a table: a slowdown bit and corrected errors have no figure."""
    return "unknown" if gpu.loss_percent is None else f"{gpu.loss_percent} %"


class NotCompared(Struct, frozen=True):
    """A node whose GPUs' speed is unknown, and why."""

    node: str
    reason: str


class SlowGpus(Struct, frozen=True):
    """Slow GPUs, slowest first, and the nodes that could not be compared."""

    gpus: list[SlowGpu]
    known: int
    """Number of nodes with a current record. Their GPUs are compared under load only."""
    not_compared: list[NotCompared]
    passed_over: list[str]
    """Unreadable objects, each with the reason."""


def rank(fleet: Fleet) -> SlowGpus:
    """Return the slow GPUs of the fleet. Known losses come first, then the worse severity."""
    gpus = [gpu for row in fleet.nodes for gpu in _slow(row)]
    unknown = sorted(
        (NotCompared(row.node, row.not_compared) for row in fleet.nodes if row.not_compared),
        key=lambda entry: entry.node,
    )
    return SlowGpus(sorted(gpus, key=_slowest_first), len(fleet.nodes) - len(unknown), unknown, fleet.passed_over)


def _slow(row: FleetRow) -> list[SlowGpu]:
    found: dict[str, list[FleetFinding]] = {}
    for finding in row.findings:
        if finding.reason in SLOW:
            found.setdefault(finding.subject, []).append(finding)
    return [_gpu(row, sorted(findings, key=lambda finding: _by_loss(_loss(finding)))) for findings in found.values()]


def _gpu(row: FleetRow, findings: list[FleetFinding]) -> SlowGpu:
    first = findings[0]
    return SlowGpu(
        node=row.node,
        instance_type=row.instance_type,
        gpu=first.about.get("index") or first.subject.removeprefix("gpu/"),
        subject=first.subject,
        about=first.about,
        loss_percent=_loss(first),
        severity=max((finding.severity for finding in findings), key=_tier),
        reasons=tuple(dict.fromkeys(finding.reason for finding in findings)),
        since=min((finding.since for finding in findings if finding.since), default=""),
        detail=first.detail,
    )


def _loss(finding: FleetFinding) -> int | None:
    found = _LOSS.search(finding.detail)
    return int(found[1]) if found else None


def _by_loss(loss: int | None) -> int:
    """Return the place of a loss: largest first, an unknown one last."""
    return 1 if loss is None else -loss


def _tier(severity: str) -> Severity:
    return Severity.__members__.get(severity, Severity.PASS)


def _slowest_first(gpu: SlowGpu) -> tuple[int, int, str, str]:
    return _by_loss(gpu.loss_percent), -_tier(gpu.severity), gpu.node, gpu.subject
