"""RDMA devices of the driver mlx5 on simulated machines, in the formats of real ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

COUNTERS = (
    *("VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery"),
    *("local_link_integrity_errors", "port_rcv_constraint_errors", "port_rcv_data", "port_rcv_errors"),
    *("port_rcv_packets", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_data"),
    *("port_xmit_discards", "port_xmit_packets", "port_xmit_wait", "symbol_error"),
)
HARDWARE_COUNTERS = (
    *("duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "np_cnp_sent"),
    *("np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "packet_seq_err", "rnr_nak_retry_err"),
    *("roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps", "rp_cnp_handled"),
)
_STATES = {"4: ACTIVE": "5: LinkUp", "1: DOWN": "2: Polling", "2: INIT": "5: LinkUp"}


@dataclass(frozen=True)
class Mlx5Function:
    """A function with its RDMA device, net device and port. A port that is down shows the rate of no link."""

    address: str
    name: str
    netdev: str
    pci_device: str = "0x1021"
    board_id: str = "MT_0000000838"
    link_layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    state: str = "4: ACTIVE"
    bond: str = ""
    physfn: str = ""
    interface: str = ""
    """Network interface of the virtual machine that the function accelerates."""
    ports: int = 1
    smi: str = ""
    """Its second RDMA device, for subnet management."""
    manages_nvlink: bool = False

    @property
    def pci_class(self) -> str:
        return "0x020700" if self.link_layer == "InfiniBand" else "0x020000"

    @property
    def files(self) -> dict[str, str]:
        """Return the files of the RDMA device."""
        port = "ports/1"
        is_active = self.state == "4: ACTIVE"
        return {
            "board_id": self.board_id,
            "hca_type": f"MT{int(self.pci_device, 16)}",
            f"{port}/phys_state": _STATES[self.state],
            f"{port}/rate": self.rate if is_active else "10 Gb/sec (4X SDR)",
            f"{port}/link_layer": self.link_layer,
            f"{port}/gids/0": "fe80:0000:0000:0000:a288:c203:0012:3456",
            **{f"{port}/counters/{name}": "0" for name in COUNTERS},
            **{f"{port}/hw_counters/{name}": "0" for name in HARDWARE_COUNTERS},
            **{f"ports/{number}/state": "1: DOWN" for number in range(2, self.ports + 1)},
        }


def _buses(*buses: int) -> tuple[str, ...]:
    return tuple(f"0000:{bus:02x}:00.0" for bus in buses)


_RAILS = _buses(0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xD0, 0xDC)
_STORAGE = Mlx5Function(
    "", "", "", board_id="MT_0000000892", link_layer="Ethernet", rate="200 Gb/sec (4X HDR)", bond="bond0"
)

HGX_H100 = tuple(
    Mlx5Function(address, f"mlx5_{index}", f"ibp{int(address[5:7], 16)}s0") for index, address in enumerate(_RAILS)
)
"""Eight NDR ports (NVIDIA, DGX H100 User Guide, network modules)."""
DGX_H100 = (
    *HGX_H100,
    replace(_STORAGE, address="0000:29:00.1", name="mlx5_8", netdev="enp41s0f1np1"),
    replace(_STORAGE, address="0000:aa:00.1", name="mlx5_9", netdev="enp170s0f1np1"),
    replace(_STORAGE, address="0000:82:00.0", name="mlx5_10", netdev="enp130s0", bond="", pci_device="0xa2dc"),
)
"""With the second ports of two storage adapters in a bond, and a BlueField with the default route."""
VM_H100 = tuple(
    Mlx5Function(
        f"{index + 0x101:04x}:00:00.0", f"mlx5_ib{index}", f"ib{index}", pci_device="0x101e", board_id="MSF0000000047"
    )
    for index in range(8)
)
VM_H100 += (
    Mlx5Function(
        "0000:00:02.0",
        "mlx5_an0",
        "enP2s1",
        pci_device="0x101a",
        board_id="MSF0000000041",
        link_layer="Ethernet",
        rate="100 Gb/sec (4X EDR)",
        interface="eth0",
    ),
)
"""Eight virtual functions without their physical functions, and a ninth for the host's network (Azure)."""
GB300R = tuple(
    Mlx5Function(
        address,
        f"rocep{int(address[5:7], 16)}s0",
        f"enp{int(address[5:7], 16)}s0",
        pci_device="0x101e",
        board_id="AMZ0000000010",
        link_layer="Ethernet",
    )
    for address in _buses(*range(0xD8, 0xE0))
)
"""Eight virtual functions of ConnectX-8 with RoCE (NVIDIA/aicr, issue 1326)."""


def with_virtual_functions(functions: tuple[Mlx5Function, ...]) -> tuple[Mlx5Function, ...]:
    """Return these functions, each with a virtual function that no pod uses yet."""
    virtual = (
        replace(
            function,
            address=function.address[:-1] + "4",
            name=f"{function.name}_v0",
            netdev=f"{function.netdev}v0",
            pci_device="0x101e",
            state="1: DOWN",
            physfn=function.address,
        )
        for function in functions
    )
    return (*functions, *virtual)


def never_cabled(functions: tuple[Mlx5Function, ...], index: int) -> tuple[Mlx5Function, ...]:
    """Return these functions, one of them with a port that has no cable."""
    return tuple(replace(each, state="1: DOWN") if each is functions[index] else each for each in functions)


NETWORKS: Mapping[str, tuple[Mlx5Function, ...]] = {
    "": (),
    "HGX_H100": HGX_H100,
    "HGX_H100_SRIOV": with_virtual_functions(HGX_H100),
    "HGX_H100_ONE_PORT_UNUSED": never_cabled(HGX_H100, 3),
    "DGX_H100": DGX_H100,
    "VM_H100": VM_H100,
    "GB300R": GB300R,
}
"""Functions by the name in instance_types.yaml."""
