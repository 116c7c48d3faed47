"""RDMA devices as the kernel lists them under /sys/class/infiniband."""

from __future__ import annotations

from dataclasses import dataclass

from healthcheck.model import Host, Probe, ProbeError
from healthcheck.probes.pci import AMAZON, read_function

_MOST = 4096


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """`name` is udev's or the kernel's (`rdmap16s0`, `efa_0`). Only EFA counts; mlx5 stands beside it on HGX hosts."""

    name: str
    is_efa: bool


@dataclass(frozen=True, slots=True)
class Rdma:
    devices: tuple[RdmaDevice, ...]
    efa_driver_loaded: bool

    @property
    def efa(self) -> tuple[RdmaDevice, ...]:
        return tuple(device for device in self.devices if device.is_efa)


def read_rdma(host: Host) -> Rdma:
    """The RDMA devices; none where the kernel has no RDMA class. Raises ProbeError where /sys itself is missing."""
    if not (host.root / "sys/class").is_dir():
        raise ProbeError(f"{host.root / 'sys/class'}: no such directory")
    directory = host.root / "sys/class/infiniband"
    try:
        names = sorted(entry.name for entry in directory.iterdir())[:_MOST]
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise ProbeError(f"{directory}: {error.strerror}") from error
    devices = []
    for name in names:
        # The vendor, never the name or the port state: both say nothing (hardware.md 4).
        function = read_function(directory / name / "device")
        devices.append(RdmaDevice(name, function is not None and function.vendor == AMAZON))
    return Rdma(tuple(devices), (host.root / "sys/module/efa").is_dir())


RDMA = Probe("infiniband", read_rdma, Rdma)
