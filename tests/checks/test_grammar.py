"""Kernel log lines of any content.

They include each row of the catalogue in every documented form, quotes of such rows, and arbitrary text.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.catalog.sxid import sxid_table
from gpu_healthcheck.healthcheck.catalog.xid import xid_table
from gpu_healthcheck.healthcheck.checks import CHECKS, KERNEL_LINES
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, KernelEvent, Nature
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record, parse_record
from gpu_healthcheck.healthcheck.text.printable import printable
from tests.checks.grammar import (
    BY_THE_KERNEL,
    LONGEST_COMM,
    PACKET,
    Line,
    driver_lines,
    fault_lines,
    kernels_lines,
    quoted_lines,
    sxid_lines,
    xid_lines,
)

BEGINNINGS = (
    *KERNEL_LINES,
    "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
    "NVRM: GPU at PCI:0000:05:00: GPU-0b0a6c5e-0000-4000-8000-000000000001",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20",
    "NVRM: API mismatch: the client has the version 545.23.08",
    "NVRM: RmInitAdapter failed! (0x24:0x72:1568)",
    "nvidia 0000:05:00.0: GPU has fallen off the bus.",
    "GPU has fallen off the bus.",
)
EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)


def events(*texts: str) -> list[KernelEvent]:
    ring = tuple(Record(seq, float(seq), 0, text) for seq, text in enumerate(texts))
    return [event for outcome in judge(EVENT_CHECKS, Evidence({RING: ring}), Expectation()) for event in outcome.events]


def faults(*texts: str) -> list[str]:
    return [event.reason for event in events(*texts) if event.finding]


@given(xid_lines())
def test_an_xid_is_read_in_every_form(line: Line) -> None:
    (seen,) = events(line.text)

    assert (seen.reason, seen.subject, seen.process) == (f"Xid{line.code}", line.subject, printable(line.process))
    assert seen.known
    assert printable(line.message) in seen.detail


@pytest.mark.parametrize("code", sorted(xid_table()))
@settings(max_examples=5)
@given(data=st.data())
def test_every_row_of_the_xid_table_is_read_in_any_form(code: int, data: st.DataObject) -> None:
    line = data.draw(xid_lines(st.just(code)))

    assert [(event.reason, event.subject) for event in events(line.text)] == [(f"Xid{code}", line.subject)]


@given(sxid_lines())
def test_an_sxid_is_read_in_every_form(line: Line) -> None:
    (seen,) = events(line.text)

    assert (seen.reason, seen.subject, seen.known) == (f"SXid{line.code}", line.subject, True)
    assert line.message in seen.detail


@pytest.mark.parametrize("code", sorted(sxid_table()))
def test_every_row_of_the_sxid_table_is_read(code: int) -> None:
    text = f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code:05d}, Fatal, Link 01 something"

    assert faults(text) == [f"SXid{code}"]


@given(driver_lines())
def test_a_line_without_a_number_is_one_fault(text: str) -> None:
    assert len(faults(text)) == 1


@given(quoted_lines())
def test_text_that_only_quotes_a_line_is_no_fault(text: str) -> None:
    assert events(text) == []


@given(kernels_lines())
def test_process_or_packet_line_is_never_the_drivers(text: str) -> None:
    assert events(text) == []


@pytest.mark.parametrize("form", [*BY_THE_KERNEL, PACKET])
@pytest.mark.parametrize("begin", BEGINNINGS)
def test_a_name_that_begins_as_the_driver_does_makes_no_line_of_it(begin: str, form: str) -> None:
    name = begin if form is PACKET else begin[:LONGEST_COMM]

    assert events(form.replace("{}", name)) == []


@given(fault_lines())
def test_a_line_that_is_read_begins_as_the_follower_asks_for(text: str) -> None:
    assert text.startswith(KERNEL_LINES)


@given(fault_lines())
def test_a_raw_record_says_what_its_text_says(text: str) -> None:
    """The device escapes unprintable characters, including the newline."""
    written = "".join(name if " " <= name <= "~" and name != "\\" else _escaped(name) for name in text)
    parsed = parse_record(f"4,7,7000000,-;{written}".encode())

    assert parsed is not None
    assert faults(parsed.text) == faults(text)


@given(st.lists(st.text(max_size=300) | fault_lines(), max_size=20))
@example(["NVRM: Xid (PCI:0000:05:00): 154, " + "GPU recovery action changed from 0x0 (" * 200])
@example(["NVRM: Xid (PCI:0000:05:00): 149, " + "A" * 9000 + " Fatal (" + "0x1 " * 3000])
@example(["NVRM: Xid (PCI:0000:05:00): 74, NVLink: fatal error detected on link 1(" + "0x1, " * 3000])
@example(["NVRM: Xid (PCI:0000:05:00): 13, pid=1, name=" + ", a" * 5000])
@example(["NVRM: The NVIDIA GPU 0000:05:00.0" + " \nNVRM: " * 3000])
@example(["NVRM: nvAssertOk: Assertion failed: " + "a " * 5000])
def test_any_text_at_all_is_judged(texts: list[str]) -> None:
    seen = events(*texts)

    assert all(len(event.detail) <= 200 for event in seen)
    assert len(seen) <= len(texts)


def _escaped(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())
