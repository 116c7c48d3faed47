"""Short slowdowns of a GPU over hours, from the driver's counters to the findings of the memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gpu_healthcheck.healthcheck.checks import clocks
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Evidence
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML
from gpu_healthcheck.sim.node import SimulatedNode
from tests.checks.evidence import P5
from tests.examples import later, memory_with

INTERVAL = 300.0
COUNTERS = {"ClocksThermalSlowdown": 270, "PowerBrake": 271, "ThermalThrottling": 269}
BUSY, IDLE = "100 166000 99", "100 166000 0"


class Agent:
    """Check cycles of one GPU's clocks, every five minutes of an invented clock."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.seconds = 1000.0
        self.driver = Driver(node.root, use_loader=False, clock=lambda: self.seconds)
        self.before: Evidence | None = None
        self.memory: Memory = memory_with()
        self.counts = dict.fromkeys(COUNTERS, 0.0)

    def restart(self) -> None:
        self.driver.end()
        self.driver = Driver(self.node.root, use_loader=False, clock=lambda: self.seconds)
        self.before = None

    def cycle(self, shares: Mapping[str, float] | None = None, samples: str = BUSY) -> list[str]:
        """Return the findings after one more interval, in which the clocks were reduced for these shares of it."""
        self.seconds += INTERVAL
        for reason, field in COUNTERS.items():
            self.counts[reason] += (shares or {}).get(reason, 0.0) * INTERVAL * 1e9
            self.node.write_value(f"nvml/gpu3/field/{field}", int(self.counts[reason]))
        self.node.write_value("nvml/gpu3/samples/1", samples)
        evidence = Evidence({NVML: self.driver.read()}, self.seconds, self.before)
        self.before = evidence
        outcomes = judge([clocks.CHECK], evidence, P5)
        self.memory = after_cycle(self.memory, JudgedCycle(outcomes), later(self.seconds))
        return [active.finding.reason for active in self.memory.active]


@pytest.fixture
def agent(node: SimulatedNode) -> Iterator[Agent]:
    node.write_value("nvml/driver_version", "580.95.05")
    agent = Agent(node)
    yield agent
    agent.driver.end()


@pytest.mark.parametrize("reason", ["ClocksThermalSlowdown", "PowerBrake"])
def test_pulses_that_no_reading_of_the_bits_meets_are_found_and_end(agent: Agent, reason: str) -> None:
    agent.cycle()
    found = [agent.cycle({reason: 0.06}) for _ in range(4)]

    assert found == [[], [reason], [reason], [reason]]
    assert agent.cycle({reason: 0.04}) == []


def test_heat_that_the_driver_reacts_to_is_found_over_ten_minutes(agent: Agent) -> None:
    agent.cycle()
    found = [agent.cycle({"ThermalThrottling": share}) for share in (0.3, 0.3, 0.05, 0.05)]

    assert found == [[], ["ThermalThrottling"], [], []]


def test_a_restart_of_the_agent_ends_and_finds_nothing(agent: Agent) -> None:
    agent.cycle()
    shares = {"PowerBrake": 0.1, "ThermalThrottling": 0.3}
    found = [agent.cycle(shares) for _ in range(2)]
    agent.restart()
    found += [agent.cycle(shares) for _ in range(4)]

    both = ["PowerBrake", "ThermalThrottling"]
    assert [sorted(names) for names in found] == [[], both, both, both, both, both]


def test_counters_that_a_reset_sets_to_zero_are_measured_anew(agent: Agent) -> None:
    agent.cycle()
    for _ in range(3):
        agent.cycle({"PowerBrake": 0.1})
    agent.counts = dict.fromkeys(COUNTERS, 0.0)

    assert agent.cycle() == []
    assert [agent.cycle({"PowerBrake": 0.1}) for _ in range(3)] == [[], ["PowerBrake"], ["PowerBrake"]]


def test_moving_work_away_ends_it(agent: Agent) -> None:
    agent.cycle()
    for _ in range(3):
        agent.cycle({"PowerBrake": 0.1, "ThermalThrottling": 0.3})

    assert agent.cycle(samples=IDLE) == []
