"""One check cycle: it reads each probe once, then runs all checks."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.severities import is_ignored, with_overrides
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.model import (
    NOT_LOOKED,
    PROBE_FAILED,
    Check,
    Evidence,
    Finding,
    Host,
    Judgement,
    KernelEvent,
    NotConfigured,
    Observation,
    Outcome,
    Passed,
    Probe,
    ProbeError,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.text.printable import printable

_OURS = "Report it to the project with the message: it is a bug of this program. All other results remain valid."
CHECK_FAILED = UnobservedCause("CheckFailed", "A check failed with an internal error on unexpected input.", _OURS)
RECORD_SET_ASIDE = UnobservedCause(
    "KernelLogRecordSetAside", "A kernel log record could not be judged and was skipped.", _OURS
)
NOT_LOOKED_YET = UnobservedCause(
    "NotLookedYet", "The agent's first check cycle has not ended yet.", "Wait: the first check cycle takes seconds."
)
CAUSES = (NOT_LOOKED_YET, NOT_LOOKED, PROBE_FAILED, CHECK_FAILED, RECORD_SET_ASIDE)
"""Causes that apply to every check, whatever it reads."""
_LONGEST_FAILURE = 200


def read_probes(
    host: Host, checks: Iterable[Check], before: Evidence | None = None, also: Iterable[Probe[Any]] = ()
) -> Evidence:
    """Read the probes that the checks need, and those in `also`.

    A probe that fails yields its cause, and the others are still read.
    """
    at = clock.now().monotonic
    host = replace(host, read_once={})
    probes = dict.fromkeys((*(probe for check in checks for probe in check.needs), *also))
    facts: dict[Probe[Any], Any] = {}
    seconds: dict[str, float] = {}
    for probe in probes:
        began = time.monotonic()
        facts[probe] = _read(probe, host)
        seconds[probe.name] = time.monotonic() - began
    return Evidence(facts, at, before, seconds)


def _read(probe: Probe[Any], host: Host) -> Any:
    try:
        return probe.read(host)
    except ProbeError as error:
        return Unobserved(error.cause, f"{probe.name}: {error}")
    except Exception as error:  # noqa: BLE001 - boundary of the probes: a bug in a probe must not end the agent
        return Unobserved(PROBE_FAILED, f"{probe.name}: {type(error).__name__}: {error}")


def judge(checks: Iterable[Check], evidence: Evidence, expected: Expectation) -> tuple[Outcome, ...]:
    """Return the outcome of each check for the evidence, with the cluster's severities.

    Each outcome has the time that its check took.
    """
    return tuple(_judge(check, evidence, expected) for check in checks)


def _judge(check: Check, evidence: Evidence, expected: Expectation) -> Outcome:
    began = time.monotonic()
    unread = tuple(cause for probe in check.needs if (cause := evidence.unread(probe)))
    if unread:
        return Outcome(check.name, check.group, unobserved=unread, seconds=time.monotonic() - began)
    by_type: dict[type, list[Any]] = {}
    observations: list[Observation] = []
    for judgement in _judgements(check, evidence, expected):
        by_type.setdefault(type(judgement), []).append(judgement)
        if isinstance(judgement, Observation):
            observations.append(judgement)
        elif isinstance(judgement, NotConfigured):  # of a check that does not apply to the node, a user sees the reason
            observations.append(Observation(judgement.detail))
    return Outcome(
        check.name,
        check.group,
        # If a cluster sets a reason to PASS, there is no finding.
        findings=tuple(finding for finding in by_type.get(Finding, ()) if finding.severity is not Severity.PASS),
        events=tuple(by_type.get(KernelEvent, ())),
        unobserved=tuple(by_type.get(Unobserved, ())),
        configured=NotConfigured not in by_type,
        seen=tuple(observations),
        too_early=tuple(by_type.get(TooEarly, ())),
        passed=tuple(by_type.get(Passed, ())),
        seconds=time.monotonic() - began,
    )


def _judgements(check: Check, evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    """Yield the judgements of a check, with the cluster's severities.

    If the check fails, the judgements that it gave before remain valid.
    """
    try:
        for judgement in check.judge(evidence, expected):
            if isinstance(judgement, Finding):
                yield with_overrides(judgement, expected.policy)
            else:
                yield with_policy(judgement, expected.policy) if isinstance(judgement, KernelEvent) else judgement
    except Exception as error:  # noqa: BLE001 - boundary of the judges: a failed judge must not stop the others
        yield Unobserved(CHECK_FAILED, f"{check.name}: {failure(error)}")


def failure(error: Exception) -> str:
    """Return the error and its location as one short, printable line."""
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in last)
    return printable(f"{type(error).__name__}: {error}", _LONGEST_FAILURE) + where


def with_policy(event: KernelEvent, policy: Policy) -> KernelEvent:
    """Return the event with this cluster's severity and threshold, and without the finding if it is no fault here."""
    if event.finding is None:
        return event
    finding, threshold = with_overrides(event.finding, policy), policy.thresholds.get(event.reason)
    return replace(event, finding=None if is_ignored(finding) else finding, threshold=threshold)
