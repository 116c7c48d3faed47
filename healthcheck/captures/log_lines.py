"""Parser for one line of a saved log: its writer, time and message, in all supported forms.

A line comes from the kernel if its message has one of these prefixes:

- `prio,seq,usec,flags;` of `/dev/kmsg`, facility 0;
- dmesg's `[secs.micros]`, `[Sat Nov 21 10:00:00 2026]`, `[Nov21 10:00]`, `[  +0.000123]` or ISO time with a
  comma, optionally with `<4>`, `kern  :warn  :` or the tag `kernel:` before it and the caller (`[T123]`) after it;
- a time, a host and the tag `kernel:` of syslog or journalctl, optionally with the kernel's timestamp after
  the tag;
- a node, `kern: warning:` and an ISO time in brackets, as `talosctl dmesg` prints it;
- journalctl's JSON, if its transport field is `kernel`; without that field, if its identifier is `kernel` and it names
  no process.

Month and weekday are English. Any other prefix means that the line is a quotation, or that its form is not supported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.probes.kernel_log import KERNEL_FACILITY, parse_record, unescaped

SOME_LEAP_YEAR = 2000
"""Replaces the year if a form omits it. It is a leap year, so that February 29 can be parsed."""

YEARS = range(1970, 2200)
"""Accepted years. Sums with dates of these years stay inside the range of datetime."""
_LATEST = datetime(YEARS.stop, 1, 1, tzinfo=UTC).timestamp()
_LONGEST_BOOT_SECONDS = 1e9
"""30 years: a larger number is not a time since boot."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
"""Escape sequences of `dmesg --color=always`."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_WEEKDAY = "(?P<weekday>(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
_MINUTE, _SECOND = r"(?P<hour>\d\d):(?P<minute>\d\d)", r":(?P<second>\d\d)"
_DATE = r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_FRACTION = r"(?:\.(?P<fraction>\d{1,9}))?"
_ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d| (?:[A-Z]{2,5}|[+-]\d{2,4}))?"
_SINCE_LAST_LINE = r"(?: +<[^>\]]{1,24}>)?"
_PRIORITY = r"(?:<(?P<priority>\d{1,4})>)?"
_LEVEL = r"(?:(?P<facility>[a-z0-9]{2,8}) *:[a-z]{3,7} *: )?"
_CALLER = r"(?: ?\[ {0,12}[TC]\d{1,10}\])?"
_TAG = (
    r"(?:(?P<host>\S{0,254}[^\s:\]]) )?(?:(?P<tag_facility>[a-z0-9]{2,8})\.[a-z]{3,7} )?"
    r"(?P<tag>[^\s:]{1,128}): ?(?P<text>.*)\Z"
)
_DMESG = (
    rf"{_PRIORITY}{_LEVEL}(?:kernel: ?)?\[(?: *(?P<since_boot>\d{{1,10}}\.\d{{6}}){_SINCE_LAST_LINE}"
    r"| *(?:\+\d{1,10}\.\d{6}|< *\d{1,10}\.\d{6}>)"
    rf"|{_WEEKDAY}{_MONTH} {{0,2}}(?P<day>\d{{1,2}}) {_MINUTE}(?(weekday){_SECOND} (?P<year>\d{{4}}){_SINCE_LAST_LINE})"
    rf")\]{_CALLER}(?: (?P<text>.*))?\Z"
)
_DMESG_ISO = (  # Python's logging writes a comma as well, but three digits and no zone
    rf"{_PRIORITY}{_LEVEL}{_DATE}T{_MINUTE}{_SECOND},(?P<fraction>\d{{6}})(?P<zone>[+-]\d\d:?\d\d)"
    rf"{_CALLER} (?P<text>.*)\Z"
)
_RFC5424 = (
    rf"{_PRIORITY}1 {_DATE}T{_MINUTE}{_SECOND}{_FRACTION}{_ZONE} "
    r"(?P<host>\S{1,255}) (?P<tag>\S{1,48}) \S{1,128} \S{1,32} "
    r"(?:-|(?:\[(?:[^\]\"]|\"(?:[^\"\\]|\\.){0,1024}\"){0,1024}\]){1,16})(?: \ufeff?(?P<text>.*))?\Z"
)
_ISO = rf"{_PRIORITY}{_LEVEL}{_WEEKDAY}{_DATE}[T ]{_MINUTE}{_SECOND}{_FRACTION}{_ZONE} {_TAG}"
_RFC3164 = rf"{_PRIORITY}{_MONTH} +(?P<day>\d{{1,2}}) (?:(?P<year>\d{{4}}) )?{_MINUTE}{_SECOND}{_FRACTION} {_TAG}"
_UNIX = rf"(?P<since_1970>\d{{9,11}}\.\d{{6}}) {_TAG}"
_TALOS = (
    rf"(?:(?P<host>\S{{1,253}}): )?(?P<facility>[a-z0-9]{{2,8}}): +[a-z]{{3,7}}: \[{_DATE}[T ]{_MINUTE}{_SECOND}"
    rf"{_FRACTION}(?P<zone>Z|[+-]\d\d:\d\d)\]:(?: (?P<escaped_text>.*))?\Z"
)
_FORMS = tuple(re.compile(form, re.DOTALL) for form in (_DMESG, _DMESG_ISO, _RFC5424, _ISO, _RFC3164, _UNIX, _TALOS))
_SHORT_MONOTONIC = re.compile(r"(?:(?P<host>\S{0,254}[^\s:\]]) )?kernel: ?(?P<text>.*)\Z", re.DOTALL)
"""Text after the time of `journalctl -o short-monotonic`, which is the time of dmesg."""
DRIVERS_OWN = re.compile(r"NVRM: |nvidia-nvswitch\d{0,4}: SXid ")
"""Beginning of each driver line that a check reads."""
_ADDRESS = r"(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
NAMES_A_GPU = rf"NVRM: (?:Xid \(|GPU (?:at )?|The NVIDIA GPU ){_ADDRESS}"
"""Longer than any process name. A user can insert a process name at the start or in the middle of a message."""
NAMES_A_DEVICE = re.compile(rf"{NAMES_A_GPU}|nvidia-nvswitch\d{{0,4}}: SXid \({_ADDRESS}")
_ALONE = re.compile(
    rf"{_PRIORITY}{_LEVEL}(?:kernel: )?"
    r"(?=NVRM:? |nvidia-(?:nvswitch\d{0,4}: SXid |modeset: |uvm: )|nvidia: (?:module |probe of )"
    r"|(?:mlx5_core|nvidia|pcieport) [0-9a-f]{4,8}:[0-9a-f]{2}:|Linux version \d)"
)
"""Line of `dmesg -t`, optionally with `-r` or `-x`, or of a journal reduced to its tag."""
_LONGEST_TAG = 200
_REPEATED = re.compile(r"message repeated \d{1,9} times: \[ ?(?P<text>.*)\]\s*\Z", re.DOTALL)
"""Text that replaces repeated lines in rsyslog (RepeatedMsgReduction)."""
_JOURNALS = re.compile(r'"(?:MESSAGE|SYSLOG_IDENTIFIER|_TRANSPORT|__REALTIME_TIMESTAMP)"')
"""Fields of each entry of the journal, any of which `journalctl --output-fields` may keep."""
_OF_A_PROCESS = frozenset(("_PID", "_UID", "_GID", "_COMM", "_EXE", "_CMDLINE", "_SYSTEMD_UNIT", "SYSLOG_PID"))
"""Fields that the journal adds to the entry of a process; the kernel's entries have none of them."""
_OWN_STAMP = re.compile(rf"\[ {{0,12}}(\d{{1,10}}\.\d{{6}})\]{_CALLER} ?")


class Stamp(Struct, frozen=True):
    """Time of a line, as far as known: seconds since boot, the capture's wall clock, or both."""

    monotonic: float | None = None
    wall: datetime | None = None
    """Wall-clock time. Without a zone, UTC is assumed: only differences within one capture matter."""
    yearless: bool = False
    """Whether the line omits the year. The year of `wall` is then SOME_LEAP_YEAR."""


class LogLine(Struct, frozen=True):
    """A line with a known prefix."""

    text: str
    stamp: Stamp = Stamp()
    kernel: bool = True
    """False for a line of another program, from which only the time is used."""
    refused: bool = False
    """Whether a line with the form of a kernel line was written from user space, by its facility."""
    raw: bool = False
    """Whether this is a record of `/dev/kmsg`. Its continuation lines are a dictionary, not part of the message."""
    host: str = ""
    boot_id: str = ""
    """ID of the line's boot, if the line contains it."""


def read_line(line: bytes) -> LogLine | None:
    """Parse one line of a log. Return None if it has no known prefix.

    The function never raises, whatever the bytes are.
    """
    record = parse_record(line.replace(b"\0", b"").rstrip(b"\r\n"))
    if record is not None:
        refused = record.facility not in KERNEL_FACILITY
        return LogLine(record.text, _since_boot(record.at), not refused, refused, raw=True)
    text = decoded(line)
    if text.startswith("{"):
        return _read_journal(text)
    return next((read for form in _FORMS if (found := form.match(text)) and (read := _read(found.groupdict()))), None)


_TIME_OR_KERNEL = re.compile(r"\d:\d\d|\d\.\d{3}|\bkern(?:el)?\b", re.IGNORECASE)
_BEGINS_A_PREFIX = re.compile(r"[\w<\[]")
_SAYS_WHO = re.compile(r"(?:(?<![^\s:\[\]])(?P<tag>[^\s:\[\]]{1,128})(?P<pid>\[[^\s\]]{1,40}\])?:|[\"'`=(])\s*\Z")


def is_of_an_unknown_form(text: str) -> bool:
    """Whether the line has a driver message after a log prefix of an unsupported form.

    A prefix contains a time or the word `kernel`. Text that ends with the name of another program, or with a quotation
    mark, is not a prefix. An entry of the journal has such a form if its writer is unknown, or if it is damaged.
    """
    if text.startswith("{"):
        return _JOURNALS.search(text) is not None
    found = DRIVERS_OWN.search(text)
    before = text[: found.start()] if found else ""
    if not _BEGINS_A_PREFIX.match(before) or not _TIME_OR_KERNEL.search(before):
        return False
    match = _SAYS_WHO.search(before[-_LONGEST_TAG:])
    if match is None or (match["tag"] or "").isdecimal():  # the seconds of a time
        return True
    return match["tag"] == "kernel" and not match["pid"]


def is_behind_another_prefix(text: str) -> bool:
    """Whether a message with a known prefix contains a second prefix, of an unsupported form.

    The message must name a device in full: a process name can contain only part of such a message.
    """
    return NAMES_A_DEVICE.search(text) is not None and is_of_an_unknown_form(text)


def read_alone(text: str) -> LogLine | None:
    """Parse a message without a time and host.

    Its prefix is empty, or is the rest that remains after time and host were removed. Return None for other text.
    """
    begin = _ALONE.match(text)
    if begin is None:
        return None
    refused = _is_from_user_space(begin.groupdict())
    return LogLine(text[begin.end() :], kernel=not refused, refused=refused)


def decoded(line: bytes) -> str:
    """Return the text of a line without colours, and without the NUL bytes that a crash leaves in a log."""
    text = line.decode("utf-8", "backslashreplace").replace("\0", "").rstrip("\r\n")
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def _read(parts: dict[str, str | None]) -> LogLine | None:
    """Convert the groups of a form. Return None for a date that does not exist, and for a line without its tag.

    Only the tag `kernel` without a process ID marks a line of the kernel. A tag with a process ID was written from user
    space.
    """
    stamp, text = _stamp(parts), parts.get("text") or ""
    if stamp is None:
        return None
    if parts.get("since_boot") and (tagged := _SHORT_MONOTONIC.match(text)):
        parts |= {"tag": "kernel", **tagged.groupdict()}
        text = parts["text"] or ""
    refused = _is_from_user_space(parts)
    if "tag" not in parts:
        escaped = parts.get("escaped_text") or ""
        text = unescaped(escaped.encode("utf-8", "backslashreplace")) if escaped else text
        return LogLine(_with_newlines(text), stamp, not refused, refused, host=parts.get("host") or "")
    if parts["tag"] != "kernel":
        # The prefix of a driver message is not the tag of a program: the tag is missing from this saved line.
        return None if DRIVERS_OWN.match(f"{parts['tag']}: {text}") else LogLine("", stamp, kernel=False)
    text = text.replace("#012", "\n")  # rsyslog's form of a newline
    repeated = _REPEATED.match(text)
    text = repeated["text"] if repeated else text
    own = _OWN_STAMP.match(text)
    if own is not None:
        text, stamp = text[own.end() :], replace(stamp, monotonic=_since_boot(float(own[1])).monotonic)
    return LogLine(_with_newlines(text), stamp, not refused, refused, host=parts["host"] or "")


def _read_journal(text: str) -> LogLine | None:
    """Parse an entry of `journalctl -o json` (systemd.journal-fields(7)). Return None if its writer is unknown.

    A program can choose its identifier, but not its transport.
    """
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    identifier, is_of_a_process = _text(entry.get("SYSLOG_IDENTIFIER")), not _OF_A_PROCESS.isdisjoint(entry)
    if "_TRANSPORT" in entry:
        is_kernel = entry["_TRANSPORT"] == "kernel"
    elif identifier or is_of_a_process:
        is_kernel = identifier == "kernel" and not is_of_a_process
    else:
        return None
    # A message that a program wrote to /dev/kmsg also has the transport `kernel`, but another facility.
    refused = is_kernel and str(entry.get("SYSLOG_FACILITY", "0")) != "0"
    host, boot_id = (_text(entry.get(key)) for key in ("_HOSTNAME", "_BOOT_ID"))
    kernel, stamp = is_kernel and not refused, _journals_stamp(entry)
    return LogLine(_text(entry.get("MESSAGE")), stamp, kernel, refused, host=host[:255], boot_id=boot_id[:64])


def _journals_stamp(entry: Mapping[str, Any]) -> Stamp:
    """Return the times of an entry, which are microseconds as text.

    The kernel's time counts from the boot, the time of reception from 1970.
    """
    since_boot, since_1970 = (
        int(microseconds) / 1e6 if re.fullmatch(r"[0-9]{1,18}", microseconds) else None
        for microseconds in (_text(entry.get(key)) for key in ("_SOURCE_MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP"))
    )
    stamp = _since_boot(since_boot) if since_boot is not None else Stamp()
    if since_1970 is None or since_1970 >= _LATEST:
        return stamp
    return replace(stamp, wall=datetime.fromtimestamp(since_1970, UTC))


def _text(value: Any) -> str:
    """Return a text. The journal writes a text that is not UTF-8 as a list of its bytes."""
    if isinstance(value, list) and all(isinstance(entry, int) and 0 <= entry < 256 for entry in value):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else ""


def _since_boot(seconds: float) -> Stamp:
    return Stamp(monotonic=seconds if seconds < _LONGEST_BOOT_SECONDS else None)


def _stamp(parts: Mapping[str, str | None]) -> Stamp | None:
    """Return the time of a line; None for a date that does not exist or is outside the accepted years."""
    if since_boot := parts.get("since_boot"):
        return _since_boot(float(since_boot))
    if since_1970 := parts.get("since_1970"):
        wall = datetime.fromtimestamp(float(since_1970), UTC)
    elif parts["month"] is None:  # dmesg -d: a time since the line before
        return Stamp()
    elif (date := _date(parts)) is not None:
        wall = date
    else:
        return None
    return Stamp(wall=wall, yearless=not (since_1970 or parts["year"])) if wall.year in YEARS else None


def _date(parts: Mapping[str, str | None]) -> datetime | None:
    month = parts["month"] or ""
    try:
        return (
            datetime(
                int(parts.get("year") or SOME_LEAP_YEAR),
                _MONTHS.index(month) + 1 if month in _MONTHS else int(month),
                int(parts["day"] or 0),
                int(parts["hour"] or 0),
                int(parts["minute"] or 0),
                min(int(parts["second"] or 0), 59),  # a leap second
                int((parts.get("fraction") or "0")[:6].ljust(6, "0")),
                UTC,
            )
            - _offset(parts.get("zone") or "")
        )
    except (ValueError, OverflowError):
        return None


def _offset(zone: str) -> timedelta:
    zone = zone.strip().replace(":", "")
    if zone[:1] not in ("+", "-"):
        return timedelta()
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:5] or 0))
    return -offset if zone[0] == "-" else offset


def _is_from_user_space(parts: Mapping[str, str | None]) -> bool:
    """Whether the priority or the facility of a line is another one than the kernel's."""
    priority = parts.get("priority")
    if priority is not None and int(priority) >> 3 not in KERNEL_FACILITY:
        return True
    return not {parts.get("facility"), parts.get("tag_facility")} <= {None, "kern"}


def _with_newlines(text: str) -> str:
    return text.replace("\\x0a", "\n")
