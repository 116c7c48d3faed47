"""Parts of a simulated instance: sizes from EC2's documentation, PCI addresses as such instances show them.

Without a public listing the address is a plausible one; the product does not depend on it.
"""

from dataclasses import dataclass

from sim.mlx5_ports import Mlx5Function

GIB = 1 << 30


@dataclass(frozen=True)
class GpuModel:
    """Properties of a model. The defaults are those of a card without NVLink, from Ampere on."""

    name: str
    pci_device: str
    memory_bytes: int
    has_mig: bool = True
    nvlinks: int = 0
    nvlink_version: int = 0
    """nvmlNvlinkVersion_t: 2 is NVLink 2.0, 4 is 3.0, 6 is 4.0, 7 is 5.0."""
    remaps_rows: bool = True
    """Ampere and later; before, pages are retired."""
    tells_margins: bool = False
    """Hopper and later report the distance from their temperature limit; earlier GPUs report the limit."""
    fabric_health_mask: int | None = None
    """Fabric state of a healthy GPU; None: no fabric (before Hopper, or without NVSwitches)."""
    fabric_health_summary: int = 0
    """1: healthy; 0: the GPU has none."""


# Bandwidth, routes and timeouts: 2, no fault, each; configuration: 1, none wrong (nvml.h).
_FABRIC_HEALTHY = 0x1AA

H100 = GpuModel(
    "NVIDIA H100 80GB HBM3",
    "0x2330",
    80 * GIB,
    nvlinks=18,
    nvlink_version=6,
    tells_margins=True,
    fabric_health_mask=_FABRIC_HEALTHY,
)
A100 = GpuModel("NVIDIA A100-SXM4-40GB", "0x20b0", 40 * GIB, nvlinks=12, nvlink_version=4)
B200 = GpuModel(
    "NVIDIA B200",
    "0x2901",
    180 * GIB,
    nvlinks=18,
    nvlink_version=7,
    tells_margins=True,
    fabric_health_mask=_FABRIC_HEALTHY,
    fabric_health_summary=1,
)
A10G = GpuModel("NVIDIA A10G", "0x2237", 24 * GIB, has_mig=False)
L4 = GpuModel("NVIDIA L4", "0x27b8", 24 * GIB, has_mig=False)


@dataclass(frozen=True)
class PciSwitch:
    """Bridge at the root, and the functions below it."""

    address: str
    numa_node: int
    below: tuple[str, ...]


@dataclass(frozen=True)
class InstanceShape:
    """Hardware of an instance type."""

    gpu_model: GpuModel
    gpu_addresses: tuple[str, ...]
    efa_addresses: tuple[str, ...] = ()
    efa_pci_device: str = ""
    nvswitch_addresses: tuple[str, ...] = ()
    nvswitch_pci_device: str = ""
    mlx5_addresses: tuple[str, ...] = ()
    """Functions that manage NVLink."""
    mlx5: tuple[Mlx5Function, ...] = ()
    """Functions of the network."""
    pci_switches: tuple[PciSwitch, ...] = ()

    def switch_above(self, address: str) -> PciSwitch | None:
        return next((switch for switch in self.pci_switches if address in switch.below), None)


def _on_buses(*buses: int, slot: int = 0) -> tuple[str, ...]:
    return tuple(f"0000:{bus:02x}:{slot:02x}.0" for bus in buses)


def _pci_switches(*groups: tuple[str, ...]) -> tuple[PciSwitch, ...]:
    """Return one bridge per group: the first half on NUMA node 0, the others on 1."""
    half = len(groups) // 2
    return tuple(
        PciSwitch(f"0000:00:{0x10 + number:02x}.0", int(number >= half), group) for number, group in enumerate(groups)
    )


_P4_SWITCH_BUSES = ("10", "20", "90", "a0")
_P5_GPU_BUSES = (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)
_P6_GPU_BUSES = (0x51, 0x62, 0x73, 0x84, 0x95, 0xA6, 0xB7, 0xC8)

INSTANCE_SHAPES = {
    "p5.48xlarge": InstanceShape(
        gpu_model=H100,
        gpu_addresses=_on_buses(*_P5_GPU_BUSES),
        # Four network cards precede each GPU: rdmap79s0 … rdmap82s0 precede 53:00.0.
        efa_addresses=_on_buses(*(gpu - before for gpu in _P5_GPU_BUSES for before in (4, 3, 2, 1))),
        efa_pci_device="0xefa2",
        nvswitch_addresses=_on_buses(0xCB, 0xCC, 0xCD, 0xCE),
        nvswitch_pci_device="0x22a3",
        pci_switches=_pci_switches(*(_on_buses(*range(gpu - 4, gpu + 1)) for gpu in _P5_GPU_BUSES)),
    ),
    "p4d.24xlarge": InstanceShape(
        gpu_model=A100,
        gpu_addresses=tuple(f"0000:{bus}:{slot}.0" for bus in _P4_SWITCH_BUSES for slot in ("1c", "1d")),
        efa_addresses=_on_buses(0x10, 0x20, 0x90, 0xA0, slot=0x1B),
        efa_pci_device="0xefa1",
        nvswitch_addresses=tuple(f"0000:80:{slot}.0" for slot in ("1a", "1b", "1c", "1d", "1e", "1f")),
        nvswitch_pci_device="0x1af1",
        pci_switches=_pci_switches(
            *(tuple(f"0000:{bus}:{slot}.0" for slot in ("1b", "1c", "1d")) for bus in _P4_SWITCH_BUSES)
        ),
    ),
    "p6-b200.48xlarge": InstanceShape(
        gpu_model=B200,
        gpu_addresses=_on_buses(*_P6_GPU_BUSES),
        efa_addresses=_on_buses(*(gpu - 1 for gpu in _P6_GPU_BUSES)),
        efa_pci_device="0xefa3",
        # Its NVSwitches are reached through ConnectX functions, which appear among the InfiniBand devices.
        mlx5_addresses=_on_buses(0xD0, 0xD1, 0xD2, 0xD3),
        pci_switches=_pci_switches(*(_on_buses(gpu - 1, gpu) for gpu in _P6_GPU_BUSES)),
    ),
    "g5.xlarge": InstanceShape(gpu_model=A10G, gpu_addresses=("0000:00:1e.0",)),
    "g6.xlarge": InstanceShape(gpu_model=L4, gpu_addresses=("0000:31:00.0",)),
}
