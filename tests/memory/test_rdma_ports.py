"""Ports of the GPU fabric in the memory: which are added, their outages, and what ends."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import mlx5_messages, roce_ports
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory import reason_names
from gpu_healthcheck.healthcheck.memory.content import dump, parse
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.rdma_ports import MOST_PORTS, after_ports
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    KernelEvent,
    Nature,
    Outcome,
    Probe,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.model.node_facts import LINK, ONCE_HAD, SPEED, EarlierHardware, RdmaPort
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.probes.mlx5 import MLX5, Mlx5
from tests.checks.evidence import RAILS, hgx, mlx5_device, storage_device
from tests.examples import BOOT, MACHINE, MONOTONIC, NOW, WALL, active_finding, fault, later, memory_with

PORT = RdmaPort("mlx5_3", mlx5_device(3).kind, 400.0)
DOWN = mlx5_device(3, state="1: DOWN")
FATAL = "mlx5_core 0000:{}: mlx5_health_try_recover:335:(pid 3112): health recovery failed"
SYNDROME = "mlx5_core 0000:5e:00.0: print_health_info:413:(pid 0): synd 0x8: unrecoverable hardware error"
MISSED = "mlx5_core 0000:5e:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"
UNFINISHED = (
    "mlx5_core 0000:5e:00.0: wait_func:1195:(pid 1967079): ENABLE_HCA(0x104) timeout. Will cause a leak of a command"
    " resource"
)
RECOVERED = "mlx5_core 0000:5e:00.0: health recovery succeeded"


def cycle(memory: Memory, facts: dict[Probe[Any], Any], at: float = 0.0) -> Memory:
    """The memory after a check cycle without findings."""
    look = JudgedCycle((), (), MONOTONIC + at, Evidence(facts, MONOTONIC + at))
    return after_cycle(memory, look, later(at))


def logged(memory: Memory, *lines: tuple[float, str]) -> Memory:
    records = tuple(Record(seq, MONOTONIC + at, 0, text) for seq, (at, text) in enumerate(lines, 900))
    judgements = mlx5_messages.CHECK.judge(Evidence({RING: records}), Expectation(first=memory.first))
    events = tuple(event for event in judgements if isinstance(event, KernelEvent))
    outcome = Outcome("mlx5-messages", "9-roce", events=events)
    return after_kernel_log(memory, [outcome], later(lines[-1][0]))


def ports(memory: Memory) -> dict[str, RdmaPort]:
    return dict(memory.first.rdma or {})


def active(memory: Memory) -> list[tuple[str, str, Severity]]:
    return [(one.finding.reason, one.finding.subject, one.finding.severity) for one in memory.active]


class TestAdded:
    def test_the_active_ports_of_the_fabric(self) -> None:
        known = ports(cycle(memory_with(), hgx(mlx5_device(2, state="1: DOWN"))))
        assert sorted(known) == sorted(set(RAILS) - {RAILS[2]})
        assert known[RAILS[3]] == PORT

    def test_nothing_while_the_ports_can_t_be_read(self) -> None:
        blind = Unobserved(UnobservedCause.named("ProbeFailed"), "x")
        assert cycle(memory_with(), hgx() | {MLX5: blind}).first.rdma is None

    def test_no_port_of_another_kind_later(self) -> None:
        memory = cycle(memory_with(), hgx())
        fabric_is_down = [mlx5_device(index, state="1: DOWN") for index in range(8)]
        storage = [storage_device(index, bonded=False) for index in range(2)]
        assert set(ports(cycle(memory, hgx(*fabric_is_down, *storage), 300))) == set(RAILS)

    def test_a_port_that_joined_a_bond_is_removed(self) -> None:
        memory = cycle(memory_with(), hgx())
        assert set(ports(cycle(memory, hgx(mlx5_device(3, bonded=True)), 300))) == set(RAILS) - {RAILS[3]}

    def test_a_missing_device_stays(self) -> None:
        assert set(ports(cycle(cycle(memory_with(), hgx()), hgx(without=3), 300))) == set(RAILS)

    def test_as_many_as_fit(self) -> None:
        many = tuple(mlx5_device(0, address=f"{index:04x}:00:00.0") for index in range(MOST_PORTS + 9))
        assert len(after_ports(None, Evidence({MLX5: Mlx5(many)}), has_efa=False) or ()) == MOST_PORTS

    def test_none_with_efa(self) -> None:
        assert after_ports({RAILS[3]: PORT}, Evidence(hgx()), has_efa=True) == {}

    def test_the_highest_speed_and_the_present_name(self) -> None:
        memory = cycle(cycle(memory_with(), hgx()), hgx(mlx5_device(3, rate=200.0, name="ibp94s0")), 300)
        assert ports(memory)[RAILS[3]] == replace(PORT, name="ibp94s0")


class TestOutages:
    def test_cycles_count_an_outage_from_25_seconds_on(self) -> None:
        memory = cycle(memory_with(), hgx())
        for at in (300, 310, 320):
            memory = cycle(memory, hgx(DOWN), at)
        assert ports(cycle(memory, hgx(), 330))[RAILS[3]].outages == ()
        memory = cycle(cycle(memory, hgx(DOWN), 330), hgx(), 340)
        assert ports(memory)[RAILS[3]] == replace(PORT, outages=(MONOTONIC + 300,))

    @pytest.mark.parametrize(("seconds", "outages"), [(24.9, 0), (25.0, 1), (9000.0, 1)])
    def test_the_drivers_lines_give_the_exact_time(self, seconds: float, outages: int) -> None:
        memory = cycle(memory_with(), hgx())
        down, up = (f"mlx5_core 0000:5e:00.0 enp94s0np0: Link {word}" for word in ("down", "up"))
        memory = logged(memory, (10.0, down), (10.0 + seconds, up), (10.0 + seconds, up))
        assert len(ports(memory)[RAILS[3]].outages) == outages

    def test_a_line_and_a_cycle_count_the_same_outage_once(self) -> None:
        memory = logged(cycle(memory_with(), hgx()), (290.0, "mlx5_core 0000:5e:00.0 enp94s0np0: Link down"))
        memory = cycle(cycle(memory, hgx(DOWN), 300), hgx(DOWN), 320)
        memory = logged(memory, (325.0, "mlx5_core 0000:5e:00.0 enp94s0np0: Link up"))
        memory = cycle(memory, hgx(), 330)
        assert ports(memory)[RAILS[3]].outages == (MONOTONIC + 290.0,)

    def test_a_net_device_in_a_pod_is_no_outage(self) -> None:
        roce = {"link_layer": "Ethernet", "netdev": "enp94s0"}
        fabric = [mlx5_device(index, **roce) for index in range(8)]
        memory = cycle(memory_with(), hgx(*fabric))
        for at in (300, 310, 330, 900):
            memory = cycle(memory, hgx(*fabric[:3], replace(fabric[3], netdev="", state="1: DOWN"), *fabric[4:]), at)
        assert ports(cycle(memory, hgx(*fabric), 910))[RAILS[3]].outages == ()

    def test_old_ones_are_dropped(self) -> None:
        memory = memory_with(first=EarlierHardware(rdma={RAILS[3]: replace(PORT, outages=(MONOTONIC,))}))
        assert ports(cycle(memory, hgx(), 43_199))[RAILS[3]].outages == (MONOTONIC,)
        assert ports(cycle(memory, hgx(), 43_201))[RAILS[3]].outages == ()

    def test_a_reboot_forgets_them_and_keeps_the_ports(self) -> None:
        port = replace(PORT, outages=(MONOTONIC,), down=(MONOTONIC, MONOTONIC))
        memory = begin(memory_with(first=EarlierHardware(rdma={RAILS[3]: port})), MACHINE, "another boot", NOW)
        assert memory.first.rdma == {RAILS[3]: PORT}

    def test_the_file_keeps_them(self) -> None:
        for rdma in (None, {}, {RAILS[3]: replace(PORT, outages=(12.5, 13.0))}):
            memory = memory_with(first=EarlierHardware(0, {}, 8, rdma))
            assert parse(dump(memory)).first == memory.first


def test_memory_names_the_finding_of_a_slow_port() -> None:
    assert roce_ports.RATE_LOW.name == reason_names.RDMA_RATE_LOW


class TestRelease:
    @pytest.mark.parametrize("reason", ["RdmaPortDown", "RdmaDeviceGone", "RdmaRateLow"])
    def test_a_release_accepts_the_loss_of_that_port_alone(self, reason: str) -> None:
        other = replace(PORT, name="mlx5_4")
        finding = replace(fault(reason, Severity.MONITOR, "rdma/mlx5_3"), source=ONCE_HAD)
        first = EarlierHardware(0, {}, 8, {RAILS[3]: PORT, RAILS[4]: other})
        memory = memory_with(active_finding(finding, Nature.LEVEL, check="roce-ports"), first=first)
        row = Acknowledgement(reason, "rdma/mlx5_3", BOOT, None, WALL)
        memory = after_release(memory, Release("ops", "moved", WALL, (row,)), NOW)
        part = SPEED if reason == "RdmaRateLow" else LINK
        assert memory.active == ()
        assert memory.first == replace(first, rdma={RAILS[3]: replace(PORT, rate=0.0, released=part), RAILS[4]: other})
        assert parse(dump(memory)).first == memory.first


class TestMessages:
    def test_a_device_of_the_fabric_and_its_recovery(self) -> None:
        memory = logged(cycle(memory_with(), hgx()), (5.0, FATAL.format("5e:00.0")))
        assert active(memory) == [("Mlx5Unrecoverable", "rdma/mlx5_3", Severity.REBOOT)]
        assert active(cycle(memory, hgx(), 300)) == active(memory)
        assert active(logged(memory, (9.0, RECOVERED.replace("5e:00.0", "40:00.0")))) == active(memory)
        assert active(logged(memory, (9.0, RECOVERED))) == []

    def test_a_recovery_ends_no_later_message(self) -> None:
        memory = logged(cycle(memory_with(), hgx()), (5.0, RECOVERED), (6.0, FATAL.format("5e:00.0")))
        assert len(active(memory)) == 1

    def test_a_device_of_another_purpose(self) -> None:
        assert active(logged(cycle(memory_with(), hgx()), (5.0, FATAL.format("29:00.1")))) == []

    def test_before_the_first_cycle_it_is_monitor_and_then_settled(self) -> None:
        memory = logged(memory_with(), (5.0, FATAL.format("5e:00.0")), (5.0, FATAL.format("29:00.1")))
        assert {severity for _, _, severity in active(memory)} == {Severity.MONITOR}
        assert active(cycle(memory, hgx(), 10)) == [("Mlx5Unrecoverable", "rdma/mlx5_3", Severity.REBOOT)]
        assert len(active(cycle(memory, hgx() | {MLX5: Unobserved(UnobservedCause.named("X"), "x")}, 10))) == 2

    def test_a_dead_device_of_the_fabric_counts_although_it_never_was_active(self) -> None:
        memory = logged(memory_with(), (5.0, FATAL.format("5e:00.0")))
        assert active(cycle(memory, hgx(DOWN), 10)) == [("Mlx5Unrecoverable", "rdma/mlx5_3", Severity.REBOOT)]

    @pytest.mark.parametrize(
        ("lines", "reasons"),
        [
            (((5.0, MISSED), (5.000_1, SYNDROME)), ["Mlx5Unrecoverable"]),
            (((5.0, SYNDROME), (5.0, MISSED), (70.0, UNFINISHED)), ["Mlx5Unrecoverable"]),
            (((5.0, MISSED), (40.0, FATAL.format("5e:00.0"))), ["Mlx5Unrecoverable"]),
            (((5.0, MISSED), (900.0, SYNDROME)), ["Mlx5Unrecoverable", "Mlx5NotResponding"]),
            (
                ((5.0, MISSED), (5.0, SYNDROME.replace("5e:00.0", "40:00.0"))),
                ["Mlx5Unrecoverable", "Mlx5NotResponding"],
            ),
            (((5.0, MISSED),), ["Mlx5NotResponding"]),
            (((5.0, SYNDROME), (9.0, RECOVERED), (20.0, MISSED)), ["Mlx5NotResponding"]),
            (((5.0, MISSED), (5.0, SYNDROME), (9.0, RECOVERED)), []),
        ],
    )
    def test_one_event_of_a_device_is_one_finding(
        self, lines: tuple[tuple[float, str], ...], reasons: list[str]
    ) -> None:
        memory = cycle(memory_with(), hgx())
        assert [reason for reason, _, _ in active(logged(memory, *lines))] == reasons
        if len(lines) > 1:  # the lines of one event may be read in two batches
            assert [reason for reason, _, _ in active(logged(logged(memory, lines[0]), *lines[1:]))] == reasons

    def test_a_reboot_ends_it(self) -> None:
        memory = logged(cycle(memory_with(), hgx()), (5.0, FATAL.format("5e:00.0")))
        assert active(begin(memory, MACHINE, "another boot", NOW)) == []
