"""Every active RDMA port writes to itself."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.rdma_loopback import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity, Unobserved
from gpu_healthcheck.healthcheck.probes.ib_loopback import NOT_RUN, RDMA_LOOPBACK
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackReading, LoopbackResult, Measured
from tests.checks.evidence import UNKNOWN_TYPE, judgements

LOST, BLIND = Broken("Failed status 12"), Unobserved(NOT_RUN, "no library")
PASSED = Observation("1 of 2 RDMA ports carry data, at 392 to 392 Gb/s")


def at(gbits: float) -> LoopbackResult:
    return Measured(gbits * 125, 65536)


ROWS: list[tuple[tuple[LoopbackResult, ...], list[Judgement]]] = [
    ((at(391.8), at(2.0)), [Observation("2 of 2 RDMA ports carry data, at 2 to 392 Gb/s")]),
    (
        (at(391.8), LOST),
        [Finding("RdmaLoopbackFailed", Severity.REBOOT, "rdma/mlx5_1", "Failed status 12"), PASSED],
    ),
    ((at(391.8), BLIND), [Unobserved(NOT_RUN, "rdma/mlx5_1: no library", "rdma/mlx5_1"), PASSED]),
    (
        (LOST, LOST),
        [
            Unobserved(
                NOT_RUN,
                f"rdma/mlx5_{number}: no port of the node sends to itself: Failed status 12",
                f"rdma/mlx5_{number}",
            )
            for number in range(2)
        ],
    ),
    (
        (LOST,),
        [
            Unobserved(
                NOT_RUN,
                "rdma/mlx5_0: no port of the node sends to itself: Failed status 12",
                "rdma/mlx5_0",
            )
        ],
    ),
]


@pytest.mark.parametrize(("answers", "expected"), ROWS)
def test_a_port_is_at_fault_if_it_fails_and_another_passes(
    answers: tuple[LoopbackResult, ...], expected: list[Judgement]
) -> None:
    ports = tuple(Loopback(f"mlx5_{number}", answer) for number, answer in enumerate(answers))

    assert judgements(CHECK, UNKNOWN_TYPE, {RDMA_LOOPBACK: LoopbackReading(ports)}) == expected


def test_without_the_program_or_a_port_the_test_does_not_apply() -> None:
    absent = LoopbackReading(absent="ib_write_bw is not installed here")

    assert judgements(CHECK, UNKNOWN_TYPE, {RDMA_LOOPBACK: absent}) == [
        NotConfigured("ib_write_bw is not installed here")
    ]
