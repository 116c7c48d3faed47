"""Ranking of the slow GPUs of the fleet, from the findings in its Nodes' records. Pure."""

from __future__ import annotations

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


class SlowGpu(Struct, frozen=True):
    """One GPU with findings that it is slow."""

    node: str
    instance_type: str
    gpu: str
    """Index of the GPU; its PCI address if the index is unknown."""
    subject: str
    about: Mapping[str, str]
    loss_percent: int | None
    """Largest part of its speed, or of its time, that the GPU loses; None: not measured."""
    severity: str
    reasons: tuple[str, ...]
    """Largest loss first."""
    since: str
    detail: str
    """Figures of the first reason."""


class NotCompared(Struct, frozen=True):
    """A node whose GPUs' speed is unknown, and why."""

    node: str
    reason: str


class SlowGpus(Struct, frozen=True):
    """Slow GPUs, slowest first, and the nodes that could not be compared."""

    gpus: list[SlowGpu]
    compared: int
    """Number of nodes whose GPUs are compared."""
    not_compared: list[NotCompared]
    passed_over: list[str]
    """Unreadable objects, each with the reason."""


def rank(fleet: Fleet) -> SlowGpus:
    """Return the slow GPUs of the fleet. Known losses come first, then the worse severity."""
    gpus = [gpu for row in fleet.nodes for gpu in _slow(row)]
    unknown = sorted((NotCompared(row.node, row.not_compared) for row in fleet.nodes if row.not_compared), key=_name)
    return SlowGpus(sorted(gpus, key=_slowest_first), len(fleet.nodes) - len(unknown), unknown, fleet.passed_over)


def _slow(row: FleetRow) -> list[SlowGpu]:
    found: dict[str, list[FleetFinding]] = {}
    for finding in row.findings:
        if finding.reason in SLOW:
            found.setdefault(finding.subject, []).append(finding)
    return [_gpu(row, sorted(findings, key=lambda finding: -_loss(finding))) for findings in found.values()]


def _gpu(row: FleetRow, findings: list[FleetFinding]) -> SlowGpu:
    first = findings[0]
    return SlowGpu(
        node=row.node,
        instance_type=row.instance_type,
        gpu=first.about.get("index") or first.subject.removeprefix("gpu/"),
        subject=first.subject,
        about=first.about,
        loss_percent=first.loss_percent,
        severity=max((finding.severity for finding in findings), key=_tier),
        reasons=tuple(dict.fromkeys(finding.reason for finding in findings)),
        since=min((finding.since for finding in findings if finding.since), default=""),
        detail=first.detail,
    )


def _loss(entry: FleetFinding | SlowGpu) -> int:
    return -1 if entry.loss_percent is None else entry.loss_percent


def _tier(severity: str) -> Severity:
    return Severity.__members__.get(severity, Severity.PASS)


def _name(entry: NotCompared) -> str:
    return entry.node


def _slowest_first(gpu: SlowGpu) -> tuple[int, int, str, str]:
    return -_loss(gpu), -_tier(gpu.severity), gpu.node, gpu.subject
