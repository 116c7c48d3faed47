"""Persistence mode, and the time that a booting node needs for it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.persistence_mode import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu
from tests.checks.evidence import (
    ADDRESSES,
    P5,
    UNKNOWN_TYPE,
    driver_says,
    every,
    finds,
    healthy,
    tells,
)

SUBJECT = f"gpu/{ADDRESSES[3]}"
OFF = Finding(
    "PersistenceModeOff",
    Severity.MONITOR,
    SUBJECT,
    "persistence mode is off",
    {"index": "3", "uuid": "GPU-3", "serial": "1653"},
    flickers=True,
)


def judge(*gpus: Gpu, expected: Expectation = P5) -> list[Judgement]:
    return finds(CHECK, expected, {NVML: driver_says(*gpus)})


@pytest.mark.parametrize("expected", [P5, UNKNOWN_TYPE])
def test_off_is_found_on_its_gpu_whatever_the_node_is(expected: Expectation) -> None:
    assert judge(healthy(2), healthy(3, persistence=False), healthy(4), expected=expected) == [OFF]


@pytest.mark.parametrize("persistence", [True, None])
def test_on_or_a_gpu_that_has_no_such_mode_is_no_finding(persistence: bool | None) -> None:
    assert judge(healthy(2), healthy(3, persistence=persistence)) == []


@pytest.mark.parametrize(("age", "judged"), [(0.0, False), (119.9, False), (120.0, True)])
def test_a_node_that_boots_has_two_minutes_to_turn_it_on(age: float, judged: bool) -> None:
    early = Unobserved(
        UnobservedCause.named("DriverJustLoaded"),
        "persistence mode is off; judged 120 s after the driver was loaded",
        SUBJECT,
    )
    young = replace(P5, driver_age_seconds=age)

    assert judge(healthy(3, persistence=False), expected=young) == [OFF if judged else early]
    assert judge(healthy(3), expected=young) == []


def test_the_output_counts_the_gpus_with_the_mode() -> None:
    gpus = (*every()[:7], healthy(7, persistence=False))

    assert tells(CHECK, P5, {NVML: driver_says(*gpus)}) == [Observation("on for 7 of 8 GPUs", "all")]
    assert judge(*every(persistence=None)) == [NotConfigured("no GPU here has a persistence mode")]
