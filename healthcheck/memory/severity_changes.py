"""Active findings at the severities in force. Pure functions, no I/O."""

from __future__ import annotations

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.severities import at_threshold, is_reached, with_overrides
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory, worst_first
from gpu_healthcheck.healthcheck.model import Finding


def in_force(memory: Memory, policy: Policy) -> Memory:
    """Return the memory with each active finding at the severity of the catalogue and overrides in force.

    A finding that an override sets to PASS stays until its exit, but does not count. Removing the override restores it.
    """
    findings = [_in_force(finding, policy) for finding in memory.active]
    if all(new is finding.finding for new, finding in zip(findings, memory.active, strict=True)):
        return memory
    active = (replace(finding, finding=new) for new, finding in zip(findings, memory.active, strict=True))
    return replace(memory, active=worst_first(active))


def _in_force(active: ActiveFinding, policy: Policy) -> Finding:
    """Return the finding at the severity of one event, or of a threshold that its processes reached."""
    finding, threshold = with_overrides(active.finding, policy), policy.thresholds.get(active.finding.reason)
    if threshold and is_reached(threshold, active.finding, (process.at for process in active.processes)):
        finding = at_threshold(finding, threshold)
    return active.finding if finding == active.finding else finding
