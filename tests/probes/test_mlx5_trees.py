"""Trees of real machines, as public reports and documents show them: which ports are the GPU fabric.

Each row is a device: name, PCI device ID, model, link layer, state, speed, net device, and bond or physical function.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from healthcheck.checks import CHECKS
from healthcheck.checks.examine import judge, look
from healthcheck.checks.expectation import Expectation
from healthcheck.memory.rdma_ports import after_ports
from healthcheck.model import Host, Nature
from healthcheck.model.node_facts import EarlierHardware
from sim.mlx5_ports import Mlx5Function
from sim.pci_tree import MLX5_DRIVER, PciTree

LEVELS = [check for check in CHECKS if check.group == "9-roce" and check.nature is Nature.LEVEL]
IB, ETH, UP, DOWN = "InfiniBand", "Ethernet", "4: ACTIVE", "1: DOWN"
NDR, NDR200, HDR, EDR, XDR = (
    "400 Gb/sec (4X NDR)",
    "200 Gb/sec (2X NDR)",
    "200 Gb/sec (4X HDR)",
    "100 Gb/sec (4X EDR)",
    "800 Gb/sec (4X XDR)",
)
Rows = list[tuple[str, ...]]


def rows(names: str, *facts: str) -> Rows:
    return [(name, *facts, f"net{name}", "") for name in names.split()]


def ranged(form: str, count: int) -> str:
    return " ".join(form.format(index) for index in range(count))


CX7, CX6, CX5, CX8, BF3, VF = "0x1021", "0x101b", "0x1017", "0x1023", "0xa2dc", "0x101e"
TREES: dict[str, tuple[Rows, str]] = {
    # imbue-ai/cluster-health, issue 4: eight NDR ports, two dual-port Ethernet adapters with one cable each.
    "HGX H100": (
        rows("mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11", CX7, "MT_0000000838", IB, UP, NDR)
        + rows("mlx5_1 mlx5_7", "0x101d", "MT_0000000437", ETH, UP, EDR)
        + rows("mlx5_2 mlx5_8", "0x101d", "MT_0000000437", ETH, DOWN, EDR),
        "mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11",
    ),
    # NVIDIA, DGX H100/H200 BasePOD: the left ports of two dual-port adapters are a bond.
    "DGX H100": (
        rows(ranged("ibp{}s0", 8), CX7, "NVD0000000054", IB, UP, NDR)
        + [
            (name, CX7, "MT_0000000892", ETH, UP, HDR, net, "bond0")
            for name, net in (("mlx5_2", "enp41s0f1np1"), ("mlx5_8", "enp170s0f1np1"))
        ]
        + rows("mlx5_1 mlx5_7", CX7, "MT_0000000892", IB, DOWN, NDR),
        ranged("ibp{}s0", 8),
    ),
    # NVIDIA/nccl, issue 1935: all ports are down, none was ever active.
    "no cable at all": (
        rows(ranged("mlx5_{}", 8), CX7, "MT_0000000838", IB, DOWN, NDR)
        + rows("mlx5_8 mlx5_9", CX6, "MT_0000000359", ETH, DOWN, HDR),
        "",
    ),
    # An A100 machine with four HDR ports and a dual-port ConnectX-5, one port of which is cabled.
    "A100 with HDR": (
        rows("mlx5_0 mlx5_1 mlx5_4 mlx5_5", CX6, "MT_0000000223", IB, UP, HDR)
        + rows("mlx5_2", CX5, "MT_0000000080", ETH, UP, "25 Gb/sec (1X EDR)")
        + rows("mlx5_3", CX5, "MT_0000000080", ETH, DOWN, EDR),
        "mlx5_0 mlx5_1 mlx5_4 mlx5_5",
    ),
    # Azure ND H100 v5: eight virtual functions, and the ninth for accelerated networking.
    "Azure ND H100 v5": (
        rows(ranged("mlx5_ib{}", 8), VF, "MSF0000000047", IB, UP, NDR)
        + rows("mlx5_an0", "0x101a", "MSF0000000041", ETH, UP, EDR),
        ranged("mlx5_ib{}", 8),
    ),
    # NVIDIA/aicr, issue 1326.
    "p6e-gb300r": (
        rows(ranged("rocep{}s0", 8), VF, "AMZ0000000010", ETH, UP, NDR),
        ranged("rocep{}s0", 8),
    ),
    # Oracle BM.GPU.H100.8 (NVIDIA/NVSentinel, issue 1361): the second port of each frontend adapter has no VNIC.
    "OCI H100": (
        rows(ranged("mlx5_{}", 16), CX7, "ORC0000000007", ETH, UP, HDR)
        + rows("mlx5_16", CX6, "ORC0000000003", ETH, UP, EDR)
        + rows("mlx5_17 mlx5_18 mlx5_19", CX6, "ORC0000000003", ETH, DOWN, EDR),
        ranged("mlx5_{}", 16),
    ),
    # A GB300 rack: four XDR ports, a BlueField with Ethernet.
    "GB300": (
        rows("ibP16p3s0 ibP18p3s0 ibP2p3s0 ibp3s0", CX8, "NVD0000000076", IB, UP, XDR)
        + rows("roceP22p1s0f0", BF3, "MT_0000000884", ETH, UP, NDR)
        + rows("roceP22p1s0f1", BF3, "MT_0000000884", ETH, DOWN, NDR),
        "ibP16p3s0 ibP18p3s0 ibP2p3s0 ibp3s0",
    ),
    # A cluster whose fabric are RoCE bonds of BlueField-3, one per pair of GPUs.
    "RoCE bonds": (
        [
            (f"mlx5_bond_{index}", BF3, "ALI0000000011", ETH, UP, NDR200, f"eth{index}", f"bond{index}")
            for index in range(4)
        ],
        ranged("mlx5_bond_{}", 4),
    ),
    # DGX Spark: two of four functions have the cable.
    "GB10": (
        rows("rocep1s0f0 roceP2p1s0f0", CX7, "NVD0000000087", ETH, UP, NDR200)
        + rows("rocep1s0f1 roceP2p1s0f1", CX7, "NVD0000000087", ETH, DOWN, NDR200),
        "rocep1s0f0 roceP2p1s0f0",
    ),
    # SR-IOV for pods: eight physical functions, each with two virtual ones (NVIDIA, DGX H200 with SR-IOV).
    "SR-IOV": (
        rows(ranged("mlx5_{}", 8), CX7, "MT_0000000838", IB, UP, NDR)
        + [
            (f"mlx5_{8 + index}", VF, "MT_0000000838", IB, DOWN, NDR, f"ibv{index}", f"physfn {index % 8}")
            for index in range(16)
        ],
        ranged("mlx5_{}", 8),
    ),
    # Two models of the same adapter, of one speed: both are the fabric.
    "two models": (
        rows("mlx5_0 mlx5_1", CX7, "MT_0000000838", IB, UP, NDR)
        + rows("mlx5_2 mlx5_3", CX7, "MT_0000001119", IB, UP, NDR)
        + rows("mlx5_4", CX7, "MT_0000000892", IB, UP, NDR200),
        "mlx5_0 mlx5_1 mlx5_2 mlx5_3",
    ),
    # HGX B200 with four network adapters: the four functions that manage NVLink are slower (hyperpod-cli, 282).
    "HGX B200": (
        rows("mlx5_0 mlx5_1 mlx5_2 mlx5_3", CX7, "MT_0000000838", IB, UP, NDR)
        + rows("mlx5_4 mlx5_5 mlx5_6 mlx5_7", CX7, "NVD0000000071", IB, UP, "100 Gb/sec (2X HDR)"),
        "mlx5_0 mlx5_1 mlx5_2 mlx5_3",
    ),
}


def plug(root: Path, devices: Rows) -> PciTree:
    tree = PciTree(root)
    (root / "sys/module" / MLX5_DRIVER).mkdir(parents=True)
    for index, (name, device, board, layer, state, rate, netdev, more) in enumerate(devices):
        physfn = f"0000:{int(more.split()[1]) + 1:02x}:00.0" if more.startswith("physfn") else ""
        bond = "" if physfn else more
        address = f"0000:{index + 1:02x}:00.0"
        tree.add_mlx5(Mlx5Function(address, name, netdev, device, board, layer, rate, state, bond, physfn))
    return tree


@pytest.mark.parametrize("name", TREES)
def test_the_fabric_of_a_real_machine(name: str, tmp_path: Path) -> None:
    devices, fabric = TREES[name]
    tree = plug(tmp_path, devices)
    before = look(Host(tmp_path), LEVELS)
    ports = after_ports(None, before, has_efa=False) or {}
    assert sorted(port.name for port in ports.values()) == sorted(fabric.split())

    def found() -> list[str]:
        seen = look(Host(tmp_path), LEVELS, before)
        expected = Expectation(None, "", first=EarlierHardware(rdma=ports))
        return [
            f"{finding.reason} {finding.subject}"
            for outcome in judge(LEVELS, seen, expected)
            for finding in outcome.findings
        ]

    assert found() == []
    for device in devices:
        state = tmp_path / "sys/class/infiniband" / device[0] / "ports/1/state"
        state.write_text("1: DOWN\n")
    assert sorted(found()) == sorted(f"RdmaPortDown rdma/{port}" for port in fabric.split())
    for address, port in ports.items():
        tree.unplug(address)
        assert f"RdmaDeviceGone rdma/{port.name}" in found()
        break
