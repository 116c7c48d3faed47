"""A bug report repeats the same kernel records in several sections.

Each event is read once, in its own boot.
"""

from __future__ import annotations

import cProfile
import gzip
import io
from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.healthcheck.captures.blocks import InputFile
from gpu_healthcheck.healthcheck.captures.bug_report import BugReportReader
from gpu_healthcheck.healthcheck.captures.kernel_logs import PassedOver
from tests.captures.renderings import BOOTED, FORMS, capture, records

RULE = "_" * 44 + "\n\n"
SAVED = datetime(2026, 12, 24, tzinfo=UTC)
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20"
OFF_BUS = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
MMU = "NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=python3, Ch 00000008"
OLD = "NVRM: Xid (PCI:0000:64:00): 95, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"
FALLEN = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    "NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
DMESG = FORMS["dmesg"]
SYSLOG = FORMS["syslog"]
JOURNAL = FORMS["journal short"]
YESTERDAY = -86400.0
"""Seconds from this boot's start to the one before."""


def text(form: str, *lines: tuple[float, str]) -> str:
    return capture(FORMS[form], records(*lines)).decode()


def report(*sections: str, date: str = "Fri Nov 20 10:00:00 UTC 2026") -> bytes:
    head = (
        f"{RULE}Start of NVIDIA bug report log file.  Please include this file.\n\nDate: {date}\nuname: Linux host\n\n"
    )
    return (
        head + "".join(RULE + section + "\n" for section in sections) + RULE + "End of NVIDIA bug report log file.\n"
    ).encode()


def scanned(**logs: str) -> str:
    """The section in which the script greps the logs."""
    names = {
        "messages": "/var/log/messages",
        "b0": "journalctl -b -0",
        "b1": "journalctl -b -1",
        "b2": "journalctl -b -2",
    }
    parts = "".join(f"\n  {names[name]}:\n{log}" for name, log in logs.items())
    return f"Scanning kernel log files for NVIDIA kernel messages:\n{parts}\n"


class Reading:
    def __init__(self, content: bytes) -> None:
        self.passed_over = PassedOver()
        self.reader = BugReportReader(SAVED, 1, self.passed_over)
        self.batches = list(self.reader.read("report", InputFile(io.BytesIO(content)).blocks()))

    @property
    def boots(self) -> list[list[str]]:
        by_boot: dict[int, list[str]] = {}
        for batch in self.batches:
            by_boot.setdefault(batch.boot, []).extend(line.record.text for line in batch.lines)
        return list(by_boot.values())


NOW = ((4.0, LOADED), (100.5, OFF_BUS), (130.5, MMU), (131.5, MMU))


@pytest.mark.parametrize(
    "sections",
    [
        [scanned(b0=text("journal short", *NOW)), "dmesg:\n\n" + text("dmesg", *NOW)],
        [scanned(messages=text("syslog", *NOW)), "dmesg:\n\n" + text("dmesg", *NOW)],
        [scanned(messages=text("syslog", *NOW), b0=text("journal short", *NOW)), "dmesg:\n\n" + text("dmesg", *NOW)],
        ["dmesg:\n\n" + text("dmesg", *NOW)],
        [scanned(b0=text("journal short", *NOW))],
        ["dmesg:\n\n" + text("dmesg -T", *NOW), scanned(messages=text("syslog", *NOW))],
        [f"*** /var/log/dmesg\n*** ls: -rw-r--r--\n{text('dmesg', *NOW[:2])}", "dmesg:\n\n" + text("dmesg", *NOW)],
        [scanned(b0=text("journal short", *NOW)), "dmesg:\n\n" + text("dmesg", *NOW[2:])],
    ],
)
def test_event_in_several_sections_counts_once(sections: list[str]) -> None:
    read = Reading(report(*sections))

    assert read.boots[-1] == [name for _, name in NOW]
    assert sum(map(len, read.boots)) == len(NOW)


STORM = tuple((100.0 + number, MMU) for number in range(20))
BEFORE = ((YESTERDAY + 10.0, LOADED), (YESTERDAY + 50.0, OLD))
RECENT = ((4.0, LOADED), (100.5, MMU))
SENTENCE = ((4.0, LOADED), (5.0, FALLEN))


@pytest.mark.parametrize(
    ("sections", "boots", "repeated"),
    [
        (
            [scanned(b0=text("journal short", *STORM)), "dmesg:\n\n" + text("dmesg", *STORM[12:])],
            [[MMU] * 20],
            8,
        ),
        (
            [scanned(b0=text("journal short", *SENTENCE)), "dmesg:\n\n" + text("dmesg", *SENTENCE)],
            [[LOADED, FALLEN]],
            2,
        ),
        (
            [
                scanned(messages=text("syslog", *BEFORE, *RECENT), b0=text("journal short", *RECENT)),
                scanned(b1=text("journal short", *BEFORE)),
                "dmesg:\n\n" + text("dmesg", *RECENT),
            ],
            [[LOADED, OLD], [LOADED, MMU]],
            6,
        ),
        (
            [scanned(messages=text("syslog", *BEFORE, *RECENT)), "dmesg:\n\n" + text("dmesg", *RECENT)],
            [[LOADED, OLD], [LOADED, MMU]],
            2,
        ),
        (
            [scanned(b1=text("journal short", *BEFORE)), "dmesg:\n\n[    1.000000] usb 1-1: new\n"],
            [[LOADED, OLD], []],
            0,
        ),
    ],
    ids=["same text again", "several lines", "boots by the journal", "boots by dmesg", "boot without a GPU line"],
)
def test_report_is_divided_into_boots_without_repeats(
    sections: list[str], boots: list[list[str]], repeated: int
) -> None:
    read = Reading(report(*sections))

    assert (read.boots, read.passed_over.repeated) == (boots, repeated)


def test_times_within_the_boot_are_those_of_dmesg() -> None:
    read = Reading(report(scanned(b0=text("journal short-precise", *NOW)), "dmesg:\n\n" + text("dmesg", *NOW)))
    ages = [line.record.at for batch in read.batches for line in batch.lines]

    assert [round(age - ages[0], 3) for age in ages] == [0.0, 96.5, 126.5, 127.5]


def test_now_is_the_date_of_the_report() -> None:
    read = Reading(report(scanned(b0=text("journal short", *NOW)), date="Fri Nov 20 01:30:00 PM -03 2026"))

    assert read.batches[-1].now.wall == datetime(2026, 11, 20, 13, 30, tzinfo=UTC)


def test_driver_line_in_other_sections_is_quoted() -> None:
    read = Reading(
        report(
            f"journalctl -b -0 _COMM=Xorg\n\nNov 20 08:00:00 host Xorg[1]: {OFF_BUS}\n",
            f"*** /var/log/Xorg.0.log\n[   100.123] (II) {OFF_BUS}\n{OFF_BUS}\n",
            "dmesg:\n\n" + text("dmesg", (4.0, LOADED)),
        )
    )

    assert (read.boots, read.passed_over.quoted) == ([[LOADED]], 3)


def test_report_packed_by_section_is_read_whole() -> None:
    whole = report(scanned(b0=text("journal short", *NOW)), "dmesg:\n\n" + text("dmesg", *NOW))
    parts = whole.split(RULE.encode())
    packed = b"".join(gzip.compress(RULE.encode() + part) for part in parts[1:])

    assert Reading(packed).boots == Reading(whole).boots


def test_event_counts_once_when_the_clock_of_dmesg_drifted() -> None:
    drifted = tuple((at * 1.0001, what) for at, what in ((4.0, LOADED), (400_000.0, OFF_BUS)))
    logs = scanned(b0=text("journal short", (4.0, LOADED), (400_000.0, OFF_BUS)))
    late = (BOOTED + timedelta(days=6)).strftime("%a %b %d %H:%M:%S UTC %Y")
    read = Reading(report(logs, "dmesg:\n\n" + text("dmesg", *drifted), date=late))

    assert read.boots == [[LOADED, OFF_BUS]]


def calls_to_read(content: bytes) -> int:
    """Return the number of Python calls that reading the report makes."""
    profile = cProfile.Profile(builtins=False)
    profile.runcall(Reading, content)
    return sum(entry.callcount for entry in profile.getstats())


def test_cost_of_a_report_is_linear_in_its_sections() -> None:
    def minutes_apart(count: int) -> bytes:
        return report(*(scanned(messages=text("syslog", (300.0 * number, MMU))) for number in range(count)))

    assert calls_to_read(minutes_apart(400)) < 2.2 * calls_to_read(minutes_apart(200))
