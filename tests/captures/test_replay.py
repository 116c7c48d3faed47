"""A replay takes an agent's steps over whatever a file holds: content never makes it fail, and it stays bounded."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.captures.blocks import CaptureError, InputFile
from gpu_healthcheck.healthcheck.captures.bug_report import BugReportReader
from gpu_healthcheck.healthcheck.captures.kernel_logs import KernelLogReader, PassedOver
from gpu_healthcheck.healthcheck.captures.replay import KERNEL_CHECKS, Replay
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Nature, Severity
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import Identity
from gpu_healthcheck.healthcheck.verdict.verdict import decide

SAVED = datetime(2026, 11, 21, tzinfo=UTC)
EVENTS = tuple(one for one in CHECKS if one.nature is Nature.EVENT)
OFF_BUS = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
RECOVERY = "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to {}"


def test_kernel_checks_are_all_event_checks() -> None:
    assert KERNEL_CHECKS == EVENTS


pieces = st.sampled_from(
    [
        b"NVRM: Xid (PCI:0000:05:00): 79, x",
        b"NVRM: Xid (PCI:0000:05:00): 54, x",
        b"NVRM: The NVIDIA GPU ",
        b"NVRM: (PCI",
        b"nvidia-nvswitch3: SXid",
        b"[    1.000000] ",
        b"[999999999.000000] ",
        b"[99999999999.000000] ",
        b"4,1,99999999999999999,-;",
        b"4,1,1000000,-;",
        b"Feb 30 25:61:61 host kernel: ",
        b"Feb 29 10:00:00 host kernel: ",
        b"Dec 31 10:00:00 host kernel: ",
        b"Jan  1 10:00:00 host kernel: ",
        b"1970-01-01T00:00:00+14:00 host kernel: ",
        b"9999-12-31T23:59:59-12:00 host kernel: ",
        b"2199-12-31T23:59:59,999999-12:00 ",
        b"0001-01-01T00:00:00+14:00 host kernel: ",
        b"99999999999.000000 host kernel: ",
        b"000000000.000000 host kernel: ",
        b"-- Boot 0123456789abcdef0123456789abcdef --",
        b"-- Reboot --",
        b"Linux version 6.1",
        b"____________________________________________\n",
        b"  journalctl -b -1:\n",
        b"  journalctl -b -0:\n",
        b"dmesg:\n",
        b"Date: Sat Nov 21 10:00:00 AM UTC 9999\n",
        b"\n",
        b"\r\n",
        b"\0",
        b"\x1b[31m",
        b"\xff\xfe",
        b" ",
    ]
)
lines = st.lists(st.one_of(pieces, st.binary(max_size=30)), max_size=60).map(b"".join)


def replayed(reader: KernelLogReader | BugReportReader, content: bytes) -> Replay:
    replay = Replay(EVENTS, Expectation(), 86400.0)
    for batch in reader.read("log", InputFile(io.BytesIO(content)).blocks()):
        replay.take(batch)
    return replay


def judged(text: str) -> Replay:
    return replayed(KernelLogReader(SAVED, 1, PassedOver()), text.encode())


@given(lines, st.sampled_from([KernelLogReader, BugReportReader]))
def test_any_bytes_give_a_record_within_its_limit(
    content: bytes, reader: type[KernelLogReader | BugReportReader]
) -> None:
    try:
        replay = replayed(reader(SAVED, 1, PassedOver()), content)
    except CaptureError:
        return
    memory = replay.ended("", timedelta())
    record = records.render(decide(memory, replay.outcomes()), memory, Identity("host"), SAVED)

    assert len(records.dump(record).encode()) <= records.LONGEST
    assert sum(finding.count or 0 for finding in record.findings or ()) <= content.count(b"NVRM") + content.count(
        b"SXid"
    )


def test_source_is_the_first_line_of_the_worst_severity() -> None:
    milder, worse = RECOVERY.format("0x9 (Unknown)"), RECOVERY.format("0x2 (Node Reboot Required)")
    replay = judged("".join(f"[{at:12.6f}] {text}\n" for at, text in enumerate((milder, worse, worse, milder))))
    (standing,) = replay.ended("", timedelta()).active

    assert (standing.finding.severity, standing.count) == (Severity.REBOOT, 4)
    assert standing.finding.source == "log:2"
    assert replay.line_of(standing) == f"[{1:12.6f}] {worse}"


def test_flood_is_one_finding_with_its_count() -> None:
    replay = judged("".join(f"[{at / 1000:12.6f}] {OFF_BUS}\n" for at in range(5000)))
    (standing,) = replay.ended("", timedelta()).active

    assert (standing.count, standing.finding.source) == (5000, "log:1")
    assert (standing.last_seen - standing.first_seen).total_seconds() == pytest.approx(4.999)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (["900, name=worker-1", "900, name=worker-2", "900, name=x, pid=7"], {"Xid31"}),
        (["'<unknown>', name=worker-1", "'<unknown>', name=worker-2", "'<unknown>', name=7 x"], {"Xid31"}),
        (["900, name=a", "901, name=a", "", "900, name=b"], {"Xid31"}),
        (["900, name=a", "901, name=a", "902, name=a"], {"Xid31", "Xid31Repeated"}),
        (["900, name=a", "901, name=a", "boot", "902, name=a"], {"Xid31"}),
    ],
)
def test_process_is_counted_by_pid_and_boot(processes: list[str], expected: set[str]) -> None:
    lines = [
        "[    0.000000] Linux version 6.1.0-18-amd64 (a@b) (gcc-12) #1 SMP"
        if process == "boot"
        else f"[{at:12.6f}] NVRM: Xid (PCI:0000:05:00): 31, {f'pid={process}, ' if process else ''}channel 0x0000000a"
        for at, process in enumerate(processes, 100)
    ]
    replay = judged("".join(f"{line}\n" for line in lines))

    assert {active.finding.reason for active in replay.ended("", timedelta()).active} == expected


@pytest.mark.parametrize(
    ("cause", "before", "is_complete"),
    [
        (149, "", False),
        (79, "", False),
        (79, OFF_BUS, True),
        (31, "", True),  # the program's own: no fault that the log could lack
        (79, f"{OFF_BUS}\n[    1.100000] Linux version 6.1.0-18-amd64", False),
    ],
)
def test_log_without_the_fault_that_a_line_names_as_its_cause_is_unknown(
    cause: int, before: str, is_complete: bool
) -> None:
    follows = f"NVRM: Xid (PCI:0000:05:00): 45, pid=7, name=a, Ch 00000001 caused by previous Xid {cause}"
    replay = judged(f"[    1.000000] {before}\n[    2.000000] {follows}\n[    3.000000] {follows}\n")
    details = {one.detail.partition(":")[0] for outcome in replay.outcomes() for one in outcome.unobserved}

    assert details == (set() if is_complete else {f"the log lacks the Xid{cause} that a line names as its cause"})


def test_log_without_dates_ends_when_it_was_saved() -> None:
    reader = KernelLogReader(SAVED, 1, PassedOver())
    replay = replayed(reader, f"[   10.000000] {OFF_BUS}\n[  110.000000] usb 1-1: gone\n".encode())
    (standing,) = replay.ended("", SAVED - reader.clock.wall).active

    assert standing.first_seen == SAVED - timedelta(seconds=100)
