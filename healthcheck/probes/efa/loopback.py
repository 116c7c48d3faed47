"""Result of each EFA device's loopback test.

Only a quarantine runs it (`loopback_run`), because it loads the device.
"""

from __future__ import annotations

from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.efa.fi_pingpong import NOT_RUN
from healthcheck.probes.loopback_result import LoopbackReading


def read_efa_loopback(host: Host) -> LoopbackReading:
    if host.ask_efa_loopback is None:
        raise ProbeError("only a deep diagnostic sends data through EFA devices")
    reading: LoopbackReading = host.ask_efa_loopback()
    return reading


EFA_LOOPBACK = Probe("efa-loopback", read_efa_loopback, LoopbackReading, (NOT_RUN,))
