"""RDMA devices: only Amazon's count, by vendor and never by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from healthcheck.model import Host, ProbeError
from healthcheck.probes.infiniband import Rdma, RdmaDevice, read_rdma
from sim.node import SimulatedNode


@pytest.mark.parametrize(
    ("instance_type", "efa", "others", "loaded"),
    [
        ("p5.48xlarge", 32, 0, True),
        ("p4d.24xlarge", 4, 0, True),
        ("p6-b200.48xlarge", 8, 4, True),
        ("g6.xlarge", 0, 0, False),
    ],
)
def test_efa_devices_are_counted_and_the_boards_own_are_not(
    make_node: Callable[[str], SimulatedNode], instance_type: str, efa: int, others: int, loaded: bool
) -> None:
    node = make_node(instance_type)

    rdma = read_rdma(Host(node.root))

    assert sorted(device.name for device in rdma.efa) == sorted(node.efa_names)
    assert (len(rdma.efa), len(rdma.devices) - len(rdma.efa), rdma.efa_driver_loaded) == (efa, others, loaded)


def test_a_removed_device_is_gone(node: SimulatedNode) -> None:
    node.remove_efa(5)

    assert len(read_rdma(Host(node.root)).efa) == 31


def test_the_name_says_nothing(node: SimulatedNode) -> None:
    listing = node.root / "sys/class/infiniband"
    (listing / node.efa_names[0]).rename(listing / "efa_0")

    assert len(read_rdma(Host(node.root)).efa) == 32


def test_an_efa_device_of_a_generation_to_come_counts(node: SimulatedNode) -> None:
    node.write_value(f"sys/class/infiniband/{node.efa_names[0]}/device/device", "0xefa9")

    assert len(read_rdma(Host(node.root)).efa) == 32


def test_a_device_that_goes_away_while_we_look_does_not_count(node: SimulatedNode) -> None:
    (node.root / "sys/class/infiniband/gone").symlink_to("../../devices/gone")

    rdma = read_rdma(Host(node.root))

    assert RdmaDevice("gone", is_efa=False) in rdma.devices
    assert len(rdma.efa) == 32


def test_a_kernel_without_rdma_has_no_devices(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)

    assert read_rdma(Host(tmp_path)) == Rdma((), efa_driver_loaded=False)


def test_without_sys_nothing_could_be_seen(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="sys/class: no such directory"):
        read_rdma(Host(tmp_path))


def test_a_file_in_the_listings_place_says_so(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").write_text("x")

    with pytest.raises(ProbeError, match="infiniband: Not a directory"):
        read_rdma(Host(tmp_path))
