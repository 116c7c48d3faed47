"""Damaged files: each probe reports its unobserved parts, and no device counts as missing.

The kernel itself never writes such files. Captured trees, full tables of open files and dying devices come close.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Host,
    Probe,
    ProbeError,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition
from gpu_healthcheck.healthcheck.probes.efa.infiniband import ERROR_COUNTERS, KEEP_ALIVES, RDMA
from gpu_healthcheck.healthcheck.probes.kernel_log import RING
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver, driver_version, library_versions, sees_every_process
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpus
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from gpu_healthcheck.healthcheck.probes.services import SERVICES
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles
from gpu_healthcheck.sim.node import FABRIC_MANAGER, SimulatedNode
from gpu_healthcheck.sim.pci_tree import DEVICE_COUNTERS, PORT_COUNTERS
from tests.checks.any_facts import LEVEL_CHECKS, is_in_order

UNREAD = {*PORT_COUNTERS, *DEVICE_COUNTERS, "state"} - {*ERROR_COUNTERS, KEEP_ALIVES}
UNREADABLE = ("a directory", "a loop", "an error")
"""What makes reading fail otherwise than for something that is not there."""
HIDING = ("nothing", "empty", "one byte", "junk", "huge", "a link to nowhere", "a pipe")


@dataclass(frozen=True)
class Stage:
    node: SimulatedNode
    seen: dict[Probe[Any], Any]
    """The healthy node's."""
    expected: Expectation
    paths: tuple[str, ...]
    aside: Path

    def read(self) -> Evidence:
        """Run a cycle without the child: the NVML answer stays, the files around it are read."""
        host = Host(self.node.root, self._driver_look)
        seen = {probe: _read(probe, host) for probe in self.seen if probe is not RING}
        return Evidence({**seen, RING: ()}, 1010.0, Evidence(self.seen, 1000.0))

    def _driver_look(self) -> DriverReading:
        root, healthy = self.node.root, self.seen[NVML]
        assert isinstance(healthy, DriverReading)
        return replace(
            healthy,
            module_version=driver_version(root),
            library_versions=library_versions(root),
            sees_every_process=sees_every_process(root),
        )

    @contextmanager
    def damaged(self, damages: Sequence[tuple[str, str]]) -> Iterator[None]:
        undone: list[tuple[Path, Path]] = []
        try:
            for number, (path, kind) in enumerate(damages):
                whole = self.node.root / path
                if not os.path.lexists(whole):
                    continue
                kept = self.aside / str(number)
                whole.rename(kept)
                undone.append((whole, kept))
                _put(kind, whole)
            yield
        finally:
            for whole, kept in reversed(undone):
                _remove(whole)
                kept.rename(whole)


def _read(probe: Probe[Any], host: Host) -> Any:
    """Whatever else than ProbeError it raises is its own mistake."""
    try:
        return probe.read(host)
    except ProbeError as error:
        return Unobserved(UnobservedCause.named("ProbeFailed"), str(error))


def _put(kind: str, path: Path) -> None:
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "one byte":
            path.write_bytes(b"0")
        case "junk":
            path.write_bytes(bytes(range(256)) * 8)
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case "a directory":
            path.mkdir()
        case "a loop":
            path.symlink_to(path)
        case "an error":  # at offset 0 there is no memory: EIO, which also root gets
            path.symlink_to("/proc/self/mem")
        case "a link to nowhere":
            path.symlink_to("nowhere")
        case "a pipe":
            os.mkfifo(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("damage")
    with SimulatedNode.create(folder / "node", "p5.48xlarge") as node:
        driver = Driver(node.root, use_loader=False)
        evidence = read_probes(Host(node.root, driver.read), CHECKS)
        driver.end()
        assert isinstance(evidence[NVML].answer, Gpus)
        places = {
            function.address: GpuPosition(function.numa_node, function.switch)
            for function in evidence[FUNCTIONS]
            if function.is_gpu
        }
        efa = len(evidence[RDMA].efa)
        profile = find_profile(packaged_profiles(), node.instance_type)
        expected = Expectation(profile, node.instance_type, first=EarlierHardware(efa, places), efa_allocatable=efa)
        (folder / "aside").mkdir()
        seen = {probe: evidence[probe] for probe in evidence.probes}
        yield Stage(node, seen, expected, tuple(sorted(_paths(node.root))), folder / "aside")


def _paths(root: Path) -> Iterator[str]:
    for top in ("sys", "proc", "var/log", "etc"):
        for folder, folders, files in os.walk(root / top):
            yield from (os.path.relpath(f"{folder}/{name}", root) for name in {*folders, *files} - UNREAD)


damages = st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from(HIDING + UNREADABLE)), min_size=1, max_size=4)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(chosen=damages)
def test_no_damage_is_a_device_that_is_missed(stage: Stage, chosen: list[tuple[int, str]]) -> None:
    done = [(stage.paths[place % len(stage.paths)], kind) for place, kind in chosen]
    with stage.damaged(done):
        seen = stage.read()

    for reason in _faults(stage, seen):
        assert any(_may_hide(stage, path, kind, reason) for path, kind in done), (reason, done)


def _faults(stage: Stage, seen: Evidence) -> set[str]:
    """The reasons that call for more than watching."""
    reasons = set()
    for check in LEVEL_CHECKS:
        if any(seen.unread(probe) for probe in check.needs):
            continue
        findings = list(check.judge(seen, stage.expected))
        is_in_order(check, findings)
        reasons |= {
            finding.reason
            for finding in findings
            if isinstance(finding, Finding) and finding.severity >= Severity.RESET
        }
    return reasons


def _may_hide(stage: Stage, path: str, kind: str, reason: str) -> bool:
    """Whether the tree no longer shows the missing object: a process, or an EFA function or its RDMA device.

    Never for a file that exists and could not be read.
    """
    whole = stage.node.root / path
    if kind in UNREADABLE and whole.is_file():
        return False
    if reason == "FabricManagerNotRunning":
        return path.startswith("proc/")
    return reason == "EfaCountLow" and path.startswith("sys/")


@pytest.mark.parametrize("kind", UNREADABLE)
def test_unread_gpu_is_never_missing(stage: Stage, kind: str) -> None:
    """Each file that decides on a device or a process."""
    gpu, efa = stage.node.gpus[0].address, stage.node.shape.efa_addresses[0]
    links = [f"sys/bus/pci/devices/{address}" for address in (gpu, efa)]
    folders = [os.path.relpath((stage.node.root / link).resolve(), stage.node.root) for link in links]
    manager = next(entry.pid for entry in stage.seen[SERVICES].running if entry.name == FABRIC_MANAGER)
    files = [f"{folder}/{name}" for folder in folders for name in ("vendor", "device", "class")]

    for path in [*files, f"proc/{manager}/comm", "proc/2/comm", "proc/uptime"]:
        with stage.damaged([(path, kind)]):
            assert _faults(stage, stage.read()) == set(), path


@pytest.mark.parametrize("folder", ["sys/bus/pci/devices", "sys/class/infiniband", "sys/module", "proc"])
def test_thousands_of_malformed_names_hide_no_other(stage: Stage, folder: str) -> None:
    odd = [stage.node.root / folder / os.fsdecode(b"zz \xff\n%d" % number) for number in range(5000)]
    for name in odd:
        name.mkdir()
    try:
        seen = stage.read()
    finally:
        for name in odd:
            name.rmdir()

    assert (_faults(stage, seen), [probe.name for probe in stage.seen if seen.unread(probe)]) == (set(), [])
