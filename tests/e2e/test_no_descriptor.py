"""Without a file descriptor nothing is observed: at each call that opens a file, no probe reports anything else."""

from __future__ import annotations

import itertools
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Unavailable
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Host, Nature, Now, Probe, ProbeError, Shortage, Unobserved
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import DriverReading
from gpu_healthcheck.healthcheck.settings.reading import read_settings
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sim.container_runtime import DISTRIBUTIONS
from gpu_healthcheck.sim.no_descriptor import no_descriptor
from gpu_healthcheck.sim.node import SimulatedNode

PROBES = tuple(dict.fromkeys(probe for check in CHECKS if check.nature is Nature.LEVEL for probe in check.needs))
NOW = Now(datetime(2026, 11, 22, tzinfo=UTC), 1000.0)


@pytest.fixture(autouse=True)
def clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_healthcheck.healthcheck.probes.services.now", lambda: NOW)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    with SimulatedNode.create(tmp_path / "node", "p4d.24xlarge") as node:
        node.start_fabric_manager()
        node.start_imex()
        node.install_hami()
        yield node


def read_everywhere(probe: Probe[Any], host: Host) -> None:
    """At each of its openings, alone and with all after it: where none comes after it, that is the same."""
    healthy = probe.read(host)
    for first in itertools.count(1):
        for lasting in (False, True):
            with no_descriptor(first, lasting=lasting) as shortage:
                seen = _read(probe, replace(host, read_once={}))
            assert not shortage.met or seen in (healthy, "Too many open files"), f"opening {first}, lasting {lasting}"
            if not shortage.went_on:
                break
        if not shortage.met:
            return


def _read(probe: Probe[Any], host: Host) -> Any:
    try:
        return probe.read(host)
    except ProbeError as error:
        return str(error).rpartition(": ")[2]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_probe_fails_or_returns_the_facts(node: SimulatedNode, probe: Probe[Any]) -> None:
    def ask_driver() -> DriverReading:
        driver = Driver(node.root, use_loader=False)
        try:
            return replace(driver.read(), read_at=0.0)
        finally:
            driver.end()

    read_everywhere(probe, Host(node.root, ask_driver))


def test_nvml_child_reports_no_present_library_as_missing(node: SimulatedNode) -> None:
    driver, aside = Driver(node.root, use_loader=False), node.root / "aside"
    node.library.rename(aside)
    try:
        assert _cause(driver.read()) == "NvmlLibraryNotFound"
        aside.rename(node.library)
        assert driver.child_pid is not None
        resource.prlimit(driver.child_pid, resource.RLIMIT_NOFILE, (3, 3))

        assert _cause(driver.read()) == "ProbeFailed"
    finally:
        driver.end()


def _cause(look: DriverReading) -> str:
    assert isinstance(look.answer, Unobserved)
    return look.answer.cause.name


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_same_of_each_distributions_runtime(node: SimulatedNode, distribution: str) -> None:
    node.run_kubernetes(distribution)

    read_everywhere(CONTAINER_RUNTIME, Host(node.root))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_same_where_no_kubelet_is_seen(node: SimulatedNode, distribution: str) -> None:
    node.run_kubernetes(distribution)
    node.stop_kubernetes()
    shutil.rmtree(node.root / "proc/2")

    read_everywhere(CONTAINER_RUNTIME, Host(node.root))


def everywhere(work: Callable[[], object]) -> list[object]:
    """Return the results at each call that opens a file, failing alone and with all later ones: value or error."""
    came: list[object] = []
    for lasting in (False, True):
        for first in itertools.count(1):
            with no_descriptor(first, lasting=lasting) as shortage:
                try:
                    what = work()
                except (Shortage, MemoryFileError, ClusterError) as error:
                    what = error
            if not shortage.met:
                break
            came.append(what)
    assert came
    return came


def test_configuration_directory_is_never_a_malformed_one(tmp_path: Path) -> None:
    (tmp_path / "CHECK_INTERVAL").write_text("77")
    (tmp_path / "severity-overrides").write_text("xid 13 = RESET\n")
    healthy = read_settings(tmp_path)

    assert all(isinstance(came, Shortage) or came == healthy for came in everywhere(lambda: read_settings(tmp_path)))


def test_memory_is_never_written_in_part(tmp_path: Path) -> None:
    file, memory = MemoryFile(tmp_path), Memory("machine", "boot", 7)
    assert file.acquire()
    file.write(memory)

    assert all(isinstance(came, Shortage) for came in everywhere(file.read))
    assert all(came is None or isinstance(came, MemoryFileError) for came in everywhere(lambda: file.write(memory)))
    assert file.read() == memory
    file.unlock()
    assert all(isinstance(came, Shortage) for came in everywhere(MemoryFile(tmp_path).acquire))


def test_the_cluster_is_away_and_comes_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        api = ApiStandIn("node", instance_type="p5.48xlarge")
        stack.callback(api.close)
        environment = pytest.MonkeyPatch()
        stack.callback(environment.undo)
        environment.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        cluster = Cluster()

        assert all(isinstance(came, Unavailable) for came in everywhere(lambda: cluster.nodes.read("node")))
        assert cluster.nodes.read("node").name == "node"
