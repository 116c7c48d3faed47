"""What the agent knows at this moment, kept by one lock: the memory, the last looks, and whether to hurry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from agent.failures import Failures
from healthcheck.checks.examine import NOT_LOOKED_YET
from healthcheck.deep.record import DeepRecord, PassedRun, after_deep_record
from healthcheck.memory import exits
from healthcheck.memory.file import MemoryFile, MemoryFileError
from healthcheck.memory.findings import Memory, Release, Standing
from healthcheck.memory.kernel_log import after_kernel_log
from healthcheck.memory.looks import JudgedLook, MemoryRules, after_look, without_checks
from healthcheck.model import Check, Nature, Now, Outcome, Severity, Unobserved
from healthcheck.settings import Settings
from healthcheck.telemetry import Telemetry
from healthcheck.verdict.verdict import Verdict, decide, worst

log = structlog.get_logger()

_MOST_UNSAVED_SECONDS = 1.0
_NOT_YET = Unobserved(NOT_LOOKED_YET, "the first look has not ended")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The verdict of now. `complete`: every selected check has had its say; `urgent`: it must not wait for a look."""

    verdict: Verdict
    memory: Memory
    complete: bool


class Ledger:
    """Thread-safe. `hurry` is called, without the lock, when something of RESET or worse is new."""

    def __init__(
        self,
        memory: Memory,
        file: MemoryFile | None,
        telemetry: Telemetry,
        clock: Callable[[], Now],
        hurry: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._file = file
        self._telemetry = telemetry
        self._clock = clock
        self._hurry = hurry
        self._failures = Failures(telemetry)
        self._lock = threading.Lock()
        self._settings = Settings()
        self._outcomes: dict[str, Outcome] = {}
        self._file_failed = False
        self._unsaved_since: float | None = None
        self._log_was_read = False

    @property
    def _memory_rules(self) -> MemoryRules:
        values = self._settings.values
        return MemoryRules(values.escalate_after, values.monitor_ttl_seconds)

    @property
    def memory(self) -> Memory:
        return self._memory

    @property
    def unsaved(self) -> bool:
        """Whether the memory has counted what its file has not."""
        return self._unsaved_since is not None

    def configure(self, settings: Settings) -> None:
        """Take over new settings. What a check said that nobody runs any more is forgotten."""
        with self._lock:
            self._settings = settings
            names = [check.name for check in settings.values.checks]
            self._outcomes = {name: outcome for name, outcome in self._outcomes.items() if name in names}
            self._memory = without_checks(self._memory, names)

    def kernel_log_judged(self, outcomes: Iterable[Outcome], cursor: int | None) -> tuple[Standing, ...]:
        """What the event checks read in the kernel log, up to and with the record `cursor`; what is new of it.

        On the disk before anybody hears of it. What was only counted may wait: a flood would write the same file over
        and over, and whoever starts from an older file has its older cursor, from which the log counts it again.
        """
        outcomes = list(outcomes)
        self._failures.account(outcomes)
        found = any(outcome.sightings for outcome in outcomes)
        with self._lock:
            before = self._memory
            now = self._clock()
            after = after_kernel_log(before, outcomes, now, self._memory_rules.escalate_after) if found else before
            after = replace(after, cursor=before.cursor if cursor is None else cursor)
            if found and self._must_be_written(before, after, now):
                self._keep(after)
            else:
                self._memory = after
            self._outcomes.update({one.check: replace(one, sightings=()) for one in outcomes})
            new = _new(before, self._memory)
        if any(one.finding.severity >= Severity.RESET for one in new):
            self._hurry()
        return new

    def log_was_read(self) -> None:
        """The log was read to its end: what claims a later place in it is of the future."""
        with self._lock:
            if not self._log_was_read:
                self._log_was_read = True
                self._memory = exits.within_log(self._memory)

    def save(self) -> None:
        """Write down what was only counted since the file was written."""
        with self._lock:
            if self.unsaved:
                self._keep(self._memory)

    def blind(self, check: Check, cause: Unobserved) -> None:
        """A check that follows its source has lost it."""
        with self._lock:
            self._outcomes[check.name] = Outcome(check.name, check.group, unobserved=(cause,))

    def look_ended(self, look: JudgedLook) -> Memory:
        """What the checks said of a look; the memory after it."""
        self._failures.account(look.outcomes)
        with self._lock:
            before = self._memory
            self._outcomes.update({outcome.check: outcome for outcome in look.outcomes})
            self._keep(after_look(before, look, self._clock(), self._memory_rules))
            new = _new(before, self._memory)
        if any(one.finding.severity >= Severity.RESET for one in new):
            self._hurry()
        return self._memory

    def adopt(self, other: Memory) -> None:
        """Take in what only the Node still remembered, after our own file was lost."""
        with self._lock:
            kept = exits.begin(other, self._memory.machine, self._memory.boot_id, self._clock())
            self._keep(self._bounded(exits.adopted(self._memory, kept, self._clock())))

    def released(self, release: Release) -> None:
        """A person's release, on the disk before the Node hears that it was taken."""
        with self._lock:
            after = exits.release(self._memory, release, self._clock())
            if after is not self._memory:
                self._keep(self._bounded(after))

    def _bounded(self, memory: Memory) -> Memory:
        """Without a word on what the log has not come to; before it was read to its end, nobody knows where that is."""
        return exits.within_log(memory) if self._log_was_read else memory

    def take_over(self, records: Iterable[DeepRecord]) -> tuple[Standing, ...]:
        """What deep runs found is ours from now on, on the disk before the Node hears of it; what is new of it.

        Not before every check has looked: whose GPU is meant is known by then, and until then the records on the Node
        count by themselves. What counts for nothing waits for no look: our own taint may stand by then.
        """
        with self._lock:
            before = after = self._memory
            for one in records if self._complete else [one for one in records if one.void]:
                after = after_deep_record(after, one, self._clock(), self._memory_rules.escalate_after)
            if after != before:
                self._keep(after)
            return _new(before, after)

    @property
    def _complete(self) -> bool:
        """Whether every selected check has had its say."""
        return all(check.name in self._outcomes for check in self._settings.values.checks)

    def passed(self, run: PassedRun) -> None:
        """A quarantine run passed."""
        with self._lock:
            after = exits.quarantined(self._memory, run.name, run.began, self._clock())
            if after != self._memory:
                self._keep(after)

    @property
    def severity(self) -> Severity:
        """Of all that stands."""
        return worst(one.finding.severity for one in self._memory.standing)

    def snapshot(self) -> Snapshot:
        with self._lock:
            complete = self._complete
            outcomes = [
                self._outcomes.get(check.name, Outcome(check.name, check.group, unobserved=(_NOT_YET,)))
                for check in self._settings.values.checks
            ]
            verdict = decide(self._memory, outcomes)
            memory = self._memory
        self._measure(verdict)
        return Snapshot(verdict, memory, complete)

    def _must_be_written(self, before: Memory, after: Memory, now: Now) -> bool:
        if self._unsaved_since is None:
            self._unsaved_since = now.monotonic
        return not _only_counted(before, after) or now.monotonic - self._unsaved_since >= _MOST_UNSAVED_SECONDS

    def _keep(self, after: Memory) -> None:
        """To the file, then ours. What no verdict can be made of, or no file can hold, raises and is not remembered.

        A disk that fails is said once, and the agent goes on in memory.
        """
        decide(after, tuple(self._outcomes.values()))
        if self._file is not None:
            try:
                self._file.write(after)
            except MemoryFileError as error:
                self._telemetry.memory_errors.inc()
                if not self._file_failed:
                    log.warning("the memory file can't be written; going on without it", error=str(error))
                self._file_failed = True
            else:
                self._file_failed = False
        self._memory = after
        self._unsaved_since = None

    def _measure(self, verdict: Verdict) -> None:
        telemetry = self._telemetry
        telemetry.severity.set(verdict.severity)
        telemetry.show_status(verdict.status)
        for severity in Severity:
            count = sum(one.finding.severity is severity for one in verdict.standing)
            telemetry.findings.labels(severity.name).set(count)
        blind = {row.check for row in verdict.unobserved}
        for group in verdict.groups:
            telemetry.unobserved.labels(group.check).set(group.check in blind)


def _new(before: Memory, after: Memory) -> tuple[Standing, ...]:
    """What stands now and did not before, or not as badly."""
    known = {one.key: one.finding.severity for one in before.standing}
    return tuple(one for one in after.standing if known.get(one.key, Severity.PASS) < one.finding.severity)


def _only_counted(before: Memory, after: Memory) -> bool:
    """Whether nothing came, went or changed but how often and when it was seen."""
    known = {one.key: one.finding.severity for one in before.standing}
    stands = {one.key: one.finding.severity for one in after.standing}
    return (known, before.gpus, before.recovery, before.ended, before.driver_loaded_at) == (
        stands,
        after.gpus,
        after.recovery,
        after.ended,
        after.driver_loaded_at,
    )


def level_checks(settings: Settings) -> tuple[Check, ...]:
    """The checks that a light look runs; the others follow their source."""
    return tuple(check for check in settings.values.checks if check.nature is Nature.LEVEL)


def event_checks(settings: Settings) -> tuple[Check, ...]:
    """The checks that follow the kernel's log."""
    return tuple(check for check in settings.values.checks if check.nature is Nature.EVENT)
