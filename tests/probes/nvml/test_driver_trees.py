"""Two drivers side by side, as on EKS' AL2023 AMI: the library of the loaded one is used, and there is no finding.

The AMI has the trees `lts` (R580) and `pb` (R595). At boot it renames one to `current` and removes the other; its
folders are mounted over /usr/bin, /usr/lib64 and /usr/share (amazon-eks-ami, templates/al2023/runtime/gpu).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.checks.driver import CHECK
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Observation, Unobserved
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpus
from gpu_healthcheck.repair.host_programs import link_libraries
from gpu_healthcheck.sim import cuda_library, nvml_library
from gpu_healthcheck.sim.node import SimulatedNode

LTS, PB = "580.159.04", "595.91.07"
TREES = {"lts": LTS, "pb": PB}
LIBRARIES = {"libnvidia-ml.so": nvml_library, "libcuda.so": cuda_library}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    """A node whose base has no driver, as the AMI's."""
    node = SimulatedNode.create(tmp_path / "node", "p5.48xlarge")
    shutil.rmtree(node.library.parent)
    yield node
    node.close()


def lay_trees(node: SimulatedNode) -> None:
    for tree, version in TREES.items():
        lay(node, f"opt/nvidia/{tree}/usr/lib64", version)
        node.write_value(f"opt/nvidia/{tree}/.version", version)
        node.write_value(f"opt/nvidia/{tree}/.tree-{tree}", "")
        node.write_value(f"opt/nvidia/{tree}/usr/bin/nvidia-smi", version)
    node.write_value("opt/nvidia/nsight-compute/version", "2026.3")


def lay(node: SimulatedNode, place: str, version: str) -> None:
    folder = node.root / place
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in LIBRARIES.items():
        shutil.copyfile(source.build(), folder / f"{name}.{version}")
        (folder / f"{name}.1").unlink(missing_ok=True)
        (folder / f"{name}.1").symlink_to(f"{name}.{version}")


def load_module(node: SimulatedNode, version: str) -> None:
    node.write_value("sys/module/nvidia/version", version)
    node.write_value("nvml/driver_version", version)
    node.write_value("nvml/nvml_version", f"13.{version}")


def resolve(node: SimulatedNode, tree: str) -> None:
    """Choose a tree at boot."""
    (node.root / f"opt/nvidia/{tree}").rename(node.root / "opt/nvidia/current")
    for other in TREES.keys() - {tree}:
        shutil.rmtree(node.root / f"opt/nvidia/{other}")


def overlay(node: SimulatedNode) -> None:
    """Show the chosen tree's folders over those of the base."""
    for folder in ("bin", "lib64"):
        shutil.copytree(
            node.root / f"opt/nvidia/current/usr/{folder}",
            node.root / f"usr/{folder}",
            symlinks=True,
            dirs_exist_ok=True,
        )


def look(node: SimulatedNode) -> DriverReading:
    driver = Driver(node.root, use_loader=False)
    reading = driver.read()
    driver.end()
    return reading


def findings(reading: DriverReading) -> list[object]:
    judged = CHECK.judge(Evidence({NVML: reading}), Expectation())
    return [one for one in judged if not isinstance(one, Observation)]


@pytest.mark.parametrize("is_visible", [True, False], ids=["overlay", "overlay not visible"])
@pytest.mark.parametrize("tree", TREES)
def test_the_chosen_trees_library_is_used(node: SimulatedNode, tree: str, is_visible: bool) -> None:
    lay_trees(node)
    resolve(node, tree)
    load_module(node, TREES[tree])
    if is_visible:
        overlay(node)

    reading = look(node)

    place = "usr/lib64" if is_visible else "opt/nvidia/current/usr/lib64"
    assert isinstance(reading.answer, Gpus), reading.answer
    assert reading.answer.library == str(node.root / place / f"libnvidia-ml.so.{TREES[tree]}")
    assert (reading.answer.driver_version, reading.library_versions) == (TREES[tree], (TREES[tree],))
    assert findings(reading) == []


@pytest.mark.parametrize("tree", TREES)
def test_the_tree_of_the_loaded_module_is_used_while_none_is_chosen(node: SimulatedNode, tree: str) -> None:
    """Another image may keep both trees, under any name."""
    lay_trees(node)
    load_module(node, TREES[tree])

    reading = look(node)

    assert isinstance(reading.answer, Gpus), reading.answer
    assert reading.answer.library == str(node.root / f"opt/nvidia/{tree}/usr/lib64/libnvidia-ml.so.{TREES[tree]}")
    assert (reading.library_versions, findings(reading)) == ((TREES[tree],), [])


@pytest.mark.parametrize("stale", ["usr/lib64", "lib64", "run/nvidia/driver/usr/lib64"])
def test_a_stale_library_elsewhere_gives_way_to_that_of_the_loaded_module(node: SimulatedNode, stale: str) -> None:
    lay_trees(node)
    resolve(node, "pb")
    load_module(node, PB)
    lay(node, stale, LTS)

    reading = look(node)

    assert isinstance(reading.answer, Gpus), reading.answer
    assert reading.answer.library == str(node.root / f"opt/nvidia/current/usr/lib64/libnvidia-ml.so.{PB}")
    assert findings(reading) == []


def test_trees_of_other_versions_are_no_library_of_the_node(node: SimulatedNode) -> None:
    lay_trees(node)
    load_module(node, "610.43.02")

    reading = look(node)

    assert isinstance(reading.answer, Unobserved)
    assert reading.answer.cause.name == "NvmlLibraryNotFound"
    assert reading.answer.detail.endswith(
        "; not of kernel module 610.43.02: opt/nvidia/lts/usr/lib64, opt/nvidia/pb/usr/lib64"
    )
    assert (reading.library_versions, findings(reading)) == ((), [reading.answer])


def test_a_wrong_library_in_the_overlay_is_still_found(node: SimulatedNode) -> None:
    """An upgrade of the module without its tree: nothing on the node has the module's version."""
    lay_trees(node)
    resolve(node, "lts")
    overlay(node)
    load_module(node, PB)

    reading = look(node)

    assert reading.library_versions == (LTS,)
    assert "DriverVersionMismatch" in {getattr(one, "reason", "") for one in findings(reading)}


def test_a_reset_links_the_libraries_of_the_loaded_module(node: SimulatedNode, tmp_path: Path) -> None:
    lay_trees(node)
    load_module(node, PB)
    lay(node, "usr/lib64", LTS)
    folder = tmp_path / "links"
    folder.mkdir()

    link_libraries(node.root, folder)

    versions = {link.name: link.resolve().name for link in folder.iterdir()}
    assert versions["libcuda.so.1"] == f"libcuda.so.{PB}"
    assert versions["libnvidia-ml.so.1"] == f"libnvidia-ml.so.{PB}"
