"""RDMA devices of the driver mlx5 on simulated machines, in the formats of real ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

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


_TABLE = Path(__file__).with_name("mlx5_ports.yaml")
_OBSERVED = msgspec.yaml.decode(_TABLE.read_bytes(), type=dict[str, tuple[Mlx5Function, ...]])
NETWORKS: Mapping[str, tuple[Mlx5Function, ...]] = {
    "": (),
    **_OBSERVED,
    "DGX_H100": (*_OBSERVED["HGX_H100"], *_OBSERVED["DGX_H100"]),
    "HGX_H100_SRIOV": with_virtual_functions(_OBSERVED["HGX_H100"]),
    "HGX_H100_ONE_PORT_UNUSED": never_cabled(_OBSERVED["HGX_H100"], 3),
}
"""Functions by the name in instance_types.yaml."""
