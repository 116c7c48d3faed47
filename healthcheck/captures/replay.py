"""Judges a capture from beginning to end, as an agent on the node would have judged it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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

KERNEL_CHECKS = (xid.CHECK, sxid.CHECK, driver_messages.CHECK, mlx5_messages.CHECK)
"""All checks that read the kernel log."""
LINES_NOT_READ = UnobservedCause(
    "LinesNotRead",
    "Lines of the driver in a saved log have an unknown prefix, or describe an Xid or a GPU off the bus in an unknown"
    " form.",
    "Save the log uncut in a format listed in `docs/replay.md`; read the line named in the message.",
)
_MOST_COUNTED = 512


class _FirstLine(Struct, frozen=True):
    """Source line of a finding: the first line that gives the finding its current severity."""

    severity: Severity
    source: str
    shown: str


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
    _boot: int = -1
    _first: dict[Key, _FirstLine] = field(default_factory=dict)

    def take(self, batch: BootRecords) -> None:
        """Judge the records of a batch."""
        if batch.boot != self._boot:
            self.memory = begin(self.memory, "", f"boot {batch.boot}", replace(batch.now, wall=batch.began))
            self._boot = batch.boot
            self._forget_what_left()
        self.now = batch.now
        if batch.lines:
            self.memory = after_kernel_log(self.memory, self._judged(batch.lines), batch.now, self.escalate_after)
            for active in self.memory.standing:
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
        found = {finding.check for finding in self.memory.standing}
        checks = [check for check in self.checks if check is not mlx5_messages.CHECK or check.name in found]
        return tuple(Outcome(check.name, check.group, unobserved=blind) for check in checks)

    def ended(self, boot_id: str, shift: timedelta) -> Memory:
        """Return the memory at the end of the capture, each finding with its source line.

        `shift` is added to the times, to correct those of a capture without dates.
        """
        standing = tuple(self._rested(finding, shift) for finding in self.memory.standing)
        return replace(self.memory, boot_id=boot_id, standing=standing)

    def line_of(self, standing: ActiveFinding) -> str:
        """Return the source line of a finding, unchanged."""
        first = self._first.get(standing.key)
        return first.shown if first else ""

    def _judged(self, lines: Iterable[Line]) -> tuple[Outcome, ...]:
        by_seq = {line.record.seq: line for line in lines}
        records = tuple(line.record for line in by_seq.values())
        expected = replace(self.expected, is_capture=True)
        outcomes = judge(self.checks, Evidence({kernel_log.RING: records}), expected)
        for record in driver_messages.unread(records, outcomes):
            self.unread += 1
            self.first_unread = self.first_unread or by_seq[record.seq].source
        return tuple(
            replace(
                outcome,
                sightings=tuple(self._sourced(sighting, by_seq[sighting.seq]) for sighting in outcome.sightings),
            )
            for outcome in outcomes
        )

    def _sourced(self, sighting: KernelEvent, line: Line) -> KernelEvent:
        finding = sighting.finding
        if finding is None or finding.severity is Severity.PASS:
            self._count(sighting)
            return replace(sighting, source=line.source)
        key = (finding.reason, finding.subject)
        first = self._first.get(key)
        if first is None or first.severity < finding.severity:
            self._first[key] = _FirstLine(finding.severity, line.source, line.shown)
        return replace(sighting, source=line.source)

    def _count(self, sighting: KernelEvent) -> None:
        key = (sighting.reason, sighting.subject)
        is_news_of_the_driver = sighting.driver_loaded or sighting.recovery_action == 0 or sighting.uuid
        if not is_news_of_the_driver and (key in self.ignored or len(self.ignored) < _MOST_COUNTED):
            self.ignored[key] += 1

    def _rested(self, standing: ActiveFinding, shift: timedelta) -> ActiveFinding:
        first = self._first.get(standing.key)
        # A finding of several events, such as a reached threshold, has its own source.
        source = standing.finding.source or (first.source if first else "")
        return replace(
            standing,
            finding=replace(standing.finding, source=source),
            first_seen=standing.first_seen + shift,
            last_seen=standing.last_seen + shift,
        )

    def _forget_what_left(self) -> None:
        keys = {finding.key for finding in self.memory.standing}
        self._first = {key: first for key, first in self._first.items() if key in keys}
