"""Every scenario, seen by the command line on the simulated node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import app
from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of
from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks import CHECKS, gpu_siblings
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.rdma_ports import after_ports
from gpu_healthcheck.healthcheck.model import Evidence, Host, Nature
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition, PodRuntimeClass
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import RuntimeAnswer
from gpu_healthcheck.healthcheck.probes.gpu_pods import GpuPodsReader
from gpu_healthcheck.healthcheck.probes.nvml import driver as nvml_driver
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import DriverReading
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from gpu_healthcheck.healthcheck.probes.pod_resources import ContainerDevices, PodDevices, ResourceDevices
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles
from gpu_healthcheck.healthcheck.verdict.verdict import status_of, worst
from gpu_healthcheck.sim.instance_types import MACHINES, SHAPES
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode
from gpu_healthcheck.sim.scenarios import Scenario, scenarios
from tests.console import typed
from tests.device_files import buildable
from tests.e2e.judged_again import is_judged_again

LEVELS = [check for check in CHECKS if check.nature is Nature.LEVEL]
WINDOW_SECONDS = 300.0
CODES = {"pass": 0, "warn": 0, "fail": 1, "unknown": 2}


ONE_LOOK = [scenario for scenario in scenarios() if scenario.is_seen_by_check]
MORE_THAN_A_LOOK = [scenario for scenario in scenarios() if not scenario.is_seen_by_check]


def had(scenario: Scenario, before: Evidence, at: float) -> EarlierHardware:
    """Return the GPU positions and RDMA ports of the healthy node, with the scenario's outages."""
    places = {
        function.address: GpuPosition(function.numa_node, function.switch)
        for function in before[FUNCTIONS]
        if function.is_gpu
    }
    ports = after_ports(None, before, has_efa=False) or {}
    outages = {name: tuple(at - seconds for seconds in ago) for name, *ago in scenario.outages}
    ports = {address: replace(port, outages=outages.get(port.name, ())) for address, port in ports.items()}
    return EarlierHardware(places=places, rdma=ports)


class Cycles:
    """Check cycles on a node, with the clock of the driver's history and the pods of the scenario."""

    def __init__(self, node: SimulatedNode, scenario: Scenario, deadline_seconds: float = 60.0) -> None:
        self._scenario = scenario
        self._at = 1000.0
        self._driver = Driver(node.root, deadline_seconds, use_loader=False, clock=lambda: self._at)
        self._pods = GpuPodsReader(node.root, lambda _: tuple(self._pods_of(node)))
        answer = convert(scenario.runtime, RuntimeAnswer) if scenario.runtime else None
        self.host = Host(
            node.root,
            self._read,
            ask_container_runtime=(lambda _: answer) if answer else None,
            ask_gpu_pods=lambda: self._pods.read(self._reading),
        )

    def pass_windows(self) -> None:
        for _ in range(self._scenario.windows):
            self._at += WINDOW_SECONDS
            read_probes(self.host, [gpu_siblings.CHECK])
        self._at += WINDOW_SECONDS

    def end(self) -> None:
        self._driver.end()

    def _read(self) -> DriverReading:
        self._reading = self._driver.read()
        return self._reading

    def _pods_of(self, node: SimulatedNode) -> Iterator[PodDevices]:
        for name, indices in self._scenario.pods.items():
            ids = tuple(node.gpus[index].uuid for index in indices)
            yield PodDevices("ml", name, (ContainerDevices("main", (ResourceDevices("nvidia.com/gpu", ids),)),))


def expectation(scenario: Scenario, first: EarlierHardware | None = None) -> Expectation:
    """Return the expectation of the agent."""
    classes = tuple(PodRuntimeClass(*entries) for entries in scenario.runtime_classes)
    return Expectation(
        find_profile(packaged_profiles(), scenario.instance_type),
        scenario.instance_type,
        first=first or EarlierHardware(),
        runtime_classes=classes or None,
    )


def assert_next_cycle_is_the_same(cycles: Cycles, expected: Expectation, before: Evidence | None = None) -> None:
    """Read twice with a second between, and end the cycles. A difference would write the Node at every cycle."""
    results = []
    for seconds in (0.0, 1.0):
        now = read_probes(cycles.host, LEVELS, before)
        now.at += seconds
        results.append([(outcome.findings, outcome.unobserved) for outcome in judge(LEVELS, now, expected)])
    cycles.end()
    assert results[0] == results[1]


@pytest.mark.parametrize("scenario", buildable(ONE_LOOK), ids=lambda scenario: scenario.name)
def test_check_its_evidence_and_the_next_cycles_give_the_scenarios_expected_result(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, evidence = tmp_path / "config", tmp_path / "evidence.json"
    config.mkdir()
    monkeypatch.setitem(vars(nvml_driver), "DEADLINE_SECONDS", 2.0)
    with scenario.build(tmp_path / "node") as node:
        words = ["check", "--json", "--instance-type", scenario.instance_type, "--save-evidence", str(evidence)]
        within = {"HOST_ROOT": str(node.root), "PATH": f"{node.root}/{EFA_PROGRAMS}:{os.environ['PATH']}"}
        done = typed(
            words if scenario.from_within else [*words, "--root", str(node.root)],
            {**os.environ, "CONFIG_DIR": str(config), **(within if scenario.from_within else {})},
        )
        assert_next_cycle_is_the_same(Cycles(node, scenario, 2.0), expectation(scenario))
    record = json.loads(done.stdout)
    seen = {
        "status": record["status"],
        "severity": record["severity"],
        "findings": [f"{finding['reason']} {finding['subject']}" for finding in record["findings"]],
        "unobserved": list(dict.fromkeys(row["cause"] for row in record["unobserved"])),
        "exit code": done.returncode,
    }
    expect = scenario.expect
    assert {
        "status": expect.status,
        "severity": expect.severity,
        "findings": expect.findings,
        "unobserved": expect.unobserved,
        "exit code": CODES[expect.status],
    } == seen
    assert is_judged_again(evidence, record, done.returncode)


@pytest.mark.parametrize("scenario", buildable(MORE_THAN_A_LOOK), ids=lambda scenario: scenario.name)
def test_agents_cycles_give_the_scenarios_expected_result(scenario: Scenario, tmp_path: Path) -> None:
    """The next cycle must give the same. A rate is measured over another time."""
    with SimulatedNode.create(tmp_path / "node", scenario.instance_type) as node:
        cycles = Cycles(node, scenario)
        before = read_probes(cycles.host, CHECKS)
        before.at -= scenario.healthy_before
        scenario.apply_to(node)
        cycles.pass_windows()
        now = read_probes(cycles.host, CHECKS, before)
        expected = expectation(scenario, had(scenario, before, now.at))
        outcomes = judge(CHECKS, now, expected)
        assert_next_cycle_is_the_same(cycles, expected, before)

    findings = [finding for outcome in outcomes for finding in outcome.findings]
    severity = worst(finding.severity for finding in findings)
    unobserved = list(dict.fromkeys(blind.cause.name for outcome in outcomes for blind in outcome.unobserved))
    assert {
        "status": scenario.expect.status,
        "severity": scenario.expect.severity,
        "findings": scenario.expect.findings,
        "unobserved": scenario.expect.unobserved,
    } == {
        "status": status_of(severity, could_not_check=bool(unobserved)),
        "severity": severity.name,
        "findings": [f"{finding.reason} {finding.subject}" for finding in findings],
        "unobserved": unobserved,
    }


def test_every_instance_type_that_is_known_can_be_simulated() -> None:
    assert sorted(SHAPES) == sorted(packaged_profiles())
    assert [kind for kind in SHAPES if fabric_of(kind) is None] == []


@pytest.mark.parametrize("instance_type", [*SHAPES, *MACHINES])
def test_check_finds_nothing_on_a_healthy_node_of_any_instance_type(
    instance_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    with SimulatedNode.create(tmp_path / "node", instance_type) as node:
        done = CliRunner().invoke(app, ["check", "--json", "--root", str(node.root), "--instance-type", instance_type])

    record = json.loads(done.stdout)
    assert (record["status"], record["findings"], record["unobserved"], done.exit_code) == ("pass", [], [], 0)
