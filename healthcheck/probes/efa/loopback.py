"""Loopback test of each EFA device: libfabric's fi_pingpong as server and client on one device.

Only a quarantine runs it, because it loads the device. The data passes through the NIC. The output is parsed in the
formats of util/pingpong.c, 1.4 to 2.x.

Programs on one machine reach each other through its memory, unless libfabric is configured otherwise. Without
FI_EFA_ENABLE_SHM_TRANSFER=0, such a test never uses the device.
"""

from __future__ import annotations

import errno
import re
import signal
from dataclasses import dataclass

from gpu_healthcheck.healthcheck.host.command import ProgramEnd, how_it_ended
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.efa.infiniband import openable_efa
from gpu_healthcheck.healthcheck.probes.loopback import (
    ADDRESS,
    Broken,
    DeviceLoopback,
    LoopbackReading,
    LoopbackResult,
    Measured,
    free_port,
)
from gpu_healthcheck.healthcheck.text.printable import printable

NOT_RUN = UnobservedCause(
    "EfaLoopbackNotRun",
    "fi_pingpong could not run on a device: a library, a permission or locked memory is missing, or it was stopped.",
    "Read fi_pingpong's error in the message.",
)
REFUSED = errno.ECONNREFUSED
"""Exit code of a client whose server does not listen yet: the program ends with the error number."""
_READ_BYTES = 65536
"""Bytes read from the end of each output. A table has some hundred bytes, and warnings can precede it."""
_ROW = re.compile(
    rb"^(?:\S.{0,63}?\s)??(?P<size>\d+(?:\.\d)?[kmg]?)\s+(?P<sent>\d+[kmb]?)\s+(?P<sign>[=+-])(?P<difference>\d+[kmb]?)"
    rb"\s+\d+(?:\.\d)?[kmg]?\s+\d+\.\d\ds\s*(?P<bandwidth>\d+\.\d\d)\s+\S+\s+\S+\s*$",
    re.MULTILINE,
)
"""A line of the table: optional name, bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec.

#ack is `=` and the number if all messages were acknowledged, else `+` or `-` and the difference to the number sent.
"""
_UNITS = {b"k": 1 << 10, b"m": 1 << 20, b"g": 1 << 30}
_CORRUPT = re.compile(rb"^Error at iteration=\d+ size=(\d+) byte=\d+\s*$", re.MULTILINE)
"""Message of `-c` about changed data, on standard output. The exit code is then 255."""
_CALL = re.compile(r"(?P<call>[\w/()-]{1,64})\(\): \S+:\d+ *, ret=-?(?P<number>\d{1,9}) \((?P<text>.*)\)$")
_ERROR = re.compile(r"\[error\] \S+:\d+ *: (?P<text>.*)$")
_MOVING_DATA = ("transmit", "inject", "receive", "pp_get_cq_comp", "fi_cq_readerr", "cq_readerr")
"""Calls that move messages or wait for them. All other calls precede them."""
_DEVICE_ERRORS = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ETIME, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors when opening a device that does not answer its driver.

The first command times out with ETIME, later commands get ENODEV (efa_com.c). A removed device gives ENXIO or EIO
(uverbs_main.c).
"""
_NOT_THE_DEVICE = (
    *(errno.EPERM, errno.EACCES, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
    *(errno.EINVAL, errno.EMSGSIZE, errno.ENOSYS, errno.EOPNOTSUPP),
)
"""Errors of any call due to permissions, limits (ENOMEM for locked memory) or an incomplete library."""
_LEFT_ALONE = (errno.ECONNABORTED, errno.ECONNRESET, errno.EPIPE)
"""Errors after the other side ended. The other side has the reason."""
_ENDED_BY_US = (-signal.SIGTERM, -signal.SIGKILL)
_LONGEST_TEXT = 200


def read_side(ended: ProgramEnd) -> LoopbackResult | None:
    """Return the result of one side; None if it ended because the other side ended or it was stopped."""
    out = ended.out[-_READ_BYTES:]
    if corrupt := _CORRUPT.search(out):
        return Broken(f"data was changed in a message of {corrupt[1][:10].decode()} bytes", corrupt=True)
    call, error_number, message = _first_error(ended)
    detail = f"fi_pingpong {how_it_ended(ended.code)}" + (f": {message}" if message else "")
    if call in _MOVING_DATA and error_number not in _NOT_THE_DEVICE:
        return Broken(detail)  # the exit code may be 0, as it holds only the last 8 bits of an error
    if ended.code == 0:
        return _measured(out)
    if error_number in _LEFT_ALONE or ended.code in _ENDED_BY_US:
        return None
    opens_device = call.startswith("fi_") and call != "fi_getinfo"
    return Broken(detail) if opens_device and error_number in _DEVICE_ERRORS else Unobserved(NOT_RUN, detail)


def _measured(out: bytes) -> LoopbackResult:
    rows = list(_ROW.finditer(out))
    if not rows:
        return Unobserved(NOT_RUN, "fi_pingpong ended without an error and without a measurement")
    lost = next((row for row in rows if row["sign"] == b"+"), None)
    if lost is not None:
        return Broken(f"{_word(lost['difference'])} of {_word(lost['sent'])} messages were not acknowledged")
    largest = max(rows, key=lambda row: _bytes(row["size"]))
    return Measured(float(largest["bandwidth"][:24]), _bytes(largest["size"]))


def _bytes(text: bytes) -> int:
    return int(float(text.rstrip(b"kmg")[:18]) * _UNITS.get(text[-1:], 1))


def _word(text: bytes) -> str:
    return text[:16].decode("ascii")


def _first_error(ended: ProgramEnd) -> tuple[str, int, str]:
    """Return the call that failed ('' if unnamed), its error number, and its text.

    The first error counts, because closing can fail too afterwards. The source position is left out, because it changes
    with the version.
    """
    lines = [printable(line.strip()) for line in ended.err[-_READ_BYTES:].decode("utf-8", "replace").split("\n")]
    for line in lines:
        if call := _CALL.match(line):
            return call["call"], int(call["number"]), f"{call['call']}: {call['text']}"[:_LONGEST_TEXT]
        if error := _ERROR.match(line):
            return error["text"].partition(":")[0], ended.code, error["text"][:_LONGEST_TEXT]
    return "", ended.code, next((line for line in reversed(lines) if line), "")[:_LONGEST_TEXT]


def read_efa_loopback(host: Host) -> LoopbackReading:
    if host.ask_efa_loopback is None:
        raise ProbeError("only a deep diagnostic sends data through EFA devices")
    reading: LoopbackReading = host.ask_efa_loopback()
    return reading


EFA_LOOPBACK = Probe("efa-loopback", read_efa_loopback, LoopbackReading, (NOT_RUN,))


_ROUNDS = ("-I", "100")
"""Rounds of each message size from 64 bytes to 1 MiB. The default differs between versions.

Both sides wait by polling, so a pod with less than two CPUs takes up to 10 ms for a round. In a test there, 1000 rounds
of each size did not complete in 30 s.
"""
_COMPARED = "-c"
"""Option that compares the data, used in a separate run: it reduced the speed to an eighth in a test."""


_ENVIRONMENT = {"LC_ALL": "C", "FI_HMEM": "system", "FI_EFA_ENABLE_SHM_TRANSFER": "0"}
"""Environment without libfabric variables of this process. FI_HMEM restricts it to host memory, without GPUs."""


@dataclass
class EfaLoopback(DeviceLoopback):
    """Tests each EFA device twice, or only once if the first run fails: its speed, then its data."""

    PROGRAM = "fi_pingpong"
    ENVIRONMENT = _ENVIRONMENT
    NOT_RUN = NOT_RUN

    def devices(self) -> tuple[str, ...] | str:
        return openable_efa(self.root) or "no EFA device that programs can open"

    def test(self, program: str, device: str) -> LoopbackResult:
        speed = self._run(program, device, *_ROUNDS)
        if not isinstance(speed, Measured):
            return speed
        integrity = self._run(program, device, *_ROUNDS, _COMPARED)
        return speed if isinstance(integrity, Measured) else integrity

    def refused(self, client: ProgramEnd) -> bool:
        return client.code == REFUSED

    def read_side(self, side: ProgramEnd) -> LoopbackResult | None:
        return read_side(side)

    def _run(self, program: str, device: str, *options: str) -> LoopbackResult:
        port = str(free_port())
        test = (program, "-p", "efa", "-e", "rdm", "-d", f"{device}-rdm", *options)
        return self.run_pair((*test, "-B", port), (*test, "-P", port, ADDRESS))
