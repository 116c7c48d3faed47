"""Verdict from active findings and failed checks, and the merge of all records on a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory
from gpu_healthcheck.healthcheck.model import Outcome, Severity, Status, Unobserved


class GroupVerdict(Struct, frozen=True):
    """One row of the record's `checks`."""

    check: str
    status: Status
    severity: Severity


class CheckCause(Struct, frozen=True):
    """A check that could not run, and the cause."""

    check: str
    cause: Unobserved


class Verdict(Struct, frozen=True):
    """The agent's judgement of its node, without deep records that it has not adopted."""

    status: Status
    severity: Severity
    active: tuple[ActiveFinding, ...]
    unobserved: tuple[CheckCause, ...]
    groups: tuple[GroupVerdict, ...]
    unobserved_subjects: frozenset[tuple[str, str]] = frozenset()
    """Check and subject of everything that could not be checked; '' means all subjects of the check."""
    settling: bool = False
    """A finding that can flicker is still to be confirmed: the next check cycles may change the verdict."""


def decide(memory: Memory, outcomes: Sequence[Outcome]) -> Verdict:
    """Return the verdict from the active findings and the last outcome of every selected check.

    Without any outcome, the verdict is not a pass.
    """
    severity = worst(active.finding.severity for active in memory.active)
    # A finding that an override sets to PASS is remembered, but is not part of the verdict.
    counted = tuple(finding for finding in memory.active if finding.finding.severity is not Severity.PASS)
    unobserved = tuple(
        CheckCause(outcome.group, cause)
        for outcome in outcomes
        for cause in outcome.unobserved
        if not _is_named_by_another(cause, outcome, outcomes)
    )
    return Verdict(
        status_of(severity, could_not_check=not outcomes or any(outcome.unobserved for outcome in outcomes)),
        severity,
        counted,
        unobserved,
        tuple(_group(name, memory, outcomes) for name in dict.fromkeys(outcome.group for outcome in outcomes)),
        unobserved_subjects=frozenset(
            (outcome.check, cause.subject) for outcome in outcomes for cause in outcome.unobserved
        ),
        settling=bool(memory.suspects),
    )


def status_of(severity: Severity, *, could_not_check: bool) -> Status:
    """Return the status of a severity.

    `unknown` outranks `warn`: `warn` would claim that the rest is healthy. Only a fault outranks `unknown`.
    """
    if severity >= Severity.RESET:
        return Status.FAIL
    if could_not_check:
        return Status.UNKNOWN
    return Status.WARN if severity is Severity.MONITOR else Status.PASS


def worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, default=Severity.PASS)


def merge(own: Verdict, deep_severities: Iterable[Severity]) -> tuple[Status, Severity]:
    """Return status and severity for labels, taint and condition.

    They combine the agent's verdict with the severities of deep records.
    """
    severity = worst((own.severity, *deep_severities))
    return status_of(severity, could_not_check=own.status is Status.UNKNOWN or bool(own.unobserved)), severity


def _group(name: str, memory: Memory, outcomes: Sequence[Outcome]) -> GroupVerdict:
    members = [outcome for outcome in outcomes if outcome.group == name]
    checks = {outcome.check for outcome in members}
    severity = worst(finding.finding.severity for finding in memory.active if finding.check in checks)
    if severity is Severity.PASS and not any(outcome.configured for outcome in members):
        return GroupVerdict(name, Status.NOT_CONFIGURED, severity)
    has_unobserved = any(outcome.unobserved for outcome in members)
    return GroupVerdict(name, status_of(severity, could_not_check=has_unobserved), severity)


def _is_named_by_another(cause: Unobserved, outcome: Outcome, outcomes: Sequence[Outcome]) -> bool:
    """Whether another outcome already names the cause. Several checks of a group read the same source."""
    first = next(other for other in outcomes if other.group == outcome.group and cause in other.unobserved)
    return first is not outcome
