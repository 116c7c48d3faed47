"""Moments, findings and nodes that tests share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_healthcheck.healthcheck.checks.examine import with_policy
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.xid import read_xid
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory
from gpu_healthcheck.healthcheck.model import (
    PREFIX,
    Finding,
    KernelEvent,
    Nature,
    Now,
    Outcome,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from gpu_healthcheck.healthcheck.verdict.budget import HELD, SlotGrant
from gpu_healthcheck.healthcheck.verdict.node_patch import NodePatch, plan
from gpu_healthcheck.healthcheck.verdict.record import Identity
from gpu_healthcheck.healthcheck.verdict.taint_decision import AgentView, Rules, decide_taint
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict

WALL = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
MONOTONIC = 50_000.0
NOW = Now(WALL, MONOTONIC)
GPU = "gpu/0000:53:00.0"
MACHINE = "ec2d6ab0-0000-4000-8000-000000000001"
BOOT = "0b0a6c5e-0000-4000-8000-00000000000a"
NODE = "ip-10-0-0-1.ec2.internal"
IDENTITY = Identity(NODE, "p5.48xlarge", "0d4f5a5e-uid")
UNOBSERVED = Unobserved(
    UnobservedCause.named("DriverNotLoaded"), "NVML: Driver Not Loaded (/usr/lib64/libnvidia-ml.so.1)"
)
LABELS = {f"{PREFIX}/{key}": key for key in ("status", "severity", "last-check")}


def later(seconds: float, *, wall_jumps_by: float = 0.0, since: Now = NOW) -> Now:
    """So many seconds later on both clocks; the wall clock may have been set in between."""
    return Now(since.wall + timedelta(seconds=seconds + wall_jumps_by), since.monotonic + seconds)


def fault(reason: str = "Xid79", severity: Severity = Severity.REBOOT, subject: str = GPU, **more: Any) -> Finding:
    more.setdefault("detail", "GPU has fallen off the bus.")
    return Finding(reason, severity, subject, **more)


def finding_in(record: Record, expected: Expectation) -> Finding | None:
    """Return the meaning of a single kernel log record."""
    read = read_xid(record, expected)
    return with_policy(read, expected.policy).finding if read else None


def kernel_event(finding: Finding, **more: Any) -> KernelEvent:
    """The log record that gave this finding."""
    at = MONOTONIC if finding.at is None else finding.at
    return KernelEvent(finding.reason, finding.subject, finding.seq, at, finding, **more)


def active_finding(
    finding: Finding,
    nature: Nature = Nature.EVENT,
    *,
    check: str = "xid",
    at: float = MONOTONIC,
    boot_id: str = BOOT,
    seq: int = -1,
) -> ActiveFinding:
    return ActiveFinding(finding, check, nature, WALL, WALL, 1, boot_id, at, seq)


def memory_with(*active: ActiveFinding, **more: Any) -> Memory:
    return Memory(machine=MACHINE, boot_id=BOOT, active=active, **more)


def outcome_with(
    *findings: Finding, unobserved: Unobserved | None = None, check: str = "gpu-count", **more: Any
) -> Outcome:
    more.setdefault("group", "0-nvidia-smi")
    return Outcome(check, findings=findings, unobserved=(unobserved,) if unobserved else (), **more)


def node(**more: Any) -> NodeState:
    return NodeState(NODE, uid="0d4f5a5e-uid", resource_version="41", **more)


def memory_after_cycle(*findings: Finding) -> Memory:
    """The memory after one check cycle with these findings."""
    return after_cycle(memory_with(), JudgedCycle([outcome_with(*findings)]), NOW)


def planned(
    verdict: Verdict,
    memory: Memory,
    state: NodeState,
    rules: Rules,
    now: datetime = WALL,
    grant: SlotGrant = HELD,
    work: str = "",
    *,
    awaits_reboot: bool = False,
) -> NodePatch:
    """The writes of an agent with this verdict and memory."""
    view = AgentView(verdict, memory, IDENTITY, rules, now, work, awaits_reboot)
    return plan(view, decide_taint(view, state, by_devices=grant.by_devices), state, grant)


def wants_taint(verdict: Verdict, state: NodeState, rules: Rules, memory: Memory, *, by_devices: bool = False) -> bool:
    view = AgentView(verdict, memory, IDENTITY, rules, WALL)
    return decide_taint(view, state, by_devices=by_devices).wants_taint
