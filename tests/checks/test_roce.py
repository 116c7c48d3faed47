"""The GPU fabric of mlx5 ports: which ports count, and the findings about them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks import roce_count, roce_errors, roce_ports
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.roce_errors import MOST_PER_SECOND
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Probe,
    TooEarly,
    Unobserved,
)
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD, EarlierHardware, RdmaPort
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA
from gpu_healthcheck.healthcheck.probes.mlx5 import (
    CARRIER_CHANGES,
    HARDWARE_COUNTERS,
    MLX5,
    PORT_COUNTERS,
    Mlx5,
    Mlx5Device,
)
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import HGX, P5, RAILS, efa_functions, finds, hgx, mlx5_device, rdma, storage_device

DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": 0.0, "has_gid": False}
ETHERNET = {"link_layer": "Ethernet"}
PORTS = {RAILS[index]: RdmaPort(f"mlx5_{index}", mlx5_device(index).kind, 400.0) for index in range(8)}
HAD = replace(HGX, first=EarlierHardware(rdma=PORTS))
GB300R = Expectation(InstanceProfile("p6e-gb300r.36xlarge", 4, 0, True, "", 8), "p6e-gb300r.36xlarge")
DETAILS = "port 1 is 1: DOWN, 2: Polling"


def names(words: list[Judgement]) -> list[str]:
    return [f"{word.reason} {word.subject}" for word in words if isinstance(word, Finding)]


def had(**ports: RdmaPort) -> Expectation:
    """Expect the ports of an HGX H100, with these instead of theirs by device name."""
    known = {address: ports.get(port.name, port) for address, port in PORTS.items()}
    return replace(HGX, first=EarlierHardware(rdma=known))


class TestPorts:
    @pytest.mark.parametrize("expected", [HGX, HAD])
    def test_a_healthy_machine_has_no_finding(self, expected: Expectation) -> None:
        assert finds(roce_ports.CHECK, expected, hgx()) == []

    def test_a_port_that_was_active_and_is_not_is_down(self) -> None:
        (finding,) = finds(roce_ports.CHECK, HAD, hgx(mlx5_device(3, **DOWN)))
        assert isinstance(finding, Finding)
        seen = (finding.reason, finding.subject, finding.detail, finding.source, finding.flickers)
        assert seen == ("RdmaPortDown", "rdma/mlx5_3", DETAILS, ONCE_HAD, True)

    def test_packets_show_that_it_was_active(self) -> None:
        assert names(finds(roce_ports.CHECK, HGX, hgx(mlx5_device(3, **DOWN, has_received=True)))) == [
            "RdmaPortDown rdma/mlx5_3"
        ]

    def test_a_port_that_never_was_active_is_silent(self) -> None:
        assert finds(roce_ports.CHECK, HGX, hgx(mlx5_device(3, **DOWN))) == []
        known = {address: port for address, port in PORTS.items() if address != RAILS[3]}
        expected = replace(HGX, first=EarlierHardware(rdma=known))
        assert finds(roce_ports.CHECK, expected, hgx(mlx5_device(3, **DOWN))) == []

    @pytest.mark.parametrize("state", ["2: INIT", "3: ARMED", "0: NOP", "", "\N{SNOWMAN}", "44: ACTIVE"])
    def test_any_state_but_active_is_down(self, state: str) -> None:
        assert names(finds(roce_ports.CHECK, HAD, hgx(mlx5_device(3, state=state)))) == ["RdmaPortDown rdma/mlx5_3"]

    def test_active_with_deferred_traffic_is_active(self) -> None:
        assert finds(roce_ports.CHECK, HAD, hgx(mlx5_device(3, state="5: ACTIVE_DEFER"))) == []

    @pytest.mark.parametrize(
        "device",
        [
            storage_device(0, **DOWN, has_received=True),
            mlx5_device(3, **DOWN, has_received=True, other_purpose=True),
            mlx5_device(3, **DOWN, has_received=True, bonded=True),
        ],
    )
    def test_a_device_of_another_purpose_is_never_judged(self, device: Mlx5Device) -> None:
        assert finds(roce_ports.CHECK, HAD, hgx(device)) == []

    def test_a_fabric_of_bonds_is_one(self) -> None:
        bonds = [mlx5_device(index, **ETHERNET, bonded=True) for index in range(8)]
        seen = hgx(*bonds[:7], replace(bonds[7], **DOWN, has_received=True))
        assert names(finds(roce_ports.CHECK, HGX, seen)) == ["RdmaPortDown rdma/mlx5_7"]

    def test_the_known_ports_count_although_most_are_down(self) -> None:
        seen = hgx(*(mlx5_device(index, **DOWN) for index in range(8)))
        every_port = [f"RdmaPortDown rdma/mlx5_{index}" for index in range(8)]
        assert names(finds(roce_ports.CHECK, HAD, seen)) == [*every_port, "RdmaFabricDown node"]

    @pytest.mark.parametrize(
        ("ports", "down", "found"),
        [
            (8, 3, False),
            (8, 4, True),
            (8, 8, True),
            (7, 3, False),
            (7, 4, True),
            (2, 1, False),
            (2, 2, True),
            (1, 1, False),
        ],
    )
    def test_half_of_the_ports_down_is_a_fault_of_the_node(self, ports: int, down: int, found: bool) -> None:
        known = dict(list(PORTS.items())[:ports])
        expected = replace(HGX, first=EarlierHardware(rdma=known))
        seen = hgx(*(mlx5_device(index, **DOWN) for index in range(down)))
        seen[MLX5] = Mlx5(seen[MLX5].devices[:ports])
        findings = finds(roce_ports.CHECK, expected, seen)
        assert ("RdmaFabricDown node" in names(findings)) is found
        if found:
            assert f"{down} of {ports} ports of the GPU fabric down" in str(findings)

    def test_ports_that_could_not_be_checked_are_not_down(self) -> None:
        down = [mlx5_device(index, **DOWN) for index in range(3)]
        silent = [mlx5_device(index, state="", error="state: Input/output error") for index in range(3, 8)]
        assert "RdmaFabricDown node" not in names(finds(roce_ports.CHECK, HAD, hgx(*down, *silent)))

    def test_without_its_rdma_device_a_port_is_down_while_pci_shows_it(self) -> None:
        seen = hgx()
        seen[MLX5] = Mlx5(tuple(device for device in seen[MLX5].devices if device.name != "mlx5_3"))
        assert names(finds(roce_ports.CHECK, HAD, seen)) == ["RdmaPortDown rdma/mlx5_3"]
        seen[FUNCTIONS] = tuple(
            replace(function, driver="vfio-pci") if function.address == RAILS[3] else function
            for function in seen[FUNCTIONS]
        )
        assert finds(roce_ports.CHECK, HAD, seen) == []

    @pytest.mark.parametrize(
        ("exclusive", "holders", "expected"),
        [
            (True, ("team/job-0",), ["RdmaDeviceInPod rdma/mlx5_3"]),
            (True, None, ["RdmaDeviceInPod rdma/mlx5_3"]),
            (True, (), ["RdmaPortDown rdma/mlx5_3"]),
            (False, ("team/job-0",), ["RdmaPortDown rdma/mlx5_3"]),
        ],
    )
    def test_a_pod_may_have_a_missing_device_in_exclusive_mode(
        self, exclusive: bool, holders: tuple[str, ...] | None, expected: list[str]
    ) -> None:
        seen = hgx()
        devices = tuple(device for device in seen[MLX5].devices if device.name != "mlx5_3")
        seen[MLX5] = Mlx5(devices, True, holders, exclusive)
        words = finds(roce_ports.CHECK, HAD, seen)
        blind = [f"{word.cause.name} {word.subject}" for word in words if isinstance(word, Unobserved)]
        assert [*blind, *names(words)] == expected

    def test_a_roce_port_without_its_net_device_is_not_judged(self) -> None:
        away = mlx5_device(3, **DOWN, **ETHERNET, netdev="")
        assert finds(roce_ports.CHECK, HAD, hgx(away)) == [
            TooEarly("its net device is in the network namespace of a pod", "rdma/mlx5_3")
        ]
        assert names(finds(roce_ports.CHECK, HAD, hgx(replace(away, netdev="enp94s0")))) == ["RdmaPortDown rdma/mlx5_3"]

    def test_a_device_that_does_not_answer_could_not_be_checked(self) -> None:
        (word,) = finds(roce_ports.CHECK, HAD, hgx(mlx5_device(3, state="", error="state: Input/output error")))
        assert isinstance(word, Unobserved)
        assert (word.cause.name, word.subject) == ("RdmaNotAnswering", "rdma/mlx5_3")

    @pytest.mark.parametrize(
        ("rate", "found"), [(400.0, False), (800.0, False), (200.0, True), (2.5, True), (0.0, False)]
    )
    @pytest.mark.parametrize("expected", [HGX, HAD])
    def test_a_port_slower_than_before_or_than_its_peers(self, expected: Expectation, rate: float, found: bool) -> None:
        words = names(finds(roce_ports.CHECK, expected, hgx(mlx5_device(3, rate=rate))))
        assert words == (["RdmaRateLow rdma/mlx5_3"] if found else [])

    def test_no_speed_is_usual_if_half_of_the_ports_have_it(self) -> None:
        assert finds(roce_ports.CHECK, HGX, hgx(*(mlx5_device(index, rate=200.0) for index in range(4)))) == []

    @pytest.mark.parametrize(("ago", "found"), [((43_000, 9, 8), True), ((43_300, 9, 8), False), ((9, 8), False)])
    def test_three_outages_in_twelve_hours_are_flapping(self, ago: tuple[float, ...], found: bool) -> None:
        port = replace(PORTS[RAILS[3]], outages=tuple(50_000.0 - seconds for seconds in ago))
        words = roce_ports.CHECK.judge(Evidence(hgx(), 50_000.0), had(mlx5_3=port))
        assert names(list(words)) == (["RdmaPortFlapping rdma/mlx5_3"] if found else [])


class TestCount:
    def test_a_device_gone_from_pci(self) -> None:
        (finding,) = finds(roce_count.CHECK, HAD, hgx(without=5))
        assert isinstance(finding, Finding)
        assert (finding.reason, finding.subject, finding.source) == ("RdmaDeviceGone", "rdma/mlx5_5", ONCE_HAD)
        assert finds(roce_ports.CHECK, HAD, hgx(without=5)) == []

    def test_missing_driver_hides_no_device(self) -> None:
        seen = hgx(without=5)
        seen[MLX5] = replace(seen[MLX5], driver_loaded=False)
        assert finds(roce_count.CHECK, HAD, seen) == []

    def test_device_of_a_virtual_machine_is_not_missing(self) -> None:
        seen = hgx()
        seen[MLX5] = Mlx5(tuple(device for device in seen[MLX5].devices if device.name != "mlx5_5"))
        seen[FUNCTIONS] = tuple(
            replace(each, driver="vfio-pci") if each.address == RAILS[5] else each for each in seen[FUNCTIONS]
        )
        assert finds(roce_count.CHECK, HAD, seen) == []

    @pytest.mark.parametrize(("roce", "gone"), [(8, True), (9, True), (7, False)])
    def test_a_smaller_number_in_the_profile_accepts_the_loss(self, roce: int, gone: bool) -> None:
        only = hgx(without=5)
        only[MLX5] = Mlx5(only[MLX5].devices[:7])
        only[FUNCTIONS] = only[FUNCTIONS][:7]
        expected = replace(GB300R, profile=InstanceProfile("x", 4, 0, True, "", roce), first=HAD.first)
        assert names(finds(roce_count.CHECK, expected, only)) == (["RdmaDeviceGone rdma/mlx5_5"] if gone else [])

    @pytest.mark.parametrize(("number", "found"), [(8, False), (9, False), (7, True), (1, True), (0, False)])
    def test_below_the_profile(self, number: int, found: bool) -> None:
        seen = hgx()
        seen[MLX5] = Mlx5(seen[MLX5].devices[:number])
        seen[FUNCTIONS] = seen[FUNCTIONS][:number]
        assert names(finds(roce_count.CHECK, GB300R, seen)) == (["RdmaBelowProfile node"] if found else [])

    def test_storage_adapters_do_not_hide_a_lost_one(self) -> None:
        expected = replace(HGX, profile=InstanceProfile("x", 8, 0, True, "", 8))
        assert names(finds(roce_count.CHECK, expected, hgx(without=5))) == ["RdmaBelowProfile node"]
        assert names(finds(roce_count.CHECK, expected, hgx())) == []


class TestNone:
    @pytest.mark.parametrize("check", [roce_count.CHECK, roce_ports.CHECK, roce_errors.CHECK], ids=lambda one: one.name)
    @pytest.mark.parametrize(
        ("expected", "facts"),
        [
            (HAD, {RDMA: rdma(8)}),
            (HAD, {FUNCTIONS: efa_functions(8)}),
            (P5, {}),
            (replace(HAD, first=EarlierHardware(efa=8, rdma=PORTS)), {}),
            (HGX, {MLX5: Mlx5(())}),
            (HGX, {MLX5: Mlx5(tuple(mlx5_device(index, **DOWN) for index in range(8)))}),
        ],
    )
    def test_the_check_does_not_belong_to_the_node(
        self, check: Check, expected: Expectation, facts: dict[Probe[Any], Any]
    ) -> None:
        assert [type(word) for word in finds(check, expected, hgx() | facts)] == [NotConfigured]


class TestErrors:
    def judge(self, before: Mlx5Device, now: Mlx5Device, seconds: float = 300.0) -> list[Judgement]:
        earlier = Evidence(hgx(before), 1000.0)
        words = roce_errors.CHECK.judge(Evidence(hgx(now), 1000.0 + seconds, earlier), HAD)
        return [word for word in words if not isinstance(word, Observation)]

    def test_each_counter_that_is_read_is_judged(self) -> None:
        assert set(MOST_PER_SECOND) == {*PORT_COUNTERS, *HARDWARE_COUNTERS}

    @pytest.mark.parametrize("name", MOST_PER_SECOND)
    @pytest.mark.parametrize("seconds", [60.0, 300.0, 3600.0])
    def test_a_counter_counts_from_its_limit_on(self, name: str, seconds: float) -> None:
        most = round(MOST_PER_SECOND[name] * seconds)
        assert self.judge(self.at(name, 7), self.at(name, 7 + most), seconds) == []
        assert names(self.judge(self.at(name, 7), self.at(name, 8 + most), seconds)) == ["RdmaLinkErrors rdma/mlx5_5"]

    def at(self, name: str, count: int) -> Mlx5Device:
        return mlx5_device(5, counters={**mlx5_device(5).counters, name: count})

    def test_changes_of_the_carrier(self) -> None:
        assert self.judge(self.at(CARRIER_CHANGES, 4), self.at(CARRIER_CHANGES, 6)) == []
        assert names(self.judge(self.at(CARRIER_CHANGES, 4), self.at(CARRIER_CHANGES, 7))) == [
            "RdmaLinkErrors rdma/mlx5_5"
        ]

    def test_counters_that_run_backwards_are_not_judged(self) -> None:
        before = self.at("symbol_error", 65_535)
        after = mlx5_device(5, counters={**self.at("symbol_error", 3).counters, "port_rcv_errors": 10**6})
        assert self.judge(before, after) == [TooEarly("its counters were reset", "rdma/mlx5_5")]

    @pytest.mark.parametrize("device", [mlx5_device(5, counters={}), mlx5_device(5, error="symbol_error: I/O error")])
    def test_counters_that_were_not_read_are_not_judged(self, device: Mlx5Device) -> None:
        faulty = self.at("symbol_error", 10**6)
        words = self.judge(device, faulty)
        assert words == [TooEarly("its counters were not read in both check cycles", "rdma/mlx5_5")]

    def test_a_new_device_at_the_same_name_is_not_compared(self) -> None:
        before = replace(self.at("symbol_error", 0), address="0000:ff:00.0")
        words = self.judge(before, replace(self.at("symbol_error", 10**6), address="0000:fe:00.0"))
        assert names(words) == []

    def test_one_cycle_has_no_rate(self) -> None:
        assert finds(roce_errors.CHECK, HAD, hgx()) == [TooEarly("a rate needs an earlier check cycle")]
