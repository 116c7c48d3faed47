"""A simulated node's tree has the files and links of a real host."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_healthcheck.sim.node import SimulatedNode


def _functions(node: SimulatedNode, vendor: str) -> list[Path]:
    listing = sorted((node.root / "sys/bus/pci/devices").iterdir())
    return [function for function in listing if (function / "vendor").read_text().strip() == vendor]


@pytest.mark.parametrize(
    ("instance_type", "gpus", "efa_devices"),
    [
        ("p4d.24xlarge", 8, 4),
        ("p5.48xlarge", 8, 32),
        ("p6-b200.48xlarge", 8, 8),
        ("g5.xlarge", 1, 0),
        ("g6.xlarge", 1, 0),
    ],
)
def test_node_has_the_devices_of_its_instance_type(
    make_node: Callable[[str], SimulatedNode], instance_type: str, gpus: int, efa_devices: int
) -> None:
    node = make_node(instance_type)
    displays = [
        function for function in _functions(node, "0x10de") if (function / "class").read_text().strip() == "0x030200"
    ]
    efa = [
        device.name
        for device in (node.root / "sys/class/infiniband").glob("*")
        if (device / "device/vendor").read_text().strip() == "0x1d0f"
    ]

    assert len(displays) == len(list((node.root / "nvml").glob("gpu*"))) == len(node.gpus) == gpus
    assert sorted(efa) == sorted(node.efa_names)
    assert len(efa) == efa_devices


@pytest.mark.parametrize("gpu", range(8))
def test_node_puts_a_gpu_below_the_bridge_of_its_network_cards(node: SimulatedNode, gpu: int) -> None:
    listing = node.root / "sys/bus/pci/devices"
    bus = int(node.gpus[gpu].address.split(":")[1], 16)
    group = [listing / f"0000:{number:02x}:00.0" for number in range(bus - 4, bus + 1)]
    switch = listing / f"0000:00:{0x10 + gpu:02x}.0"

    assert {function.resolve().parent for function in group} == {switch.resolve()}
    assert {(function / "numa_node").read_text() for function in (*group, switch)} == {f"{gpu // 4}\n"}
    assert (switch / "class").read_text() == "0x060400\n"


def test_node_reboot_fixes_only_what_a_reboot_fixes(node: SimulatedNode) -> None:
    first_boot = node.boot_id
    node.lose_gpu(3)
    node.hang()
    node.crash("nvmlInit_v2")
    node.write_value("nvml/error/nvmlDeviceGetCount_v2", 999)
    node.write_value("nvml/gpu0/error.nvmlDeviceGetUUID", 16)
    node.write_value("nvml/gpu0/remap_pending", 1)
    node.write_value("nvml/gpu0/remap_failed", 1)
    node.write_value("nvml/gpu0/ecc_mode_pending", 0)
    node.write_value("nvml/gpu0/nvlink/3/state", 0)
    node.write_value("nvml/gpu0/nvlink/3/field/162", 7)
    node.write_value("nvml/gpu0/fabric_state", 2)
    node.write_value("nvml/gpu0/pcie_width", 8)

    node.reboot()

    faults = [*node.root.glob("nvml/gpu*/error*"), *node.root.glob("nvml/error"), *node.root.glob("nvml/[hc][ar]*")]
    assert faults == []
    assert (node.root / "nvml/gpu0/remap_pending").read_text() == "0\n"
    assert (node.root / "nvml/gpu0/remap_failed").read_text() == "1\n"
    assert (node.root / "nvml/gpu0/ecc_mode_current").read_text() == "0\n"
    assert not (node.root / "nvml/gpu0/nvlink/3/state").exists()
    assert (node.root / "nvml/gpu0/nvlink/3/field/162").read_text() == "0\n"
    assert (node.root / "nvml/gpu0/fabric_state").read_text() == "3\n"
    assert (node.root / "nvml/gpu0/pcie_width").read_text() == "8\n"
    assert node.boot_id != first_boot


def test_node_writes_xid_lines_in_the_driver_format(tmp_path: Path) -> None:
    lines = []
    for version in ("565.57.01", "570.133.20"):
        with SimulatedNode.create(tmp_path / version, driver_version=version) as node:
            node.xid(0, 79, "GPU has fallen off the bus.")
            node.xid(0, 31, "MMU Fault", process=(4711, "python3"))
            lines.append([record.text.decode() for record in node.kernel_log.ring[-2:]])

    assert lines == [
        [
            "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:53:00): 31, pid=4711, name=python3, MMU Fault",
        ],
        [
            "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:53:00): 31, pid=4711, name=python3, MMU Fault",
        ],
    ]


def test_node_logs_the_gpu_of_an_address_once_per_boot(node: SimulatedNode) -> None:
    for _ in range(2):
        node.xid(2, 13, "Graphics Exception")
    texts = [record.text.decode() for record in node.kernel_log.ring]

    assert texts.count(f"NVRM: GPU at PCI:0000:75:00: {node.gpus[2].uuid}") == 1
    assert texts.count(f"NVRM: GPU Board Serial Number: {node.gpus[2].serial}") == 1


def test_node_runs_the_fabric_manager_with_the_driver_where_needed(
    make_node: Callable[[str], SimulatedNode],
) -> None:
    def runs(node: SimulatedNode) -> bool:
        return "nv-fabricmanage" in {comm.read_text().strip() for comm in node.root.glob("proc/*/comm")}

    node = make_node("p5.48xlarge")
    seen = [runs(node), runs(make_node("g6.48xlarge")), runs(make_node("p6e-gb200.36xlarge"))]
    node.driver_unload()
    seen.append(runs(node))
    node.driver_load()
    seen.append(runs(node))
    node.stop_fabric_manager()
    seen.append(runs(node))
    node.reboot()

    assert [*seen, runs(node)] == [True, False, False, False, True, False, True]
