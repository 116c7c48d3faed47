"""Every GPU instance type of EC2, from a compact row each: device counts at invented PCI addresses.

`sim/instance_types.py` has the types with observed addresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sim.instance_types import A10G, A100, B200, GIB, H100, INSTANCE_SHAPES, L4, GpuModel, InstanceShape
from sim.mlx5_ports import (
    DGX_H100,
    GB300R,
    HGX_H100,
    VM_H100,
    Mlx5Function,
    never_cabled,
    with_virtual_functions,
)

V100 = GpuModel(
    "Tesla V100-SXM2-32GB", "0x1db5", 32 * GIB, nvlinks=6, nvlink_version=2, has_mig=False, remaps_rows=False
)
A100_80GB = replace(A100, name="NVIDIA A100-SXM4-80GB", pci_device="0x20b2", memory_bytes=80 * GIB)
H100_ALONE = replace(H100, nvlinks=0, nvlink_version=0, fabric_health_mask=None)
"""One GPU of a board with eight; it is not published whether it has links or a fabric."""
H200 = replace(H100, name="NVIDIA H200", pci_device="0x2335", memory_bytes=141 * GIB)
B300 = replace(B200, name="NVIDIA B300 SXM6 AC", pci_device="0x3182", memory_bytes=270 * GIB)
GB200 = replace(B200, name="NVIDIA GB200", pci_device="0x2941", memory_bytes=186 * GIB)
GB300 = replace(B300, name="NVIDIA GB300", pci_device="0x31c2", memory_bytes=279 * GIB)
T4 = GpuModel("Tesla T4", "0x1eb8", 16 * GIB, has_mig=False, remaps_rows=False)
T4G = GpuModel("NVIDIA T4G", "0x1eb4", 16 * GIB, has_mig=False, remaps_rows=False)
L40S = GpuModel("NVIDIA L40S", "0x26b9", 48 * GIB, has_mig=False)
RTX_PRO_4500 = GpuModel("NVIDIA RTX PRO 4500 Blackwell Server Edition", "0x2c3a", 32 * GIB, has_mig=False)
RTX_PRO_6000 = GpuModel("NVIDIA RTX PRO 6000 Blackwell Server Edition", "0x2bb5", 96 * GIB)

FABRIC_MANAGER_RUNS_ON = frozenset(
    f"{kind}xlarge" for kind in ("p4d.24", "p4de.24", "p5.48", "p5e.48", "p5en.48", "p6-b200.48", "p6-b300.48")
) | {"hgx-h100", "hgx-h100-sriov", "hgx-h100-one-port-unused", "dgx-h100", "vm-h100"}
IMEX_RUNS_ON = frozenset(f"p6e-{rack}.36xlarge" for rack in ("gb200", "gb300", "gb300r"))

_A100_SWITCH, _H100_SWITCH = "0x1af1", "0x22a3"
_FIRST_GPU_BUS, _BUSES_PER_GPU = 0x53, 0x11
_FIRST_SWITCH_BUS, _FIRST_MLX5_BUS = 0xCB, 0xD8


@dataclass(frozen=True)
class Row:
    """Row. `efa`: the maximum of the type. `switches`: NVSwitches on PCI; `mlx5`: RDMA devices other than EFA."""

    model: GpuModel
    gpus: int
    efa: int = 0
    switches: int = 0
    switch_device: str = ""
    mlx5: int = 0
    network: tuple[Mlx5Function, ...] = ()

    def shape(self) -> InstanceShape:
        gpu_buses = [_FIRST_GPU_BUS + _BUSES_PER_GPU * number for number in range(self.gpus)]
        # Network cards are placed before the GPUs, distributed as evenly as possible.
        each = -(-self.efa // self.gpus)
        efa_buses = [gpu - before for gpu in gpu_buses for before in range(each, 0, -1)][: self.efa]
        return InstanceShape(
            gpu_model=self.model,
            gpu_addresses=_on_buses(*gpu_buses),
            efa_addresses=_on_buses(*efa_buses),
            efa_pci_device="0xefa2" if self.efa else "",
            nvswitch_addresses=_on_buses(*range(_FIRST_SWITCH_BUS, _FIRST_SWITCH_BUS + self.switches)),
            nvswitch_pci_device=self.switch_device,
            mlx5_addresses=_on_buses(*range(_FIRST_MLX5_BUS, _FIRST_MLX5_BUS + self.mlx5)),
            mlx5=self.network,
        )


def _on_buses(*buses: int) -> tuple[str, ...]:
    return tuple(f"0000:{bus:02x}:00.0" for bus in buses)


def _family(name: str, model: GpuModel, sizes: Mapping[str, tuple[int, int]]) -> dict[str, Row]:
    """Return rows by instance type. `sizes`: numbers of GPUs and EFA devices."""
    return {f"{name}.{size}": Row(model, gpus, efa) for size, (gpus, efa) in sizes.items()}


_SMALL = {"xlarge": (1, 0), "2xlarge": (1, 0), "4xlarge": (1, 0)}
_MIDDLE = {"8xlarge": (1, 1), "16xlarge": (1, 1), "12xlarge": (4, 1)}

ROWS: Mapping[str, Row] = {
    "p3dn.24xlarge": Row(V100, 8, 1),
    "p4d.24xlarge": Row(A100, 8, 4, 6, _A100_SWITCH),
    "p4de.24xlarge": Row(A100_80GB, 8, 4, 6, _A100_SWITCH),
    "p5.4xlarge": Row(H100_ALONE, 1, 1),
    "p5.48xlarge": Row(H100, 8, 32, 4, _H100_SWITCH),
    "p5e.48xlarge": Row(H200, 8, 32, 4, _H100_SWITCH),
    "p5en.48xlarge": Row(H200, 8, 16, 4, _H100_SWITCH),
    "p6-b200.48xlarge": Row(B200, 8, 8, mlx5=4),
    "p6-b300.48xlarge": Row(B300, 8, 16, mlx5=4),
    # The number of EFA devices is not published: assumed is an even share of its 17 network cards.
    "p6e-gb200.36xlarge": Row(GB200, 4, 8),
    "p6e-gb300.36xlarge": Row(GB300, 4, 8),
    # Eight ConnectX-8 with RoCE, and no EFA.
    "p6e-gb300r.36xlarge": Row(GB300, 4, network=GB300R),
    **_family("g4dn", T4, {**_SMALL, **_MIDDLE, "metal": (8, 1)}),
    **_family("g5", A10G, {**_SMALL, **_MIDDLE, "24xlarge": (4, 1), "48xlarge": (8, 1)}),
    **_family("g5g", T4G, {**_SMALL, "8xlarge": (1, 0), "16xlarge": (2, 0), "metal": (2, 0)}),
    **_family("g6", L4, {**_SMALL, **_MIDDLE, "24xlarge": (4, 1), "48xlarge": (8, 1)}),
    **_family("gr6", L4, {"4xlarge": (1, 0), "8xlarge": (1, 1)}),
    # A fraction of a GPU, which the system shows as one GPU.
    **_family("g6f", L4, {"large": (1, 0), **_SMALL}),
    **_family("gr6f", L4, {"4xlarge": (1, 0)}),
    **_family("g6e", L40S, {**_SMALL, **_MIDDLE, "24xlarge": (4, 2), "48xlarge": (8, 4)}),
    **_family(
        "g7",
        RTX_PRO_4500,
        {
            "2xlarge": (1, 0),
            "4xlarge": (1, 0),
            "8xlarge": (1, 1),
            "12xlarge": (2, 1),
            "24xlarge": (4, 1),
            "48xlarge": (8, 2),
        },
    ),
    **_family(
        "g7e",
        RTX_PRO_6000,
        {
            "2xlarge": (1, 0),
            "4xlarge": (1, 0),
            "8xlarge": (1, 1),
            "12xlarge": (2, 1),
            "24xlarge": (4, 2),
            "48xlarge": (8, 4),
        },
    ),
}

MACHINES: Mapping[str, InstanceShape] = {
    name: Row(H100, 8, switches=4, switch_device=_H100_SWITCH, network=network).shape()
    for name, network in {
        "hgx-h100": HGX_H100,
        "hgx-h100-sriov": with_virtual_functions(HGX_H100),
        "hgx-h100-one-port-unused": never_cabled(HGX_H100, 3),
        "dgx-h100": DGX_H100,
        "vm-h100": VM_H100,
    }.items()
}
"""Hardware of machines that are no instance types of EC2."""

SHAPES: Mapping[str, InstanceShape] = {kind: row.shape() for kind, row in ROWS.items()} | INSTANCE_SHAPES
"""Hardware by instance type: as observed, otherwise from its row."""
