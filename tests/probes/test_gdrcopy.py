"""Installers of GDRCopy on a host, and its parts there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.gdrcopy import GdrCopy, read_gdrcopy
from gpu_healthcheck.sim.node import SimulatedNode


def read(node: SimulatedNode) -> GdrCopy:
    return read_gdrcopy(Host(node.root))


def test_a_host_without_it_expects_nothing(node: SimulatedNode) -> None:
    assert read(node) == GdrCopy("", loaded=False, device=False)


def test_a_package_s_unit_sets_it_up(node: SimulatedNode) -> None:
    node.install_gdrcopy()
    assert read(node) == GdrCopy("gdrcopy.service", loaded=True, device=True)

    node.remove_gdrdrv_device()
    assert read(node) == GdrCopy("gdrcopy.service", loaded=True, device=False)


def test_a_device_of_the_driver_container_is_one(node: SimulatedNode) -> None:
    node.install_gdrcopy()
    node.remove_gdrdrv_device()
    node.write_value("run/nvidia/driver/dev/gdrdrv", "")

    assert read(node).device


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("etc/modules-load.d/gdrcopy.conf", "# for NCCL\ngdrdrv\n", True),
        ("usr/lib/modules-load.d/gpu.conf", "nvidia\n  gdrdrv  ", True),
        ("etc/modules", "gdrdrv\n", True),
        ("etc/modules-load.d/gdrcopy.conf", "# gdrdrv\n", False),
        ("etc/modules-load.d/gdrcopy.conf", "gdrdrv-test\n", False),
        ("etc/modules-load.d/gdrcopy.txt", "gdrdrv\n", False),
        ("etc/modules", "", False),
    ],
)
def test_a_list_of_modules_that_names_it_sets_it_up(node: SimulatedNode, path: str, text: str, named: bool) -> None:
    (node.root / path).parent.mkdir(parents=True, exist_ok=True)
    (node.root / path).write_text(text)

    assert read(node).set_up_by == (f"/{path}" if named else "")


def test_the_folder_of_aws_images_sets_it_up(node: SimulatedNode) -> None:
    (node.root / "opt/gdrcopy").mkdir(parents=True)

    assert read(node).set_up_by == "/opt/gdrcopy"


def test_unreadable_file_sets_up_nothing(node: SimulatedNode) -> None:
    (node.root / "etc/modules").mkdir()
    (node.root / "etc/modules-load.d").mkdir(parents=True)
    (node.root / "etc/modules-load.d/loop.conf").symlink_to("loop.conf")
    (node.root / "etc/modules-load.d/folder.conf").mkdir()

    assert read(node).set_up_by == ""


def test_missing_list_of_modules_is_unobserved(node: SimulatedNode, tmp_path: Path) -> None:
    shutil.rmtree(node.root / "sys/module")

    with pytest.raises(ProbeError, match="sys/module: no such directory"):
        read(node)
