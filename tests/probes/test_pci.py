"""PCI functions as the kernel lists them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.pci import PciFunction, normalise_address, read_functions
from gpu_healthcheck.sim import pci_tree
from gpu_healthcheck.sim.node import SimulatedNode


@pytest.mark.parametrize(
    ("instance_type", "gpus", "efa"),
    [
        ("p5.48xlarge", 8, 32),
        ("p4d.24xlarge", 8, 4),
        ("p6-b200.48xlarge", 8, 8),
        ("g5.xlarge", 1, 0),
        ("g6.xlarge", 1, 0),
    ],
)
def test_gpus_and_efa_devices_are_recognised(
    make_node: Callable[[str], SimulatedNode], instance_type: str, gpus: int, efa: int
) -> None:
    node = make_node(instance_type)

    functions = read_functions(Host(node.root))

    found = [function.address for function in functions if function.is_gpu]
    assert found == sorted(gpu.address for gpu in node.gpus)
    assert (len(found), sum(function.is_efa for function in functions)) == (gpus, efa)
    assert {function.vendor for function in functions} <= {0x10DE, 0x1D0F, 0x15B3}


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci", ""])
def test_a_function_is_read_with_its_driver(node: SimulatedNode, driver: str) -> None:
    address = node.gpus[0].address
    node.pci.unbind(address)
    if driver:
        node.pci.bind(address, driver)

    read = {function.address: function for function in read_functions(Host(node.root))}

    switch = "0000:00:10.0"
    gpu = PciFunction(address, 0x10DE, 0x2330, 0x030200, driver, numa_node=0, switch=switch, bridges=(switch,))
    assert read[address] == gpu
    assert read["0000:4f:00.0"] == PciFunction("0000:4f:00.0", 0x1D0F, 0xEFA2, 0x020000, "efa")


def test_a_virtual_function_is_no_gpu(node: SimulatedNode) -> None:
    directory = node.root / "sys/bus/pci/devices" / node.gpus[0].address
    (directory / "physfn").symlink_to("../0000:00:00.0")

    assert sum(function.is_gpu for function in read_functions(Host(node.root))) == 7


@pytest.mark.parametrize("pci_class", ["0x030000", "0x030200"])
def test_a_gpu_is_a_vga_or_a_3d_controller(tmp_path: Path, pci_class: str) -> None:
    pci_tree.PciTree(tmp_path).plug(pci_tree.PciFunction("0000:01:00.0", "0x10DE", "0x2330", pci_class))

    assert [function.is_gpu for function in read_functions(Host(tmp_path))] == [True]


@pytest.mark.parametrize(
    ("vendor", "device", "is_efa"),
    [("0x1d0f", "0xefa0", True), ("0x1d0f", "0xefa3", True), ("0x1d0f", "0xec20", False), ("0x10de", "0xefa0", False)],
)
def test_an_efa_device_on_pci_is_known_by_both_numbers(tmp_path: Path, vendor: str, device: str, is_efa: bool) -> None:
    pci_tree.PciTree(tmp_path).plug(pci_tree.PciFunction("0000:01:00.0", vendor, device, "0x020000"))

    assert [function.is_efa for function in read_functions(Host(tmp_path))] == [is_efa]


@pytest.mark.parametrize(("instance_type", "switches"), [("p5.48xlarge", 4), ("p4d.24xlarge", 6), ("g6.xlarge", 0)])
def test_nvswitches_are_known_by_their_class(
    make_node: Callable[[str], SimulatedNode], instance_type: str, switches: int
) -> None:
    functions = read_functions(Host(make_node(instance_type).root))

    assert sum(function.is_nvswitch for function in functions) == switches
    assert [function for function in functions if function.is_nvswitch and function.is_gpu] == []


@pytest.mark.parametrize(
    ("file", "content"),
    [("vendor", b""), ("vendor", b"\xff\xff"), ("vendor", None), ("device", b"x"), ("device", None), ("class", b"")],
)
def test_function_that_vanishes_during_the_read_is_left_out(
    node: SimulatedNode, file: str, content: bytes | None
) -> None:
    path = node.root / "sys/bus/pci/devices" / node.gpus[0].address / file
    path.unlink() if content is None else path.write_bytes(content)

    assert sum(function.is_gpu for function in read_functions(Host(node.root))) == 7


@pytest.mark.parametrize("file", ["vendor", "device", "class"])
def test_unreadable_function_is_not_missing(node: SimulatedNode, file: str) -> None:
    """As when this process has no file descriptor left: all functions would seem to be gone."""
    path = node.root / "sys/bus/pci/devices" / node.gpus[0].address / file
    path.unlink()
    path.symlink_to("/proc/self/mem")  # nothing lies at its beginning: EIO

    with pytest.raises(ProbeError, match=f"{node.gpus[0].address}.*: Input/output error"):
        read_functions(Host(node.root))


def test_only_what_is_named_as_the_kernel_names_a_function_is_one(node: SimulatedNode) -> None:
    devices = node.root / "sys/bus/pci/devices"
    for name in ("gpu\n0", "0000:53:00.8", "\udcff", "0000:53:00.0 "):
        (devices / name).symlink_to((devices / node.gpus[0].address).readlink())

    assert sum(function.is_gpu for function in read_functions(Host(node.root))) == 8


def test_a_link_that_leads_nowhere_is_left_out(node: SimulatedNode) -> None:
    (node.root / "sys/bus/pci/devices/0000:ff:00.0").symlink_to("../../../devices/gone")

    assert sum(function.is_gpu for function in read_functions(Host(node.root))) == 8


def places(node: SimulatedNode) -> dict[str, tuple[int, str]]:
    """NUMA node and switch of every GPU."""
    return {
        function.address: (function.numa_node, function.switch)
        for function in read_functions(Host(node.root))
        if function.is_gpu
    }


@pytest.mark.parametrize(
    ("instance_type", "first", "last"),
    [
        ("p5.48xlarge", (0, "0000:00:10.0"), (1, "0000:00:17.0")),
        ("p4d.24xlarge", (0, "0000:00:10.0"), (1, "0000:00:13.0")),
        ("g5.xlarge", (-1, ""), (-1, "")),
    ],
)
def test_a_gpu_is_read_with_the_place_where_it_sits(
    make_node: Callable[[str], SimulatedNode], instance_type: str, first: tuple[int, str], last: tuple[int, str]
) -> None:
    node = make_node(instance_type)

    found = places(node)

    assert (found[node.gpus[0].address], found[node.gpus[-1].address]) == (first, last)


@pytest.mark.parametrize("content", [b"", b"none\n", None])
def test_a_kernel_that_tells_no_numa_node_leaves_the_gpu_listed(node: SimulatedNode, content: bytes | None) -> None:
    path = node.root / "sys/bus/pci/devices" / node.gpus[0].address / "numa_node"
    path.unlink() if content is None else path.write_bytes(content)

    assert places(node)[node.gpus[0].address] == (-1, "0000:00:10.0")


def test_the_nearest_of_several_bridges_is_the_switch(tmp_path: Path) -> None:
    tree = pci_tree.PciTree(tmp_path)
    for above, address in [("", "0000:00:01.0"), ("0000:00:01.0", "0000:01:00.0"), ("0000:01:00.0", "0000:02:08.0")]:
        tree.plug(pci_tree.PciFunction(address, "0x1000", "0xc030", "0x060400", switch=above))
    tree.plug(pci_tree.PciFunction("0000:03:00.0", "0x10de", "0x2330", "0x030200", switch="0000:02:08.0", numa_node=1))

    (gpu,) = read_functions(Host(tmp_path))
    assert (gpu.numa_node, gpu.switch) == (1, "0000:02:08.0")
    assert gpu.bridges == ("0000:00:01.0", "0000:01:00.0", "0000:02:08.0")


def test_missing_sys_is_unobserved(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="sys/bus/pci/devices: No such file or directory"):
        read_functions(Host(tmp_path))


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("PCI:0000:3b:00", "0000:3b:00.0"),
        ("pci:0000:3B:1F.7", "0000:3b:1f.0"),
        ("0008:01:00.0", "0008:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0:3:0", "0000:03:00.0"),
        ("", None),
        ("3b:00.0", None),
        ("0000:3b:00.0 ", None),
        ("0000:3b:00.0\n", None),
        ("0000:3g:00.0", None),
        ("000000000:3b:00.0", None),
        ("N/A", None),
    ],
)
def test_addresses_of_every_form_are_made_one(address: str, normal: str | None) -> None:
    assert normalise_address(address) == normal
