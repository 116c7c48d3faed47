"""Whatever stands in a file that tells of the container runtime, the look at it ends with facts that can be judged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Host, ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME, read_container_runtime
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ContainerRuntime
from gpu_healthcheck.sim.container_runtime import DISTRIBUTIONS
from gpu_healthcheck.sim.node import SimulatedNode
from tests.checks.any_facts import is_in_order
from tests.fuzz.damage import byte_damages, damaged

GROUP = [check for check in CHECKS if check.group == "7-container-runtime"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    """One node for all: each test restores the files that it breaks."""
    with SimulatedNode.create(tmp_path_factory.mktemp("damaged") / "node", "g5.xlarge") as node:
        yield node


@pytest.fixture(params=["kubeadm", "k3s", "microk8s", "two-containerds", "openshift", "docker"], scope="module")
def distribution(request: pytest.FixtureRequest, node: SimulatedNode) -> str:
    name: str = request.param
    node.run_kubernetes(name)
    return name


def runtime_of(root: Path) -> ContainerRuntime | None:
    """The facts, after every check of the group has judged them."""
    try:
        facts = read_container_runtime(Host(root))
    except ProbeError:
        return None
    for check in GROUP:
        is_in_order(check, list(check.judge(Evidence({CONTAINER_RUNTIME: facts}, 0.0), Expectation())))
    return facts


def files_of(root: Path, distribution: str) -> list[Path]:
    processes = sorted(path for path in root.glob("proc/9*/**/*") if path.is_file() and not path.is_symlink())
    return [root / "proc/uptime", *(root / path for path in DISTRIBUTIONS[distribution].files), *processes]


def links_and_folders_of(root: Path, distribution: str) -> list[Path]:
    """Return the folders above the files, and the links and folders of the kernel."""
    files = DISTRIBUTIONS[distribution].files
    above = {folder for path in files for folder in (root / path).parents if folder.is_relative_to(root)}
    kernels = {path for path in root.glob("proc/9*/**/*") if path.is_symlink() or path.is_dir()}
    return sorted(above - {root} | kernels | {root / "proc", root / "proc/1/ns", root / "proc/1/ns/mnt"})


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_to_any_file_leaves_facts(distribution: str, node: SimulatedNode, data: st.DataObject) -> None:
    root = node.root
    file = data.draw(st.sampled_from(files_of(root, distribution)))
    whole = file.read_bytes()
    try:
        file.write_bytes(damaged(whole, data.draw(st.lists(byte_damages, max_size=3))))
        seen = runtime_of(root)
    finally:
        file.write_bytes(whole)
    assert seen is None or (seen.known_from + seen.socket).isprintable()


@pytest.mark.parametrize("kind", ["loop", "outside", "folder", "pipe", "nothing", "long"])
def test_anything_else_in_the_place_of_a_file_leaves_facts(distribution: str, node: SimulatedNode, kind: str) -> None:
    root = node.root
    for file in [*files_of(root, distribution), *links_and_folders_of(root, distribution)]:
        aside = file.with_name("aside")
        file.rename(aside)
        match kind:
            case "loop":
                file.symlink_to(file.name)
            case "outside":
                file.symlink_to("/dev/zero")
            case "folder":
                file.mkdir()
            case "pipe":
                os.mkfifo(file)
            case "long":
                file.write_bytes(b"a" * (1 << 21))
        try:
            seen = runtime_of(root)
        finally:
            file.rmdir() if kind == "folder" else file.unlink(missing_ok=True)
            aside.rename(file)
        assert seen is None or seen.why_none or seen.path
