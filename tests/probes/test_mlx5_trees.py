"""Trees of real machines, as public reports and documents show them: which ports are the GPU fabric.

Each row is a device: name, PCI device ID, model, link layer, state, speed, net device, and what else it has: a bond, a
physical function, a virtual machine's interface, more ports, a device for subnet management, or NVLink's management.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.rdma_ports import after_ports
from gpu_healthcheck.healthcheck.model import Evidence, Host, Nature
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, RdmaPort
from gpu_healthcheck.sim.mlx5_ports import Mlx5Function
from gpu_healthcheck.sim.pci_tree import MLX5_DRIVER, PciTree

LEVELS = [check for check in CHECKS if check.group == "9-roce" and check.nature is Nature.LEVEL]
IB, ETH, UP, DOWN, INIT = "InfiniBand", "Ethernet", "4: ACTIVE", "1: DOWN", "2: INIT"
NDR, NDR200, HDR, EDR, XDR = (
    "400 Gb/sec (4X NDR)",
    "200 Gb/sec (2X NDR)",
    "200 Gb/sec (4X HDR)",
    "100 Gb/sec (4X EDR)",
    "800 Gb/sec (4X XDR)",
)
Rows = list[tuple[str, ...]]


def rows(names: str, *facts: str, more: str = "") -> Rows:
    return [(name, *facts, f"net{name}", more) for name in names.split()]


def ranged(form: str, count: int) -> str:
    return " ".join(form.format(index) for index in range(count))


CX7, CX6, CX5, CX8, BF3, VF = "0x1021", "0x101b", "0x1017", "0x1023", "0xa2dc", "0x101e"
CX6_DX, CX6_LX = "0x101d", "0x101f"
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
        + rows("mlx5_an0", "0x101a", "MSF0000000041", ETH, UP, EDR, more="vm eth0"),
        ranged("mlx5_ib{}", 8),
    ),
    # Azure/azhpc-diagnostics, issue 59: the subnet manager has not reached the ports yet.
    "Azure ND A100 v4 at its start": (
        rows(ranged("mlx5_ib{}", 8), "0x101c", "", IB, INIT, HDR)
        + rows("mlx5_an0", "0x1016", "MSF0010110035", ETH, UP, "40 Gb/sec (4X QDR)", more="vm eth0"),
        "",
    ),
    # A virtual machine with two accelerated interfaces and no fabric (Azure, how accelerated networking works).
    "Azure NC A100 v4": (
        rows("mlx5_an0", "0x101a", "MSF0000000041", ETH, UP, EDR, more="vm eth0")
        + rows("mlx5_an1", "0x101a", "MSF0000000041", ETH, UP, EDR, more="vm eth1"),
        "",
    ),
    # GKE a3-ultragpu-8g: eight virtual functions with RoCE; the machine's own network is no mlx5.
    "GKE A3 Ultra": (rows(ranged("mlx5_{}", 8), VF, "", ETH, UP, NDR), ranged("mlx5_{}", 8)),
    # coreweave/nccl-tests, pull request 17: eight NDR ports, and a BlueField.
    "CoreWeave H100": (
        rows(ranged("ibp{}", 8), CX7, "MT_0000000838", IB, UP, NDR)
        + rows("mlx5_8", BF3, "MT_0000000884", ETH, UP, NDR200),
        ranged("ibp{}", 8),
    ),
    # deepseek-ai/DeepEP, issue 38: half of the ports have no cable.
    "four of eight cables": (
        rows("mlx5_1 mlx5_7 mlx5_9 mlx5_13", CX7, "MT_0000000838", IB, UP, NDR)
        + rows("mlx5_0 mlx5_6 mlx5_8 mlx5_12", CX7, "MT_0000000838", IB, DOWN, NDR)
        + rows("mlx5_2", CX6_DX, "MT_0000000437", ETH, UP, EDR),
        "mlx5_1 mlx5_7 mlx5_9 mlx5_13",
    ),
    # stepfun-ai/StepMesh, issue 15: four NDR ports, both ports of a BlueField, and a bond of the management ports.
    "H20": (
        rows("mlx5_0 mlx5_3 mlx5_4 mlx5_7", CX7, "MT_0000000838", IB, UP, NDR)
        + rows("mlx5_1 mlx5_2", BF3, "MT_0000000884", ETH, UP, NDR200)
        + rows("mlx5_bond_0", CX6_LX, "", ETH, UP, "25 Gb/sec (1X EDR)", more="bond0"),
        "mlx5_0 mlx5_3 mlx5_4 mlx5_7",
    ),
    # openshift/sriov-network-operator, issue 635: two of eight ports have a cable, and have virtual functions.
    "A100 with SR-IOV": (
        rows("mlx5_2 mlx5_6", CX6, "MT_0000000223", IB, UP, HDR)
        + rows("mlx5_0 mlx5_1 mlx5_3 mlx5_7 mlx5_8 mlx5_9", CX6, "MT_0000000223", IB, DOWN, HDR)
        + rows("mlx5_4", CX6, "MT_0000000224", ETH, UP, EDR)
        + rows("mlx5_5", CX6, "MT_0000000224", IB, DOWN, EDR)
        + rows("mlx5_10 mlx5_11", "0x101c", "MT_0000000223", IB, DOWN, HDR, more="physfn 0"),
        "mlx5_2 mlx5_6",
    ),
    # siderolabs/extensions, issue 893: NVLink is managed through four ports that look like the fabric's.
    "HGX B200 with NDR": (
        rows(ranged("mlx5_{}", 8), CX7, "MT_0000000838", IB, UP, NDR)
        + rows("mlx5_8 mlx5_9 mlx5_10 mlx5_11", CX7, "NVD0000000071", IB, UP, NDR, more="nvlink"),
        ranged("mlx5_{}", 8),
    ),
    "HGX B200 without a fabric": (rows(ranged("mlx5_{}", 4), CX7, "NVD0000000071", IB, UP, NDR, more="nvlink"), ""),
    # scitix/sichek, pull request 98: a ConnectX-8 with four planes, its uplinks are ports 3, 6, 9 and 12.
    "B300 with a RoCE switch": (
        rows(ranged("roce_r{}", 8), CX8, "", ETH, DOWN, XDR, more="ports 12")
        + rows(ranged("roce_vf_r{}", 8), VF, "", ETH, UP, XDR, more="physfn 0"),
        "",
    ),
    # Mellanox/scalablefunctions, issue 2: the second port switches virtual functions.
    "one port in switchdev mode": (
        rows("mlx5_0", CX6_DX, "MT_0000000359", ETH, UP, EDR)
        + rows("mlx5_1", CX6_DX, "MT_0000000359", ETH, UP, EDR, more="ports 241"),
        "mlx5_0",
    ),
    # Mellanox/rdmamap, pull request 17: with XDR, each function has a second RDMA device, for subnet management.
    "B300 with XDR": (
        [(f"mlx5_{index}", CX8, "NVD0000000076", IB, UP, XDR, f"ibs{index}", f"smi smi{index}") for index in range(7)]
        + rows("mlx5_7", CX8, "NVD0000000076", IB, UP, XDR, more="smi a-name-before-mlx5"),
        ranged("mlx5_{}", 8),
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
        address = f"0000:{index + 1:02x}:00.0"
        function = Mlx5Function(address, name, netdev, device, board, layer, rate, state)
        match more.split():
            case ["physfn", number]:
                function = replace(function, physfn=f"0000:{int(number) + 1:02x}:00.0")
            case ["vm", interface]:
                function = replace(function, interface=interface)
            case ["ports", number]:
                function = replace(function, ports=int(number))
            case ["smi", second]:
                function = replace(function, smi=second)
            case ["nvlink"]:
                function = replace(function, manages_nvlink=True)
            case _:
                function = replace(function, bond=more)
        tree.add_mlx5(function)
    return tree


def set_state(root: Path, device: str, state: str) -> None:
    (root / "sys/class/infiniband" / device / "ports/1/state").write_text(f"{state}\n")


def found(root: Path, ports: Mapping[str, RdmaPort], before: Evidence | None = None) -> list[str]:
    expected = Expectation(None, "", first=EarlierHardware(rdma=ports))
    return [
        f"{finding.reason} {finding.subject}"
        for outcome in judge(LEVELS, read_probes(Host(root), LEVELS, before), expected)
        for finding in outcome.findings
    ]


@pytest.mark.parametrize("name", TREES)
def test_the_fabric_of_a_real_machine(name: str, tmp_path: Path) -> None:
    devices, names = TREES[name]
    fabric = names.split()
    tree = plug(tmp_path, devices)
    before = read_probes(Host(tmp_path), LEVELS)
    ports = dict(after_ports(None, before, has_efa=False) or {})
    assert sorted(port.name for port in ports.values()) == sorted(fabric)
    assert found(tmp_path, ports, before) == []

    for device in devices:
        set_state(tmp_path, device[0], DOWN)
    most_down = ["RdmaFabricDown node"] if len(fabric) > 1 else []
    every_port = [f"RdmaPortDown rdma/{port}" for port in fabric]
    assert sorted(found(tmp_path, ports, before)) == sorted(most_down + every_port)
    for device in devices:
        set_state(tmp_path, device[0], device[4])
    for first in fabric[:1]:
        set_state(tmp_path, first, DOWN)
        assert found(tmp_path, ports, before) == [f"RdmaPortDown rdma/{first}"]
        set_state(tmp_path, first, UP)

    for index, device in enumerate(devices):
        if device[0] not in fabric:
            tree.unplug(f"0000:{index + 1:02x}:00.0")
    assert found(tmp_path, ports, before) == []
    for address, port in list(ports.items())[:1]:
        tree.unplug(address)
        assert found(tmp_path, ports, before) == [f"RdmaDeviceGone rdma/{port.name}"]


@pytest.mark.parametrize(
    ("early", "late"),
    [
        # Azure/azhpc-diagnostics, issue 59, and a net device that has not joined its interface yet.
        (rows("mlx5_an0", "0x1016", "", ETH, UP, EDR), rows(ranged("mlx5_ib{}", 8), "0x101c", "", IB, INIT, HDR)),
        # Two storage ports are active before the subnet manager has reached the fabric.
        (
            rows("mlx5_8 mlx5_9", CX7, "MT_0000000892", ETH, UP, HDR),
            rows(ranged("mlx5_{}", 8), CX7, "MT_0000000838", IB, INIT, NDR),
        ),
    ],
    ids=["virtual machine", "storage"],
)
def test_later_fabric_replaces_other_ports(early: Rows, late: Rows, tmp_path: Path) -> None:
    tree = plug(tmp_path, [*early, *late])
    known = after_ports(None, read_probes(Host(tmp_path), LEVELS), has_efa=False)
    for device in late:
        set_state(tmp_path, device[0], UP)
    ports = after_ports(known, read_probes(Host(tmp_path), LEVELS), has_efa=False) or {}

    assert sorted(port.name for port in ports.values()) == sorted(device[0] for device in late)
    for index in range(len(early)):
        tree.unplug(f"0000:{index + 1:02x}:00.0")
    assert found(tmp_path, ports) == []
    set_state(tmp_path, late[3][0], DOWN)
    assert found(tmp_path, ports) == [f"RdmaPortDown rdma/{late[3][0]}"]


def test_a_port_leaves_the_fabric_when_its_device_begins_to_switch(tmp_path: Path) -> None:
    devices = rows(ranged("mlx5_{}", 8), CX7, "", ETH, UP, NDR)
    plug(tmp_path, devices)
    known = after_ports(None, read_probes(Host(tmp_path), LEVELS), has_efa=False) or {}
    for device in devices:
        set_state(tmp_path, device[0], DOWN)
        (tmp_path / "sys/class/infiniband" / device[0] / "ports/2").mkdir()

    assert found(tmp_path, known) == []
    assert after_ports(known, read_probes(Host(tmp_path), LEVELS), has_efa=False) == {}
