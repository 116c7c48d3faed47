"""Every form in which the kernel's log is saved, read back as the records that it contains."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.healthcheck.captures import blocks as capture_bytes
from gpu_healthcheck.healthcheck.captures.blocks import CaptureError, InputFile
from gpu_healthcheck.healthcheck.captures.kernel_logs import SAMPLE_BYTES, BootRecords, KernelLogReader, PassedOver
from gpu_healthcheck.healthcheck.captures.log_lines import LogLine, Stamp, read_line
from gpu_healthcheck.healthcheck.checks import driver_messages
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from tests.captures.renderings import BOOT_ID, BOOTED, FORMS, TO_THE_MINUTE, WITHOUT_TIMES, capture, records

SAVED = BOOTED + timedelta(hours=3)
FALLEN = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    "NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
MISMATCH = (
    "NVRM: API mismatch: the client has the version 570.1, but\n"
    "NVRM: this kernel module has the version 570.2.  Please\n"
    "NVRM: make sure that this kernel module and all NVIDIA driver\n"
    "NVRM: components have the same version."
)
XID_13 = "NVRM: Xid (PCI:0000:05:00): 13, name="
OFF_BUS = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
MIG = "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=1, name=a b, c, Contained: CE User Channel (0x9)"
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
STORY = records(
    (3.5, "nvidia: module license 'NVIDIA' taints kernel."),
    (4.0, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20"),
    (100.25, OFF_BUS),
    (101.25, FALLEN),
    (130.5, MISMATCH),
    (130.5, MIG),
    (140.0, "usb 1-1: new high-speed USB device number 4 using xhci_hcd"),
    (150.75, SWITCH),
    (161.0, "NVRM: Xid (0000:03:00): 14, Channel 00000001"),
)
RECORDED = [one for one in STORY if "NVRM" in one.text or "nvidia" in one.text]


class Reading:
    """Result of the reader for some bytes."""

    def __init__(self, *files: bytes, saved: datetime = SAVED) -> None:
        self.passed_over = PassedOver()
        self.reader = KernelLogReader(saved, 1, self.passed_over)
        self.batches: list[BootRecords] = []
        for number, content in enumerate(files):
            self.batches += self.reader.read(f"f{number}", InputFile(io.BytesIO(content)).blocks())

    @property
    def records(self) -> list[Record]:
        return [line.record for batch in self.batches for line in batch.lines]

    @property
    def texts(self) -> list[str]:
        return [record.text for record in self.records]

    @property
    def boots(self) -> list[list[str]]:
        by_boot: dict[int, list[str]] = {}
        for batch in self.batches:
            by_boot.setdefault(batch.boot, []).extend(line.record.text for line in batch.lines)
        return list(by_boot.values())

    @property
    def sources(self) -> list[str]:
        return [line.source for batch in self.batches for line in batch.lines]


@pytest.mark.parametrize("name", FORMS)
def test_form_gives_the_records_of_the_device(name: str) -> None:
    read = Reading(capture(FORMS[name], STORY))

    assert read.texts == [record.text for record in RECORDED]
    assert name != "dmesg" or read.sources == ["f0:1", "f0:2", "f0:3", "f0:4", "f0:7", "f0:11", "f0:13", "f0:14"]


@pytest.mark.parametrize("name", sorted(set(FORMS) - WITHOUT_TIMES))
def test_form_gives_the_times_of_records_and_of_the_last_line(name: str) -> None:
    late = Record(99, 4000.0, 0, "usb 1-1: USB disconnect, device number 4")
    read = Reading(capture(FORMS[name], [*STORY, late]))

    first, last, end = read.records[0].at, read.records[-1].at, read.batches[-1].now.monotonic
    seconds = 60.0 if name in TO_THE_MINUTE else 1.0
    assert last - first == pytest.approx(RECORDED[-1].at - RECORDED[0].at, abs=seconds)
    assert end - first == pytest.approx(late.at - RECORDED[0].at, abs=seconds)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "save",
    [
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text.rstrip(b"\n"),
        gzip.compress,
        lambda text: gzip.compress(text[:400]) + gzip.compress(text[400:]),
    ],
    ids=["CRLF", "BOM", "no last newline", "gzip", "gzip members"],
)
def test_form_is_read_alike_however_it_was_saved(name: str, save: Callable[[bytes], bytes]) -> None:
    read = Reading(save(capture(FORMS[name], STORY)))

    assert read.texts == [record.text for record in RECORDED]


@pytest.mark.parametrize("name", ["kmsg", "talosctl dmesg"])
def test_escaped_text_is_read_as_it_was_logged(name: str) -> None:
    text = "NVRM: Xid (PCI:0000:05:00): 31, pid=1, name=é\\x5c, text"
    assert Reading(capture(FORMS[name], records((1.0, text)))).texts == [text]


# --- writer of the line


XID = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
KERNEL = "Nov 20 08:00:00 host kernel: usb 1-1: gone\n"


@pytest.mark.parametrize(
    "line",
    [
        f"Nov 20 08:00:01 host sshd[12]: {XID}",
        f"Nov 20 08:00:01 host kernel[12]: {XID}",
        f"Nov 20 08:00:01 host Kernel: {XID}",
        f"Nov 20 08:00:01 host app: kernel: {XID}",
        f"Nov 20 08:00:01 app[3]: kernel: {XID}",
        f"2026-11-20T08:00:01.000001+00:00 host dcgm-exporter[7]: {XID}",
        f"<12>Nov 20 08:00:01 host app: {XID}",
        f"<6>1 2026-11-20T08:00:01Z host app 12 - - {XID}",
        f"1763625601.000001 host app[1]: {XID}",
        *(
            json.dumps({**fields, "MESSAGE": XID})
            for fields in (
                {"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "kernel"},
                {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0"},
                {"_TRANSPORT": "journal", "SYSLOG_IDENTIFIER": "kernel"},
                {"_TRANSPORT": ["kernel", "syslog"], "SYSLOG_IDENTIFIER": "kernel"},
                {"SYSLOG_IDENTIFIER": "dcgm-exporter"},
                {"SYSLOG_IDENTIFIER": "kernel", "_PID": "12"},
                {"SYSLOG_IDENTIFIER": "kernel", "_COMM": "logger"},
                {"SYSLOG_IDENTIFIER": "kernel", "SYSLOG_PID": "12"},
                {"_PID": "12"},
            )
        ),
        json.dumps({"log": f"[   12.000001] {XID}\n", "stream": "stderr", "time": "2026-11-20T08:00:01Z"}),
        '["_TRANSPORT", "' + XID + '"]',
        f"      Nov 20 08:00:01 host kernel: {XID}",
        f"$ echo {XID}",
        f"$ echo Nov 20 08:00:01 host kernel: {XID}",
        f'root@host:~# echo "{XID}" > /dev/kmsg # at 10:00',
        f"root@host:~# grep -c '{XID}' /var/log/kern.log",
        f"2026-11-20 08:00:01 dcgm-exporter said: {XID}",
        f'2026-11-20T08:00:01Z kernel.log {{"message":"{XID}"}}',
        f"# Nov 20 08:00:01 host kernel: {XID}",
        f"| 08:00:01 | {XID} |",
        f"> {XID}",
        f"    {XID}",
        f"[ERROR] {XID}",
        f"[12.34] {XID}",
        f"Nov 20 08:00:01 host app: it said\n{XID}",
        f"Nov 20 08:00:01 host app[1]: it said\n      {XID}",
    ],
)
def test_line_with_other_text_before_the_message_is_quoted(line: str) -> None:
    read = Reading((KERNEL + line + "\n").encode())

    assert (read.texts, read.passed_over.quoted) == ([], 1)


@pytest.mark.parametrize(
    "line",
    [
        f"Nov 20 08:00:01 host kernel {XID}",
        f"2026-11-20T08:00:01+00:00 {XID}",
        f"INFO 2026-11-20 08:00:01 host kernel: {XID}",
        f"app 2026-11-20 08:00:01 host kernel: {XID}",
        f"kernel: {XID}",
        f"E1120 08:00:01.000001 1 main.go:12] {XID}",
        f"2026-11-20 08:00:01 {XID}",
        f"host kernel: {XID}",
        f"2026-11-20T08:00:01Z {XID}",
        f"node-3 | [   12.000001] {XID}",
        f"2026-11-20T08:00:01.000000000Z stdout F [   12.000001] {XID}",
        f"messages-20261120:Nov 20 08:00:01 host kernel: {XID}",
        f"12:Nov 20 08:00:01 host kernel: {XID}",
        f"2026-11-20T08:00:01Z stream Nov 20 08:00:01 host kernel: {XID}",
        f"[2026-11-20 08:00:01] [   12.000001] {XID}",
        f"2026-11-20 08:00:01 host {SWITCH}",
        f"2026-11-20 08:00:01,123 host kernel: {XID}",
        f"11月 20 08:00:01 host kernel: {XID}",
        f"janv. 20 08:00:01 host kernel: {XID}",
        f"ven. 2026-11-20 08:00:01 CET host kernel: {XID}",
        f"[五 11月 20 08:00:01 2026] {XID}",
        f"[   12.000001] [   13.000001] {XID}",
        f"Nov 20 08:00:01 host kernel: 2026-11-20T08:00:01Z {XID}",
        '{"MESSAGE": "' + XID + '"}',
        '{"SYSLOG_IDENTIFIER": ["kernel", "app"], "MESSAGE": "' + XID + '"}',
        '{"__REALTIME_TIMESTAMP": "1500000", "PRIORITY": "3", "MESSAGE": ' + json.dumps(list(XID.encode())) + "}",
        '{"SYSLOG_IDENTIFIER": "kernel", "MESSAGE": "' + XID,
        '{"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "message": "' + XID + '"}',
    ],
)
def test_driver_line_after_an_unknown_prefix_is_counted_as_unread(line: str) -> None:
    read = Reading((KERNEL + line + "\n").encode())

    assert (read.texts, read.passed_over.unread, read.passed_over.first_unread) == ([], 1, "f0:2")


@pytest.mark.parametrize(
    "line",
    [
        f"12,7,1000000,-;{XID}",
        f"<12>[   12.000001] {XID}",
        f"user  :warn  : [   12.000001] {XID}",
        f"Nov 20 08:00:01 host user.warn kernel: {XID}",
        f"daemon:warn  : [Fri Nov 20 08:00:01 2026] {XID}",
        f"<12>Nov 20 08:00:01 host kernel: {XID}",
        f"<14>1 2026-11-20T08:00:01Z host kernel - - - {XID}",
        f"10.0.0.1: user: warning: [2026-11-20T08:00:01.5Z]: {XID}",
        f"<12>kernel: [   12.000001] {XID}",
        '{"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "3", "MESSAGE": "' + XID + '"}',
        '{"SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "3", "MESSAGE": "' + XID + '"}',
    ],
)
def test_line_of_another_facility_is_refused(line: str) -> None:
    read = Reading((KERNEL + line + "\n").encode())

    assert (read.texts, read.passed_over.refused) == ([], 1)


@pytest.mark.parametrize("line", [f"<12>{XID}", f"user  :warn  : {XID}"])
def test_line_of_another_facility_without_a_time_is_refused(line: str) -> None:
    read = Reading(f"kernel: {OFF_BUS}\n{line}\nkernel: NVRM: x\n".encode())

    assert (read.texts, read.passed_over.refused) == ([OFF_BUS, "NVRM: x"], 1)


def test_journal_entries_with_and_without_transport_are_read() -> None:
    identifier = {"SYSLOG_IDENTIFIER": "kernel"}
    entries = ({**identifier, "MESSAGE": XID}, {**identifier, "_TRANSPORT": "kernel", "MESSAGE": "eth0: up"})
    for order in (entries, entries[::-1]):
        assert Reading("".join(f"{json.dumps(entry)}\n" for entry in order).encode()).texts == [XID]


@pytest.mark.parametrize(
    ("field", "value", "stamp"),
    [
        ("_SOURCE_MONOTONIC_TIMESTAMP", "0", Stamp(monotonic=0.0)),
        ("_SOURCE_MONOTONIC_TIMESTAMP", "1500000", Stamp(monotonic=1.5)),
        ("_SOURCE_MONOTONIC_TIMESTAMP", "9" * 18, Stamp()),
        ("_SOURCE_MONOTONIC_TIMESTAMP", 1500000, Stamp()),
        ("_SOURCE_MONOTONIC_TIMESTAMP", "-1", Stamp()),
        ("__REALTIME_TIMESTAMP", "1500000", Stamp(wall=datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC))),
        ("__REALTIME_TIMESTAMP", "9" * 18, Stamp()),
        ("__REALTIME_TIMESTAMP", None, Stamp()),
    ],
)
def test_journal_entry_has_its_times_in_microseconds(field: str, value: object, stamp: Stamp) -> None:
    line = read_line(json.dumps({"_TRANSPORT": "kernel", "MESSAGE": XID, field: value}).encode())

    assert line == LogLine(XID, stamp)


@pytest.mark.parametrize("message", [None, 7, [256], ["a"], {"a": 1}])
def test_journal_entry_without_a_text_is_empty(message: object) -> None:
    line = read_line(json.dumps({"_TRANSPORT": "kernel", "MESSAGE": message, "_BOOT_ID": 1}).encode())

    assert line == LogLine("")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-- No entries --\n",
        "2026-11-20 08:00:01,123 INFO hello\n",
        "2026-11-20T08:00:01,123Z hello\n",
        "Nov 20 08:00:01 host sshd[12]: Accepted publickey\n",
        '{"cursor": 1, "text": "NVRM: Xid (PCI:0000:05:00): 79, x"}\n',
        "# a README\n\nsome words\n",
        "\0\0\0\0",
    ],
)
def test_file_without_a_kernel_line_is_not_recognised(text: str) -> None:
    assert not Reading(text.encode()).reader.recognised


# --- boots

BANNER = "Linux version 6.1.0-18-cloud-amd64 (build@host) (gcc 12.2.0) #1 SMP"


def dmesg(*recorded: tuple[float, str]) -> bytes:
    return capture(FORMS["dmesg"], records(*recorded))


@pytest.mark.parametrize(
    "line",
    [
        f"Nov 21 10:00:00 node kernel: message repeated 3 times: [ {OFF_BUS}]",
        f"Nov 21 10:00:00 node kernel: message repeated 3 times: [ [   10.000000] {OFF_BUS}]",
        f"kernel: [   10.000000] {OFF_BUS}",
        f"kernel:[   10.000000] {OFF_BUS}",
        f"kernel: [Sat Nov 21 10:00:00 2026] {OFF_BUS}",
        json.dumps({"SYSLOG_IDENTIFIER": "kernel", "MESSAGE": OFF_BUS}),
        json.dumps({"SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": list(OFF_BUS.encode())}),
        json.dumps({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": 0, "MESSAGE": OFF_BUS}),
        json.dumps({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": list(OFF_BUS.encode())}),
    ],
)
def test_line_in_a_collectors_form_is_read(line: str) -> None:
    assert Reading(f"{line}\n".encode()).texts == [OFF_BUS]


@pytest.mark.parametrize("name", ["Linux version 5", "\n-- Reboot --\n", "a\n-- Reboot --"])
@pytest.mark.parametrize("form", FORMS)
def test_process_name_begins_no_boot(form: str, name: str) -> None:
    assert len(name) <= 15
    recorded = records(
        (5000.0, OFF_BUS), (5010.0, f"{name}[1234]: segfault at 0"), (5011.0, f"{name}: oom"), (5020.0, MIG)
    )
    read = Reading(capture(FORMS[form], recorded))

    assert read.boots == [[OFF_BUS, MIG]]


@pytest.mark.parametrize(
    ("recorded", "boots"),
    [
        ([(90.0, OFF_BUS), (0.0, BANNER), (5.0, MIG)], [[OFF_BUS], [MIG]]),
        ([(0.0, "microcode: updated early"), (0.0, BANNER), (5.0, MIG)], [[MIG]]),
        ([(5000.0, OFF_BUS), (2.0, "usb 1-1: new"), (5100.0, MIG)], [[OFF_BUS], [MIG]]),
        ([(100.0, OFF_BUS), (99.2, "usb 1-1: new"), (99.999, MIG), (98.0, MIG)], [[OFF_BUS, MIG, MIG]]),
    ],
    ids=["banner", "banner after the first line", "clock at zero", "lines out of order"],
)
def test_boot_begins_at_the_banner_and_where_the_clock_restarts(
    recorded: list[tuple[float, str]], boots: list[list[str]]
) -> None:
    assert Reading(dmesg(*recorded)).boots == boots


def test_boot_between_two_distant_lines_about_a_gpu_is_found() -> None:
    chatter = [(1.0 + number / 10, f"usb 1-1: new device number {number}") for number in range(20_000)]
    old = [(float(number), f"audit: {number}") for number in range(0, 1900, 2)]
    read = Reading(dmesg(*old, (1900.0, OFF_BUS), *chatter, (2001.5, MIG)))

    assert len(dmesg(*chatter)) > 4 * SAMPLE_BYTES
    assert read.boots == [[OFF_BUS], [MIG]]


@pytest.mark.parametrize("mark", ["-- Boot 0123456789abcdef0123456789abcdef --", "-- Reboot --"])
@pytest.mark.parametrize("banner", [True, False])
def test_boot_begins_at_the_journals_mark(mark: str, banner: bool) -> None:
    journal = FORMS["journal short"]
    recorded = records((10.0, BANNER), (20.0, MIG)) if banner else records((20.0, MIG))
    read = Reading(capture(journal, records((1.0, OFF_BUS))) + mark.encode() + b"\n" + capture(journal, recorded))

    assert read.boots == [[OFF_BUS], [MIG]]
    assert read.reader.boot_id == ("" if "Reboot" in mark else "0123456789abcdef0123456789abcdef")


def test_boot_begins_at_another_boot_id_of_the_journal() -> None:
    first = capture(FORMS["journal json"], records((0.0, BANNER), (10.0, OFF_BUS)))
    second = capture(FORMS["journal json"], records((15.0, BANNER), (20.0, MIG), (21.0, SWITCH)))
    read = Reading(first + second.replace(BOOT_ID.encode(), b"0123456789abcdef0123456789abcdef"))

    assert read.boots == [[OFF_BUS], [MIG, SWITCH]]
    assert read.reader.boot_id == "0123456789abcdef0123456789abcdef"


def test_boot_goes_on_when_the_wall_clock_is_set() -> None:
    syslog = FORMS["syslog"]
    later = capture(syslog, records((7200.0, OFF_BUS)))
    read = Reading(later + capture(syslog, records((10.0, MIG), (20.0, SWITCH))))

    assert read.boots == [[OFF_BUS, MIG, SWITCH]]
    assert [round(record.at) for record in read.records] == [0, 0, 10]


def test_files_are_read_as_one_log() -> None:
    first, second = dmesg((10.0, BANNER), (20.0, OFF_BUS)), dmesg((30.0, MIG), (0.0, BANNER), (2.0, SWITCH))
    read = Reading(first, second)

    assert read.boots == [[OFF_BUS, MIG], [SWITCH]]
    assert read.sources == ["f0:2", "f1:1", "f1:3"]


# --- time


def test_missing_year_follows_from_the_time_of_saving() -> None:
    message = "Dec 31 23:59:50 host kernel: " + OFF_BUS + "\nJan  1 00:00:10 host kernel: " + MIG + "\n"
    read = Reading(message.encode(), saved=datetime(2027, 1, 2, tzinfo=UTC))
    leap_day = Reading(b"Feb 29 10:00:00 host kernel: usb 1-1: new\n", saved=datetime(2028, 3, 1, tzinfo=UTC))

    assert [batch.now.wall for batch in read.batches][-1] == datetime(2027, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert [record.at for record in read.records] == [0.0, 20.0]
    assert leap_day.batches[-1].now.wall == datetime(2028, 2, 29, 10, tzinfo=UTC)


# --- whatever comes


def test_line_of_megabytes_is_cut() -> None:
    long = b"[    1.000000] " + b"x" * 5_000_000 + b" NVRM: Xid (PCI:0000:05:00): 79, x\n"
    read = Reading(long + dmesg((2.0, MIG)) + long)

    assert read.texts == [MIG]
    assert read.sources == ["f0:2"]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"[    1.000000] usb\n" + b"\0" * 5000 + f"[    2.000000] {MIG}\n".encode(), [MIG]),
        (b"[    1.000000] \xff\xfe\n[    2.000000] NVRM: Xid (PCI:0000:05:00): 13, name=\xe9\n", [f"{XID_13}\\xe9"]),
    ],
    ids=["NUL bytes of a crash", "bytes that are no text"],
)
def test_invalid_bytes_hide_no_line(content: bytes, texts: list[str]) -> None:
    assert Reading(content).texts == texts


def with_gzip_head(fields: bytes, name: bytes, content: bytes) -> bytes:
    """A gzip file; with a name, it also has an extra field."""
    extra = b"\x04\x00abcd" + name + b"\0" if name else b""
    return b"\x1f\x8b\x08" + (b"\x0c" if name else b"\0") + bytes(4) + fields + extra + gzip.compress(content)[10:]


MANY_LINES = dmesg((1.0, MIG), *((2.0 + number, f"usb {number}") for number in range(5000)))


@pytest.mark.parametrize(
    ("packed", "damage"),
    [
        (gzip.compress(MANY_LINES)[:-2000], "ends early"),
        (gzip.compress(MANY_LINES) + b"PS: hello", "after gzip member 1"),
        # XFL, OS and name: gzip -n, zlib on macOS, Go, names in UTF-8 and in Latin-1
        (with_gzip_head(b"\x02\x03", b"", MANY_LINES), ""),
        (with_gzip_head(b"\x00\x13", b"", MANY_LINES), ""),
        (with_gzip_head(b"\x04\xff", b"", MANY_LINES), ""),
        (with_gzip_head(b"\x00\x03", "kern-日志.log".encode(), MANY_LINES), ""),
        (with_gzip_head(b"\x00\x03", b"journal-M\xe4rz.log", MANY_LINES), ""),
        (gzip.compress(b"") + with_gzip_head(b"\x03\x03", b"", MANY_LINES), "the head of gzip member 2 is damaged"),
        (with_gzip_head(b"\x00\x83", b"", MANY_LINES), "the head of gzip member 1 is damaged"),
        (with_gzip_head(b"\x00\x03", b"kern\x0elog", MANY_LINES), "the head of gzip member 1 is damaged"),
        (with_gzip_head(b"\x00\x03", b"ke\x8dn.log", MANY_LINES), "the head of gzip member 1 is damaged"),
    ],
    ids=[
        *("cut", "trailing text", "gzip -n", "macOS", "Go", "UTF-8 name", "Latin-1 name", "empty member"),
        *("system 131", "control character in the name", "C1 character in the name"),
    ],
)
def test_gzip_file_is_read_as_far_as_possible_and_its_damage_reported(packed: bytes, damage: str) -> None:
    source = InputFile(io.BytesIO(packed))

    assert MIG.encode() in b"".join(source.blocks())
    assert damage in source.cut
    assert bool(damage) is bool(source.cut)


@pytest.mark.parametrize("start", [b"\x1f\x8bnot gzip at all", b"\xfd7zXZ\0rest", b"PK\x03\x04rest"])
def test_file_that_cannot_be_unpacked_is_an_error(start: bytes) -> None:
    with pytest.raises(CaptureError, match=r"unpack"):
        list(InputFile(io.BytesIO(start)).blocks())


def test_decompression_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_bytes, "MOST_UNPACKED", 3 << 20)
    packed = gzip.compress(b"[    1.000000] usb\n" * 500_000)

    with pytest.raises(CaptureError, match="unpacks to more than 3 MiB"):
        list(InputFile(io.BytesIO(packed)).blocks())


def test_sentence_with_two_syslog_times_is_one_record() -> None:
    first, *rest = FALLEN.split("\n")
    messages = [f"Nov 20 08:00:01 host kernel: {first}", *(f"Nov 20 08:00:02 host kernel: {line}" for line in rest)]
    between = "Nov 20 08:00:01 host app[1]: hello"
    read = Reading("\n".join([messages[0], between, *messages[1:]]).encode())

    assert (read.texts, read.sources) == ([FALLEN], ["f0:1"])


@pytest.mark.parametrize("prefix", ["Nov 20 08:00:01 host kernel: ", "[    5.000000] ", ""])
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to",
            "0x2 (Node Reboot Required)",
        ),
        ("NVRM: Xid (PCI:0008:01:00): 145, RLW_RSPCOL Fatal XC0 i0 Link 13 (0x000000a2", "0x00000002 0x00000001)"),
    ],
)
def test_xid_that_was_wrapped_without_its_prefix_is_one_record(begin: str, end: str, prefix: str) -> None:
    other = [f"{prefix}nvidia-uvm: Loaded the UVM driver"] * 20
    lines = [*other, f"{prefix}{begin}", end, "Then it hung.", f"{prefix}{OFF_BUS}", *other]

    assert Reading("\n".join(lines).encode()).texts[20:-20] == [f"{begin} {end}", OFF_BUS]


def test_line_without_a_prefix_after_a_cut_xid_is_its_own_record() -> None:
    cut = "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to"

    assert Reading(f"{cut}\n{OFF_BUS}\n".encode()).texts == [cut, OFF_BUS]


def test_records_of_one_moment_stay_separate() -> None:
    read = Reading(dmesg((5.0, OFF_BUS), (5.0, MIG), (5.0, "NVRM: rm_init_adapter failed, device minor number 5")))

    assert len(read.texts) == 3


@pytest.mark.parametrize("name", sorted(set(FORMS) - WITHOUT_TIMES - TO_THE_MINUTE))
def test_log_with_its_newest_line_first_is_refused(name: str) -> None:
    backwards = [
        Record(seq, 500.0 - 100 * seq, 0, text) for seq, text in enumerate((OFF_BUS, MIG, "usb", SWITCH, BANNER))
    ]

    with pytest.raises(CaptureError, match="newest line is first"):
        Reading(capture(FORMS[name], backwards))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_text_is_refused(encoding: str) -> None:
    with pytest.raises(CaptureError, match="save it as UTF-8"):
        Reading(capture(FORMS["dmesg"], STORY).decode().encode(encoding))


# --- records that a collector joined into one line


LOST = (
    "NVRM: GPU at PCI:0000:b3:00: GPU-11111111-2222-3333-4444-555555555555",
    "NVRM: GPU Board Serial Number: 1650000000001",
    "NVRM: Xid (PCI:0000:b3:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
    "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
    FALLEN,
)
SYSLOG_TAG, STAMP = "Nov 20 08:00:01 host kernel: ", "[   12.000001] "
JOINTS = [" ", "\\n", "\\\\n", "\\r\\n", "\\x0a", "#012", "\\012", "^J", "  ", "; ", " | "]


@pytest.mark.parametrize("again", ["", STAMP, SYSLOG_TAG, f"{SYSLOG_TAG}{STAMP}", "2026-11-20T08:00:01+00:00 kernel: "])
@pytest.mark.parametrize("joint", JOINTS)
@pytest.mark.parametrize("prefix", [STAMP, f"{SYSLOG_TAG}{STAMP}", ""])
def test_messages_on_one_line_are_separated(prefix: str, joint: str, again: str) -> None:
    line = prefix + "\n".join(LOST).replace("\n", joint + again) + "\n"
    read = Reading(line.encode())

    assert read.texts == list(LOST)
    assert set(read.sources) == {"f0:1"}
    assert Reading((STAMP + "".join(LOST).replace("\n", "")).encode()).texts == list(LOST)


@pytest.mark.parametrize("joint", JOINTS[:9])
def test_sentence_joined_without_the_drivers_prefix_is_judged(joint: str) -> None:
    read = Reading(f"{STAMP}{FALLEN}".replace("\nNVRM: ", joint).encode())

    event = driver_messages.read_message(read.records[0])
    assert event is not None
    assert (event.reason, event.subject) == ("GpuFellOffBus", "gpu/0000:b3:00.0")


@pytest.mark.parametrize(
    "text",
    [
        f"python[12]: segfault at 0 ip 0 sp 0 error 4 in x {XID}[1000+2000]",
        f"NVRM: x[12]: segfault at 0 ip 0 sp 0 error 4 in x {XID}[1000+2000]",
        f"NVRM: Xid (PCI:[12]: segfault at 0 ip 0 sp 0 error 4 in x\\n{XID}",
        "NVRM: Xid (PCI:0000:01:00): 13, pid=1, name=NVRM: Xid (PCI:, Graphics Exception",
    ],
)
def test_process_name_in_a_kernel_line_forges_no_message(text: str) -> None:
    assert Reading(f"{STAMP}{text}\n".encode()).texts == [text]


def test_line_of_separators_is_read_in_time() -> None:
    text = f"{OFF_BUS}{', ; |' * 10_000}{SYSLOG_TAG * 300}"

    assert len(Reading(f"{STAMP}{text}\n".encode()).texts) == 1
