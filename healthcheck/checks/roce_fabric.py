"""The GPU fabric of mlx5 devices, InfiniBand or RoCE: whether this node has one, and its ports (group 9)."""

from __future__ import annotations

from msgspec import Struct

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence
from gpu_healthcheck.healthcheck.model.node_facts import LINK, RdmaPort
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.efa import infiniband
from gpu_healthcheck.healthcheck.probes.mlx5 import MLX5, Mlx5Device

GROUP = "9-roce"
NEEDS = (pci.FUNCTIONS, infiniband.RDMA, MLX5)


class FabricPort(Struct, frozen=True):
    """A port of the fabric: as it is now, and as this machine had it. At least one of both is known."""

    address: str
    device: Mlx5Device | None
    earlier: RdmaPort | None

    @property
    def name(self) -> str:
        return self.device.name if self.device else self.earlier.name if self.earlier else self.address

    @property
    def subject(self) -> str:
        return f"rdma/{self.name}"


def why_not(evidence: Evidence, expected: Expectation) -> str:
    """Return why mlx5 devices are not the GPU fabric of this node; '' if they may be.

    On an EFA node, mlx5 devices serve another purpose: on p6-b200, two manage NVLink (hyperpod-cli, pull request 282).
    """
    profile = expected.profile
    if profile is not None and profile.roce:
        return ""
    if (
        evidence[infiniband.RDMA].efa
        or expected.first.efa
        or any(function.is_efa for function in evidence[pci.FUNCTIONS])
    ):
        return "the GPU fabric of this node is EFA"
    if profile is not None and profile.efa:
        return f"the GPU fabric of {expected.instance_type} is EFA"
    if not expected.first.rdma and not evidence[MLX5].fabric:
        return "no port of an mlx5 device was active yet"
    return ""


def fabric_ports(evidence: Evidence, expected: Expectation) -> list[FabricPort]:
    """Return the ports that were active: those that this machine had, and those of the present fabric.

    A port that was never active is not judged: it may have no cable. A port that a person released, and a device that
    is shown to serve another purpose, are left out.
    """
    devices = {device.address: device for device in evidence[MLX5].devices}
    earlier = expected.first.rdma or {}
    ports = [
        FabricPort(address, devices.get(address), port)
        for address, port in earlier.items()
        if port.released != LINK and (address not in devices or not devices[address].left_fabric(port.kind))
    ]
    new = (device for device in evidence[MLX5].fabric if device.was_active and device.address not in earlier)
    return ports + [FabricPort(device.address, device, None) for device in new]
