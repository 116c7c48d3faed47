"""Loopback test of each active port of an mlx5 device: perftest's ib_write_bw as server and client on one port.

The control connection listens on 127.0.0.1 alone: perftest parses what the peer sends without checking its length. Only
versions with `--bind_source_ip` do so (tried: 24.01 and 25.01); older ones refuse the option and test nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from healthcheck.catalog.profiles import InstanceProfile
from healthcheck.host.command import ProgramEnd
from healthcheck.model import Host
from healthcheck.probes import ib_write_bw
from healthcheck.probes.efa.infiniband import openable_efa
from healthcheck.probes.loopback_pairs import ADDRESS, DeviceLoopback, free_port
from healthcheck.probes.loopback_result import LoopbackResult
from healthcheck.probes.mlx5 import read_mlx5

_MESSAGES = ("-s", "65536", "-n", "20000")
"""1.3 GB in perftest's default size: RC writes of larger messages fail on some healthy devices (perftest issue 394)."""
_OPTIONS = ("-F", "--report_gbits", "--bind_source_ip", ADDRESS)
_ENVIRONMENT = {"LC_ALL": "C"}


@dataclass
class RdmaLoopback(DeviceLoopback):
    """Tests each active port of the GPU fabric once."""

    PROGRAM = "ib_write_bw"
    ENVIRONMENT = _ENVIRONMENT
    NOT_RUN = ib_write_bw.NOT_RUN

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
        return ib_write_bw.is_refused(client)

    def read_side(self, side: ProgramEnd) -> LoopbackResult | None:
        return ib_write_bw.read_side(side)
