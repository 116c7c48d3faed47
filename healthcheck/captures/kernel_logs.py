"""Reader of saved kernel logs: splits them into boots and records. The rules are in docs/replay.md.

A log of 100 MB holds some hundred lines about GPUs. Only these lines are parsed, and one line in every SAMPLE_BYTES for
the time and the boots. The memory used does not grow with the size of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from healthcheck.captures.blocks import CaptureError
from healthcheck.captures.log_lines import (
    YEARS,
    LogLine,
    Stamp,
    decoded,
    is_behind_another_prefix,
    is_of_an_unknown_form,
    read_alone,
    read_line,
)
from healthcheck.captures.printk import Joiner, KernelRecord, messages
from healthcheck.model import Now
from healthcheck.probes.kernel_log import Record

_OF_MLX5 = (
    *(b"unrecoverable hardware err", b"health recovery ", b"health revovery "),
    *(b"'s health comprom", b"Will cause a leak"),
)
MARKS = (b"NVRM", b"nvidia", b"pcieport", *_OF_MLX5)
"""Each line that a check reads contains one of these."""
_OF_A_FAULT = (b"NVRM", b"SXid", *_OF_MLX5)
"""Marks of the lines that are counted if the kernel did not write them: other programs write about `nvidia`, too."""

_MARKS_IN_JSON = (b"[78,86,82,77,", b"[ 78, 86, 82, 77,", b"[78, 86, 82, 77,")
"""`NVRM` as a list of bytes. The journal writes a message so if it is not UTF-8, for example due to a process name."""
_BOOT_MARKS = (b"Linux version ", b"-- Boot ", b"-- Reboot ")
_JOURNAL_BOOT = re.compile(r"-- (?:Boot (?P<id>[0-9a-f]{32})|Reboot) --\Z")
_BANNER = re.compile(r"Linux version \d{1,3}\.\d")
"""The pattern is longer than a process name, with which some records begin: `Linux version 5[1234]: segfault`."""
_TAG = b" kernel"
SAMPLE_BYTES = 8192
MOST_SEARCHED = 10_000
"""Most lines parsed to find the first line of the kernel. After these, only tagged lines and samples are parsed."""
_LAST_LINES = 8
MOST_IN_A_BATCH = 2000
_EARLY_SECONDS = 60.0
_REORDERED_SECONDS = 5.0
"""Largest difference between the times of reordered lines: lines of different processors can be out of order."""
_BACK_SECONDS = 60.0
_BACK_FOR_SURE = 3
_HALF_A_YEAR = timedelta(days=180)
LONGEST_STEP_SECONDS = 10 * 365 * 86400.0


class Line(Struct, frozen=True):
    """One record, its position in the capture, and the original line."""

    record: Record
    source: str
    shown: str


class BootRecords(Struct, frozen=True):
    """Records of one boot, oldest first."""

    boot: int
    boot_id: str
    lines: tuple[Line, ...]
    began: datetime
    """Start of the boot, as far as its first line shows it."""
    now: Now
    """Time of the last record."""


class PassedOver(Struct):
    """Counts of input that was read but not judged."""

    quoted: int = 0
    """Number of lines about a GPU that the kernel did not write, such as quotations."""
    unread: int = 0
    """Number of driver lines after an unknown prefix."""
    first_unread: str = ""
    """File and number of the first unread line."""
    refused: int = 0
    """Number of lines of another facility than the kernel's: user space wrote them."""
    repeated: int = 0
    """Number of events that another section of the same report also records."""
    cut: list[str] = field(default_factory=list)
    """Descriptions of the parts that could not be read."""
    unrecognised: list[str] = field(default_factory=list)
    """Files without a line of the kernel."""

    def count_unread(self, text: str, source: str) -> None:
        """Count a marked line that is not judged: a quotation, or a line in an unknown form."""
        if is_of_an_unknown_form(text):
            self.unread += 1
            self.first_unread = self.first_unread or source
        else:
            self.quoted += 1


class Clock:
    """Clock of a capture, derived from the timestamps of its lines."""

    def __init__(self, saved: datetime) -> None:
        self._saved = saved
        self._year: int | None = None
        self._stamped_wall: datetime | None = None
        self._stamped: float | None = None
        self.wall = saved
        self.at = 0.0
        """Time on the boot's monotonic clock, in seconds."""

    @property
    def dated(self) -> bool:
        """Whether any line has a date and time."""
        return self._stamped_wall is not None

    @property
    def now(self) -> Now:
        return Now(self.wall, self.at)

    def begin_boot(self) -> None:
        self.at, self._stamped = 0.0, None

    def goes_back(self, stamp: Stamp) -> bool:
        """Whether the boot's clock restarted.

        The time then drops by more than reordered lines explain, and the new time is near 0 or far earlier.
        """
        if stamp.monotonic is None or self._stamped is None:
            return False
        back = self._stamped - stamp.monotonic
        return back > (_REORDERED_SECONDS if stamp.monotonic < _EARLY_SECONDS else _BACK_SECONDS)

    def read(self, stamp: Stamp) -> Now:
        """Advance the clock to a line's time. Return the time at which the line was written."""
        elapsed = 0.0
        if stamp.wall is not None:
            wall = self.with_year(stamp.wall) if stamp.yearless else stamp.wall
            if self._stamped_wall is not None:
                elapsed = (wall - self._stamped_wall).total_seconds()
            self.wall = self._stamped_wall = wall
        if stamp.monotonic is not None:
            step = stamp.monotonic - (self._stamped if self._stamped is not None else 0.0)
            if stamp.wall is None:
                self.wall = _later(self.wall, step)
            self.at = self._stamped = max(stamp.monotonic, self._stamped or 0.0)
            return Now(self.wall, stamp.monotonic)
        # A wall clock that was set back gives no elapsed time.
        self.at += min(max(elapsed, 0.0), LONGEST_STEP_SECONDS)
        return self.now

    def with_year(self, wall: datetime) -> datetime:
        """Add the missing year to a time: the newest year for which the time is not after the time of saving."""
        if self._year is None:
            self._year = self._saved.year
            if _in_year(wall, self._year) > self._saved + timedelta(days=1):
                self._year -= 1
        full = _in_year(wall, self._year)
        goes_back = self._stamped_wall is not None and full < self._stamped_wall - _HALF_A_YEAR
        if goes_back and self._year + 1 in YEARS:
            self._year += 1
            full = _in_year(wall, self._year)
        return full


class Direction:
    """Direction of time from line to line: `journalctl -r` prints the newest line first."""

    def __init__(self) -> None:
        self._previous = Stamp()
        self._forth = self._back = 0

    @property
    def is_back(self) -> bool:
        return self._back > self._forth and self._back >= _BACK_FOR_SURE

    def follow(self, stamp: Stamp) -> None:
        step = _step(self._previous, stamp)
        self._forth += step > 0
        self._back += step < 0
        self._previous = stamp


def _step(stamp: Stamp, other: Stamp) -> float:
    if stamp.wall is not None and other.wall is not None:
        return (other.wall - stamp.wall).total_seconds()
    if stamp.monotonic is not None and other.monotonic is not None:
        return other.monotonic - stamp.monotonic
    return 0.0


def _later(wall: datetime, seconds: float) -> datetime:
    """Add the seconds to a time.

    A negative number counts as 0, and a result outside the supported years is dropped.
    """
    later = wall + timedelta(seconds=max(seconds, 0.0))
    return later if later.year in YEARS else wall


def _in_year(wall: datetime, year: int) -> datetime:
    try:
        return wall.replace(year=year)
    except ValueError:  # the 29th of February of another year
        return wall.replace(year=year, month=3, day=1)


class KernelLogReader:
    """Reader of one node's kernel log from one or several files.

    Each file is read to its end before the next, as `cat` does.
    """

    def __init__(self, saved: datetime, boot: int, passed_over: PassedOver) -> None:
        self.clock = Clock(saved)
        self.boot = boot
        self.boot_id = ""
        """Boot ID from the journal."""
        self.host = ""
        self._passed_over = passed_over
        self.recognised = False
        """Whether the current file has at least one line of the kernel."""
        self._owns_a_banner = False
        self._marked = False
        """Whether the journal marked the start of this boot. The kernel's banner then follows."""
        self._prefixed = False
        self._began: datetime | None = None
        self._of_a_syslog = False
        """Whether the last prefix has a date and a host. No line then begins with text of a message."""
        self._searched = 0
        self._direction = Direction()
        self._joiner = Joiner()
        self._lines: list[Line] = []
        self._in_boot = 0
        self._ready: list[BootRecords] = []
        self._name = ""

    def read(self, name: str, blocks: Iterable[bytes]) -> Iterator[BootRecords]:
        """Yield the records of the next file. Raises CaptureError for a file with its newest line first."""
        self._name, self._prefixed, self.recognised, self._searched = name, False, False, 0
        self._of_a_syslog = False
        self._direction = Direction()
        number = 1
        for block in blocks:
            for line, raw in numbered(block, self._wanted(block), number):
                self._take(raw, line)
            number += block.count(b"\n")
            yield from self._handed_over()
        if self._direction.is_back:
            raise CaptureError("its newest line is first (journalctl -r): save it with the oldest line first")
        self._tell(self._joiner.end())
        self._end_batch()
        yield from self._handed_over()

    def _wanted(self, block: bytes) -> Iterator[int]:
        """Yield the offsets of the lines that must be parsed, in order."""
        start = 0
        while not self.recognised and self._searched < MOST_SEARCHED and start < len(block):
            # Before the first line of the kernel is recognised, each line may be that line.
            self._searched += 1
            yield start
            start = block.index(b"\n", start) + 1
        tag = () if self.recognised else (_TAG,)
        marks = (*MARKS, *_BOOT_MARKS, *tag, *(_MARKS_IN_JSON if block.startswith(b"{") else ()))
        if start < len(block):
            yield from (start + line for line in wanted_lines(block[start:], marks))

    def _take(self, raw: bytes, number: int) -> None:
        marked = any(mark in raw for mark in (*MARKS, *_MARKS_IN_JSON))
        line = read_line(raw)
        if line is None:
            self._take_unprefixed(decoded(raw), number, marked=marked, counts=marked and is_of_a_fault(raw))
            return
        self._prefixed = True
        self.recognised = self.recognised or line.kernel
        self.host = line.host or self.host
        self._of_a_syslog = bool(line.host) and line.stamp.wall is not None
        if line.refused:
            self._passed_over.refused += marked and is_of_a_fault(raw)
            return
        self._direction.follow(line.stamp)
        self._mind_the_boot(line)
        moment = self.clock.read(line.stamp)
        self._began = self._began or moment.wall
        if line.kernel:
            self._tell_messages(line, moment, number, decoded(raw), marked=marked)
        else:
            self._passed_over.quoted += marked and is_of_a_fault(raw)

    def _tell_messages(self, line: LogLine, moment: Now, number: int, shown: str, *, marked: bool) -> None:
        if is_behind_another_prefix(line.text):
            self._passed_over.count_unread(line.text, f"{self._name}:{number}")
        elif marked and not line.text:  # an entry of the journal whose message is in another field
            self._passed_over.count_unread(shown, f"{self._name}:{number}")
        elif marked:
            for text in messages(line.text):
                self._tell(self._joiner.add(replace(line, text=text), moment, number, shown))

    def _take_unprefixed(self, text: str, number: int, *, marked: bool, counts: bool) -> None:
        journal = _JOURNAL_BOOT.match(text.rstrip())
        if journal and (journal["id"] or self._of_a_syslog):
            self._begin_boot(journal["id"] or "", marked=True)
        elif self._joiner.goes_on(text, number):
            return
        elif not self._prefixed and (line := read_alone(text)):
            self.recognised = self.recognised or line.kernel
            self._passed_over.refused += counts and line.refused
            if line.kernel:
                self._mind_the_boot(line)
                self._tell_messages(line, self.clock.now, number, text, marked=marked)
        elif counts:
            self._passed_over.count_unread(text, f"{self._name}:{number}")

    def _mind_the_boot(self, line: LogLine) -> None:
        if line.boot_id:
            self._begin_boot(line.boot_id, marked=True)
        elif line.kernel and self.clock.goes_back(line.stamp):
            self._begin_boot("", marked=False)
            self._owns_a_banner = bool(_BANNER.match(line.text))
            self._marked = not self._owns_a_banner
        elif line.kernel and _BANNER.match(line.text):
            if not self._marked:
                self._begin_boot("", marked=False)
            self._owns_a_banner, self._marked = True, False

    def _begin_boot(self, boot_id: str, *, marked: bool) -> None:
        if boot_id and boot_id == self.boot_id:
            return  # the next file continues the same boot
        self._tell(self._joiner.end())
        if self._in_boot or self._owns_a_banner:
            self._end_batch()
            self.boot += 1
        self.clock.begin_boot()
        self.boot_id, self._marked, self._owns_a_banner, self._in_boot = boot_id, marked, False, 0
        self._began = None

    def _tell(self, kernel_record: KernelRecord | None) -> None:
        if kernel_record is None:
            return
        record = Record(self._in_boot, kernel_record.moment.monotonic, 0, kernel_record.text)
        self._in_boot += 1
        self._lines.append(Line(record, f"{self._name}:{kernel_record.number}", kernel_record.shown))
        if len(self._lines) >= MOST_IN_A_BATCH:
            self._end_batch()

    def _end_batch(self) -> None:
        now = self.clock.now
        self._ready.append(BootRecords(self.boot, self.boot_id, tuple(self._lines), self._began or now.wall, now))
        self._lines.clear()

    def _handed_over(self) -> Iterator[BootRecords]:
        ready, self._ready = self._ready, []
        yield from ready


def lines_of(block: bytes) -> list[int]:
    """Return the offset of each line in the block."""
    return [0, *(found.end() for found in re.finditer(rb"\n(?=.|\n)", block))]


def numbered(block: bytes, starts: Iterable[int], number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines at these offsets, each with its number. `number` is the number of the block's first line."""
    before = 0
    for start in starts:
        number += block.count(b"\n", before, start)
        before = start
        yield number, block[start : block.index(b"\n", start)]


def wanted_lines(block: bytes, marks: Iterable[bytes]) -> list[int]:
    """Return the offsets of the lines to parse.

    These are the lines with a mark and their continuation lines, sample lines for the time, and the last lines.
    """
    starts = {0}
    for mark in marks:
        found = block.find(mark)
        while found >= 0:
            starts.add(block.rfind(b"\n", 0, found) + 1)
            end = block.index(b"\n", found) + 1
            while block[end : end + 1] in (b" ", b"\t"):
                starts.add(end)
                end = block.index(b"\n", end) + 1
            found = block.find(mark, end)
    starts.update(block.rfind(b"\n", 0, place) + 1 for place in range(SAMPLE_BYTES, len(block), SAMPLE_BYTES))
    end = len(block)
    for _ in range(_LAST_LINES):
        end = block.rfind(b"\n", 0, max(end - 1, 0)) + 1
        starts.add(end)
    return sorted(starts)


def is_of_a_fault(raw: bytes) -> bool:
    """Whether the line is counted if the kernel did not write it."""
    return any(mark in raw for mark in (*_OF_A_FAULT, *_MARKS_IN_JSON))


def utc(seconds: float) -> datetime:
    """Convert seconds since the epoch to a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
