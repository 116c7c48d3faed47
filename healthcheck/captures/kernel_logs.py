"""Reader of saved kernel logs: splits them into boots and records. The rules are in docs/replay.md.

A log of 100 MB holds some hundred lines about GPUs. Only these lines are parsed, and one line in every SAMPLE_BYTES for
the time and the boots. The memory used does not grow with the size of the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.captures.blocks import CaptureError
from gpu_healthcheck.healthcheck.captures.log_lines import (
    YEARS,
    LogLine,
    Stamp,
    decoded,
    is_behind_another_prefix,
    is_of_an_unknown_form,
    read_alone,
    read_line,
)
from gpu_healthcheck.healthcheck.captures.printk import Joiner, KernelRecord, messages
from gpu_healthcheck.healthcheck.model import Now
from gpu_healthcheck.healthcheck.probes.kernel_log import Record

_OF_MLX5 = (
    *(b"unrecoverable hardware err", b"health recovery ", b"health revovery "),
    *(
        b"'s health comprom",
        b"Will cause a leak",
        b": Fatal error ",
        b": TX timeout detected",
        b"_one failed with error",
    ),
)
_MARKS_IN_JSON = (b"[78,86,82,77,", b"[ 78, 86, 82, 77,", b"[78, 86, 82, 77,")
"""`NVRM` as a list of bytes. The journal writes a message so if it is not UTF-8, for example due to a process name."""
_OF_A_FAULT = (b"NVRM", b"SXid", *_OF_MLX5, *_MARKS_IN_JSON)
"""Marks of the lines that are counted if the kernel did not write them: other programs write about `nvidia`, too."""
MARKS = (b"NVRM", b"nvidia", b"pcieport", b"efa 0000:", b"infiniband efa_", b"infiniband rdmap", *_OF_MLX5)
"""Each line that a check reads contains one of these, or one of _MARKS_IN_JSON."""
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
_MOST_STEPS_BACK = 2
"""Steps back in time of a log that is not reversed: clocks that were set, and boots."""
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


class LineReader:
    """Parser of the lines of a log. Its subclasses keep the records."""

    def __init__(self, saved: datetime, boot: int, passed_over: PassedOver) -> None:
        self.clock = Clock(saved)
        self.joiner = Joiner()
        self.boot = boot
        self.host = ""
        self.name = ""
        self.recognised = False
        """Whether the current file has at least one line of the kernel."""
        self.is_prefixed = False
        """Whether the current file has at least one line with a prefix."""
        self.passed_over = passed_over

    def parse(self, number: int, raw: bytes) -> None:
        """Parse one line and keep its records, or count it as passed over."""
        is_marked = any(mark in raw for mark in (*MARKS, *_MARKS_IN_JSON))
        counts = is_marked and any(mark in raw for mark in _OF_A_FAULT)
        line = read_line(raw)
        if line is None:
            self.take_unprefixed(number, decoded(raw), counts=counts)
            return
        self.is_prefixed = True
        self.recognised = self.recognised or line.kernel
        if line.refused:
            self.passed_over.refused += counts
            return
        self.host = line.host or self.host
        written_at = self.written_at(line)
        if not line.kernel:
            self.passed_over.quoted += counts
        elif is_marked:
            self.take_messages(number, line, written_at, decoded(raw))

    def take_messages(self, number: int, line: LogLine, written_at: Now, shown: str) -> None:
        """Keep the driver's messages in a line of the kernel."""
        source = f"{self.name}:{number}"
        if is_behind_another_prefix(line.text):
            self.passed_over.count_unread(line.text, source)
        elif not line.text:  # an entry of the journal whose message is in another field
            self.passed_over.count_unread(shown, source)
        else:
            for text in messages(line.text):
                self.keep(self.joiner.add(replace(line, text=text), written_at, number, shown))

    def written_at(self, line: LogLine) -> Now:
        """Advance the clock to the time of a line."""
        return self.clock.read(line.stamp)

    def take_unprefixed(self, number: int, text: str, *, counts: bool) -> None:
        raise NotImplementedError

    def keep(self, record: KernelRecord | None) -> None:
        raise NotImplementedError


class KernelLogReader(LineReader):
    """Reader of one node's kernel log from one or several files.

    Each file is read to its end before the next, as `cat` does.
    """

    def __init__(self, saved: datetime, boot: int, passed_over: PassedOver) -> None:
        super().__init__(saved, boot, passed_over)
        self.boot_id = ""
        """Boot ID from the journal."""
        self._expects_banner = False
        """Whether this boot began before the kernel's banner, which then begins no other."""
        self._began: datetime | None = None
        self._is_of_a_syslog = False
        """Whether the last prefix has a date and a host. No line then begins with text of a message."""
        self._last_stamp = Stamp()
        self._steps_back = self._steps_forward = 0
        self._lines: list[Line] = []
        self._records_in_boot = 0
        self._ready: list[BootRecords] = []

    def read(self, name: str, blocks: Iterable[bytes]) -> Iterator[BootRecords]:
        """Yield the records of the next file. Raises CaptureError for a file with its newest line first."""
        self.name, self.is_prefixed, self.recognised, self._is_of_a_syslog = name, False, False, False
        self._last_stamp, self._steps_back, self._steps_forward = Stamp(), 0, 0
        for number, raw in relevant_lines(blocks, (*MARKS, *_BOOT_MARKS), lambda: self.recognised):
            self.parse(number, raw)
            while self._ready:
                yield self._ready.pop(0)
        if self._steps_back > max(self._steps_forward, _MOST_STEPS_BACK):
            raise CaptureError("its newest line is first (journalctl -r): save it with the oldest line first")
        self.keep(self.joiner.end())
        self._end_batch()
        yield self._ready.pop(0)

    def written_at(self, line: LogLine) -> Now:
        self._is_of_a_syslog = bool(line.host) and line.stamp.wall is not None
        self._count_step(line.stamp)
        self._begin_boot_at(line)
        written_at = super().written_at(line)
        self._began = self._began or written_at.wall
        return written_at

    def _count_step(self, stamp: Stamp) -> None:
        """Count whether the time went back or forward since the last line with a stamp of the same clock."""
        seconds, last = 0.0, self._last_stamp
        if stamp.wall is not None and last.wall is not None:
            seconds = (stamp.wall - last.wall).total_seconds()
        elif stamp.monotonic is not None and last.monotonic is not None:
            seconds = stamp.monotonic - last.monotonic
        self._steps_forward += seconds > 0
        self._steps_back += seconds < 0
        self._last_stamp = stamp

    def take_unprefixed(self, number: int, text: str, *, counts: bool) -> None:
        journal = _JOURNAL_BOOT.match(text.rstrip())
        if journal and (journal["id"] or self._is_of_a_syslog):
            self._begin_boot(journal["id"] or "", expects_banner=True)
        elif self.joiner.goes_on(text, number):
            return
        elif not self.is_prefixed and (line := read_alone(text)):
            self.recognised = self.recognised or line.kernel
            self.passed_over.refused += counts and line.refused
            if line.kernel:
                self._begin_boot_at(line)
            if line.kernel and not line.text.startswith("Linux version "):
                self.take_messages(number, line, self.clock.now, text)
        elif counts:
            self.passed_over.count_unread(text, f"{self.name}:{number}")

    def _begin_boot_at(self, line: LogLine) -> None:
        is_banner = line.kernel and bool(_BANNER.match(line.text))
        if line.boot_id:
            self._begin_boot(line.boot_id, expects_banner=True)
        elif line.kernel and self.clock.goes_back(line.stamp):
            self._begin_boot("", expects_banner=not is_banner)
        elif is_banner:
            if not self._expects_banner:
                self._begin_boot("", expects_banner=False)
            self._expects_banner = False

    def _begin_boot(self, boot_id: str, *, expects_banner: bool) -> None:
        if boot_id and boot_id == self.boot_id:
            return  # the next file continues the same boot
        self.keep(self.joiner.end())
        if self._records_in_boot:
            self._end_batch()
            self.boot += 1
        self.clock.begin_boot()
        self.boot_id, self._expects_banner = boot_id, expects_banner
        self._began, self._records_in_boot = None, 0

    def keep(self, record: KernelRecord | None) -> None:
        if record is None:
            return
        numbered = Record(self._records_in_boot, record.moment.monotonic, 0, record.text)
        self._records_in_boot += 1
        self._lines.append(Line(numbered, f"{self.name}:{record.number}", record.shown))
        if len(self._lines) >= MOST_IN_A_BATCH:
            self._end_batch()

    def _end_batch(self) -> None:
        now = self.clock.now
        self._ready.append(BootRecords(self.boot, self.boot_id, tuple(self._lines), self._began or now.wall, now))
        self._lines.clear()


def relevant_lines(
    blocks: Iterable[bytes], marks: Iterable[bytes], is_recognised: Callable[[], bool]
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines to parse, each with its number.

    Before the first line of the kernel is recognised, each line may be that line.
    """
    number, searched = 1, 0
    for block in blocks:
        start = 0
        while start < len(block) and searched < MOST_SEARCHED and not is_recognised():
            end = block.index(b"\n", start)
            yield number, block[start:end]
            number, searched, start = number + 1, searched + 1, end + 1
        more_marks = (*(() if is_recognised() else (_TAG,)), *(_MARKS_IN_JSON if block.startswith(b"{") else ()))
        for line in _marked_lines(block, start, (*marks, *more_marks)):
            number += block.count(b"\n", start, line)
            start = line
            yield number, block[line : block.index(b"\n", line)]
        number += block.count(b"\n", start)


def _marked_lines(block: bytes, begin: int, marks: Iterable[bytes]) -> list[int]:
    """Return the offsets of the lines with a mark, and of their continuation lines.

    The result also has sample lines for the time, and the last lines.
    """
    starts = {begin}
    for mark in marks:
        found = block.find(mark, begin)
        while found >= 0:
            starts.add(block.rfind(b"\n", 0, found) + 1)
            end = block.index(b"\n", found) + 1
            if block.find(b": Xid (", found, end) >= 0:
                starts.add(end)  # the rest of a wrapped line
            while block[end : end + 1] in (b" ", b"\t"):
                starts.add(end)
                end = block.index(b"\n", end) + 1
            found = block.find(mark, end)
    starts.update(block.rfind(b"\n", 0, sample) + 1 for sample in range(begin + SAMPLE_BYTES, len(block), SAMPLE_BYTES))
    end = len(block)
    for _ in range(_LAST_LINES):
        end = block.rfind(b"\n", 0, max(end - 1, 0)) + 1
        starts.add(end)
    return sorted(start for start in starts if begin <= start < len(block))


def utc(seconds: float) -> datetime:
    """Convert seconds since the epoch to a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
