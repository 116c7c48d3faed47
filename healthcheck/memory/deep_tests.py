"""Application of deep test results to the memory.

A fault that a deep test detected stays recorded until a documented exit ends it, also across restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.exit_table import REBOOT
from gpu_healthcheck.healthcheck.memory.exits import ended_by_reset, escalated, is_acknowledged, retested
from gpu_healthcheck.healthcheck.memory.findings import (
    ActiveFinding,
    Key,
    Memory,
    differs,
    gpu_address,
    located,
    worst_first,
)
from gpu_healthcheck.healthcheck.memory.reason_names import DEEP_CHECKS, LEVEL_2, SLOW
from gpu_healthcheck.healthcheck.model import Finding, Nature, Now, Outcome, Passed


class DeepFinding(Struct, frozen=True):
    """One fault that a deep test detected. The test may name its GPU by something other than its address."""

    finding: Finding
    check: str
    """Check that defines its exits."""
    seen: datetime | None
    """None: the time is unknown, so no release can identify the fault by its time."""
    named: Key
    """Reason and subject as shown to people; a release may use them."""
    boot_id: str = ""
    """'' means the current boot."""
    seq: int = -1


class DeepResult(Struct, frozen=True):
    """Result of one deep test, independent of its runner and its record. `at` is its end."""

    began: datetime
    at: datetime
    found: tuple[DeepFinding, ...] = ()
    passed: tuple[Passed, ...] = ()
    all_passed: bool = False
    """Whether every test ran on every GPU and passed."""


def deep_result(outcomes: Iterable[Outcome], began: datetime, at: datetime) -> DeepResult:
    """Build the result of a deep test from its outcomes."""
    outcomes = tuple(outcomes)
    found = tuple(
        DeepFinding(finding, outcome.check, at, (finding.reason, finding.subject))
        for outcome in outcomes
        for finding in outcome.findings
    )
    return DeepResult(began, at, found, tuple(result for outcome in outcomes for result in outcome.passed))


def after_deep_test(memory: Memory, result: DeepResult, now: Now, escalate_after: int = 0) -> Memory:
    """Return the memory with the findings of the test, without level 2 findings whose tests now passed.

    A test that could not run changes nothing.
    """
    memory = retested(memory, _passed(memory, result), min(result.began, now.wall))
    active = {finding.key: finding for finding in memory.active}
    for deep_finding in result.found:
        if _was_released(memory, deep_finding):
            continue
        finding = _as_active(memory, deep_finding, min(deep_finding.seen or result.at, now.wall), now, escalate_after)
        if memory.boot_id not in ("", finding.boot_id) and REBOOT.is_open_to(finding):
            memory = ended_by_reset(memory, finding, now.wall)  # a reboot since the test has ended the finding
        else:
            active[finding.key] = _found_again(active.get(finding.key), finding)
    kept = (finding for finding in active.values() if not _is_released(memory, finding))
    return replace(memory, active=worst_first(kept))


def _passed(memory: Memory, result: DeepResult) -> Iterator[Passed]:
    """Yield the tests that passed, with GPU addresses as subjects."""
    for passed_result in result.passed:
        yield replace(passed_result, subject=located(memory.gpus, passed_result.subject))
    if result.all_passed:
        reasons = {finding.finding.reason for finding in memory.active}
        yield from (Passed(reason) for reason in reasons - SLOW)  # a speed passes only by its own measurement


def _as_active(memory: Memory, found: DeepFinding, seen: datetime, now: Now, escalate_after: int) -> ActiveFinding:
    """Return the fault as an event of this boot, or of the earlier boot that it names."""
    about = found.finding.about
    subject = located(memory.gpus, found.finding.subject, about)
    gpu = memory.gpus.get(gpu_address(subject), {})
    # A finding on a GPU that has been removed keeps that GPU's identity: the next read of the new GPU ends the finding.
    finding = replace(found.finding, subject=subject, about=about if differs(about, gpu) else {**about, **gpu})
    return ActiveFinding(
        escalated(memory, finding, now, escalate_after),
        found.check,
        Nature.EVENT,
        seen,
        seen,
        1,
        found.boot_id or memory.boot_id,
        max(now.monotonic - (now.wall - seen).total_seconds(), 0.0),
    )


def _found_again(known: ActiveFinding | None, finding: ActiveFinding) -> ActiveFinding:
    """Merge a new finding with the known finding of the same key, which has not ended yet.

    The worse of the two findings and the later exit apply.
    """
    if known is None:
        return finding
    if known.check not in DEEP_CHECKS or known.last_seen > finding.last_seen:
        return known
    worse = known.finding if known.finding.severity > finding.finding.severity else finding.finding
    check = known.check if finding.check == LEVEL_2 else finding.check
    return replace(finding, finding=worse, check=check, first_seen=known.first_seen, count=known.count + 1)


def _was_released(memory: Memory, found: DeepFinding) -> bool:
    """Whether the fault was released before it entered the memory, by the reason and subject in the test's record."""
    return found.seen is not None and is_acknowledged(memory, found.named, found.boot_id, found.seq, found.seen)


def _is_released(memory: Memory, finding: ActiveFinding) -> bool:
    return finding.check in DEEP_CHECKS and is_acknowledged(
        memory, finding.key, finding.boot_id, finding.seq, finding.last_seen
    )
