"""Kernel log of a simulated node: dev/kmsg as a FIFO that returns one record per read, like the real device.

Limits of a FIFO: it has one reader (two would share the records), it cannot seek (ESPIPE), and a later reader finds
only unread records. `replay` gives a restarted reader the ring of this boot again.
"""

import contextlib
import fcntl
import os
import resource
import select
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

WARNING, INFO = 4, 6
KERNEL = 0
# A FIFO in packet mode keeps one record per page; this is the largest size for an unprivileged process.
FIFO_BYTES = 1 << 20


@dataclass(frozen=True)
class KernelRecord:
    """One record of the kernel log."""

    priority: int
    sequence: int
    timestamp_us: int
    text: bytes

    @property
    def line(self) -> bytes:
        return b"%d,%d,%d,-;%s\n" % (self.priority, self.sequence, self.timestamp_us, escape(self.text))


def escape(text: bytes) -> bytes:
    r"""Escape control characters, backslashes and non-ASCII characters as \xNN, as the kernel does."""
    return b"".join(
        b"\\x%02x" % byte if byte < 0x20 or byte >= 0x7F or byte == ord("\\") else bytes([byte]) for byte in text
    )


def monotonic_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class SimulatedKernelLog:
    """Kernel log of a simulated node."""

    def __init__(self, fifo: Path) -> None:
        if not fifo.exists():
            os.mkfifo(fifo)
        self.path = fifo
        # Opened for read and write: opening does not wait for a reader, and the FIFO survives the end of a reader.
        self._descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)
        with contextlib.suppress(PermissionError):  # a user with very many pipes keeps the default size
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, FIFO_BYTES)
        slots = fcntl.fcntl(self._descriptor, fcntl.F_GETPIPE_SZ) // resource.getpagesize()
        self._ring: deque[KernelRecord] = deque(maxlen=slots)
        self._next_sequence = 0

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    @property
    def ring(self) -> tuple[KernelRecord, ...]:
        return tuple(self._ring)

    def write(
        self,
        text: str | bytes,
        *,
        level: int = WARNING,
        facility: int = KERNEL,
        timestamp_us: int | None = None,
    ) -> KernelRecord:
        """Write a record with the current time as its timestamp, like printk."""
        record = KernelRecord(
            priority=facility << 3 | level,
            sequence=self._next_sequence,
            timestamp_us=monotonic_us() if timestamp_us is None else timestamp_us,
            text=text.encode() if isinstance(text, str) else text,
        )
        self.write_raw(record.line)
        self._next_sequence += 1
        self._ring.append(record)
        return record

    def write_raw(self, record: bytes) -> None:
        """Write unmodified bytes, for records that no kernel writes; they are not stored in the ring."""
        if len(record) > select.PIPE_BUF:
            # The pipe would split it into several packets, and the reader would read several records.
            raise ValueError(f"a record of {len(record)} bytes; a packet holds at most {select.PIPE_BUF}")
        while True:
            try:
                os.write(self._descriptor, record)
            except BlockingIOError:
                # As in the kernel's ring, the newest record overwrites the oldest: the reader sees a gap.
                with contextlib.suppress(BlockingIOError):  # the reader was quicker
                    os.read(self._descriptor, select.PIPE_BUF)
            else:
                return

    def overrun(self, records: int) -> None:
        """Skip this number of records, as if they were overwritten before they were read."""
        self._next_sequence += records

    def replay(self) -> None:
        """Provide the ring from its oldest record, as opening the real device does."""
        self._discard_unread()
        for record in self._ring:
            self.write_raw(record.line)

    def clear(self) -> None:
        """Start a new boot: an empty ring, counted from 0."""
        self._discard_unread()
        self._ring.clear()
        self._next_sequence = 0

    def save(self, capture: Path) -> None:
        """Write the ring as a plain file, like a capture by `cat /dev/kmsg`."""
        capture.write_bytes(b"".join(record.line for record in self._ring))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _discard_unread(self) -> None:
        try:
            while True:
                os.read(self._descriptor, select.PIPE_BUF)
        except BlockingIOError:
            return
