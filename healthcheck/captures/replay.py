"""Judges a capture from beginning to end, as an agent on the node would have judged it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.captures.kernel_logs import BootRecords, Line
from gpu_healthcheck.healthcheck.checks import driver_messages, mlx5_messages, sxid, xid
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.exits import begin, expired
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Key, Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    KernelEvent,
    Now,
    Outcome,
    Severity,
    Unobserved,
    UnobservedCause,
    counted,
)
from gpu_healthcheck.healthcheck.probes import kernel_log
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from gpu_healthcheck.healthcheck.text.printable import printable

KERNEL_CHECKS = (xid.CHECK, sxid.CHECK, driver_messages.CHECK, mlx5_messages.CHECK)
"""All checks that read the kernel log."""
LINES_NOT_READ = UnobservedCause(
    "LinesNotRead",
    "Lines of the driver in a saved log have an unknown prefix, describe an Xid or a GPU off the bus in an unknown"
    " form, report an error that no rule judges, or name as their cause an Xid that the log lacks.",
    "Save the log uncut in a format listed in `docs/replay.md`; read the line named in the message, and report an error"
    " that no rule judges to the project.",
)
_MOST_COUNTED = 512
_RUN_SECONDS = 60.0
"""Largest gap between two lines of a run of errors, and time after which an error at the end of a log is over."""
_LONGEST_LINE = 160


class _Run(Struct):
    """Lines of one kind, each soon after the one before: their number, the first, and the time of the last."""

    count: int = 0
    first: str = ""
    """Source and text of the first line."""
    last_at: float = -math.inf
    is_judged: bool = False
    """Whether a fault that the driver reported in words is in this run, to which its errors then belong."""

    def add(self, at: float, line: Line) -> None:
        self.first = self.first or f"{line.source}: {printable(line.record.text, _LONGEST_LINE)}"
        self.count += 1
        self.last_at = at


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
    _error_run: _Run = field(default_factory=_Run)
    """Last errors that no rule judges."""
    _errors: _Run = field(default_factory=_Run)
    """All errors of this boot before them that no rule judges."""
    _reasons: set[str] = field(default_factory=set)
    """Reasons of all events of this boot."""
    _without_cause: str = ""
    """First line of this boot that names a fault as its cause that the log does not contain, after that fault."""
    _recurring: dict[Key, _Run] = field(default_factory=dict)
    """Events of this boot that are a fault only if they recur, by reason and subject."""
    _boot: int = -1
    _first_lines: dict[Key, dict[Severity, Line]] = field(default_factory=dict)
    """First line of each active finding that gives it a severity."""

    def take(self, batch: BootRecords) -> None:
        """Judge the records of a batch."""
        if batch.boot != self._boot:
            self.memory = begin(self.memory, "", f"boot {batch.boot}", replace(batch.now, wall=batch.began))
            self._boot, self._errors, self._error_run, self._recurring = batch.boot, _Run(), _Run(), {}
            self._reasons, self._without_cause = set(), ""
            self._forget_ended()
        self.now = batch.now
        if batch.lines:
            self.memory = after_kernel_log(self.memory, self._judged(batch.lines), batch.now, self.escalate_after)
            for active in self.memory.active:
                if active.finding.severity is not Severity.PASS:
                    self.ignored.pop(active.key, None)  # lines that are no fault alone, and reached a threshold
        self.memory = expired(self.memory, batch.now, self.monitor_ttl_seconds)
        self._forget_ended()

    def outcomes(self, unobserved: Iterable[Unobserved] = ()) -> tuple[Outcome, ...]:
        """Return one outcome for each check that reads the kernel log.

        `unobserved` are the reasons why parts of the captures could not be read. A log without a message about an RDMA
        device does not show whether the machine has any.
        """
        causes = list(unobserved)
        if self.unread:
            lines = (
                f"{counted(self.unread, 'line')} of the driver about an Xid or a GPU off the bus, in an unknown form"
            )
            causes.append(Unobserved(LINES_NOT_READ, f"{lines}, the first at {self.first_unread}"))
        count, first = self._unjudged()
        if count:
            lines = f"{counted(count, 'line')} of the driver reporting an error that no rule judges"
            causes.append(Unobserved(LINES_NOT_READ, f"{lines}, the first at {first}"))
        if self._without_cause:
            causes.append(Unobserved(LINES_NOT_READ, self._without_cause))
        failed = {finding.check for finding in self.memory.active}
        checks = [check for check in self.checks if check is not mlx5_messages.CHECK or check.name in failed]
        return tuple(Outcome(check.name, check.group, unobserved=tuple(causes)) for check in checks)

    def _unjudged(self) -> tuple[int, str]:
        """Return the number of errors of the last boot that no rule judges, and the first of them.

        An event that has to recur to be a fault counts while the log ends before it is over.
        """
        active = {finding.key for finding in self.memory.active}
        now = self.now.monotonic if self.now else 0.0
        runs = [self._errors, *([] if self._error_run.is_judged else [self._error_run])]
        runs += [run for key, run in self._recurring.items() if key not in active and now - run.last_at <= _RUN_SECONDS]
        return sum(run.count for run in runs), next((run.first for run in runs if run.first), "")

    def ended(self, boot_id: str, shift: timedelta) -> Memory:
        """Return the memory at the end of the capture, each finding with its source line.

        `shift` is added to the times, to correct those of a capture without dates.
        """
        active = tuple(self._with_source(finding, shift) for finding in self.memory.active)
        return replace(self.memory, boot_id=boot_id, active=active)

    def line_of(self, finding: ActiveFinding) -> str:
        """Return the source line of a finding, unchanged."""
        line = self._first_line(finding)
        return line.shown if line else ""

    def _first_line(self, finding: ActiveFinding) -> Line | None:
        """Return the source line of a finding: the first of its severity, else the first of the worst."""
        lines = self._first_lines.get(finding.key, {})
        return lines.get(finding.finding.severity) or (lines[max(lines)] if lines else None)

    def _with_source(self, active: ActiveFinding, shift: timedelta) -> ActiveFinding:
        line = self._first_line(active)
        # A finding of several events, such as a reached threshold, has its own source.
        source = active.finding.source or (line.source if line else "")
        return replace(
            active,
            finding=replace(active.finding, source=source),
            first_seen=active.first_seen + shift,
            last_seen=active.last_seen + shift,
        )

    def _judged(self, lines: Iterable[Line]) -> tuple[Outcome, ...]:
        by_seq = {line.record.seq: line for line in lines}
        records = tuple(line.record for line in by_seq.values())
        expected = replace(self.expected, is_capture=True)
        outcomes = judge(self.checks, Evidence({kernel_log.RING: records}), expected)
        faults, errors = driver_messages.unread(records, outcomes)
        reasons = {"", *self._reasons, *(event.reason for outcome in outcomes for event in outcome.events)}
        faults += [record for record in records if sxid.continued_reason(record.text) not in reasons]
        for record in faults:
            self.unread += 1
            self.first_unread = self.first_unread or by_seq[record.seq].source
        self._add_errors(errors, by_seq, outcomes)
        return tuple(
            replace(outcome, events=tuple(self._sourced(event, by_seq[event.seq]) for event in outcome.events))
            for outcome in outcomes
        )

    def _add_errors(self, errors: Iterable[Record], by_seq: Mapping[int, Line], outcomes: Iterable[Outcome]) -> None:
        """Add the driver's errors that no check judges, together with its faults, in the order of the log."""
        is_error = {error.seq: True for error in errors}
        for outcome in outcomes:
            if outcome.check != driver_messages.CHECK.name:
                continue
            for event in outcome.events:
                if event.recurs is not None:
                    self._add_recurring(event, event.recurs.pause, by_seq[event.seq])
                elif event.finding is not None:
                    is_error[event.seq] = False
        for seq in sorted(is_error):
            line = by_seq[seq]
            if line.record.at - self._error_run.last_at > _RUN_SECONDS:
                self._end_error_run()
            if is_error[seq]:
                self._error_run.add(line.record.at, line)
            else:
                self._error_run.is_judged, self._error_run.last_at = True, line.record.at

    def _end_error_run(self) -> None:
        if not self._error_run.is_judged:
            self._errors.count += self._error_run.count
            self._errors.first = self._errors.first or self._error_run.first
        self._error_run = _Run()

    def _add_recurring(self, event: KernelEvent, pause: float, line: Line) -> None:
        run = self._recurring.get((event.reason, event.subject))
        if run is None or event.at - run.last_at > pause:
            run = self._recurring[event.reason, event.subject] = _Run()
        run.add(event.at, line)

    def _sourced(self, event: KernelEvent, line: Line) -> KernelEvent:
        finding = event.finding
        self._reasons.add(event.reason)
        cause = f"Xid{event.follows}"
        is_cut = event.follows and xid.may_need_reset(event.follows, self.expected) and cause not in self._reasons
        if is_cut and not self._without_cause:
            shown = f"{line.source}: {printable(line.record.text, _LONGEST_LINE)}"
            self._without_cause = f"the log lacks the {cause} that a line names as its cause: {shown}"
        if finding is None or finding.severity is Severity.PASS:
            self._count(event)
            return replace(event, source=line.source)
        key = (finding.reason, finding.subject)
        self._first_lines.setdefault(key, {}).setdefault(finding.severity, line)
        return replace(event, source=line.source)

    def _count(self, event: KernelEvent) -> None:
        key = (event.reason, event.subject)
        is_news_of_the_driver = event.driver_loaded or event.recovery_action == 0 or event.uuid
        if not is_news_of_the_driver and (key in self.ignored or len(self.ignored) < _MOST_COUNTED):
            self.ignored[key] += 1

    def _forget_ended(self) -> None:
        keys = {finding.key for finding in self.memory.active}
        self._first_lines = {key: lines for key, lines in self._first_lines.items() if key in keys}
