"""The machine's kernel log: written by the benches at a rate, and read by a bare reader in parallel to the agent."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.outcome import CouldNotMeasure
from healthcheck.probes.kernel_log import KernelLog
from sim.node import SimulatedNode

KMSG = Path("/dev/kmsg")
_READ_BYTES = 16384
_RATE_LIMIT = Path("/proc/sys/kernel/printk_devkmsg")
RATE_LIMIT_NOTE = (
    "floods: kernel.printk_devkmsg is `on` during a flood (with `ratelimit` the kernel drops records that user space",
    "        writes too fast), and is restored afterwards",
)


def use_real_log(node: SimulatedNode) -> None:
    """Replace the simulated device by the machine's own."""
    must_be_allowed()
    node.kernel_log.close()
    log = node.root / "dev/kmsg"
    log.unlink()
    log.symlink_to(KMSG)


def last_record() -> int | None:
    """Return the current end of the ring: an agent that starts there judges nothing of earlier runs."""
    cursor = None
    with KernelLog(KMSG) as log:
        while (batch := log.read()).more or batch.cursor != cursor:
            cursor = batch.cursor
    return cursor


@dataclass(frozen=True)
class Left:
    """Record in the ring, and whether it is an Xid that a bench invented."""

    seq: int
    is_ours: bool


def ring() -> list[Left]:
    """Return the records that a new reader can still read, oldest first."""
    left: list[Left] = []
    log = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            record = os.read(log, _READ_BYTES)
            left.append(Left(int(record.split(b",", 2)[1]), is_invented(record)))
    except BlockingIOError:
        return left
    finally:
        os.close(log)


def is_invented(record: bytes) -> bool:
    """Whether the record is an Xid of the bench."""
    return b";NVRM: Xid (" in record and b"gpu-healthcheck bench" in record


@contextmanager
def without_rate_limit() -> Iterator[None]:
    before = _RATE_LIMIT.read_text()
    _RATE_LIMIT.write_text("on\n")
    try:
        yield
    finally:
        _RATE_LIMIT.write_text(before)


def must_be_allowed() -> None:
    if Path("/sys/module/nvidia").exists():
        raise CouldNotMeasure(
            "this machine has an NVIDIA driver: programs that read its kernel log would accept the invented Xids"
        )
    try:
        os.close(os.open(KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        why = "only root may write to it" if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
        raise CouldNotMeasure(f"needs the real {KMSG} to read and to write: {why}") from error
