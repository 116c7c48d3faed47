"""RDMA devices: only Amazon's count, by vendor and never by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.efa import infiniband
from gpu_healthcheck.healthcheck.probes.efa.infiniband import ERROR_COUNTERS, KEEP_ALIVES, Rdma, RdmaDevice, read_rdma
from gpu_healthcheck.sim.node import SimulatedNode


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


def test_the_name_says_nothing(node: SimulatedNode) -> None:
    listing = node.root / "sys/class/infiniband"
    (listing / node.efa_names[0]).rename(listing / "efa_0")

    assert len(read_rdma(Host(node.root)).efa) == 32


def test_an_efa_device_of_a_generation_to_come_counts(node: SimulatedNode) -> None:
    node.write_value(f"sys/class/infiniband/{node.efa_names[0]}/device/device", "0xefa9")

    assert len(read_rdma(Host(node.root)).efa) == 32


def test_device_that_vanishes_during_the_read_does_not_count(node: SimulatedNode) -> None:
    (node.root / "sys/class/infiniband/gone").symlink_to("../../devices/gone")

    rdma = read_rdma(Host(node.root))

    assert RdmaDevice("gone", is_efa=False) in rdma.devices  # it has no address either
    assert len(rdma.efa) == 32


def test_a_device_with_an_unreadable_vendor_is_not_assigned_to_another(node: SimulatedNode) -> None:
    vendor = node.root / "sys/bus/pci/devices" / node.shape.efa_addresses[0] / "vendor"
    vendor.unlink()
    vendor.symlink_to("/proc/self/mem")  # nothing lies at its beginning: EIO

    with pytest.raises(ProbeError, match="device/vendor: Input/output error"):
        read_rdma(Host(node.root))


def test_a_message_is_one_line(node: SimulatedNode) -> None:
    node.set_p2p("NVIDIA\nand more")

    assert {device.p2p for device in read_rdma(Host(node.root)).efa} == {"NVIDIA\\nand more"}


def test_a_kernel_without_rdma_has_no_devices(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)

    assert read_rdma(Host(tmp_path)) == Rdma((), efa_driver_loaded=False)


def test_missing_sys_is_unobserved(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="sys/class: no such directory"):
        read_rdma(Host(tmp_path))


def test_file_in_place_of_the_listing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").write_text("x")

    with pytest.raises(ProbeError, match="infiniband: Not a directory"):
        read_rdma(Host(tmp_path))


def device(node: SimulatedNode, index: int = 3) -> RdmaDevice:
    name = node.efa_names[index]
    return next(rdma_device for rdma_device in read_rdma(Host(node.root)).devices if rdma_device.name == name)


def sysfs(node: SimulatedNode, path: str, index: int = 3) -> Path:
    return node.root / "sys/class/infiniband" / node.efa_names[index] / path


def test_of_an_efa_device_everything_is_read(node: SimulatedNode) -> None:
    node.efa_counter(3, "rx_drops", 7)
    node.efa_counter(3, KEEP_ALIVES, 2**64 - 1)

    assert device(node) == RdmaDevice(
        node.efa_names[3],
        is_efa=True,
        address="0000:52:00.0",
        uverbs="uverbs3",
        p2p="NVIDIA peermem",
        counters={KEEP_ALIVES: 2**64 - 1, **dict.fromkeys(ERROR_COUNTERS, 0), "rx_drops": 7},
    )
    assert read_rdma(Host(node.root)).efa_driver_version == "2.17.2g"


def test_of_another_vendors_device_only_its_place_is_read(make_node: Callable[[str], SimulatedNode]) -> None:
    rdma = read_rdma(Host(make_node("p6-b200.48xlarge").root))

    assert rdma.devices[0] == RdmaDevice("mlx5_0", is_efa=False, address="0000:d0:00.0")


def test_the_kernels_own_driver_tells_less(node: SimulatedNode) -> None:
    (node.root / "sys/module/efa/version").unlink()
    sysfs(node, "device/p2p").unlink()
    for name in ERROR_COUNTERS[3:]:
        sysfs(node, f"ports/1/hw_counters/{name}").unlink()

    assert read_rdma(Host(node.root)).efa_driver_version == ""
    assert device(node).p2p is None
    assert device(node).counters == dict.fromkeys((KEEP_ALIVES, *ERROR_COUNTERS[:3]), 0)
    assert device(node).error == ""


@pytest.mark.parametrize("word", ["", "NEURON"])
def test_peer_memory_access_is_as_the_driver_reports(node: SimulatedNode, word: str) -> None:
    node.set_p2p(word)

    assert {device.p2p for device in read_rdma(Host(node.root)).efa} == {word}


def test_a_device_without_uverbs_is_distinguished(node: SimulatedNode) -> None:
    node.remove_uverbs(3)

    assert [device.name for device in read_rdma(Host(node.root)).efa if not device.uverbs] == [node.efa_names[3]]


@pytest.mark.parametrize("text", ["", "-1", "0x10", "1 2", "\u0663", "many", "9" * 100])
def test_nonsense_is_no_counter(node: SimulatedNode, text: str) -> None:
    sysfs(node, "ports/1/hw_counters/rx_drops").write_text(text)

    assert "rx_drops" not in device(node).counters
    assert (len(device(node).counters), device(node).error) == (len(ERROR_COUNTERS), "")


def test_a_device_that_refuses_is_asked_no_further_and_the_others_are(node: SimulatedNode) -> None:
    refused = sysfs(node, f"ports/1/hw_counters/{ERROR_COUNTERS[1]}")
    refused.unlink()
    refused.mkdir()

    assert device(node).error == f"{ERROR_COUNTERS[1]}: Is a directory"
    assert set(device(node).counters) == {KEEP_ALIVES, ERROR_COUNTERS[0]}
    assert len(device(node, 4).counters) == len(ERROR_COUNTERS) + 1


def test_after_a_device_that_kept_us_waiting_no_other_is_asked(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infiniband, "_PATIENCE_SECONDS", -1.0)

    assert device(node).error == "not read: another device delayed the check cycle"
    assert device(node).counters == {}
    assert len(read_rdma(Host(node.root)).efa) == 32


@given(st.binary(max_size=200), st.sampled_from(["ports/1/hw_counters/rx_drops", "device/p2p", "device/vendor"]))
def test_any_bytes_in_a_file_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes, file: str) -> None:
    root = tmp_path_factory.mktemp("root")
    for path, text in {"device/vendor": b"0x1d0f", file: content}.items():
        place = root / "sys/class/infiniband/efa_0" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)

    (device,) = read_rdma(Host(root)).devices

    assert all(0 <= count < 2**64 for count in device.counters.values())
