"""RDMA devices of mlx5: trees in the formats of real machines, and what a hostile or dying device shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import asdict

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes import mlx5 as probe
from gpu_healthcheck.healthcheck.probes import pod_resources
from gpu_healthcheck.healthcheck.probes.mlx5 import CARRIER_CHANGES, Mlx5, Mlx5Device, read_mlx5
from gpu_healthcheck.healthcheck.probes.pod_resources import (
    ClaimedDevice,
    ContainerDevices,
    DeviceClaim,
    PodDevices,
    ResourceDevices,
)
from gpu_healthcheck.sim.mlx5_ports import COUNTERS, HARDWARE_COUNTERS
from gpu_healthcheck.sim.node import SimulatedNode

PORT = "sys/class/infiniband/mlx5_3/ports/1"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    with SimulatedNode.create(tmp_path / "node", "dgx-h100") as node:
        yield node


def read(node: SimulatedNode) -> Mlx5:
    return read_mlx5(Host(node.root))


def port(node: SimulatedNode, name: str = "mlx5_3") -> Mlx5Device:
    return next(device for device in read(node).devices if device.name == name)


def test_a_port_with_its_facts(node: SimulatedNode) -> None:
    counters = {*probe.PORT_COUNTERS, *probe.HARDWARE_COUNTERS}
    assert counters <= {*COUNTERS, *HARDWARE_COUNTERS}
    assert port(node) == Mlx5Device(
        "mlx5_3",
        "0000:5e:00.0",
        0x1021,
        "MT_0000000838",
        netdev="ibp94s0",
        state="4: ACTIVE",
        rate=400.0,
        link_layer="InfiniBand",
        has_gid=True,
        counters={**dict.fromkeys(counters, 0), CARRIER_CHANGES: 2},
    )


def test_the_bond_and_the_default_route_are_no_fabric(node: SimulatedNode) -> None:
    node.route_by("enp130s0")
    found = read(node)
    assert [device.name for device in found.fabric] == [f"mlx5_{index}" for index in range(8)]
    assert {device.name for device in found.devices if device.bonded} == {"mlx5_8", "mlx5_9"}
    assert [device.name for device in found.devices if device.other_purpose] == ["mlx5_10"]
    assert all(not device.counters for device in found.devices if device not in found.fabric)


def test_the_route_of_a_bond_is_that_of_its_members(node: SimulatedNode) -> None:
    node.route_by("bond0")
    assert [device.name for device in read(node).devices if device.other_purpose] == ["mlx5_8", "mlx5_9"]


def test_names_with_the_number_of_a_function_are_kept(node: SimulatedNode) -> None:
    assert port(node, "mlx5_8").address == "0000:29:00.1"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 400.0),
        ("200 Gb/sec (2X NDR)", 200.0),
        ("800 Gb/sec (4X XDR)", 800.0),
        ("100 Gb/sec (4X EDR)", 100.0),
        ("100 Gb/sec (2X HDR)", 100.0),
        ("400 Gb/sec (8X HDR)", 400.0),
        ("56 Gb/sec (4X FDR)", 56.0),
        ("40 Gb/sec (4X FDR10)", 40.0),
        ("25 Gb/sec (1X EDR)", 25.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("200 Gb/sec", 200.0),
        ("fast", 0.0),
        ("-1 Gb/sec", 0.0),
        ("9" * 60, 0.0),
        ("", 0.0),
    ],
)
def test_a_speed(node: SimulatedNode, text: str, rate: float) -> None:
    node.write_value(f"{PORT}/rate", text)
    assert port(node).rate == rate


@pytest.mark.parametrize(
    ("text", "count"),
    [("18446744073709551615", 2**64 - 1), ("18446744073709551616", None), ("-1", None), ("0x10", None), ("N/A", None),
     ("", None), ("\u0663", None), ("1" * 200, None), ("7 8", None)],
)  # fmt: skip
def test_a_counter(node: SimulatedNode, text: str, count: int | None) -> None:
    node.write_value(f"{PORT}/counters/symbol_error", text)
    assert (port(node).counters.get("symbol_error"), port(node).error) == (count, "")


def test_a_counter_that_the_firmware_lacks_is_left_out(node: SimulatedNode) -> None:
    (node.root / PORT / "hw_counters/roce_slow_restart").unlink()
    assert "roce_slow_restart" not in port(node).counters
    assert "rnr_nak_retry_err" in port(node).counters


def unreadable(file: Path) -> None:
    file.unlink()
    file.symlink_to("/proc/self/mem")  # nothing lies at its beginning: EIO


@pytest.mark.parametrize("file", ["state", "counters/symbol_error"])
def test_a_file_that_can_t_be_read_is_the_devices_error(node: SimulatedNode, file: str) -> None:
    unreadable(node.root / PORT / file)
    assert port(node).error == f"{file.rpartition('/')[2]}: Input/output error"
    assert len(read(node).devices) == 11


@pytest.mark.parametrize("file", ["state", "link_layer", "rate", "gids/0", "counters/symbol_error"])
def test_a_file_that_vanished_hides_no_other_device(node: SimulatedNode, file: str) -> None:
    (node.root / PORT / file).unlink()
    assert len([device for device in read(node).devices if device.name != "mlx5_3"]) == 10


FILES = (
    *("board_id", "hca_type", "ports/1/state", "ports/1/phys_state", "ports/1/link_layer", "ports/1/rate"),
    *("ports/1/gids/0", "ports/1/counters/symbol_error", "ports/1/counters/port_rcv_packets", "device/vpd"),
    *("ports/1/hw_counters/rnr_nak_retry_err", "device/net/ibp94s0/carrier_changes", "device/device"),
    *("device/infiniband_verbs/uverbs3/ibdev",),
)
"""Files of a device that are read."""
CONTENTS: dict[str, Callable[[Path], object]] = {
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00\x1b[31m\n4: ACTIVE"),
    "1 MiB": lambda file: file.write_bytes(b"4: ACTIVE " * 104_858),
    "digits": lambda file: file.write_bytes(b"9" * (1 << 20)),
    "a link out of sysfs": lambda file: file.symlink_to("/etc/passwd"),
    "an endless file": lambda file: file.symlink_to("/dev/zero"),
    "a link to itself": lambda file: file.symlink_to(file),
    "a folder": lambda file: file.mkdir(),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("state", ["4: ACTIVE", "1: DOWN"])
def test_no_content_of_a_file_harms_more_than_its_device(content: str, state: str, tmp_path: Path) -> None:
    with SimulatedNode.create(tmp_path / "node", "hgx-h100") as node:
        node.rdma_port(3, "state", state)
        for file in FILES:
            probe._identity.cache_clear()
            path = node.root / "sys/class/infiniband/mlx5_3" / file
            kept = path.exists() and path.rename(tmp_path / "kept")
            CONTENTS[content](path)
            others, texts = [], []
            with suppress(ProbeError):
                devices = read(node).devices
                others = [device for device in devices if device.name != "mlx5_3"]
                texts = [text for device in devices for text in asdict(device).values() if isinstance(text, str)]
            # Without its identity, it is not known whether the device is one of mlx5.
            assert len(others) == 7 or (others == [] and file in ("board_id", "device/device")), file
            assert [device for device in others if device.error or not device.is_active] == [], file
            assert [text for text in texts if not text.isprintable() or len(text) > 100] == [], file
            path.rmdir() if path.is_dir() else path.unlink()
            if kept:
                kept.rename(path)


def test_a_port_that_is_down_shows_whether_it_ever_received(node: SimulatedNode) -> None:
    node.rdma_port(3, "state", "1: DOWN")
    node.rdma_port(3, "phys_state", "3: Disabled")
    assert (port(node).was_active, port(node).phys_state, port(node).rate) == (False, "3: Disabled", 0.0)
    node.rdma_port(3, "counters/port_rcv_packets", "12")
    assert port(node).was_active


@pytest.mark.parametrize("name", ["vendor", "device"])
@pytest.mark.parametrize("content", ["", "mellanox", "0x1af4"])
def test_a_device_of_no_known_vendor_is_none(tmp_path: Path, name: str, content: str) -> None:
    with SimulatedNode.create(tmp_path / "node", "hgx-h100") as node:
        node.write_value(f"sys/bus/pci/devices/0000:5e:00.0/{name}", content)
        found = {device.name for device in read(node).devices}
    assert len(found) == (8 if (name, content) == ("device", "0x1af4") else 7)


def test_software_and_other_devices_are_none(node: SimulatedNode) -> None:
    (node.root / "sys/class/infiniband/rxe0/ports/1").mkdir(parents=True)
    node.write_value("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE")
    assert len(read(node).devices) == 11


def test_thousands_of_devices_are_bounded(node: SimulatedNode) -> None:
    for number in range(2000):
        (node.root / f"sys/class/infiniband/a{number}").symlink_to(node.root / "sys/class/infiniband/mlx5_3")
    assert len(read(node).devices) <= 1024


def test_efa_is_the_fabric_of_its_nodes(tmp_path: Path) -> None:
    with SimulatedNode.create(tmp_path / "node", "p6-b200.48xlarge") as node:
        assert read(node) == Mlx5(())


def test_a_machine_without_rdma_has_none(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    assert read_mlx5(Host(tmp_path)).devices == ()
    with pytest.raises(ProbeError, match="no such directory"):
        read_mlx5(Host(tmp_path / "elsewhere"))


def test_a_device_created_again_is_read_again(node: SimulatedNode) -> None:
    before = port(node)
    node.pci.unplug(before.address)
    assert "mlx5_3" not in {device.name for device in read(node).devices}
    function = next(one for one in node.shape.mlx5 if one.name == "mlx5_3")
    node.pci.add_mlx5(function)
    node.rdma_port(3, "rate", "200 Gb/sec (2X NDR)")
    assert port(node).rate == 200.0


def test_after_the_patience_the_other_ports_are_skipped(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PATIENCE_SECONDS", -1.0)
    assert {device.error for device in read(node).devices} == {"not read: another device delayed the check cycle"}


class TestExclusive:
    def test_shared_mode_needs_no_query(self, node: SimulatedNode) -> None:
        assert (read(node).exclusive, read(node).holders) == (False, ())

    def test_without_a_kubelet_no_pod_holds_a_device(self, node: SimulatedNode) -> None:
        node.make_rdma_exclusive()
        assert (read(node).exclusive, read(node).holders) == (True, ())

    def test_a_kubelet_that_does_not_answer_leaves_it_unknown(self, node: SimulatedNode) -> None:
        node.make_rdma_exclusive()
        (node.root / "var/lib/kubelet").mkdir(parents=True)
        assert read(node).holders is None

    def test_the_pods_with_other_devices_than_gpus(self, node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
        node.make_rdma_exclusive()
        (node.root / "var/lib/kubelet").mkdir(parents=True)
        claim = DeviceClaim("a", "nic", devices=(ClaimedDevice("dra.net", "n", "pci-0000-5e-00-0"),))
        pods = (
            PodDevices("a", "gpus", (ContainerDevices("main", (ResourceDevices("nvidia.com/gpu", ("GPU-1",)),)),)),
            PodDevices("a", "plugin", (ContainerDevices("main", (ResourceDevices("rdma/ib", ("x",)),)),)),
            PodDevices("a", "claim", (ContainerDevices("main", (), (claim,)),)),
        )
        monkeypatch.setattr(pod_resources, "read_pod_resources", lambda _: pods)
        assert read(node).holders == ("a/plugin", "a/claim")

    def test_names_of_pods_are_printable_and_few(self, node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
        node.make_rdma_exclusive()
        (node.root / "var/lib/kubelet").mkdir(parents=True)
        held = (ContainerDevices("main", (ResourceDevices("rdma/ib", ("x",)),)),)
        pods = tuple(PodDevices("a", f"\x1b[31m{number}" + "x" * 300, held) for number in range(200))
        monkeypatch.setattr(pod_resources, "read_pod_resources", lambda _: pods)
        holders = read(node).holders
        assert holders is not None
        assert len(holders) <= 64
        assert [name for name in holders if not name.isprintable() or len(name) > 64] == []


def test_virtual_functions_of_this_machine_are_left_out(tmp_path: Path) -> None:
    with SimulatedNode.create(tmp_path / "node", "hgx-h100-sriov") as node:
        assert [device.name for device in read(node).devices] == [f"mlx5_{index}" for index in range(8)]


def test_names_are_printable_and_short(tmp_path: Path) -> None:
    with SimulatedNode.create(tmp_path / "node", "hgx-h100") as node:
        listing = node.root / "sys/class/infiniband"
        (listing / "mlx5_3").rename(listing / ("\x1b[31m" + "x" * 200))
        found = [device.name for device in read(node).devices]
    assert [name for name in found if not name.isprintable() or len(name) > 64] == []
    assert len(found) == 8
