"""The simulated dev/kmsg behaves as the real one: one record per read, in the documented form."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.sim.kernel_log import SimulatedKernelLog

READ_BYTES = 8192


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SimulatedKernelLog]:
    log = SimulatedKernelLog(tmp_path / "kmsg")
    yield log
    log.close()


@pytest.fixture
def open_reader(log: SimulatedKernelLog) -> Iterator[Callable[[], int]]:
    descriptors: list[int] = []

    def open_log() -> int:
        descriptors.append(os.open(log.path, os.O_RDONLY | os.O_NONBLOCK))
        return descriptors[-1]

    yield open_log
    for descriptor in descriptors:
        os.close(descriptor)


def _read_all(descriptor: int) -> list[bytes]:
    records = []
    while True:
        try:
            records.append(os.read(descriptor, READ_BYTES))
        except BlockingIOError:
            return records


def test_kernel_log_read_returns_one_record(log: SimulatedKernelLog, open_reader: Callable[[], int]) -> None:
    written = [log.write(text) for text in ("first", "second", "third")]

    assert _read_all(open_reader()) == [record.line for record in written]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("two\nlines", rb"two\x0alines"),
        ("back\\slash", rb"back\x5cslash"),
        ("é", rb"\xc3\xa9"),
        (b"\xff\x00", rb"\xff\x00"),
    ],
)
def test_kernel_log_escapes_unprintable_bytes(log: SimulatedKernelLog, text: str | bytes, escaped: bytes) -> None:
    assert log.write(text).line.partition(b";")[2] == escaped + b"\n"


def test_kernel_log_is_empty_and_counts_from_0_after_a_boot(
    log: SimulatedKernelLog, open_reader: Callable[[], int]
) -> None:
    log.write("before")
    log.clear()
    after = log.write("after")

    assert (after.sequence, log.ring, _read_all(open_reader())) == (0, (after,), [after.line])


def test_kernel_log_drops_oldest_records_when_full(log: SimulatedKernelLog, open_reader: Callable[[], int]) -> None:
    for number in range(1000):
        log.write(f"record {number}")
    read = _read_all(open_reader())

    assert read == [record.line for record in log.ring]
    assert log.ring[-1].sequence == 999
    assert log.ring[0].sequence == 1000 - len(read) > 0


def test_kernel_log_overrun_leaves_a_gap_in_the_sequence(log: SimulatedKernelLog) -> None:
    log.write("before")
    log.overrun(5)

    assert log.write("after").sequence == 6
