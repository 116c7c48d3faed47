"""Loopback test of each EFA device: libfabric's fi_pingpong as server and client on one device.

The data passes through the NIC.

Programs on one machine reach each other through its memory, unless libfabric is configured otherwise. Without
FI_EFA_ENABLE_SHM_TRANSFER=0, such a test never uses the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from healthcheck.host.command import ProgramEnd
from healthcheck.probes.efa import fi_pingpong
from healthcheck.probes.efa.infiniband import openable_efa
from healthcheck.probes.loopback_pairs import ADDRESS, DeviceLoopback, free_port
from healthcheck.probes.loopback_result import LoopbackResult, Measured

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
    NOT_RUN = fi_pingpong.NOT_RUN

    def devices(self) -> tuple[str, ...] | str:
        return openable_efa(self.root) or "no EFA device that programs can open"

    def test(self, program: str, device: str) -> LoopbackResult:
        speed = self._run(program, device, *_ROUNDS)
        if not isinstance(speed, Measured):
            return speed
        integrity = self._run(program, device, *_ROUNDS, _COMPARED)
        return speed if isinstance(integrity, Measured) else integrity

    def refused(self, client: ProgramEnd) -> bool:
        return client.code == fi_pingpong.REFUSED

    def read_side(self, side: ProgramEnd) -> LoopbackResult | None:
        return fi_pingpong.read_side(side)

    def _run(self, program: str, device: str, *options: str) -> LoopbackResult:
        port = str(free_port())
        test = (program, "-p", "efa", "-e", "rdm", "-d", f"{device}-rdm", *options)
        return self.run_pair((*test, "-B", port), (*test, "-P", port, ADDRESS))
