"""Rates of EFA's error counters: never the first reading, never earlier counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.efa_errors import CHECK, MOST_PER_SECOND
from gpu_healthcheck.healthcheck.checks.examine import judge as examine
from gpu_healthcheck.healthcheck.checks.examine import read_probes
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Host,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.efa.infiniband import ERROR_COUNTERS, RDMA, Rdma, RdmaDevice
from gpu_healthcheck.sim.node import SimulatedNode
from tests.checks.evidence import P5, efa_device, judgements, rdma, says_later

SECONDS = 300.0


def counting(index: int = 5, **counters: int) -> RdmaDevice:
    device = efa_device(index)
    return replace(device, counters={**device.counters, **counters})


def node(*devices: RdmaDevice) -> Rdma:
    """Two healthy devices and these."""
    return Rdma((efa_device(0), efa_device(1), *devices), efa_driver_loaded=True)


def judge(before: RdmaDevice, now: RdmaDevice, seconds: float = SECONDS) -> list[Judgement]:
    findings = says_later(CHECK, seconds, {RDMA: node(before)}, {RDMA: node(now)})
    assert sum(isinstance(word, Observation) for word in findings) == 1
    return [word for word in findings if not isinstance(word, Observation)]


def found(detail: str) -> Finding:
    return Finding("EfaErrorRate", Severity.MONITOR, "efa/rdmap21s0", f"rises: {detail}", flickers=True)


def test_each_counter_that_is_judged_is_read() -> None:
    assert set(MOST_PER_SECOND) == set(ERROR_COUNTERS)


@pytest.mark.parametrize("name", ERROR_COUNTERS)
@pytest.mark.parametrize("seconds", [10.0, 300.0, 3600.0])
def test_a_counter_counts_from_its_threshold_on(name: str, seconds: float) -> None:
    most = round(MOST_PER_SECOND[name] * seconds)

    assert judge(counting(**{name: 7}), counting(**{name: 7 + most}), seconds) == []
    assert judge(counting(**{name: 7}), counting(**{name: 8 + most}), seconds) == [
        found(f"{name} by more than {MOST_PER_SECOND[name]:.0f} a second")
    ]


def test_a_detail_does_not_change_with_the_rate() -> None:
    details = {str(judge(counting(), counting(rx_drops=rate * 300))) for rate in (101, 5_000, 10**9)}

    assert details == {str([found("rx_drops by more than 100 a second")])}


def test_several_counters_are_one_finding() -> None:
    now = counting(retrans_pkts=10**9, rx_drops=10**9, retrans_bytes=10**12)

    assert judge(counting(), now) == [
        found(
            "rx_drops by more than 100 a second, retrans_pkts by more than 1000 a second, "
            "retrans_bytes by more than 1000000 a second"
        )
    ]


def test_counts_before_the_agents_start_are_ignored() -> None:
    much = dict.fromkeys(ERROR_COUNTERS, 10**15)

    assert judge(counting(**much), counting(**much)) == []


def test_a_first_reading_is_too_early() -> None:
    assert judgements(CHECK, P5, {RDMA: rdma(2, counters=dict.fromkeys(ERROR_COUNTERS, 10**15))}) == [
        TooEarly("a rate needs an earlier check cycle"),
        Observation(
            "error counters of 2 EFA devices read", "no counter above the threshold", "EKS node monitoring agent"
        ),
    ]


@pytest.mark.parametrize("name", ERROR_COUNTERS)
def test_a_counter_that_fell_began_anew(name: str) -> None:
    before, now = counting(**{name: 100}), counting(**{**dict.fromkeys(ERROR_COUNTERS, 10**15), name: 99})

    assert judge(before, now) == [TooEarly("its counters were reset", "efa/rdmap21s0")]


def test_a_device_that_is_new_has_no_rate() -> None:
    findings = says_later(CHECK, SECONDS, {RDMA: node()}, {RDMA: node(counting(rx_drops=10**9))})

    assert findings[0] == TooEarly("its counters were not read in the previous check cycle", "efa/rdmap21s0")


def test_counters_that_the_driver_does_not_have_are_absent() -> None:
    old = replace(efa_device(5), counters={"rx_drops": 0})

    assert judge(old, old) == []
    assert judge(old, replace(old, counters={"rx_drops": 10**9})) == [found("rx_drops by more than 100 a second")]
    assert judge(old, counting(retrans_pkts=10**9)) == []
    assert judge(replace(old, counters={}), replace(old, counters={})) == []


def test_refusing_device_is_unobserved_alone() -> None:
    refusing = counting(rx_drops=10**9)
    refusing = replace(refusing, error="rx_drops: Timer expired")

    assert judge(counting(), refusing) == [
        Unobserved(UnobservedCause.named("EfaNotAnswering"), "efa/rdmap21s0: rx_drops: Timer expired", "efa/rdmap21s0")
    ]
    # After it answered again: no rate across the gap.
    assert judge(refusing, counting(rx_drops=10**10)) == [
        TooEarly("its counters were not read in the previous check cycle", "efa/rdmap21s0")
    ]


def test_a_person_reads_how_many_are_bad() -> None:
    findings = says_later(CHECK, SECONDS, {RDMA: node(counting())}, {RDMA: node(counting(rx_drops=10**9))})

    assert findings[-1] == Observation(
        "errors above the threshold on 1 of 3 EFA devices", "none", "EKS node monitoring agent"
    )


def test_a_node_without_efa_has_no_counters() -> None:
    assert judgements(CHECK, P5, {RDMA: rdma(0, mlx5=4)}) == [NotConfigured("no EFA device")]


def test_two_reads_of_the_counters_show_changes_between_them(node: SimulatedNode) -> None:
    host = Host(node.root)
    node.efa_counter(4, "rx_drops", 10**15)
    before = read_probes(host, [CHECK])
    node.efa_counter(5, "rx_drops", 10**9)

    (outcome,) = examine([CHECK], read_probes(host, [CHECK], before), P5)

    assert [finding.subject for finding in outcome.findings] == [f"efa/{node.efa_names[5]}"]
