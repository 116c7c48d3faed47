"""Result of the loopback test of each active RDMA port that is no EFA device.

Only a quarantine runs it (`ib_loopback_run`), because it loads the device.
"""

from __future__ import annotations

from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.ib_write_bw import NOT_RUN
from healthcheck.probes.loopback_result import LoopbackReading


def read_rdma_loopback(host: Host) -> LoopbackReading:
    if host.ask_rdma_loopback is None:
        raise ProbeError("only a deep diagnostic sends data through RDMA ports")
    reading: LoopbackReading = host.ask_rdma_loopback()
    return reading


RDMA_LOOPBACK = Probe("rdma-loopback", read_rdma_loopback, LoopbackReading, (NOT_RUN,))
