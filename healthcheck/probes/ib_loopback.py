"""Loopback test of each active port of an mlx5 device: perftest's ib_write_bw as server and client on one port.

Only a quarantine runs it, because it loads the device. The output is parsed in the formats of versions 5 and 6 (22.x to
25.x).

The control connection listens on 127.0.0.1 alone: perftest parses what the peer sends without checking its length. Only
versions with `--bind_source_ip` do so (tried: 24.01 and 25.01); older ones refuse the option and test nothing.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
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
from gpu_healthcheck.healthcheck.probes.mlx5 import read_mlx5
from gpu_healthcheck.healthcheck.text.printable import printable

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


def read_rdma_loopback(host: Host) -> LoopbackReading:
    if host.ask_rdma_loopback is None:
        raise ProbeError("only a deep diagnostic sends data through RDMA ports")
    reading: LoopbackReading = host.ask_rdma_loopback()
    return reading


RDMA_LOOPBACK = Probe("rdma-loopback", read_rdma_loopback, LoopbackReading, (NOT_RUN,))


_MESSAGES = ("-s", "65536", "-n", "20000")
"""1.3 GB in perftest's default size: RC writes of larger messages fail on some healthy devices (perftest issue 394)."""
_OPTIONS = ("-F", "--report_gbits", "--bind_source_ip", ADDRESS)
_ENVIRONMENT = {"LC_ALL": "C"}


@dataclass
class RdmaLoopback(DeviceLoopback):
    """Tests each active port of the GPU fabric once."""

    PROGRAM = "ib_write_bw"
    ENVIRONMENT = _ENVIRONMENT
    NOT_RUN = NOT_RUN

    profile: InstanceProfile | None = None
    """Expected hardware of the node's instance type, which may have EFA instead; None if unknown."""

    def devices(self) -> tuple[str, ...] | str:
        has_roce = self.profile is not None and self.profile.roce > 0
        has_efa = self.profile is not None and self.profile.efa > 0
        if not has_roce and (has_efa or openable_efa(self.root)):
            return "the GPU fabric of this node is EFA"
        mlx5 = read_mlx5(Host(self.root))
        if mlx5.exclusive:
            return "RDMA devices are visible only in the host's network namespace (ib_core netns_mode N)"
        active = tuple(device.name for device in mlx5.fabric if device.is_active)
        return active or "no mlx5 device of the GPU fabric has an active port"

    def test(self, program: str, device: str) -> LoopbackResult:
        test = (program, "-d", device, "-p", str(free_port()), *_MESSAGES, *_OPTIONS)
        return self.run_pair(test, (*test, ADDRESS))

    def refused(self, client: ProgramEnd) -> bool:
        return is_refused(client)

    def read_side(self, side: ProgramEnd) -> LoopbackResult | None:
        return read_side(side)
