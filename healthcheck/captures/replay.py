"""Judges a capture from beginning to end, as an agent on the node would have judged it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from healthcheck.captures.kernel_logs import BootRecords, Line
from healthcheck.checks import driver_messages, mlx5_messages, sxid, xid
from healthcheck.checks.examine import judge
from healthcheck.checks.expectation import Expectation
from healthcheck.memory.exits import begin, expired
from healthcheck.memory.findings import ActiveFinding, Key, Memory
from healthcheck.memory.kernel_events import after_kernel_log
from healthcheck.model import Check, Evidence, KernelEvent, Now, Outcome, Severity, Unobserved, UnobservedCause, counted
from healthcheck.probes import kernel_log
from healthcheck.probes.kernel_log import Record
from healthcheck.text.printable import printable

KERNEL_CHECKS = (xid.CHECK, sxid.CHECK, driver_messages.CHECK, mlx5_messages.CHECK)
"""All checks that read the kernel log."""
LINES_NOT_READ = UnobservedCause(
    "LinesNotRead",
    "Lines of the driver in a saved log have an unknown prefix, describe an Xid or a GPU off the bus in an unknown"
    " form, or report an error that no rule judges.",
    "Save the log uncut in a format listed in `docs/replay.md`; read the line named in the message, and report an error"
    " that no rule judges to the project.",
)
_MOST_COUNTED = 512
_RUN_SECONDS = 60.0
"""Largest gap between two lines of a run of errors, and time after which an error at the end of a log is over."""
_LONGEST_LINE = 160


class _Recurring(Struct, frozen=True):
    """Number of lines of an event that is a fault only if it recurs, the first line, and the time of the last."""

    count: int
    first: str
    last_at: float


class _FirstLine(Struct, frozen=True):
    """First line that gives a finding its severity."""

    source: str
    shown: str


class _Errors(Struct):
    """Errors that no rule judges, in the current boot.

    Errors come in runs. A run with a fault that the driver reported in words belongs to this fault.
    """

    count: int = 0
    first: str = ""
    """Source and text of the first line."""
    _last_at: float = -math.inf
    _in_run: int = 0
    _first_in_run: str = ""
    _is_judged: bool = False

    def add(self, at: float, line: Line | None) -> None:
        """Add an error, or None for a judged fault, in the order of the log."""
        if at - self._last_at > _RUN_SECONDS:
            self.end_run()
        self._last_at = at
        if line is None:
            self._is_judged = True
            return
        self._first_in_run = self._first_in_run or f"{line.source}: {printable(line.record.text, _LONGEST_LINE)}"
        self._in_run += 1

    def end_run(self) -> None:
        if not self._is_judged:
            self.count += self._in_run
            self.first = self.first or self._first_in_run
        self._in_run, self._first_in_run, self._is_judged = 0, "", False


class Replay(Struct):
    """Result of a replay so far: the memory with the active findings, and counts of other records.

    The other records are those that are not faults.
    """

    checks: tuple[Check, ...]
    expected: Expectation
    monitor_ttl_seconds: float
    escalate_after: int = 0
    memory: Memory = field(default_factory=Memory)
    now: Now | None = None
    ignored: Counter[Key] = field(default_factory=Counter)
    """Number of events that are not faults by the catalogue, by reason and subject."""
    unread: int = 0
    """Number of records about a fault in a form that no check can read."""
    first_unread: str = ""
    """File and number of the first unread record."""
    _errors: _Errors = field(default_factory=_Errors)
    _recurring: dict[Key, _Recurring] = field(default_factory=dict)
    """Events of this boot that are a fault only if they recur, by reason and subject."""
    _boot: int = -1
    _first: dict[Key, dict[Severity, _FirstLine]] = field(default_factory=dict)

    def take(self, batch: BootRecords) -> None:
        """Judge the records of a batch."""
        if batch.boot != self._boot:
            self.memory = begin(self.memory, "", f"boot {batch.boot}", replace(batch.now, wall=batch.began))
            self._boot, self._errors, self._recurring = batch.boot, _Errors(), {}
            self._forget_what_left()
        self.now = batch.now
        if batch.lines:
            self.memory = after_kernel_log(self.memory, self._judged(batch.lines), batch.now, self.escalate_after)
            for active in self.memory.active:
                if active.finding.severity is not Severity.PASS:
                    self.ignored.pop(active.key, None)  # lines that are no fault alone, and reached a threshold
        self.memory = expired(self.memory, batch.now, self.monitor_ttl_seconds)
        self._forget_what_left()

    def outcomes(self, unobserved: Iterable[Unobserved] = ()) -> tuple[Outcome, ...]:
        """Return one outcome for each check that reads the kernel log.

        `unobserved` are the reasons why parts of the captures could not be read. A log without a message about an RDMA
        device does not show whether the machine has any.
        """
        blind = tuple(unobserved)
        if self.unread:
            lines = (
                f"{counted(self.unread, 'line')} of the driver about an Xid or a GPU off the bus, in an unknown form"
            )
            blind += (Unobserved(LINES_NOT_READ, f"{lines}, the first at {self.first_unread}"),)
        count, first = self._unjudged()
        if count:
            lines = f"{counted(count, 'line')} of the driver reporting an error that no rule judges"
            blind += (Unobserved(LINES_NOT_READ, f"{lines}, the first at {first}"),)
        found = {finding.check for finding in self.memory.active}
        checks = [check for check in self.checks if check is not mlx5_messages.CHECK or check.name in found]
        return tuple(Outcome(check.name, check.group, unobserved=blind) for check in checks)

    def _unjudged(self) -> tuple[int, str]:
        """Return the number of errors of the last boot that no rule judges, and the first of them.

        An event that has to recur to be a fault counts while the log ends before it is over.
        """
        self._errors.end_run()
        active = {finding.key for finding in self.memory.active}
        now = self.now.monotonic if self.now else 0.0
        open_ends = [
            event for key, event in self._recurring.items() if key not in active and now - event.last_at <= _RUN_SECONDS
        ]
        firsts = [self._errors.first, *(event.first for event in open_ends)]
        return self._errors.count + sum(event.count for event in open_ends), next(filter(None, firsts), "")

    def ended(self, boot_id: str, shift: timedelta) -> Memory:
        """Return the memory at the end of the capture, each finding with its source line.

        `shift` is added to the times, to correct those of a capture without dates.
        """
        standing = tuple(self._rested(finding, shift) for finding in self.memory.active)
        return replace(self.memory, boot_id=boot_id, active=standing)

    def line_of(self, standing: ActiveFinding) -> str:
        """Return the source line of a finding, unchanged."""
        first = self._first_line(standing)
        return first.shown if first else ""

    def _first_line(self, standing: ActiveFinding) -> _FirstLine | None:
        """Return the source line of a finding: the first of its severity, else the first of the worst."""
        lines = self._first.get(standing.key, {})
        return lines.get(standing.finding.severity) or (lines[max(lines)] if lines else None)

    def _judged(self, lines: Iterable[Line]) -> tuple[Outcome, ...]:
        by_seq = {line.record.seq: line for line in lines}
        records = tuple(line.record for line in by_seq.values())
        expected = replace(self.expected, is_capture=True)
        outcomes = judge(self.checks, Evidence({kernel_log.RING: records}), expected)
        faults, errors = driver_messages.unread(records, outcomes)
        for record in faults:
            self.unread += 1
            self.first_unread = self.first_unread or by_seq[record.seq].source
        self._add_errors(errors, by_seq, outcomes)
        return tuple(
            replace(
                outcome,
                events=tuple(self._sourced(event, by_seq[event.seq]) for event in outcome.events),
            )
            for outcome in outcomes
        )

    def _add_errors(self, errors: Iterable[Record], by_seq: Mapping[int, Line], outcomes: Iterable[Outcome]) -> None:
        """Add the driver's errors that no check judges, together with its faults, in the order of the log."""
        found: list[tuple[int, float, Line | None]] = [(one.seq, one.at, by_seq[one.seq]) for one in errors]
        for outcome in outcomes:
            if outcome.check != driver_messages.CHECK.name:
                continue
            for event in outcome.events:
                if event.recurs is not None:
                    self._add_recurring(event, by_seq[event.seq])
                elif event.finding is not None:
                    found.append((event.seq, event.at, None))
        for _, at, line in sorted(found, key=lambda entry: entry[0]):
            self._errors.add(at, line)

    def _add_recurring(self, event: KernelEvent, line: Line) -> None:
        key, first = (event.reason, event.subject), f"{line.source}: {printable(line.record.text, _LONGEST_LINE)}"
        known = self._recurring.get(key)
        is_new = known is None or event.recurs is None or event.at - known.last_at > event.recurs.pause
        if known is None or is_new:
            self._recurring[key] = _Recurring(1, first, event.at)
        else:
            self._recurring[key] = _Recurring(known.count + 1, known.first, event.at)

    def _sourced(self, event: KernelEvent, line: Line) -> KernelEvent:
        finding = event.finding
        if finding is None or finding.severity is Severity.PASS:
            self._count(event)
            return replace(event, source=line.source)
        key = (finding.reason, finding.subject)
        self._first.setdefault(key, {}).setdefault(finding.severity, _FirstLine(line.source, line.shown))
        return replace(event, source=line.source)

    def _count(self, event: KernelEvent) -> None:
        key = (event.reason, event.subject)
        is_news_of_the_driver = event.driver_loaded or event.recovery_action == 0 or event.uuid
        if not is_news_of_the_driver and (key in self.ignored or len(self.ignored) < _MOST_COUNTED):
            self.ignored[key] += 1

    def _rested(self, standing: ActiveFinding, shift: timedelta) -> ActiveFinding:
        first = self._first_line(standing)
        # A finding of several events, such as a reached threshold, has its own source.
        source = standing.finding.source or (first.source if first else "")
        return replace(
            standing,
            finding=replace(standing.finding, source=source),
            first_seen=standing.first_seen + shift,
            last_seen=standing.last_seen + shift,
        )

    def _forget_what_left(self) -> None:
        keys = {finding.key for finding in self.memory.active}
        self._first = {key: first for key, first in self._first.items() if key in keys}
