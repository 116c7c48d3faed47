"""Fixtures that several folders of tests share: simulated nodes, and the real control plane, started once a run."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from gpu_healthcheck.sim import containerd
from gpu_healthcheck.sim.control_plane import ControlPlane, binaries, install, install_device_taints
from gpu_healthcheck.sim.node import SimulatedNode
from tests import tiers
from tools.go_programs.build import NoProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# The same examples at every run, and no example fails for a slow machine; `--hypothesis-profile=default` looks further.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("steady")


_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


def pytest_configure() -> None:
    tiers.guard()
    _make_nodes_in_memory()
    _hear_ctrl_c()


def _make_nodes_in_memory() -> None:
    """Simulated nodes are more than a thousand files each, ten times as slow to make on a disk.

    Not where that is small or may not hold a driver's library, as in most containers.
    """
    if _IN_MEMORY.is_dir():
        about = os.statvfs(_IN_MEMORY)
        if about.f_bavail * about.f_frsize >= _ROOM_BYTES and not about.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))


def _hear_ctrl_c() -> None:
    """In the background of a script it is ignored, and all that a test starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected objects live to the end: garbage collection would take a third of the collection's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test gets its tier, and the process that it shares with others."""
    for test in items:
        tiers.mark(test)
        if (group := tiers.group(test)) is not None:
            test.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items.sort(key=tiers.turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with tiers.running(item):
        return (yield)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[str], SimulatedNode]]:
    """Simulated nodes of any instance type, let go of at the end of the test."""
    nodes: list[SimulatedNode] = []

    def make(instance_type: str) -> SimulatedNode:
        nodes.append(SimulatedNode.create(tmp_path / f"node-{len(nodes)}", instance_type))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[[str], SimulatedNode]) -> SimulatedNode:
    """A healthy p5.48xlarge."""
    return make_node("p5.48xlarge")


@pytest.fixture
def short_root() -> Iterator[Path]:
    """A folder of so short a name that a socket fits below it: its path may have 107 characters (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="gh-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """The folder of etcd, kube-apiserver and their kin, built where they are not there yet."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    try:
        with capture.global_and_fixture_disabled():  # a first build takes minutes and says so
            return binaries()
    except NoProgramError as error:
        tiers.cannot_run(f"NOT TESTED against a real kube-apiserver: {error}")


@pytest.fixture(scope="session")
def control_plane(programs: Path) -> Iterator[ControlPlane]:
    """An etcd and a kube-apiserver (and a controller-manager, where there is one) on loopback, empty at first."""
    with ControlPlane(controllers=(programs / "kube-controller-manager").is_file()) as plane:
        yield plane


@pytest.fixture(scope="session")
def real_containerd(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """The program of a release of containerd, built where it is not there yet."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None

    def program(release: str) -> Path:
        try:
            with capture.global_and_fixture_disabled():
                return containerd.program(release)
        except NoProgramError as error:
            tiers.cannot_run(f"NOT TESTED against a real containerd {release}: {error}")

    return program


@pytest.fixture(scope="session")
def controllers(control_plane: ControlPlane) -> ControlPlane:
    """The same, for tests that need the controller-manager."""
    if not control_plane.has_controllers:
        tiers.cannot_run("NOT TESTED: KUBEBUILDER_ASSETS has no kube-controller-manager; unset it to use our build")
    return control_plane


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with kubernetes/manifests/ applied and its policies acting."""
    install(control_plane)
    return control_plane


@pytest.fixture(scope="session")
def device_taints(installed: ControlPlane) -> ControlPlane:
    """The same, where agents may taint devices."""
    if not (installed.has_device_taints and installed.has_controllers):
        tiers.cannot_run("NOT TESTED: Kubernetes up to 1.36 does not serve DeviceTaintRules of resource.k8s.io/v1")
    install_device_taints(installed)
    return installed
