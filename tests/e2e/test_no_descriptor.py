"""Without a file descriptor nobody has looked: at whichever opening they end, no probe tells of something else."""

from __future__ import annotations

import itertools
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from healthcheck.checks import CHECKS
from healthcheck.model import Host, Nature, Now, Probe, ProbeError, Unobserved
from healthcheck.probes.nvml import DriverLook
from healthcheck.probes.nvml_driver import Driver
from healthcheck.probes.runtime.container_runtime import CONTAINER_RUNTIME
from sim.container_runtime import DISTRIBUTIONS
from sim.no_descriptor import no_descriptor
from sim.node import SimulatedNode

PROBES = tuple(dict.fromkeys(probe for check in CHECKS if check.nature is Nature.LEVEL for probe in check.needs))
NOW = Now(datetime(2026, 11, 22, tzinfo=UTC), 1000.0)


@pytest.fixture(autouse=True)
def clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("services", "runtime.container_runtime"):
        monkeypatch.setattr(f"healthcheck.probes.{module}.now", lambda: NOW)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    with SimulatedNode.create(tmp_path / "node", "p4d.24xlarge") as node:
        node.start_fabric_manager()
        node.start_imex()
        yield node


def read_everywhere(probe: Probe[Any], host: Host) -> None:
    """At each of its openings, alone and with all after it."""
    healthy = probe.read(host)
    for lasting in (False, True):
        for first in itertools.count(1):
            with no_descriptor(first, lasting=lasting) as shortage:
                seen = _read(probe, replace(host, read_once={}))
            if not shortage.met:
                break
            assert seen in (healthy, "Too many open files"), f"opening {first}, lasting {lasting}"


def _read(probe: Probe[Any], host: Host) -> Any:
    try:
        return probe.read(host)
    except ProbeError as error:
        return str(error).rpartition(": ")[2]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_fails_or_sees_what_there_is(node: SimulatedNode, probe: Probe[Any]) -> None:
    def ask_driver() -> DriverLook:
        driver = Driver(node.root, use_loader=False)
        try:
            return driver.look()
        finally:
            driver.end()

    read_everywhere(probe, Host(node.root, ask_driver))


def test_the_child_that_asks_nvml_takes_no_library_for_missing(node: SimulatedNode) -> None:
    driver, aside = Driver(node.root, use_loader=False), node.root / "aside"
    node.library.rename(aside)
    try:
        assert _cause(driver.look()) == "NvmlLibraryNotFound"
        aside.rename(node.library)
        assert driver.child_pid is not None
        resource.prlimit(driver.child_pid, resource.RLIMIT_NOFILE, (3, 3))

        assert _cause(driver.look()) == "ProbeFailed"
    finally:
        driver.end()


def _cause(look: DriverLook) -> str:
    assert isinstance(look.answer, Unobserved)
    return look.answer.cause


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
