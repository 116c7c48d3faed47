"""Hardware of simulated instances, from instance_types.yaml."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpu_healthcheck.sim.mlx5_ports import NETWORKS, Mlx5Function

_GIB = 1 << 30
_FIRST_GPU_BUS, _BUSES_PER_GPU = 0x53, 0x11
_FIRST_SWITCH_BUS, _FIRST_MLX5_BUS = 0xCB, 0xD8


class GpuModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Properties of a model. The defaults are those of a card without NVLink, from Ampere on."""

    name: str
    pci_device: str
    gib: int
    has_mig: bool = True
    nvlinks: int = 0
    nvlink_version: int = 0
    """nvmlNvlinkVersion_t: 2 is NVLink 2.0, 4 is 3.0, 6 is 4.0, 7 is 5.0."""
    remaps_rows: bool = True
    """Ampere and later; before, pages are retired."""
    reports_margins: bool = False
    """Hopper and later report the distance from their temperature limit; earlier GPUs report the limit."""
    fabric_health_mask: int | None = None
    """Fabric state of a healthy GPU; None: no fabric (before Hopper, or without NVSwitches)."""
    fabric_health_summary: int = 0
    """1: healthy; 0: the GPU has none."""

    @property
    def memory_bytes(self) -> int:
        return self.gib * _GIB


class PciSwitch(msgspec.Struct, frozen=True):
    """Bridge at the root, and the functions below it."""

    address: str
    numa_node: int
    below: tuple[str, ...]


class InstanceShape(msgspec.Struct, frozen=True):
    """Hardware of an instance type."""

    gpu_model: GpuModel
    gpu_addresses: tuple[str, ...]
    efa_addresses: tuple[str, ...]
    efa_pci_device: str
    nvswitch_addresses: tuple[str, ...]
    nvswitch_pci_device: str
    mlx5_addresses: tuple[str, ...]
    """Functions that manage NVLink."""
    mlx5: tuple[Mlx5Function, ...]
    """Functions of the network."""
    pci_switches: tuple[PciSwitch, ...]

    def switch_above(self, address: str) -> PciSwitch | None:
        return next((switch for switch in self.pci_switches if address in switch.below), None)


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Row of the table: counts, or bus and slot of each device."""

    model: str
    gpus: int | tuple[str, ...]
    efa: int | tuple[str, ...] = 0
    efa_device: str = "0xefa2"
    switches: int | tuple[str, ...] = 0
    switch_device: str = ""
    mlx5: int | tuple[str, ...] = 0
    network: str = ""
    bridges: bool | tuple[tuple[str, ...], ...] = False

    def shape(self, model: GpuModel) -> InstanceShape:
        gpus = _addresses(self.gpus, _FIRST_GPU_BUS, _BUSES_PER_GPU)
        efa = _efa_before(gpus, self.efa) if isinstance(self.efa, int) else _addresses(self.efa)
        groups = [_addresses(group) for group in self.bridges] if isinstance(self.bridges, tuple) else []
        if self.bridges is True:
            each = len(efa) // len(gpus)
            groups = [(*efa[each * at : each * (at + 1)], gpu) for at, gpu in enumerate(gpus)]
        return InstanceShape(
            gpu_model=model,
            gpu_addresses=gpus,
            efa_addresses=efa,
            efa_pci_device=self.efa_device if efa else "",
            nvswitch_addresses=_addresses(self.switches, _FIRST_SWITCH_BUS),
            nvswitch_pci_device=self.switch_device,
            mlx5_addresses=_addresses(self.mlx5, _FIRST_MLX5_BUS),
            mlx5=NETWORKS[self.network],
            pci_switches=_pci_switches(groups),
        )


def _addresses(devices: int | tuple[str, ...], first_bus: int = 0, step: int = 1) -> tuple[str, ...]:
    """Return the addresses of devices by bus and slot, or of that many from a bus on."""
    if isinstance(devices, int):
        devices = tuple(f"{first_bus + step * number:02x}:00" for number in range(devices))
    return tuple(f"0000:{place}.0" for place in devices)


def _efa_before(gpus: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the addresses of network cards on the buses before the GPUs, distributed as evenly as possible."""
    each = -(-count // len(gpus))
    buses = [int(gpu[5:7], 16) - before for gpu in gpus for before in range(each, 0, -1)]
    return _addresses(tuple(f"{bus:02x}:00" for bus in buses[:count]))


def _pci_switches(groups: Sequence[tuple[str, ...]]) -> tuple[PciSwitch, ...]:
    """Return one bridge per group: the first half on NUMA node 0, the others on 1."""
    half = len(groups) // 2
    return tuple(
        PciSwitch(f"0000:00:{0x10 + number:02x}.0", int(number >= half), group) for number, group in enumerate(groups)
    )


class _Table(msgspec.Struct, frozen=True):
    models: dict[str, GpuModel]
    types: dict[str, _Row]
    machines: dict[str, _Row]

    def shapes(self, rows: dict[str, _Row]) -> dict[str, InstanceShape]:
        return {name: row.shape(self.models[row.model]) for name, row in rows.items()}


_TABLE = msgspec.yaml.decode(Path(__file__).with_name("instance_types.yaml").read_bytes(), type=_Table)
SHAPES = _TABLE.shapes(_TABLE.types)
"""Hardware by instance type of EC2."""
MACHINES = _TABLE.shapes(_TABLE.machines)
"""Hardware of machines that are no instance types of EC2."""
FABRIC_MANAGER_RUNS_ON = frozenset(
    f"{kind}xlarge" for kind in ("p4d.24", "p4de.24", "p5.48", "p5e.48", "p5en.48", "p6-b200.48", "p6-b300.48")
) | frozenset(MACHINES)
IMEX_RUNS_ON = frozenset(f"p6e-{rack}.36xlarge" for rack in ("gb200", "gb300", "gb300r"))
