"""What the agent knows at this moment, kept by one lock: the memory, the last looks, and whether to hurry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from healthcheck import memory as remembering
from healthcheck.memory import Memory
from healthcheck.memory_file import MemoryFile, MemoryFileError
from healthcheck.model import Check, Nature, Now, Outcome, Severity, Unobserved
from healthcheck.settings import Settings
from healthcheck.telemetry import Telemetry
from healthcheck.verdict import Verdict, decide

log = structlog.get_logger()

_NOT_YET = Unobserved("NotLookedYet", "the first look has not ended")


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
        self._lock = threading.Lock()
        self._settings = Settings()
        self._outcomes: dict[str, Outcome] = {}
        self._file_failed = False

    @property
    def memory(self) -> Memory:
        return self._memory

    def configure(self, settings: Settings) -> None:
        """Take over new settings. What a check said that nobody runs any more is forgotten."""
        with self._lock:
            self._settings = settings
            names = [check.name for check in settings.values.checks]
            self._outcomes = {name: outcome for name, outcome in self._outcomes.items() if name in names}
            self._memory = remembering.without_checks(self._memory, names)

    def noticed(self, outcomes: Iterable[Outcome], cursor: int | None, driver_loaded_at: float | None) -> None:
        """What the event checks read in the kernel log, up to and with the record `cursor`."""
        outcomes = list(outcomes)
        found = any(outcome.sightings for outcome in outcomes)
        with self._lock:
            before = self._memory
            after = remembering.noticed(before, outcomes, self._clock()) if found else before
            loaded = before.driver_loaded_at if driver_loaded_at is None else driver_loaded_at
            self._memory = replace(after, cursor=before.cursor if cursor is None else cursor, driver_loaded_at=loaded)
            self._outcomes.update({one.check: replace(one, sightings=()) for one in outcomes})
            if found:
                self._save()
            urgent = _is_urgent(before, self._memory)
        if urgent:
            self._hurry()

    def blind(self, check: Check, cause: Unobserved) -> None:
        """A check that follows its source has lost it."""
        with self._lock:
            self._outcomes[check.name] = Outcome(check.name, check.group, unobserved=(cause,))

    def looked(self, outcomes: Iterable[Outcome]) -> Memory:
        """What the checks said in a look; the memory after it."""
        outcomes = list(outcomes)
        with self._lock:
            now = self._clock()
            before = self._memory
            self._outcomes.update({outcome.check: outcome for outcome in outcomes})
            after = remembering.looked(before, outcomes, now)
            self._memory = remembering.expired(after, now, self._settings.values.monitor_ttl_seconds)
            self._save()
            urgent = _is_urgent(before, self._memory)
        if urgent:
            self._hurry()
        return self._memory

    def adopt(self, other: Memory) -> None:
        """Take in what only the Node still remembered, after our own file was lost."""
        with self._lock:
            kept = remembering.begin(other, self._memory.machine, self._memory.boot_id)
            known = {one.key for one in self._memory.standing}
            new = tuple(one for one in kept.standing if one.key not in known)
            self._memory = replace(self._memory, standing=(*self._memory.standing, *new))
            self._save()

    def snapshot(self) -> Snapshot:
        with self._lock:
            selected = self._settings.values.checks
            complete = all(check.name in self._outcomes for check in selected)
            outcomes = [
                self._outcomes.get(check.name, Outcome(check.name, check.group, unobserved=(_NOT_YET,)))
                for check in selected
            ]
            verdict = decide(self._memory, outcomes)
            memory = self._memory
        self._measure(verdict)
        return Snapshot(verdict, memory, complete)

    def _save(self) -> None:
        """To the file; a disk that fails is said once and the agent goes on in memory."""
        if self._file is None:
            return
        try:
            self._file.write(self._memory)
        except MemoryFileError as error:
            self._telemetry.memory_errors.inc()
            if not self._file_failed:
                log.warning("the memory file can't be written; going on without it", error=str(error))
            self._file_failed = True
        else:
            self._file_failed = False

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


def _is_urgent(before: Memory, after: Memory) -> bool:
    known = {one.key: one.finding.severity for one in before.standing}
    return any(
        one.finding.severity >= Severity.RESET and known.get(one.key, Severity.PASS) < one.finding.severity
        for one in after.standing
    )


def level_checks(settings: Settings) -> tuple[Check, ...]:
    """The checks that a light look runs; the others follow their source."""
    return tuple(check for check in settings.values.checks if check.nature is Nature.LEVEL)


def event_checks(settings: Settings) -> tuple[Check, ...]:
    """The checks that follow the kernel's log."""
    return tuple(check for check in settings.values.checks if check.nature is Nature.EVENT)
