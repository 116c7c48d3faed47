"""Parser of the output of perftest's ib_write_bw, server and client: formats of versions 5 and 6 (22.x to 25.x)."""

from __future__ import annotations

import re
import signal

from healthcheck.host.command import ProgramEnd, how_it_ended
from healthcheck.model import Unobserved, UnobservedCause
from healthcheck.probes.loopback_result import Broken, LoopbackResult, Measured
from healthcheck.text.printable import printable

NOT_RUN = UnobservedCause(
    "RdmaLoopbackNotRun",
    (
        "ib_write_bw could not test an RDMA port: a permission or an option of perftest is missing, it was stopped, or "
        "no port of the node sends to itself."
    ),
    "Read ib_write_bw's error in the message; perftest 24.01 or newer is required. If every node of the type "
    "fails alike, use an image without perftest.",
)
_READ_BYTES = 65536
_MB_PER_GBIT = 125.0
_HEAD = re.compile(rb"^ *#bytes +#iterations +BW peak\[Gb/sec\] +BW average\[Gb/sec\]", re.MULTILINE)
_ROW = re.compile(rb"^ *(?P<size>\d{1,12}) +\d{1,12} +\d{1,9}\.\d{1,9}\s+(?P<average>\d{1,9}\.\d{1,9})\s", re.MULTILINE)
"""A row of the table: #bytes, #iterations, BW peak, BW average, MsgRate (perftest_parameters.h, REPORT_FMT)."""
_COMPLETION = re.compile(r"(?:Completion with error at (?:client|server)|Failed status[ -])")
_LEFT_ALONE = (
    "Couldn't read remote address",
    "Couldn't read reports",
    "Failed to exchange data between",
    "client write",
)
"""Errors after the other side ended. The other side has the reason."""
_REFUSED = b"Couldn't connect to "
_NO_REASON = "Conflicting CPU frequency"
_ENDED_BY_US = (-signal.SIGTERM, -signal.SIGKILL)
_LONGEST_TEXT = 200


def is_refused(client: ProgramEnd) -> bool:
    """Whether the client ended because the server did not listen yet."""
    return client.code == 1 and _REFUSED in client.err[:_READ_BYTES]


def read_side(ended: ProgramEnd) -> LoopbackResult | None:
    """Return the result of one side; None if it ended because the other side ended or it was stopped."""
    lines = [printable(line.strip()) for line in ended.err[:_READ_BYTES].decode("utf-8", "replace").split("\n")]
    lines = [line for line in lines if line and not line.startswith(_NO_REASON)]
    failed = [line for line in lines if _COMPLETION.match(line)]
    name = f"ib_write_bw {how_it_ended(ended.code)}"
    if failed:
        return Broken(f"{name}: {', '.join(failed[:2])}"[:_LONGEST_TEXT])
    if ended.code == 0:
        return _measured(ended.out[-_READ_BYTES:])
    reason = lines[0][:_LONGEST_TEXT] if lines else ""
    if ended.code in _ENDED_BY_US or any(message in reason for message in _LEFT_ALONE):
        return None
    return Unobserved(NOT_RUN, f"{name}: {reason}" if reason else name)


def _measured(out: bytes) -> LoopbackResult:
    head = _HEAD.search(out)
    row = _ROW.search(out, head.end()) if head else None
    if row is None:
        return Unobserved(NOT_RUN, "ib_write_bw ended without an error and without a measurement")
    return Measured(float(row["average"]) * _MB_PER_GBIT, int(row["size"]))
