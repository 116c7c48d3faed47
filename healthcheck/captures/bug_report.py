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

from gpu_healthcheck.healthcheck.captures.kernel_logs import (
    LONGEST_STEP_SECONDS,
    MARKS,
    MOST_IN_A_BATCH,
    BootRecords,
    Clock,
    Line,
    LineReader,
    PassedOver,
    relevant_lines,
    utc,
)
from gpu_healthcheck.healthcheck.captures.log_lines import YEARS
from gpu_healthcheck.healthcheck.captures.printk import KernelRecord
from gpu_healthcheck.healthcheck.model import Now
from gpu_healthcheck.healthcheck.probes.kernel_log import Record

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
_BUCKET_SECONDS = 2.0


class _Section(Struct, frozen=True):
    """The records under one heading of the report.

    `boot` is the number of boots before the current one, if the heading gives it.
    """

    boot: int | None = None
    records: list[KernelRecord] = field(default_factory=list)


class _Event(Struct, frozen=True):
    """One record on the report's common clock. `when` is in seconds since the epoch."""

    when: float
    section: _Section
    record: KernelRecord


class BugReportReader(LineReader):
    """Reader of one report. It yields all batches at the end of the report, oldest boot first."""

    def __init__(self, saved: datetime, boot: int, passed_over: PassedOver) -> None:
        super().__init__(saved, boot, passed_over)
        self._saved = saved
        self._is_dated = False
        self._sections = [_Section()]
        self._count = 0

    def read(self, name: str, blocks: Iterable[bytes]) -> Iterator[BootRecords]:
        self.name = name
        for number, raw in relevant_lines(blocks, (*MARKS, *_HEADING_MARKS), lambda: self.recognised):
            if raw.startswith(_RULE):
                self._begin_section(None)
            else:
                self.parse(number, raw)
        self.keep(self.joiner.end())
        yield from self._batches()

    def take_unprefixed(self, number: int, text: str, *, counts: bool) -> None:
        heading, date = _HEADING.match(text), _DATE.match(text)
        if heading:
            self._begin_section(int(heading["boot"]) if heading["boot"] else None)
        elif date and not self._is_dated:
            self._take_date(date)
        elif not self.joiner.goes_on(text, number):
            self.passed_over.quoted += counts  # a report also contains output of other programs

    def keep(self, record: KernelRecord | None) -> None:
        if record is None:
            return
        self._count += 1
        if self._count <= _MOST_SHOWN:
            self._sections[-1].records.append(record)
        else:
            self.passed_over.quoted += 1

    def _take_date(self, found: re.Match[str]) -> None:
        text = f"{found['month']} {found['day']} {found['year']} {found['time']}"
        try:
            date = datetime.strptime(text, "%b %d %Y %H:%M:%S").replace(tzinfo=UTC)
        except ValueError:
            return
        if date.year not in YEARS:
            return
        if found["half"]:
            date = date.replace(hour=date.hour % 12 + (12 if found["half"] == "PM" else 0))
        self._saved, self._is_dated = date, True

    def _begin_section(self, boot: int | None) -> None:
        self.keep(self.joiner.end())
        self.clock = Clock(self._saved)
        if not self._sections[-1].records:
            self._sections.pop()
        self._sections.append(_Section(boot))

    def _batches(self) -> Iterator[BootRecords]:
        events, kernel_start = self._on_one_clock()
        starts = _boot_starts(events, kernel_start)
        events = self._without_repeats(events)
        end = max([self._saved.timestamp(), *(event.when for event in events)])
        first_boot = self.boot
        self.boot += len(starts)
        boots: list[list[_Event]] = [[] for _ in range(len(starts) + 1)]
        for event in events:
            boots[bisect_right(starts, event.when)].append(event)
        for number, in_boot in enumerate(boots):
            is_last = number == len(starts)
            if in_boot or is_last:
                start = starts[number - 1] if number else min((event.when for event in in_boot), default=end)
                yield from self._in_batches(first_boot + number, in_boot, start, end if is_last else in_boot[-1].when)

    def _on_one_clock(self) -> tuple[list[_Event], float | None]:
        """Return all records with their wall-clock time, oldest first, and the start time of the kernel.

        The start time is None if no dated section repeats a record of dmesg. The report is then assumed to be saved at
        the time of dmesg's last record.
        """
        entries = [(section, record) for section in self._sections for record in section.records]
        dated = {record.text: record.moment.wall.timestamp() for _, record in entries if record.stamp.wall}
        since_boot = {record.text: record.moment.monotonic for _, record in entries if not record.stamp.wall}
        start = max((dated[text] - since_boot[text] for text in dated.keys() & since_boot), default=None)
        zero = self._saved.timestamp() - max(since_boot.values(), default=0.0) if start is None else start
        events = [
            _Event(
                record.moment.wall.timestamp() if record.stamp.wall else zero + record.moment.monotonic, section, record
            )
            for section, record in entries
        ]
        return sorted(events, key=lambda event: (event.when, event.record.number)), start

    def _without_repeats(self, events: Iterable[_Event]) -> list[_Event]:
        """Return the first copy of each record, and count the copies from other sections as repeated.

        If an event happened several times, each section can list it once per occurrence.
        """
        kept: list[_Event] = []
        recorded: dict[str, _RecordedTimes] = defaultdict(_RecordedTimes)
        for event in events:
            if recorded[event.record.text].has(event):
                self.passed_over.repeated += 1
            else:
                kept.append(event)
        return kept

    def _in_batches(self, boot: int, events: list[_Event], start: float, end: float) -> Iterator[BootRecords]:
        for first in range(0, max(len(events), 1), MOST_IN_A_BATCH):
            part = events[first : first + MOST_IN_A_BATCH]
            when = end if first + len(part) == len(events) else part[-1].when
            lines = tuple(
                Line(
                    Record(number, _age(event.when, start), 0, event.record.text),
                    f"{self.name}:{event.record.number}",
                    event.record.shown,
                )
                for number, event in enumerate(part, first)
            )
            yield BootRecords(boot, "", lines, utc(start), Now(utc(when), _age(when, start)))


class _RecordedTimes:
    """The times at which one text was recorded, and the position of each section in them.

    The events of a report are ordered by time. A time that is too old for one event is too old for all later events,
    so no time is compared twice, regardless of the number of sections.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._first_recent = 0
        self._next: dict[int, int] = {}

    def has(self, event: _Event) -> bool:
        """Whether another section recorded this event. The time of an event that none recorded is added."""
        while (
            self._first_recent < len(self._times) and self._times[self._first_recent] < event.when - _SAME_EVENT_SECONDS
        ):
            self._first_recent += 1
        index = max(self._next.get(id(event.section), 0), self._first_recent)
        self._next[id(event.section)] = index + 1
        is_recorded = index < len(self._times)
        if not is_recorded:
            self._times.append(event.when)
        return is_recorded


def _boot_starts(events: Iterable[_Event], kernel_start: float | None) -> list[float]:
    """Return the approximate start time of each boot that the report covers."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for event in events:
        boot = event.section.boot
        if boot is not None:
            first.setdefault(boot, event.when)
            last[boot] = event.when
    starts = sorted([*first.values(), *([kernel_start] if kernel_start is not None else [])])
    apart = starts[:1] + [later for start, later in pairwise(starts) if later - start > _SAME_BOOT_SECONDS]
    known = [start - _BUCKET_SECONDS for start in apart]
    if first and 0 not in first and kernel_start is None:
        known.append(last[min(last)] + 1.0)  # no GPU record in this boot's journal
    return known


def _age(when: float, start: float) -> float:
    return round(min(max(when - start, 0.0), LONGEST_STEP_SECONDS), 6)
