"""Joins lines to kernel records: one printk call is one record, but can be several lines in a saved log."""

from __future__ import annotations

import re
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.captures.log_lines import NAMES_A_GPU, LogLine, Stamp, read_alone
from gpu_healthcheck.healthcheck.model import Now

_LONGEST_TEXT, _LONGEST_JOINED = 4096, 8192
_MOST_LINES = 8
_SYSLOG_TIME = timedelta(seconds=1)
_SENTENCE = re.compile(r"NVRM: (?:The NVIDIA GPU |API mismatch: )")
"""Beginnings of messages of several lines. dmesg and syslog repeat their prefix on each line."""
_GOES_ON = re.compile(r"NVRM: (?:[(a-z]|NVIDIA [\d.]{3,16} driver release)")
_CUT_XID = re.compile(r"NVRM: Xid \([^()]{1,48}\): (?:154,.{0,256}(?<!\))|\d{1,5},.{0,256}\([^()]{0,256})\Z", re.DOTALL)
"""Xid without the bracket at its end. A terminal or a web page wraps such a line, and the rest has no prefix."""

_BEGINS_ANOTHER = rf"(?:{NAMES_A_GPU}|NVRM: (?:GPU Board Serial Number|A GPU crash dump))"
_WHOLE, _NEXT = re.compile(NAMES_A_GPU), re.compile(rf"\n(?={_BEGINS_ANOTHER})")
_NEWLINE = re.compile(r"(?:\\{1,2}r)?(?:\\{1,2}n|\\x0a|\\012|#012|\^J)")
"""Forms of a newline in the output of collectors that write each record on one line."""
_STAMP = r"\[[^\]]{1,40}\] ?"
_SYSLOG_TAG = r"(?:\S{1,16} {1,2}\d{1,2} \d\d:|\d{4}-\d\d-\d\d[T ]\d\d:)\S{5,24} (?:\S{1,255} )?kernel: ?"
_JOINT = re.compile(
    rf"(?<=\S)[\s,;|]{{0,16}}(?:(?<=[\s,;|]){_SYSLOG_TAG})?(?:{_STAMP})?"
    rf"(?={_BEGINS_ANOTHER}|NVRM: (?:\(PCI ID: |installed in |fallen off ))"
)


def messages(text: str) -> tuple[str, ...]:
    """Return the driver's messages in one record: some collectors write simultaneous messages on one line.

    The lines of one message stay together, separated by newlines. Only messages that name their GPU are separated.
    """
    if not _WHOLE.match(text):
        return (text,)
    lines = _NEWLINE.sub("\n", text[:_LONGEST_JOINED])
    return tuple(_NEXT.split(_JOINT.sub("\n", lines).rstrip()))


class KernelRecord(Struct, frozen=True):
    """One kernel record of a capture. `shown` is its first line, unchanged."""

    text: str
    stamp: Stamp
    moment: Now
    number: int
    shown: str
    last_number: int
    lines: int = 1
    raw: bool = False

    @property
    def unfinished(self) -> bool:
        return bool(_SENTENCE.match(self.text)) and not self.text.endswith(".") and self.lines < _MOST_LINES

    def with_line(self, text: str, number: int, joint: str = "\n") -> KernelRecord:
        joined = f"{self.text}{joint}{text}"[:_LONGEST_TEXT]
        return replace(self, text=joined, last_number=number, lines=self.lines + 1)


class Joiner:
    """Joins the lines of one kernel record.

    The joiner keeps a record until the next line shows that the record is complete.
    """

    def __init__(self) -> None:
        self._held: KernelRecord | None = None

    def add(self, line: LogLine, moment: Now, number: int, shown: str) -> KernelRecord | None:
        """Add a line with a prefix. Return the record that this line completes, if any."""
        held = self._held
        if held is not None and held.unfinished and _at_once(held.stamp, line.stamp) and _GOES_ON.match(line.text):
            self._held = held.with_line(line.text, number)
            return None
        text = line.text[:_LONGEST_TEXT]
        self._held = KernelRecord(text, line.stamp, moment, number, shown[:_LONGEST_TEXT], number, raw=line.raw)
        return held

    def goes_on(self, text: str, number: int) -> bool:
        """Add a line without a prefix if it continues the current record. Return whether it does.

        Such a line is indented, or is the rest of a sentence.
        """
        held = self._held
        if held is None or held.raw or number != held.last_number + 1 or held.lines >= _MOST_LINES:
            return False
        is_wrapped = _CUT_XID.match(held.text) is not None and read_alone(text) is None
        if not (text[:1] in (" ", "\t") or is_wrapped or (held.unfinished and _GOES_ON.match(text))):
            return False
        self._held = held.with_line(text.strip(), number, " " if is_wrapped else "\n")
        return True

    def end(self) -> KernelRecord | None:
        held, self._held = self._held, None
        return held


def _at_once(stamp: Stamp, other: Stamp) -> bool:
    """Whether two lines can belong to one printk call.

    The kernel records one time per call, syslog the time of reception of each line.
    """
    if stamp.monotonic is not None and other.monotonic is not None:
        return stamp.monotonic == other.monotonic
    return stamp.wall is None or other.wall is None or abs(other.wall - stamp.wall) <= _SYSLOG_TIME
