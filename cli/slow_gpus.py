"""Ranking of the slow GPUs of the fleet, from the findings in its Nodes' records. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from cli.fleet import Fleet, FleetFinding, FleetRow
from healthcheck.model import Severity

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
