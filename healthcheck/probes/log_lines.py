"""One line of a saved log: who wrote it, when, and what it says. Every form in which the kernel's log is saved.

A line is the kernel's when one of these stands before the message:

- `prio,seq,usec,flags;` of `/dev/kmsg`, facility 0;
- dmesg's `[secs.micros]`, `[Sat Nov 21 10:00:00 2026]`, `[Nov21 10:00]`, `[  +0.000123]` or ISO time with a comma,
  perhaps with `<4>` or `kern  :warn  :` before it and the caller (`[T123]`) behind it;
- a time, a host and the tag `kernel:` of syslog or journalctl, perhaps with the kernel's own stamp behind the tag.

Anything else before the message means that somebody quotes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from healthcheck.probes.kernel_log import KERNEL_FACILITY, parse_record

SOME_LEAP_YEAR = 2000
"""Stands in for the year that a form does not print, so that a 29th of February can be read."""

YEARS = range(1970, 2200)
"""A date outside of them is none; it leaves room to reckon with."""
_LONGEST_BOOT_SECONDS = 1e9
"""30 years: a stamp beyond it is no time."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?:{'|'.join(_MONTHS)})"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
"""What `dmesg --color=always` adds."""

_CALLER = r"(?: ?\[ {0,12}[TC]\d{1,10}\])?"
_CALLER_FIRST = re.compile(r"\A\[ {0,12}[TC]\d{1,10}\] ")
_DMESG = re.compile(
    r"(?:<(?P<priority>\d{1,4})>)?(?:(?P<facility>[a-z0-9]{2,8}) *:(?P<level>[a-z]{3,7}) *: )?"
    r"\[(?P<time>[^\]]{1,64})\]" + _CALLER + r"(?: (?P<text>.*))?\Z",
    re.DOTALL,
)
_SINCE_BOOT = re.compile(r" *(\d{1,10})\.(\d{6})(?: +<[^>]{1,24}>)?\Z")
_SINCE_LINE = re.compile(r" *(?:\+\d{1,10}\.\d{6}|< *\d{1,10}\.\d{6}>)\Z")
_CTIME = re.compile(
    rf"[A-Z][a-z]{{2}} (?P<month>{_MONTH}) (?P<day>[ \d]\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) "
    r"(?P<year>\d{4})(?: +<[^>]{1,24}>)?\Z"
)
_MINUTE = re.compile(rf"(?P<month>{_MONTH}) ?(?P<day>\d{{1,2}}) (?P<hour>\d\d):(?P<minute>\d\d)\Z")

_DATE = r"(?:[A-Z][a-z]{2} )?(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ]"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_ISO = re.compile(
    r"(?:<(?P<priority>\d{1,4})>)?(?P<rfc5424>1 )?(?:(?P<facility>[a-z0-9]{2,8}) *:(?P<level>[a-z]{3,7}) *: )?"
    + _DATE
    + _CLOCK
    + r"(?:(?P<mark>[.,])(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d| (?:[A-Z]{2,5}|[+-]\d{2,4}))? (?P<rest>.*)\Z",
    re.DOTALL,
)
_SYSLOG = re.compile(
    rf"(?:<(?P<priority>\d{{1,4}})>)?(?P<month>{_MONTH}) +(?P<day>\d{{1,2}}) (?:(?P<year>\d{{4}}) )?"
    + _CLOCK
    + r"(?:\.(?P<fraction>\d{1,9}))? (?P<rest>.*)\Z",
    re.DOTALL,
)
_UNIX = re.compile(r"(?P<seconds>\d{9,11})\.(?P<fraction>\d{6}) (?P<rest>.*)\Z", re.DOTALL)
_TAGGED = re.compile(r"(?:(?P<host>\S{0,254}[^\s:\]]) )?(?P<tag>[^\s:]{1,128}): ?(?P<text>.*)\Z", re.DOTALL)
_STRUCTURED = re.compile(
    r"(?P<host>\S{1,255}) (?P<tag>\S{1,48}) \S{1,128} \S{1,32} (?:-|\[[^\]]{0,1024}\])(?: (?P<text>.*))?\Z", re.DOTALL
)
_OWN_STAMP = re.compile(r"\[ {0,12}(\d{1,10})\.(\d{6})\]" + _CALLER + r" ?")


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a line was written, as far as it says so: seconds since boot, the capture's own wall clock, or both."""

    monotonic: float | None = None
    wall: datetime | None = None
    """A form that names no zone is taken as UTC: within one capture only differences matter."""
    yearless: bool = False
    """`wall` stands in SOME_LEAP_YEAR."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line with a known prefix."""

    text: str
    stamp: Stamp = Stamp()
    kernel: bool = True
    """False: another program's line, good for the time only."""
    refused: bool = False
    """It looks like the kernel's, but its facility says that user space wrote it."""
    raw: bool = False
    """A record of `/dev/kmsg`: its continuation lines are a dictionary, no message."""
    host: str = ""


def read_line(line: bytes) -> LogLine | None:
    """What a line of a log says; None when no known prefix stands before it. Never raises, whatever the bytes are."""
    record = parse_record(line.replace(b"\0", b"").rstrip(b"\r\n"))
    if record is not None:
        refused = record.facility not in KERNEL_FACILITY
        return LogLine(record.text, _since_boot(record.at), not refused, refused, raw=True)
    text = decoded(line)
    return _read_dmesg(text) or _read_dated(text)


def decoded(line: bytes) -> str:
    """The text of a line: without colours, without the NUL bytes that a crash leaves in a log."""
    text = line.decode("utf-8", "backslashreplace").replace("\0", "").rstrip("\r\n")
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def _read_dmesg(text: str) -> LogLine | None:
    found = _DMESG.match(text)
    if found is None:
        return None
    stamp = _bracketed(found["time"])
    if stamp is None:
        return None
    message = _unescaped(found["text"] or "")
    refused = _is_from_user_space(found["priority"], found["facility"])
    # `journalctl -o short-monotonic` puts host and tag behind the same stamp.
    tagged = _TAGGED.match(message) if stamp.monotonic is not None else None
    if tagged is not None and tagged["tag"] == "kernel":
        return LogLine(tagged["text"], stamp, not refused, refused, host=tagged["host"] or "")
    return LogLine(message, stamp, not refused, refused)


def _read_dated(text: str) -> LogLine | None:
    found = _ISO.match(text)
    if found is not None:
        refused = _is_from_user_space(found["priority"], found["facility"])
        stamp = Stamp(wall=_wall(found, zone=found["zone"] or ""))
        if stamp.wall is None:
            return None
        if found["mark"] == ",":  # only dmesg writes its fraction so, and no tag behind it
            return LogLine(_unescaped(_CALLER_FIRST.sub("", found["rest"])), stamp, not refused, refused)
        form = _STRUCTURED if found["rfc5424"] else _TAGGED
        return _tagged(form.match(found["rest"]), stamp, refused=refused)
    found = _SYSLOG.match(text)
    if found is not None:
        stamp = Stamp(wall=_wall(found), yearless=found["year"] is None)
        refused = _is_from_user_space(found["priority"], None)
        return _tagged(_TAGGED.match(found["rest"]), stamp, refused=refused) if stamp.wall else None
    found = _UNIX.match(text)
    if found is None:
        return None
    wall = datetime.fromtimestamp(int(found["seconds"]), UTC) + timedelta(microseconds=int(found["fraction"]))
    return _tagged(_TAGGED.match(found["rest"]), Stamp(wall=wall), refused=False) if wall.year in YEARS else None


def _tagged(found: re.Match[str] | None, stamp: Stamp, *, refused: bool) -> LogLine | None:
    """The line of a syslog: only the tag `kernel` is the kernel's, and with a process id it is somebody's joke."""
    if found is None:
        return None
    if found["tag"] != "kernel":
        return LogLine("", stamp, kernel=False)
    text = (found["text"] or "").replace("#012", "\n")  # how rsyslog writes a newline
    own = _OWN_STAMP.match(text)
    if own is not None:
        text = text[own.end() :]
        stamp = replace(_since_boot(float(f"{own[1]}.{own[2]}")), wall=stamp.wall, yearless=stamp.yearless)
    return LogLine(_unescaped(text), stamp, not refused, refused, host=found["host"] or "")


def _since_boot(seconds: float) -> Stamp:
    return Stamp(monotonic=seconds if seconds < _LONGEST_BOOT_SECONDS else None)


def _bracketed(time: str) -> Stamp | None:
    found = _SINCE_BOOT.match(time)
    if found is not None:
        return _since_boot(float(f"{found[1]}.{found[2]}"))
    if _SINCE_LINE.match(time):
        return Stamp()
    found = _CTIME.match(time)
    yearless = found is None
    found = found or _MINUTE.match(time)
    wall = _wall(found) if found is not None else None
    return Stamp(wall=wall, yearless=yearless) if wall is not None else None


def _wall(found: re.Match[str], zone: str = "") -> datetime | None:
    parts = found.groupdict()
    month = parts["month"]
    try:
        wall = datetime(
            int(parts.get("year") or SOME_LEAP_YEAR),
            _MONTHS.index(month) + 1 if month in _MONTHS else int(month),
            int(parts["day"]),
            int(parts["hour"]),
            int(parts["minute"]),
            min(int(parts.get("second") or 0), 59),  # a leap second
            int((parts.get("fraction") or "0")[:6].ljust(6, "0")),
            UTC,
        )
        wall -= _offset(zone)
    except (ValueError, OverflowError):
        return None
    return wall if wall.year in YEARS else None


def _offset(zone: str) -> timedelta:
    zone = zone.strip().replace(":", "")
    if zone[:1] not in ("+", "-"):
        return timedelta()
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:5] or 0))
    return -offset if zone[0] == "-" else offset


def _is_from_user_space(priority: str | None, facility: str | None) -> bool:
    if priority is not None and int(priority) >> 3 not in KERNEL_FACILITY:
        return True
    return facility is not None and facility != "kern"


def _unescaped(text: str) -> str:
    return text.replace("\\x0a", "\n") if "\\x0a" in text else text
