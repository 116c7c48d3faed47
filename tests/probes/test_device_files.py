"""Device files as they lie in a host's tree, and in one that is a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.driver_files import DeviceFile, DeviceFiles, read_device_files
from gpu_healthcheck.sim.node import SimulatedNode
from tests.device_files import NEEDS_THEM


def read(root: Path) -> DeviceFiles:
    return read_device_files(Host(root))


def test_a_copy_of_a_tree_holds_no_devices(node: SimulatedNode) -> None:
    assert read(node.root) == DeviceFiles((), (), None)

    # Its /dev/null may have become a plain file, or a link, which a careless reader follows to ours.
    (node.root / "dev/null").touch()
    assert read(node.root).folders == ()
    (node.root / "dev/zero").symlink_to("/dev/null")
    (node.root / "dev/zero").rename(node.root / "dev/null")
    with pytest.raises(ProbeError, match="symbolic links"):
        read(node.root)


def test_dangling_dev_link_is_unobserved(node: SimulatedNode) -> None:
    shutil.rmtree(node.root / "dev")
    (node.root / "dev").symlink_to("dev")

    with pytest.raises(ProbeError, match="symbolic links"):
        read(node.root)


def test_majors_are_those_of_nvidias_drivers(node: SimulatedNode) -> None:
    lines = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\nx nvidia-caps\n\nBlock devices:\n"
    node.write_value("proc/devices", lines)

    assert read(node.root).majors == {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 510}


@NEEDS_THEM
class TestRealOnes:
    @pytest.fixture(autouse=True)
    def _made(self, node: SimulatedNode) -> None:
        node.make_device_files()

    def test_each_is_reported_with_its_number(self, node: SimulatedNode) -> None:
        there = read(node.root)

        assert (there.folders, there.majors) == (("/dev",), {"nvidia": 195, "nvidia-uvm": 510})
        assert {file.path: (file.major, file.minor) for file in there.files} == {
            **{f"/dev/nvidia{index}": (195, index) for index in range(8)},
            "/dev/nvidiactl": (195, 255),
            "/dev/nvidia-uvm": (510, 0),
            "/dev/nvidia-uvm-tools": (510, 1),
        }
        assert all(file.character for file in there.files)

    def test_absent_values_are_shown_as_absent(self, node: SimulatedNode) -> None:
        node.remove_device_file("nvidia-uvm")
        (node.root / "dev/nvidia-uvm").mkdir()

        assert DeviceFile("/dev", "nvidia-uvm", character=False) in read(node.root).files

    def test_a_driver_containers_count_too(self, node: SimulatedNode) -> None:
        folder = node.root / "run/nvidia/driver"
        folder.mkdir(parents=True)
        (node.root / "dev").rename(folder / "dev")
        (node.root / "dev").mkdir()

        there = read(node.root)
        assert there.folders == ("/run/nvidia/driver/dev",)
        assert len(there.files) == 11
