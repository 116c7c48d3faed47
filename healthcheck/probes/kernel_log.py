"""The kernel's log: records of `/dev/kmsg` (kernel Documentation/ABI/testing/dev-kmsg), live or from a file."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Self

from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.opening import open_file
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, UnobservedCause
from gpu_healthcheck.healthcheck.text.printable import printable

UNREADABLE = UnobservedCause(
    "KernelLogUnreadable",
    "The kernel log (`/dev/kmsg`) can't be opened or read.",
    "Make sure that the pod is privileged.",
)
KERNEL_FACILITY = frozenset({0})
"""Facility of the kernel's records. Records that user space writes to the device get facility 1 or more.

The kernel's records also contain text from user space. Several begin with a process name, 15 bytes that the user
chooses, and continue with text of the kernel (`NAME[PID]: segfault at`, `NAME: page allocation failure`). Others quote
it, or a file name. A line is therefore recognised as the driver's only by its whole form, from the first character. A
packet filter rule logs a prefix of up to 127 bytes (`is_packet_filters`). Its author needs NET_ADMIN on the host's
network.
"""

_READ_BYTES = 16384
"""Size of the read buffer. A record of the device has at most 8 KiB, and a shorter buffer gets EINVAL."""
_LONGEST_LINE = 65536
_MOST_RECORDS, _MOST_BYTES = 2000, 4 << 20
"""Limits of one batch, so that in a flood of records, judging keeps up with reading."""
_MOST_READS = 1000
"""Most reads for a whole ring: two million records. A file of a saved tree may be endless, or have no line."""
_HEAD = re.compile(rb"(\d{1,9}),(\d{1,19}),(\d{1,19}),[^;]{0,256};")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")

_PACKET = re.compile(
    r".{0,127}?IN=\S{0,15} OUT=\S{0,15} .*?"
    r"(?:SRC=[0-9a-f.:]{7,39} DST=[0-9a-f.:]{7,39} |MAC(?:SRC)?=(?:[0-9a-f]{2}:){5}|ARP HTYPE=\d+ PTYPE=0x)",
    re.DOTALL,
)
"""Text of the packet filter after the prefix of a rule (net/netfilter/nf_log_syslog.c).

The pattern includes addresses, so that it is longer than a process name: a process `IN= OUT=` must not hide an Xid.
"""

# read(2) without releasing the interpreter lock. os.read releases it for each record: a busy thread then keeps it for
# 5 ms, in which a flood of 100,000/s brings 500 more records. The log is open in non-blocking mode, so reads return
# immediately.
_read = ctypes.PyDLL(None, use_errno=True).read
_read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_read.restype = ctypes.c_ssize_t


class Record(Struct, frozen=True):
    """One kernel message. `at` is in seconds of the boot's monotonic clock; `text` is unescaped."""

    seq: int
    at: float
    facility: int
    text: str


class RecordBatch(Struct, frozen=True):
    """Records that could be read without waiting. `lost` records were overwritten before the read.

    `ended`: the end of a file was reached.
    """

    records: tuple[Record, ...]
    """Records with one of the requested beginnings."""
    accepted: int = 0
    """Number of the kernel's records, with any beginning."""
    lost: int = 0
    unreadable: int = 0
    refused: int = 0
    """Number of records of another facility than the kernel's: user space wrote them."""
    ended: bool = False
    more: bool = False
    cursor: int | None = None
    """Sequence number of the last record read, of any facility; None if no record was read."""


def parse_record(line: bytes) -> Record | None:
    """Parse a record of the form `prio,seq,usec,flags[,...];text`. Return None for other lines."""
    head = _HEAD.match(line)
    return None if head is None else _record(head, line)


def _record(head: re.Match[bytes], line: bytes) -> Record:
    return Record(int(head[2]), int(head[3]) / 1e6, int(head[1]) >> 3, unescaped(line[head.end() :]))


def unescaped(text: bytes) -> str:
    r"""Return the original message. /dev/kmsg writes each byte that is not printable ASCII as `\xNN`."""
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), text).decode("utf-8", "backslashreplace")


def is_packet_filters(text: str) -> bool:
    """Whether the text is a log message of a packet filter rule.

    Its prefix is chosen by the rule's author.
    """
    return "IN=" in text and _PACKET.match(text) is not None


class KernelLog:
    """The open log, read from its oldest record (`dmesg -C` hides nothing).

    `after` is the sequence number of the last record already judged in this boot. Records up to it are skipped, and
    records overwritten since then count as lost. A record that begins with none of `begins` (plain ASCII) is counted,
    but no object is made for it. In a flood, nearly all records are irrelevant. Raises ProbeError if the log can't be
    opened.
    """

    def __init__(
        self,
        path: Path,
        facilities: frozenset[int] = KERNEL_FACILITY,
        after: int | None = None,
        begins: tuple[str, ...] = ("",),
    ) -> None:
        try:
            self._fd = open_file(path, os.O_RDONLY)
        except OSError as error:
            raise ProbeError(f"{path}: {error.strerror}", UNREADABLE) from error
        self._path = path
        self._facilities = facilities
        self._begins = tuple(word.encode("ascii") for word in begins)
        self._buffer = bytearray(_READ_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._rest = b""
        self._after = after

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def read(self) -> RecordBatch:
        """Read the available records, up to a limit, without waiting."""
        records: list[Record] = []
        accepted = lost = unreadable = refused = 0
        chunks, last = self._chunks()
        for line in self._lines(chunks):
            head = _HEAD.match(line)
            if head is None:
                unreadable += 1
                continue
            seq = int(head[2])
            if self._after is not None:
                if seq <= self._after:
                    continue
                lost += seq - self._after - 1
            self._after = seq
            if int(head[1]) >> 3 not in self._facilities:
                refused += 1
                continue
            accepted += 1
            if line.startswith(self._begins, head.end()):
                records.append(_record(head, line))
        return RecordBatch(tuple(records), accepted, lost, unreadable, refused, last == b"", bool(last), self._after)

    def unfinished(self) -> Record | None:
        """Return the last record of a saved log whose newline was cut off. A live log completes such a record later."""
        record = parse_record(self._rest)
        return record if record is not None and record.facility in self._facilities else None

    def _chunks(self) -> tuple[list[bytes], bytes | None]:
        """Return the data available now, and the last result: b"" at a file's end, None without new data."""
        chunks: list[bytes] = []
        chunk, lines, size = b"", 0, 0
        while lines < _MOST_RECORDS and size < _MOST_BYTES:
            count = _read(self._fd, self._address, _READ_BYTES)
            if count < 0:
                error = ctypes.get_errno()
                if error == errno.EAGAIN:
                    return chunks, None
                if error not in (errno.EPIPE, errno.EINTR):
                    raise ProbeError(f"{self._path}: {os.strerror(error)}", UNREADABLE)
                # EPIPE: the ring advanced past this reader. The next read returns its oldest record, and the gap in the
                # sequence gives the number of lost records.
                continue
            chunk = bytes(self._buffer[:count])
            if not chunk:
                break
            chunks.append(chunk)
            lines += chunk.count(b"\n")
            size += len(chunk)
        return chunks, chunk

    def _lines(self, chunks: list[bytes]) -> list[bytes]:
        *lines, rest = (self._rest + b"".join(chunks)).split(b"\n")
        self._rest = rest[:_LONGEST_LINE]
        # Continuation lines (` KEY=value`) belong to the record before them and hold no message.
        return [line[:_LONGEST_LINE] for line in lines if line and not line.startswith(b" ")]


def read_ring(host: Host) -> tuple[Record, ...]:
    """Return all records that the log contains now, oldest first."""
    records: list[Record] = []
    with KernelLog(kmsg_path(host.root)) as log:
        for _ in range(_MOST_READS):
            batch = log.read()
            records.extend(batch.records)
            if not batch.more:
                break
        if batch.ended and (last := log.unfinished()):
            records.append(last)
    return tuple(records)


def kmsg_path(root: Path) -> Path:
    return root / "dev/kmsg"


def boot_id(root: Path) -> str:
    """Return the id that the kernel gives each boot. Raises ProbeError if /proc does not have it."""
    path = "/proc/sys/kernel/random/boot_id"
    try:
        return printable(host_files.read_whole(root, path, 64).decode("ascii", "replace").strip())
    except OSError as error:
        raise ProbeError(f"{path}: {error.strerror}") from error


RING = Probe("kernel-log", read_ring, tuple[Record, ...], (UNREADABLE,))
