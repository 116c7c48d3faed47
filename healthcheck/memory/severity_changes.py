"""Active findings at the severities in force. Pure functions, no I/O."""

from __future__ import annotations

from msgspec.structs import replace

from healthcheck.catalog.policy import Policy
from healthcheck.catalog.severities import ruled
from healthcheck.memory.findings import Memory, worst_first


def in_force(memory: Memory, policy: Policy) -> Memory:
    """Return the memory with each active finding at the severity of the catalogue and overrides in force.

    A finding that an override sets to PASS stays until its exit, but does not count. Removing the override restores it.
    """
    findings = [ruled(finding.finding, policy) for finding in memory.standing]
    if all(new is finding.finding for new, finding in zip(findings, memory.standing, strict=True)):
        return memory
    active = (replace(finding, finding=new) for new, finding in zip(findings, memory.standing, strict=True))
    return replace(memory, standing=worst_first(active))
