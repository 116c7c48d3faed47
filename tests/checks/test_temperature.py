"""A GPU's temperature against its own slowdown limit, in both forms in which GPUs report it."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.temperature import CHECK, LOWEST_LIMIT_CELSIUS
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, Temperature
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, finds, functions, healthy, tells

SUBJECT = f"gpu/{ADDRESSES[3]}"
OF_THE_LIMIT = "at or above 92 °C, where it slows itself down"
OF_THE_MARGIN = "its margin is at or below -2 °C, where it slows itself down"


def judge(*gpus: Gpu) -> list[Judgement]:
    return finds(CHECK, P5, {NVML: driver_says(*gpus)})


def too_hot(detail: str) -> Finding:
    about = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
    return Finding("GpuTooHot", Severity.MONITOR, SUBJECT, detail, about, flickers=True)


@pytest.mark.parametrize(
    ("temperature", "detail"),
    [
        (Temperature(92, 92), OF_THE_LIMIT),
        (Temperature(97, 92), OF_THE_LIMIT),
        # Only half of a margin: the limit counts.
        (Temperature(92, 92, margin_celsius=40), OF_THE_LIMIT),
        (Temperature(92, 92, slowdown_margin_celsius=-2), OF_THE_LIMIT),
        (Temperature(88, None, -2, -2), OF_THE_MARGIN),
        (Temperature(91, None, -5, -2), OF_THE_MARGIN),
        (Temperature(88, 97, -2, -2), OF_THE_MARGIN),
        (Temperature(87, None, 0, 0), "its margin is at or below 0 °C, where it slows itself down"),
    ],
)
def test_at_its_own_limit_a_gpu_is_too_hot_and_the_detail_does_not_move_with_it(
    temperature: Temperature, detail: str
) -> None:
    assert judge(healthy(2), healthy(3, temperature=temperature)) == [too_hot(detail)]


def test_a_gpu_without_a_handle_hides_no_other_where_pci_tells_its_place() -> None:
    seen = {NVML: driver_says(*(Gpu(3, 15) if gpu.index == 3 else gpu for gpu in every()))}

    assert finds(CHECK, P5, seen) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), "gpu/index-3: NVML error 15")
    ]
    assert finds(CHECK, P5, {**seen, FUNCTIONS: functions(*ADDRESSES)}) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}: NVML error 15", SUBJECT)
    ]


@pytest.mark.parametrize(
    "temperature",
    [
        None,
        Temperature(),
        Temperature(91, 92),
        Temperature(34, 92),
        Temperature(87, None, -1, -2),
        Temperature(85, 80, 1, -2),
        # No limit, or half of one.
        Temperature(95),
        Temperature(95, None, -5, None),
        Temperature(95, None, None, -2),
        Temperature(None, 92),
        Temperature(None, None, -5, -2),
        # Nonsense: a limit of nothing, and margins that do not fit the temperature.
        Temperature(34, 0),
        Temperature(34, 34),
        Temperature(34, None, 0, 0),
        Temperature(34, None, -5, -2),
        Temperature(LOWEST_LIMIT_CELSIUS, LOWEST_LIMIT_CELSIUS - 1),
    ],
)
def test_below_its_limit_or_without_one_in_earnest_there_is_no_finding(temperature: Temperature | None) -> None:
    assert judge(healthy(2), healthy(3, temperature=temperature)) == []


def test_a_limit_just_in_earnest_is_one() -> None:
    findings = judge(healthy(3, temperature=Temperature(LOWEST_LIMIT_CELSIUS, LOWEST_LIMIT_CELSIUS)))

    assert findings == [too_hot(f"at or above {LOWEST_LIMIT_CELSIUS} °C, where it slows itself down")]


@pytest.mark.parametrize(
    ("temperatures", "line"),
    [
        ([Temperature(34, None, 52, -2)], Observation("34 °C", "below the GPU's own limit, 88 °C", "NVML")),
        (
            [Temperature(34, 92), Temperature(51, 90)],
            Observation("34 to 51 °C", "below the GPU's own limit, 90 to 92 °C", "NVML"),
        ),
        ([Temperature(34)], Observation("34 °C")),
    ],
)
def test_the_output_has_temperatures_and_limits(temperatures: list[Temperature], line: Observation) -> None:
    gpus = [healthy(index, temperature=temperature) for index, temperature in enumerate(temperatures)]

    assert tells(CHECK, P5, {NVML: driver_says(*gpus)}) == [line]


def test_where_no_gpu_tells_its_temperature_nothing_is_judged() -> None:
    assert judge(*every(temperature=None)) == [NotConfigured("no GPU here reports its temperature")]
    assert judge(*every(temperature=Temperature(None, 92))) == [NotConfigured("no GPU here reports its temperature")]
