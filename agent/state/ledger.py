"""Memory of the agent: each change is on the disk before any other part uses it.

Exceptions of checks, which are defects of this program, are counted and logged; each distinct one is logged once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog
from msgspec.structs import replace

from gpu_healthcheck.agent.state.agent_state import AgentState, Judgement
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks.examine import CHECK_FAILED, judge
from gpu_healthcheck.healthcheck.deep.deep_record import DeepRecord, PassedRun, after_deep_record
from gpu_healthcheck.healthcheck.memory import exits
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle, without_checks
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.severity_changes import in_force
from gpu_healthcheck.healthcheck.model import Check, Evidence, Nature, Now, Outcome, Severity, Unobserved
from gpu_healthcheck.healthcheck.probes.kernel_log import RING
from gpu_healthcheck.healthcheck.settings.reading import Settings

log = structlog.get_logger()

_MOST_LOGGED = 256
"""Most distinct failures that are logged: a failure with a new text in each cycle must not fill the log."""


class Failures:
    """Failures of checks that this program caused, counted and logged."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._logged: set[tuple[str, str]] = set()

    def account(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            for unobserved in outcome.unobserved:
                if unobserved.cause == CHECK_FAILED:
                    self._telemetry.check_failures.labels(outcome.check).inc()
                    self._log(outcome.check, unobserved.detail)

    def _log(self, check: str, detail: str) -> None:
        if (check, detail) in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add((check, detail))
        log.error("a check failed; it counts as unobserved", check=check, failure=detail)


_MOST_UNSAVED_SECONDS = 1.0


class Ledger:
    """Memory of the agent. Each change is written to the disk first, then to the state. Thread-safe.

    A lock orders the changes, including disk writes. Readers do not wait for it: they use the state.
    """

    def __init__(self, state: AgentState, file: MemoryFile | None, telemetry: Telemetry) -> None:
        self._state = state
        self._file = file
        self._telemetry = telemetry
        self._failures = Failures(telemetry)
        self._changing = threading.Lock()
        self._file_failed = False
        self._unsaved_since: float | None = None
        self._log_was_read = False

    @property
    def unsaved(self) -> bool:
        """Whether the memory has counts that its file lacks."""
        return self._unsaved_since is not None

    @property
    def folder(self) -> Path | None:
        """Folder of the memory file; None if this agent may not write."""
        return self._file.directory if self._file is not None else None

    def configure(self, settings: Settings) -> None:
        """Set the settings of the cluster, and drop the outcomes of checks that the node no longer runs.

        A check that now follows the log has a clean outcome until the next record.
        """
        with self._changing:
            values = settings.values.for_labels(self._state.known.labels)
            names = [check.name for check in values.checks]
            memory = in_force(without_checks(self._state.memory, names), values.policy)
            before = self._state.judgement.outcomes if self._log_was_read else names
            new = [check for check in values.checks if check.nature is Nature.EVENT and check.name not in before]
            outcomes = judge(new, Evidence({RING: ()}), self._state.expectation()) if new else ()
            self._state.configure(settings, memory, outcomes)

    def kernel_log_judged(self, outcomes: Iterable[Outcome], cursor: int | None) -> None:
        """Add the outcomes of the event checks, up to and including the record `cursor`.

        Findings are on the disk before any other part uses them. Mere counts may wait, because a flood would rewrite
        the same file continuously. An agent that starts from an older file has its older cursor and counts the records
        again.
        """
        outcomes = list(outcomes)
        self._failures.account(outcomes)
        has_events = any(outcome.events for outcome in outcomes)
        without_lines = [replace(outcome, events=()) for outcome in outcomes]
        with self._changing:
            before, now = self._state.memory, self._state.now()
            after = after_kernel_log(before, outcomes, now, self._rules.escalate_after) if has_events else before
            after = replace(after, cursor=before.cursor if cursor is None else cursor)
            judgement = self._state.judgement.after(after, without_lines)
            if has_events and self._must_be_written(before, after, now):
                self._write(judgement)
            self._state.remember(judgement)
        _log_found(self._wake_for_new(before, after))

    def log_was_read(self) -> None:
        """Note that the log was read to its end: a cursor beyond that end is invalid."""
        with self._changing:
            if not self._log_was_read:
                self._log_was_read = True
                self._state.remember(self._state.judgement.after(exits.within_log(self._state.memory)))

    def save(self) -> None:
        """Write the counts that the file lacks."""
        with self._changing:
            if self.unsaved:
                self._write(self._state.judgement)

    def mark_unobserved(self, check: Check, cause: Unobserved) -> None:
        """Record that a check lost the source that it follows."""
        with self._changing:
            outcome = Outcome(check.name, check.group, unobserved=(cause,))
            self._state.remember(self._state.judgement.after(self._state.memory, [outcome]))

    def cycle_ended(self, cycle: JudgedCycle) -> Memory:
        """Add the outcomes of a cycle, and return the memory after it."""
        self._failures.account(cycle.outcomes)
        with self._changing:
            before = self._state.memory
            after = after_cycle(before, cycle, self._state.now(), self._rules)
            self._keep(after, cycle.outcomes)
        self._wake_for_new(before, after)
        return after

    def adopt(self, recorded: Memory) -> None:
        """Add the findings that only the Node still had, after the memory file was lost."""
        with self._changing:
            memory, now = self._state.memory, self._state.now()
            kept = exits.begin(recorded, memory.machine, memory.boot_id, now)
            self._keep(self._bounded(exits.adopted(memory, kept, now)))

    def release(self, release: Release) -> None:
        """Store a person's release, on the disk before the Node confirms it."""
        with self._changing:
            after = exits.after_release(self._state.memory, release, self._state.now())
            if after is not self._state.memory:
                self._keep(self._bounded(after))

    def _bounded(self, memory: Memory) -> Memory:
        """Return the memory without entries beyond the end of the log; unchanged until the log was read to its end."""
        return exits.within_log(memory) if self._log_was_read else memory

    def take_over(self, records: Iterable[DeepRecord]) -> None:
        """Adopt the findings of deep runs, on the disk before the Node is written.

        This waits until every check has run, because the GPUs are known only then. Until then, the records on the Node
        count on their own. Void records are removed at once, because our own taint may be set by then.
        """
        with self._changing:
            before = after = self._state.memory
            for record in (
                records if self._state.judgement.is_complete else [record for record in records if record.void]
            ):
                after = after_deep_record(after, record, self._state.now(), self._rules.escalate_after)
            if after != before:
                self._keep(after)
        _log_found(_new(before, after))

    def quarantine_passed(self, run: PassedRun) -> None:
        with self._changing:
            after = exits.quarantined(self._state.memory, run.name, run.began, self._state.now())
            if after != self._state.memory:
                self._keep(after)

    @property
    def _rules(self) -> MemoryRules:
        values = self._state.settings.values
        return MemoryRules(values.escalate_after, values.monitor_ttl_seconds)

    def _wake_for_new(self, before: Memory, after: Memory) -> tuple[ActiveFinding, ...]:
        """Return the new findings; from RESET on, the Node is written at once."""
        new = _new(before, after)
        if any(finding.finding.severity >= Severity.RESET for finding in new):
            self._state.news.set()
        return new

    def _must_be_written(self, before: Memory, after: Memory, now: Now) -> bool:
        if self._unsaved_since is None:
            self._unsaved_since = now.monotonic
        return not _only_counted(before, after) or now.monotonic - self._unsaved_since >= _MOST_UNSAVED_SECONDS

    def _keep(self, after: Memory, outcomes: Sequence[Outcome] = ()) -> None:
        """Write the memory to the file and then set the state, with the severities in force."""
        judgement = self._state.judgement.after(in_force(after, self._state.settings.values.policy), outcomes)
        self._write(judgement)
        self._state.remember(judgement)

    def _write(self, judgement: Judgement) -> None:
        """Write the memory to its file. A failing disk is reported once, and the agent continues in memory."""
        if self._file is not None:
            try:
                self._file.write(judgement.memory)
            except MemoryFileError as error:
                self._telemetry.memory_errors.inc()
                if not self._file_failed:
                    log.warning("the memory file can't be written; continuing without it", error=str(error))
                self._file_failed = True
            else:
                self._file_failed = False
        self._unsaved_since = None


def _new(before: Memory, after: Memory) -> tuple[ActiveFinding, ...]:
    """Return the findings that are new or have a higher severity."""
    earlier = {finding.key: finding.finding.severity for finding in before.active}
    return tuple(
        finding for finding in after.active if earlier.get(finding.key, Severity.PASS) < finding.finding.severity
    )


def _log_found(new: Iterable[ActiveFinding]) -> None:
    for finding in new:
        found = finding.finding
        log.info("found", reason=found.reason, severity=found.severity.name, subject=found.subject, detail=found.detail)


def _only_counted(before: Memory, after: Memory) -> bool:
    """Whether only counts and times differ."""
    earlier = {finding.key: finding.finding.severity for finding in before.active}
    severities = {finding.key: finding.finding.severity for finding in after.active}
    return (earlier, before.gpus, before.recovery, before.ended, before.driver_loaded_at) == (
        severities,
        after.gpus,
        after.recovery,
        after.ended,
        after.driver_loaded_at,
    )
