"""Surroundings of the driver on a node: its module, its libraries, and the visible processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.probes.nvml.driver import library_versions, sees_every_process
from gpu_healthcheck.sim.node import SimulatedNode

SONAME = "libnvidia-ml.so.1"


def lay(root: Path, place: str, file: str) -> None:
    """A library as a driver's package lays it: its file, and the link that programs ask for."""
    directory = root / place
    directory.mkdir(parents=True)
    (directory / file).touch()
    (directory / SONAME).symlink_to(file)


def test_a_node_has_the_library_of_its_driver(node: SimulatedNode) -> None:
    assert library_versions(node.root) == ("570.133.20",)


def test_every_place_counts_and_a_version_once(tmp_path: Path) -> None:
    lay(tmp_path, "usr/lib64", "libnvidia-ml.so.535.183.01")
    lay(tmp_path, "run/nvidia/driver/usr/lib64", "libnvidia-ml.so.570.133.20")
    (tmp_path / "lib64").symlink_to("usr/lib64")

    assert library_versions(tmp_path) == ("535.183.01", "570.133.20")


def test_the_used_library_counts_wherever_it_is(tmp_path: Path) -> None:
    lay(tmp_path, "usr/lib64", "libnvidia-ml.so.535.183.01")

    used = "/somewhere/else/libnvidia-ml.so.580.159.04"
    assert library_versions(tmp_path, used) == ("535.183.01", "580.159.04")


def test_an_absolute_link_means_the_nodes_own_tree(tmp_path: Path) -> None:
    lay(tmp_path, "usr/lib64", "libnvidia-ml.so.590.12")
    (tmp_path / "lib64").symlink_to("/usr/lib64")
    (tmp_path / "opt/nvidia/lib64").mkdir(parents=True)
    (tmp_path / "opt/nvidia/lib64" / SONAME).symlink_to("/usr/lib64/libnvidia-ml.so.590.12")

    assert library_versions(tmp_path) == ("590.12",)


@pytest.mark.parametrize("target", ["nowhere.so", SONAME, "libnvidia-ml.so.570.133.20", "/usr", ""])
def test_a_link_that_leads_to_no_library_tells_no_version(tmp_path: Path, target: str) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    if target:
        (tmp_path / "usr/lib64" / SONAME).symlink_to(target)

    assert library_versions(tmp_path) == ()


@pytest.mark.parametrize("file", ["libnvidia-ml.so", "libnvidia-ml.so.570", "libnvidia-ml.so.570.x", "stub.so"])
def test_a_name_that_is_no_version_tells_none(tmp_path: Path, file: str) -> None:
    lay(tmp_path, "usr/lib64", file)

    assert library_versions(tmp_path) == ()


@pytest.mark.parametrize(("namespace", "sees"), [("pid:[4026531836]", True), ("pid:[4026532819]", False)])
def test_only_the_first_pid_namespace_shows_every_process(tmp_path: Path, namespace: str, sees: bool) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(namespace)

    assert sees_every_process(tmp_path) is sees


def test_tree_without_proc_counts_as_the_node(node: SimulatedNode) -> None:
    assert sees_every_process(node.root)
