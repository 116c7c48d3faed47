"""Peer access between pairs of GPUs."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.p2p import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus, P2p
from tests.checks.evidence import ADDRESSES, P5, UNKNOWN_TYPE, every, gpu, healthy, judgements

EVERY_PAIR = tuple(combinations(range(8), 2))
P3DN = Expectation(InstanceProfile("p3dn.24xlarge", 8, 1, True, "efa"), "p3dn.24xlarge")
G6_48 = Expectation(InstanceProfile("g6.48xlarge", 8, 1, False, "efa"), "g6.48xlarge")
WITHOUT_NVLINK = replace(P5, profile=InstanceProfile("p5.48xlarge", 8, 32, False, "efa"))
NOT_SUPPORTED = 5


def pairs(broken: Collection[tuple[int, int]], status: int, of: Collection[tuple[int, int]]) -> tuple[P2p, ...]:
    return tuple(
        P2p(ADDRESSES[number], ADDRESSES[other], 0, status if (number, other) in broken else 0) for number, other in of
    )


def judge(
    broken: Collection[tuple[int, int]],
    expected: Expectation = P5,
    status: int = NOT_SUPPORTED,
    gpus: tuple[Gpu, ...] = every(),
    of: Collection[tuple[int, int]] = EVERY_PAIR,
) -> list[Judgement]:
    answer = Gpus("570.133.20", "/usr/lib64/libnvidia-ml.so.1", gpus, pairs(broken, status, of))
    return judgements(CHECK, expected, {NVML: DriverReading(answer)})


def found(findings: list[Judgement]) -> dict[int, str]:
    """The details by the index of the GPU."""
    return {
        ADDRESSES.index(finding.subject[4:]): finding.detail for finding in findings if isinstance(finding, Finding)
    }


def test_the_one_gpu_that_reaches_no_other_is_the_one_at_fault() -> None:
    findings = judge([pair for pair in EVERY_PAIR if 3 in pair])

    about = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
    message = "no P2P over NVLink with all others (status 5)"
    assert findings == [
        Finding("P2pBroken", Severity.RESET, f"gpu/{ADDRESSES[3]}", message, about, flickers=True),
        Observation(
            "21 of 28 pairs of GPUs connected by NVLink, 28 can read each other",
            "all by NVLink",
            "p5.48xlarge in fabrics.csv",
        ),
    ]


def test_a_single_broken_pair_is_found_on_both_its_gpus() -> None:
    assert found(judge([(2, 5)])) == {
        2: f"no P2P over NVLink with {ADDRESSES[5]} (status 5)",
        5: f"no P2P over NVLink with {ADDRESSES[2]} (status 5)",
    }


def test_two_bad_gpus_are_both_found_and_the_others_are_not() -> None:
    fields = found(judge([pair for pair in EVERY_PAIR if 3 in pair or 5 in pair]))

    assert fields == dict.fromkeys((3, 5), "no P2P over NVLink with all others (status 5)")


def test_a_node_without_any_is_one_finding_per_gpu_not_one_per_pair() -> None:
    assert found(judge(EVERY_PAIR)) == dict.fromkeys(range(8), "no P2P over NVLink with all others (status 5)")


@pytest.mark.parametrize("status", [1, 2, 3, 5, 7, 99])
def test_failing_status_counts_and_is_named(status: int) -> None:
    assert found(judge([(0, 1)], status=status))[0] == f"no P2P over NVLink with {ADDRESSES[1]} (status {status})"


@pytest.mark.parametrize("status", [0, 4, 6])
def test_ok_disabled_on_purpose_and_unknown_are_no_fault(status: int) -> None:
    assert found(judge(EVERY_PAIR, status=status)) == {}


@pytest.mark.parametrize("expected", [P3DN, G6_48, WITHOUT_NVLINK, UNKNOWN_TYPE], ids=lambda entry: entry.instance_type)
def test_where_switches_do_not_join_all_gpus_pairs_are_shown_and_not_judged(expected: Expectation) -> None:
    """Each of p3dn's eight GPUs is joined to only four others."""
    assert judge([pair for pair in EVERY_PAIR if 3 in pair], expected) == [
        Observation("21 of 28 pairs of GPUs connected by NVLink, 28 can read each other")
    ]


def test_node_without_pairs_has_nothing_to_check() -> None:
    assert judge([], of=[]) == [NotConfigured("the driver reports no P2P status for any pair of GPUs")]


def test_a_lost_gpu_breaks_no_pair() -> None:
    gpus = (*every()[:7], gpu(7, ADDRESSES[7], error=15))
    findings = judge([], gpus=gpus, of=list(combinations(range(7), 2)))

    assert found(findings) == {}
    assert [type(judgement) for judgement in findings] == [Unobserved, Observation]


def test_a_pair_that_could_not_be_asked_leaves_the_others_judged() -> None:
    silent = tuple(healthy(index, errors={"p2p": 999} if index in (0, 1) else {}) for index in range(8))
    findings = judge([(2, 5)], gpus=silent, of=EVERY_PAIR[1:])

    assert [unobserved for unobserved in findings if isinstance(unobserved, Unobserved)] == [
        Unobserved(
            UnobservedCause.named("GpuNotAnswering"),
            f"gpu/{ADDRESSES[index]}: P2P status: NVML error 999",
            f"gpu/{ADDRESSES[index]}",
        )
        for index in (0, 1)
    ]
    assert set(found(findings)) == {2, 5}


@pytest.mark.parametrize(("age", "judged"), [(0.0, False), (179.9, False), (180.0, True)])
def test_pairs_are_judged_once_the_fabric_had_time_to_come_up(age: float, judged: bool) -> None:
    findings = judge(EVERY_PAIR, replace(P5, driver_age_seconds=age))

    waits = "28 of 28 pairs of GPUs without P2P over NVLink; judged 180 s after the driver was loaded"
    assert bool(found(findings)) == judged
    assert [unobserved for unobserved in findings if isinstance(unobserved, Unobserved)] == (
        [] if judged else [Unobserved(UnobservedCause.named("DriverJustLoaded"), waits)]
    )
