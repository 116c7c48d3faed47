"""Parser of `nvidia-bug-report.log`, in which several sections repeat the same kernel records.

NVIDIA's script greps `/var/log/messages` and similar files and `journalctl -b -0`, `-b -1` and `-b -2`, and prints
dmesg. One Xid can therefore occur four times, with three different clocks. The parser puts all sections on one wall
clock. It merges records with the same text that two sections list within a few minutes. It derives the boots from the
division in the journal.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from healthcheck.captures.kernel_logs import (
    LONGEST_STEP_SECONDS,
    MARKS,
    MOST_IN_A_BATCH,
    MOST_SEARCHED,
    BootRecords,
    Clock,
    Line,
    PassedOver,
    is_of_a_fault,
    lines_of,
    numbered,
    utc,
    wanted_lines,
)
from healthcheck.captures.log_lines import YEARS, decoded, read_line
from healthcheck.captures.printk import Joiner, KernelRecord, messages
from healthcheck.model import Now
from healthcheck.probes.kernel_log import Record

BEGINNING = b"Start of NVIDIA bug report log file"

_RULE = b"____________________"
_HEADING_MARKS = (_RULE, b"journalctl ", b"/var/log/", b"dmesg:", b"Date: ")
_HEADING = re.compile(
    r"\s*(?:\*\*\* )?"
    r"(?:(?:/\S*/)?journalctl\b.{0,80}? (?:-b|--boot)[ =]*-?(?P<boot>\d{1,3})\b.*|/var/log/\S+|dmesg:)\s*\Z"
)
_DATE = re.compile(
    r"Date: \w+ (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d)(?: (?P<half>[AP]M))?"
    r".* (?P<year>\d{4})\Z"
)
_MOST_SHOWN = 200_000
_SAME_EVENT_SECONDS = 120.0
"""Largest difference between the times of one record in two sections: the clock of dmesg drifts from syslog's."""
_SAME_BOOT_SECONDS = 180.0
_MOST_PAIRS = 50
_BUCKET_SECONDS = 2.0


class _Section(Struct):
    """The lines under one heading of the report.

    `boot` is the number of boots before the current one, if the heading gives it.
    """

    clock: Clock
    boot: int | None = None
    lines: list[KernelRecord] = field(default_factory=list)
    joiner: Joiner = field(default_factory=Joiner)

    def keep(self, record: KernelRecord | None) -> None:
        if record is not None:
            self.lines.append(record)


class _Event(Struct, frozen=True):
    """One record on the report's common clock. `when` is in seconds since the epoch."""

    when: float
    section: int
    line: KernelRecord


class BugReportReader:
    """Reader of one report. It yields all batches at the end of the report, oldest boot first."""

    def __init__(self, saved: datetime, boot: int, passed_over: PassedOver) -> None:
        self.boot = boot
        self.host = ""
        self.recognised = False
        """Whether the report has at least one line of the kernel."""
        self._searched = 0
        self._passed_over = passed_over
        self._saved = saved
        self._dated = False
        self._sections = [_Section(Clock(saved))]
        self._count = 0

    def read(self, name: str, blocks: Iterable[bytes]) -> Iterator[BootRecords]:
        number = 1
        for block in blocks:
            for line, raw in numbered(block, self._wanted(block), number):
                self._take(raw, line)
            number += block.count(b"\n")
        self._end_section()
        yield from self._batches(name)

    def _wanted(self, block: bytes) -> Iterable[int]:
        if not self.recognised and self._searched < MOST_SEARCHED:
            # Before the first line of the kernel is recognised, each line may be that line.
            starts = lines_of(block)
            self._searched += len(starts)
            return starts
        return wanted_lines(block, (*MARKS, *_HEADING_MARKS))

    def _take(self, raw: bytes, number: int) -> None:
        if raw.startswith(_RULE):
            self._begin_section(None)
            return
        section = self._sections[-1]
        marked = any(mark in raw for mark in MARKS)
        line = read_line(raw)
        if line is None:
            self._take_unprefixed(decoded(raw), number, marked=marked and is_of_a_fault(raw))
            return
        if line.refused:
            self._passed_over.refused += marked and is_of_a_fault(raw)
            return
        self.recognised = self.recognised or line.kernel
        self.host = line.host or self.host
        moment = section.clock.read(line.stamp)
        if line.kernel and marked and self._count < _MOST_SHOWN:
            self._count += 1
            for text in messages(line.text):
                section.keep(section.joiner.add(replace(line, text=text), moment, number, decoded(raw)))
        else:
            self._passed_over.quoted += marked and is_of_a_fault(raw)

    def _take_unprefixed(self, text: str, number: int, *, marked: bool) -> None:
        heading, date = _HEADING.match(text), _DATE.match(text)
        if heading:
            self._begin_section(int(heading["boot"]) if heading["boot"] else None)
        elif date and not self._dated:
            self._date(date)
        elif not self._sections[-1].joiner.goes_on(text, number):
            self._passed_over.quoted += marked  # a report also contains output of other programs

    def _date(self, found: re.Match[str]) -> None:
        words = f"{found['month']} {found['day']} {found['year']} {found['time']}"
        try:
            date = datetime.strptime(words, "%b %d %Y %H:%M:%S").replace(tzinfo=UTC)
        except ValueError:
            return
        if date.year not in YEARS:
            return
        if found["half"]:
            date = date.replace(hour=date.hour % 12 + (12 if found["half"] == "PM" else 0))
        self._saved, self._dated = date, True

    def _begin_section(self, boot: int | None) -> None:
        self._end_section()
        self._sections.append(_Section(Clock(self._saved), boot))

    def _end_section(self) -> None:
        section = self._sections[-1]
        section.keep(section.joiner.end())
        if not section.lines:
            self._sections.pop()

    def _batches(self, name: str) -> Iterator[BootRecords]:
        events, kernel_start = self._on_one_clock()
        kept = self._without_repeats(events)
        starts = self._boot_starts(events, kernel_start)
        first_boot = self.boot
        end = max([self._saved.timestamp(), *(event.when for event in kept)])
        boots: dict[int, list[_Event]] = {number: [] for number in range(len(starts) + 1)}
        for event in kept:
            boots[bisect_right(starts, event.when)].append(event)
        for number, recorded in boots.items():
            last = number == len(starts)
            if not recorded and not last:
                continue
            start = starts[number - 1] if number else min((event.when for event in recorded), default=end)
            ends = end if last else recorded[-1].when
            yield from _in_batches(name, first_boot + number, recorded, (start, ends))
        self.boot = first_boot + len(starts)

    def _on_one_clock(self) -> tuple[list[_Event], float | None]:
        """Return all records with their wall-clock time, oldest first, and the start time of the kernel.

        The start time is None if no dated section repeats a record of dmesg.
        """
        entries = [(number, line) for number, section in enumerate(self._sections) for line in section.lines]
        since_boot = [record for _, record in entries if record.stamp.wall is None]
        dated = [record for _, record in entries if record.stamp.wall is not None]
        start = _kernel_start(since_boot, dated)
        # No other section repeats a record of dmesg. Assume that the report was saved at the time of dmesg's last
        # record.
        newest = max((record.moment.monotonic for record in since_boot), default=0.0)
        zero = self._saved.timestamp() - newest if start is None else start
        events = [
            _Event(
                record.moment.wall.timestamp() if record.stamp.wall else zero + record.moment.monotonic, number, record
            )
            for number, record in entries
        ]
        return sorted(events, key=lambda event: (event.when, event.line.number)), start

    def _without_repeats(self, events: Iterable[_Event]) -> list[_Event]:
        """Return the first copy of each record, and count the copies from other sections as repeated.

        If an event happened several times, each section can list it once per occurrence.
        """
        kept: list[_Event] = []
        tellings: dict[str, _RecordedTimes] = defaultdict(_RecordedTimes)
        for event in events:
            if tellings[event.line.text].has(event):
                self._passed_over.repeated += 1
            else:
                kept.append(event)
        return kept

    def _boot_starts(self, events: Iterable[_Event], kernel_start: float | None) -> list[float]:
        """Return the approximate start time of each boot that the report covers."""
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        for event in events:
            boot = self._sections[event.section].boot
            if boot is not None:
                first[boot] = min(event.when, first.get(boot, event.when))
                last[boot] = max(event.when, last.get(boot, event.when))
        starts = sorted([*first.values(), *([kernel_start] if kernel_start is not None else [])])
        apart = starts[:1] + [later for seconds, later in pairwise(starts) if later - seconds > _SAME_BOOT_SECONDS]
        known = [seconds - _BUCKET_SECONDS for seconds in apart]
        if first and 0 not in first and kernel_start is None:
            known.append(last[min(last)] + 1.0)  # no GPU record in this boot's journal
        return known


class _RecordedTimes:
    """The times at which one text was recorded, each with the sections that record it.

    The events of a report are ordered by time. A time that is too old for one event is too old for all later events,
    so no time is compared twice, regardless of the number of sections.
    """

    def __init__(self) -> None:
        self._recorded: list[tuple[float, set[int]]] = []
        self._first_recent = 0
        self._next: dict[int, int] = {}

    def has(self, event: _Event) -> bool:
        """Whether another section recorded this event. The call also adds the event's own section to its time."""
        oldest = event.when - _SAME_EVENT_SECONDS
        while self._first_recent < len(self._recorded) and self._recorded[self._first_recent][0] < oldest:
            self._first_recent += 1
        index = max(self._next.get(event.section, 0), self._first_recent)
        self._next[event.section] = index + 1
        if index < len(self._recorded):
            self._recorded[index][1].add(event.section)
            return True
        self._recorded.append((event.when, {event.section}))
        return False


def _kernel_start(since_boot: Iterable[KernelRecord], dated: Iterable[KernelRecord]) -> float | None:
    """Return the wall-clock time at which dmesg's clock was 0.

    It is derived from the records that also occur in a section with dates. None if there are none.
    """
    newest_wall = {record.text: record.moment.wall.timestamp() for record in dated}
    newest_second = {record.text: record.moment.monotonic for record in since_boot}
    return max((newest_wall[text] - newest_second[text] for text in newest_wall.keys() & newest_second), default=None)


def _in_batches(name: str, boot: int, events: list[_Event], span: tuple[float, float]) -> Iterator[BootRecords]:
    start, end = span
    for first in range(0, max(len(events), 1), MOST_IN_A_BATCH):
        part = events[first : first + MOST_IN_A_BATCH]
        lines = tuple(
            Line(
                Record(first + number, _age(event.when, start), 0, event.line.text),
                f"{name}:{event.line.number}",
                event.line.shown,
            )
            for number, event in enumerate(part)
        )
        whole = first + len(part) == len(events)
        when = end if whole else part[-1].when
        yield BootRecords(boot, "", lines, utc(start), Now(utc(when), _age(when, start)))


def _age(when: float, start: float) -> float:
    return round(min(max(when - start, 0.0), LONGEST_STEP_SECONDS), 6)
