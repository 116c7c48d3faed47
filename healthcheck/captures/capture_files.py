"""Input files of `replay`: opens each file and recognises its kind from its content.

The files are read in the given order.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from gpu_healthcheck.healthcheck.captures.blocks import ENOUGH_TO_KNOW, CaptureError, InputFile
from gpu_healthcheck.healthcheck.captures.bug_report import BEGINNING, BugReportReader
from gpu_healthcheck.healthcheck.captures.kernel_logs import BootRecords, KernelLogReader, PassedOver, utc
from gpu_healthcheck.healthcheck.captures.kind import EVIDENCE_FORMAT, MOST_EVIDENCE, InputKind
from gpu_healthcheck.healthcheck.captures.log_lines import YEARS
from gpu_healthcheck.healthcheck.captures.replay import LINES_NOT_READ
from gpu_healthcheck.healthcheck.model import Unobserved, UnobservedCause, counted
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import DOCUMENT_MARK, LONGEST_ANSWER

STANDARD_INPUT = "-"
NOTHING_RECOGNISED = UnobservedCause(
    "NothingRecognised",
    "A saved log contains no line of the kernel.",
    "Save it in a format listed in `docs/replay.md`.",
)
DAMAGED = UnobservedCause(
    "CaptureDamaged",
    "The packed data of a saved log is damaged or ends early: a part of it may be unread.",
    "Copy or save the log again; `gzip -t FILE` tests it.",
)
CAUSES = (NOTHING_RECOGNISED, LINES_NOT_READ, DAMAGED)
_EXPECTED = (
    "expected formats: dmesg, journalctl -k (short and ISO forms, JSON), a syslog, records of /dev/kmsg, "
    "an nvidia-bug-report.log, the JSON of dcgmi diag or a file of check --save-evidence"
)
_EVIDENCE = re.compile(rb'\s*\{\s*"format"\s*:\s*"%b"' % EVIDENCE_FORMAT.encode())


class Captures:
    """The captures of one node, oldest first.

    `boot_id`, `saved_at`, `undated_by` and `unobserved` are final only after all batches were read. `evidence` is the
    content of an evidence file, `dcgm` the output of a DCGM diagnostic. Each of these two is judged without other files
    and has no batches.
    """

    def __init__(self, names: Sequence[str], kind: InputKind | None = None) -> None:
        self._names = names
        self._kind = kind
        self._reader: KernelLogReader | BugReportReader | None = None
        self._saved = datetime.now(UTC)
        self.passed_over = PassedOver()
        self.evidence: bytes | None = None
        self.dcgm: bytes | None = None
        self.host = ""
        self.boots = 0

    @property
    def boot_id(self) -> str:
        """Boot ID of the last boot, if the journal contains it; otherwise empty."""
        return self._reader.boot_id if isinstance(self._reader, KernelLogReader) else ""

    @property
    def saved_at(self) -> datetime:
        """Time at which the last file read was saved, in UTC."""
        return self._saved

    @property
    def undated_by(self) -> timedelta:
        """Offset to add to the times of a log without dates, so that it ends at the time of saving."""
        reader = self._reader
        if isinstance(reader, KernelLogReader) and not reader.clock.dated:
            return self._saved - reader.clock.wall
        return timedelta()

    def unobserved(self) -> Iterator[Unobserved]:
        """Yield the reasons why parts of the captures were not read, if any.

        The result is complete only after all batches were read.
        """
        passed = self.passed_over
        for name in passed.unrecognised:
            yield Unobserved(NOTHING_RECOGNISED, f"{name}: it contains no line of the kernel; {_EXPECTED}")
        yield from (Unobserved(DAMAGED, cut) for cut in passed.cut)
        if passed.unread:
            lines = f"{counted(passed.unread, 'line')} of the driver after an unknown prefix"
            yield Unobserved(LINES_NOT_READ, f"{lines}, the first at {passed.first_unread}")

    def batches(self) -> Iterator[BootRecords]:
        """Yield the records in batches, in the order of reading. Raises CaptureError, which names the file."""
        for name in self._names:
            try:
                yield from self._read(name)
            except CaptureError as error:
                raise CaptureError(f"{name}: {error}") from error

    def _read(self, name: str) -> Iterator[BootRecords]:
        with _opened(name) as stream:
            self._saved = _saved_at(name)
            source = InputFile(stream)
            kind = self._kind or _kind_of(source.beginning())
            if kind in (InputKind.EVIDENCE, InputKind.DCGM):
                self._take_whole(kind, source)
                return
            if not source.beginning():
                raise CaptureError("empty")
            reader = self._reader_for(kind)
            yield from reader.read(name, source.blocks())
            if source.cut:
                self.passed_over.cut.append(f"{name}: {source.cut}")
        if not reader.recognised:
            self.passed_over.unrecognised.append(name)
        self.host, self.boots = reader.host or self.host, reader.boot

    def _take_whole(self, kind: InputKind, source: InputFile) -> None:
        if len(self._names) > 1:
            raise CaptureError(f"{kind.value}, which is judged alone: pass no other file with it")
        if kind is InputKind.DCGM:
            self.dcgm = source.whole(LONGEST_ANSWER)
        else:
            self.evidence = source.whole(MOST_EVIDENCE)

    def _reader_for(self, kind: InputKind) -> KernelLogReader | BugReportReader:
        """Return the reader for the next file.

        A kernel log continues where the previous kernel log ended. Each bug report has a separate
        reader and is newer than all files before it.
        """
        reader = self._reader
        if kind is InputKind.BUG_REPORT:
            self._reader = BugReportReader(self._saved, self.boots + 1, self.passed_over)
        elif not isinstance(reader, KernelLogReader):
            self._reader = KernelLogReader(self._saved, self.boots + 1, self.passed_over)
        assert self._reader is not None
        return self._reader


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        path = Path(name)
        if path.is_char_device() or path.is_block_device():
            raise CaptureError("a device, not a saved capture; `gpu-healthcheck check` reads this node's log")
        stream = path.open("rb")
    except OSError as error:
        raise CaptureError(error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in the name
        raise CaptureError(str(error)) from error
    with stream:
        yield stream


def _saved_at(name: str) -> datetime:
    """Return the time at which the file was last written.

    For standard input, and for a file whose time is outside the supported years, return the current time.
    """
    try:
        saved = datetime.now(UTC) if name == STANDARD_INPUT else utc(Path(name).stat().st_mtime)
    except (OSError, ValueError, OverflowError):
        return datetime.now(UTC)
    return saved if saved.year in YEARS else datetime.now(UTC)


def _kind_of(beginning: bytes) -> InputKind:
    """Return the kind of a file by its first bytes."""
    if _EVIDENCE.match(beginning):
        return InputKind.EVIDENCE
    if DOCUMENT_MARK.search(beginning, 0, ENOUGH_TO_KNOW):
        return InputKind.DCGM
    return InputKind.BUG_REPORT if BEGINNING in beginning else InputKind.KERNEL_LOG
