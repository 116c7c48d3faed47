"""Formats in which programs that save the kernel's log print one record.

The text in each documented format is our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from gpu_healthcheck.healthcheck.probes.kernel_log import Record

BOOTED = datetime(2026, 11, 20, 8, 0, 0, 250_000, tzinfo=UTC)
HOST = "ip-10-0-0-1"
NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
BOOT_ID = "5f3c1f6f6a0e4b0f9f6f1f0e2d3c4b5a"

Form = Callable[[Record], str]


def wall(record: Record) -> datetime:
    return BOOTED + timedelta(seconds=record.at)


def since_boot(record: Record) -> str:
    return f"{record.at:12.6f}"


def ctime(at: datetime) -> str:
    return f"{DAYS[at.weekday()]} {NAMES[at.month - 1]} {at.day:2d} {at:%H:%M:%S} {at.year}"


def bsd(at: datetime) -> str:
    return f"{NAMES[at.month - 1]} {at.day:2d} {at:%H:%M:%S}"


def each_line(prefix: Callable[[Record], str]) -> Form:
    """Return a form with the prefix before every line of a record: old dmesg interface, and every syslog."""
    return lambda record: "".join(f"{prefix(record)}{line}\n" for line in record.text.split("\n"))


def indented(prefix: Callable[[Record], str]) -> Form:
    """Further lines below the message: newer dmesg, journalctl."""
    return lambda record: prefix(record) + f"\n{' ' * len(prefix(record))}".join(record.text.split("\n")) + "\n"


def journal_json(record: Record) -> str:
    entry = {
        "_TRANSPORT": "kernel",
        "_SOURCE_MONOTONIC_TIMESTAMP": str(round(record.at * 1e6)),
        "__REALTIME_TIMESTAMP": str(round(wall(record).timestamp() * 1e6)),
        "_BOOT_ID": BOOT_ID,
        "_HOSTNAME": HOST,
        "PRIORITY": "4",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "MESSAGE": record.text if record.text.isprintable() else list(record.text.encode()),
    }
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n"


def talos(record: Record) -> str:
    """Its time as Go prints it: without the zeros at the end of a fraction."""
    fraction = f"{wall(record):%f}".rstrip("0")
    at = f"{wall(record):%Y-%m-%dT%H:%M:%S}{'.' if fraction else ''}{fraction}Z"
    return f"10.0.0.1: kern: warning: [{at}]: {escaped(record.text)}\n"


def unprefixed(record: Record) -> str:
    return record.text + "\n"


def escaped(text: str) -> str:
    return "".join(
        char if " " <= char <= "~" and char != "\\" else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for char in text
    )


def kmsg(record: Record) -> str:
    return (
        f"4,{record.seq},{round(record.at * 1e6)},-;{escaped(record.text)}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n"
    )


FORMS: dict[str, Form] = {
    "kmsg": kmsg,
    "dmesg": each_line(lambda one: f"[{since_boot(one)}] "),
    "dmesg, indented": indented(lambda one: f"[{since_boot(one)}] "),
    "dmesg with callers": each_line(lambda one: f"[{since_boot(one)}][  T123] "),
    "dmesg with callers, util-linux": each_line(lambda one: f"[{since_boot(one)}] [    C0] "),
    "dmesg -r": each_line(lambda one: f"<4>[{since_boot(one)}] "),
    "dmesg -x": each_line(lambda one: f"kern  :warn  : [{since_boot(one)}] "),
    "dmesg -d": each_line(lambda one: f"[{since_boot(one)} <    0.000003>] "),
    "dmesg -T": each_line(lambda one: f"[{ctime(wall(one))}] "),
    "dmesg -Tx": each_line(lambda one: f"kern  :err   : [{ctime(wall(one))}] "),
    "dmesg -e": each_line(lambda one: f"[{NAMES[wall(one).month - 1]}{wall(one):%d %H:%M}] "),
    "dmesg -t": unprefixed,
    "dmesg -rt": each_line(lambda _: "<4>"),
    "dmesg -xt": each_line(lambda _: "kern  :warn  : "),
    "dmesg iso": each_line(lambda one: f"{wall(one):%Y-%m-%dT%H:%M:%S,%f}+00:00 "),
    "dmesg iso elsewhere": each_line(lambda one: f"{wall(one) + timedelta(hours=2):%Y-%m-%dT%H:%M:%S,%f}+02:00 "),
    "dmesg --color": each_line(lambda one: f"\x1b[32m[{since_boot(one)}] \x1b[0m\x1b[33m"),
    "journal short": indented(lambda one: f"{bsd(wall(one))} {HOST} kernel: "),
    "journal without host": indented(lambda one: f"{bsd(wall(one))} kernel: "),
    "journal short-precise": indented(lambda one: f"{bsd(wall(one))}.{wall(one):%f} {HOST} kernel: "),
    "journal short-iso": indented(lambda one: f"{wall(one):%Y-%m-%dT%H:%M:%S}+0000 {HOST} kernel: "),
    "journal short-iso-precise": indented(lambda one: f"{wall(one):%Y-%m-%dT%H:%M:%S.%f}+0000 {HOST} kernel: "),
    "journal short-full": indented(
        lambda one: f"{DAYS[wall(one).weekday()]} {wall(one):%Y-%m-%d %H:%M:%S} UTC {HOST} kernel: "
    ),
    "journal short-unix": indented(lambda one: f"{wall(one).timestamp():.6f} {HOST} kernel: "),
    "journal short-monotonic": indented(lambda one: f"[{since_boot(one)}] {HOST} kernel: "),
    "journal short-delta": indented(lambda one: f"[{since_boot(one)} <    0.000001 >] {HOST} kernel: "),
    "journal json": journal_json,
    "talosctl dmesg": talos,
    "a tag and the kernel's stamp": each_line(lambda one: f"kernel: [{since_boot(one)}] "),
    "syslog": each_line(lambda one: f"{bsd(wall(one))} {HOST} kernel: "),
    "syslog of busybox": each_line(lambda one: f"{bsd(wall(one))} {HOST} kern.warn kernel: [{since_boot(one)}] "),
    "syslog with a priority": each_line(lambda one: f"<4>{bsd(wall(one))} {HOST} kernel: "),
    "syslog with the kernel's stamp": each_line(lambda one: f"{bsd(wall(one))} {HOST} kernel: [{since_boot(one)}] "),
    "syslog iso": each_line(lambda one: f"{wall(one):%Y-%m-%dT%H:%M:%S.%f}+00:00 {HOST} kernel: [{since_boot(one)}] "),
    "syslog, newlines escaped": lambda one: f"{bsd(wall(one))} {HOST} kernel: {one.text.replace(chr(10), '#012')}\n",
    "syslog rfc5424, structured": each_line(
        lambda one: f'<4>1 {wall(one):%Y-%m-%dT%H:%M:%S.%f}Z {HOST} kernel - - [meta a="]\\"" b=""][x@1 y="["] \ufeff'
    ),
    "syslog rfc5424": each_line(lambda one: f"<4>1 {wall(one):%Y-%m-%dT%H:%M:%S.%f}Z {HOST} kernel - - - "),
}
ONE_OF_EACH_KIND = ("kmsg", "dmesg", "dmesg -t", "journal short", "journal json", "syslog, newlines escaped")
"""One form for each kind of prefix, and for each way to print a message of several lines."""
WITHOUT_TIMES = {"dmesg -t", "dmesg -rt", "dmesg -xt"}
TO_THE_MINUTE = {"dmesg -e"}


def capture(form: Form, records: Iterable[Record]) -> bytes:
    return "".join(form(record) for record in records).encode("utf-8", "surrogateescape")


def records(*lines: tuple[float, str]) -> Sequence[Record]:
    return tuple(Record(seq, at, 0, text) for seq, (at, text) in enumerate(lines))
