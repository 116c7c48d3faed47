"""Findings about RDMA ports on simulated machines: each begins, and each way that its advice names ends it for good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks import CHECKS, efa_namespaces, rdma_loopback
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.cycles import CYCLES_TO_CONFIRM, JudgedCycle, MemoryRules, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin, passed
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Evidence, Host, Nature, Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles
from gpu_healthcheck.sim.node import SimulatedNode
from tests.examples import MACHINE, MONOTONIC, active_finding, fault, later, memory_with

ROCE = [check for check in CHECKS if check.group == "9-roce"]
LEVELS = [*(check for check in ROCE if check.nature is Nature.LEVEL), efa_namespaces.CHECK]
REASONS = {
    reason.name: reason for check in (*ROCE, efa_namespaces.CHECK, rdma_loopback.CHECK) for reason in check.reasons
}
MESSAGES = [check for check in ROCE if check.name == "mlx5-messages"]
DAY = MemoryRules(monitor_ttl_seconds=86_400.0)
CYCLE_SECONDS = 300.0


class Machine:
    """A simulated machine and the memory of its agent."""

    def __init__(self, node: SimulatedNode, instance_type: str) -> None:
        self.node = node
        self.profile = find_profile(packaged_profiles(), instance_type)
        self.memory = memory_with()
        self.at = 0.0
        self.boots = 0
        self._before: Evidence | None = None

    @property
    def expected(self) -> Expectation:
        return Expectation(self.profile, "", first=self.memory.first)

    @property
    def findings(self) -> list[str]:
        return [f"{one.finding.reason} {one.finding.subject}" for one in self.memory.active]

    def cycle(self, times: int = 1, seconds: float = CYCLE_SECONDS) -> None:
        for _ in range(times):
            self.at += seconds
            seen = read_probes(Host(self.node.root), LEVELS, self._before)
            seen.at = MONOTONIC + self.at
            outcomes = judge(LEVELS, seen, self.expected)
            cycle = JudgedCycle(outcomes, (), seen.at, seen)
            self.memory = after_cycle(self.memory, cycle, later(self.at), DAY)
            self._before = seen

    def log(self, text: str) -> None:
        self.at += 1.0
        record = Record(int(self.at) + 900, MONOTONIC + self.at, 0, text)
        outcomes = judge(MESSAGES, Evidence({RING: (record,)}), self.expected)
        self.memory = after_kernel_log(self.memory, outcomes, later(self.at))

    def reboot(self) -> None:
        self.boots += 1
        self.memory = begin(self.memory, MACHINE, f"boot-{self.boots}", later(self.at))
        self._before = None

    def release(self) -> None:
        at = later(self.at + 1).wall
        rows = [
            Acknowledgement(one.finding.reason, one.finding.subject, one.boot_id, None, at)
            for one in self.memory.active
        ]
        self.memory = after_release(self.memory, Release("ops", "on purpose", at, tuple(rows)), later(self.at))

    def quarantine(self) -> None:
        self.memory = passed(self.memory, later(self.at + 1).wall)


Step = Callable[[Machine], None]


def port(name: str, value: str, index: int = 3) -> Step:
    return lambda machine: machine.node.rdma_port(index, name, value)


def steps(*some: Step) -> Step:
    def run(machine: Machine) -> None:
        for step in some:
            step(machine)

    return run


def down(machine: Machine) -> None:
    machine.node.lose_rdma_link(3)


HALF = range(4)


def half_down(machine: Machine) -> None:
    for index in HALF:
        machine.node.lose_rdma_link(index)


def flap(machine: Machine) -> None:
    for _ in range(3):
        machine.node.lose_rdma_link(3)
        machine.cycle(2)
        up(machine)
        machine.cycle()


def count(machine: Machine) -> None:
    """Let an error counter rise before each of the next check cycles."""
    for number in range(1, CYCLES_TO_CONFIRM + 1):
        machine.node.rdma_port(3, "counters/symbol_error", str(number * 10**5))
        machine.cycle()


def unplug(machine: Machine) -> None:
    machine.node.remove_mlx5(3)


def plug(machine: Machine) -> None:
    machine.node.pci.add_mlx5(machine.node.shape.mlx5[3])


def fewer(machine: Machine) -> None:
    assert machine.profile is not None
    machine.profile = replace(machine.profile, roce=7)


def exclusive(machine: Machine) -> None:
    machine.node.make_rdma_exclusive()


def shared(machine: Machine) -> None:
    machine.node.write_value("sys/module/ib_core/parameters/netns_mode", "Y")


def log(text: str) -> Step:
    return lambda machine: machine.log(f"mlx5_core 0000:5e:00.0: {text}")


def failed_loopback(machine: Machine) -> None:
    """A quarantine found that the port can't write to itself."""
    finding = fault("RdmaLoopbackFailed", Severity.REBOOT, "rdma/mlx5_3")
    active = active_finding(finding, check="rdma-loopback", at=MONOTONIC + machine.at)
    machine.memory = replace(machine.memory, active=(active,))


def wait(hours: float) -> Step:
    return lambda machine: machine.cycle(1, hours * 3600)


def link_up(index: int) -> Step:
    values = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    return steps(*(port(name, value, index) for name, value in values.items()))


up, half_up = link_up(3), steps(*map(link_up, HALF))
slow, fast = port("rate", "200 Gb/sec (2X NDR)"), port("rate", "400 Gb/sec (4X NDR)")
reboot, released, quarantine = Machine.reboot, Machine.release, Machine.quarantine
RECOVERED = log("health recovery succeeded")


class Row(Struct, frozen=True):
    finding: str
    fault: Step
    ends: dict[str, Step]
    instance_type: str = "hgx-h100"
    known: bool = True
    """Whether check cycles observed the healthy machine before."""
    beside: tuple[str, ...] = ()
    """Findings of the same fault."""


ROWS = {
    "port down": Row(
        "RdmaPortDown rdma/mlx5_3",
        down,
        {"cable": up, "reboot": steps(reboot, up), "release": released},
    ),
    "port down before the first check cycle": Row(
        "RdmaPortDown rdma/mlx5_3", down, {"cable": up, "release": released}, known=False
    ),
    "half of the ports down": Row(
        "RdmaFabricDown node",
        half_down,
        {"cable": half_up, "reboot": steps(reboot, half_up), "release": released},
        beside=tuple(f"RdmaPortDown rdma/mlx5_{index}" for index in HALF),
    ),
    "no RDMA device": Row(
        "RdmaPortDown rdma/mlx5_3",
        lambda machine: machine.node.move_rdma_to_a_pod(3),
        {
            "reboot": steps(reboot, unplug_and_plug := steps(unplug, plug)),
            "release": released,
            "driver": unplug_and_plug,
        },
    ),
    "flapping": Row("RdmaPortFlapping rdma/mlx5_3", flap, {"reboot": reboot, "12 hours": wait(12.1)}),
    "slower than before": Row("RdmaRateLow rdma/mlx5_3", slow, {"cable": fast, "release": released}),
    "slower than its peers": Row("RdmaRateLow rdma/mlx5_3", slow, {"cable": fast, "release": released}, known=False),
    "errors": Row("RdmaLinkErrors rdma/mlx5_3", count, {"cable": Machine.cycle}),
    "device gone": Row(
        "RdmaDeviceGone rdma/mlx5_3",
        unplug,
        {"reboot": steps(reboot, plug), "replace": plug, "release": released},
    ),
    "device of a bonded machine gone": Row(
        "RdmaDeviceGone rdma/mlx5_3", unplug, {"reboot": steps(reboot, plug), "release": released}, "dgx-h100"
    ),
    "device of a virtual machine gone": Row(
        "RdmaDeviceGone rdma/mlx5_ib3", unplug, {"reboot": steps(reboot, plug), "release": released}, "vm-h100"
    ),
    "below the profile": Row(
        "RdmaBelowProfile node", unplug, {"profile": fewer, "replace": plug}, "p6e-gb300r.36xlarge", known=False
    ),
    "unrecoverable": Row(
        "Mlx5Unrecoverable rdma/mlx5_3",
        log("health recovery failed"),
        {"recovery": RECOVERED, "reboot": reboot, "release": released, "quarantine": quarantine},
    ),
    "not responding": Row(
        "Mlx5NotResponding rdma/mlx5_3",
        log("device's health compromised - reached miss count"),
        {"recovery": RECOVERED, "reboot": reboot, "release": released, "a day": wait(24.1)},
    ),
    "loopback failed": Row(
        "RdmaLoopbackFailed rdma/mlx5_3",
        failed_loopback,
        {"reboot": reboot, "quarantine": quarantine, "release": released},
    ),
    "exclusive namespaces": Row(
        "EfaNamespacesExclusive node", exclusive, {"shared": shared, "reboot": steps(shared, reboot)}, "p5.48xlarge"
    ),
}


def test_every_finding_about_rdma_ports_is_in_the_table() -> None:
    assert {row.finding.partition(" ")[0] for row in ROWS.values()} == REASONS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_table_has_the_ways_of_the_advice(name: str) -> None:
    row = ROWS[name]
    advice = REASONS[row.finding.partition(" ")[0]].action.lower()
    if row.known and row.instance_type == "hgx-h100":
        named = {way for way in ("reboot", "release", "quarantine") if way in advice}
        assert named <= row.ends.keys()


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, row in ROWS.items() for way in row.ends])
def test_each_way_of_the_advice_ends_the_finding_for_good(name: str, way: str, tmp_path: Path) -> None:
    row = ROWS[name]
    with SimulatedNode.create(tmp_path / "node", row.instance_type) as node:
        machine = Machine(node, row.instance_type)
        if row.known:
            machine.cycle(2)
            assert machine.findings == []
        row.fault(machine)
        if not machine.findings:
            machine.cycle(CYCLES_TO_CONFIRM)
        assert sorted(machine.findings) == sorted([row.finding, *row.beside])

        row.ends[way](machine)
        machine.cycle(CYCLES_TO_CONFIRM + 1)
        assert machine.findings == []


@pytest.mark.parametrize("fault_again", [down, unplug])
def test_a_port_that_was_released_is_judged_again_once_it_is_active(fault_again: Step, tmp_path: Path) -> None:
    with SimulatedNode.create(tmp_path / "node", "hgx-h100") as node:
        machine = Machine(node, "hgx-h100")
        machine.cycle()
        down(machine)
        machine.cycle(CYCLES_TO_CONFIRM)
        machine.release()
        machine.reboot()
        log("health recovery failed")(machine)
        machine.cycle(CYCLES_TO_CONFIRM)
        assert machine.findings == []

        up(machine)
        machine.cycle()
        fault_again(machine)
        machine.cycle(CYCLES_TO_CONFIRM)
        assert len(machine.findings) == 1


def test_a_released_speed_hides_no_lost_link(tmp_path: Path) -> None:
    with SimulatedNode.create(tmp_path / "node", "hgx-h100") as node:
        machine = Machine(node, "hgx-h100")
        machine.cycle()
        slow(machine)
        machine.cycle(CYCLES_TO_CONFIRM)
        machine.release()
        machine.cycle()
        down(machine)
        machine.cycle(CYCLES_TO_CONFIRM)
        assert machine.findings == ["RdmaPortDown rdma/mlx5_3"]
