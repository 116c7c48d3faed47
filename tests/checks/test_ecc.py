"""Errors of memory that ECC could not correct, and memory that has had too many."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.ecc import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    Observation,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, EccCounts, Gpu, SramUnique
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, healthy, judgements

SUBJECT = f"gpu/{ADDRESSES[3]}"
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
EXPECTED = "0 since the driver was loaded, no GPU over the threshold"
UNCORRECTED = Finding(
    "EccUncorrected", Severity.RESET, SUBJECT, "uncorrected ECC errors since the driver was loaded", ABOUT
)
SRAM = Finding(
    "SramThresholdExceeded",
    Severity.ISOLATE,
    SUBJECT,
    "its SRAM had more uncorrectable errors than NVIDIA's limit",
    ABOUT,
)


def bank(*errors: str) -> Finding:
    return replace(SRAM, detail=f"one bank of its SRAM had uncorrectable {' and '.join(errors)}")


PARITY = "parity errors at 5 addresses (NVIDIA's limit: 4)"
SECDED = "SEC-DED errors at 3 addresses (NVIDIA's limit: 2)"
BANK = bank(PARITY)
UNIQUE_UNTOLD = TooEarly(f"{SUBJECT} does not report its sram unique", SUBJECT, ("SramThresholdExceeded",))
UNTOLD = TooEarly(f"{SUBJECT} does not report its sram threshold exceeded", SUBJECT, ("SramThresholdExceeded",))


def judge(*gpus: Gpu) -> list[Judgement]:
    return judgements(CHECK, P5, {NVML: driver_says(*gpus)})


def found(**more: Any) -> list[Judgement]:
    """Judgements of the third of eight GPUs with that difference, without the line for people."""
    gpus = [*every()]
    gpus[3] = healthy(3, **more)
    return [judgement for judgement in judge(*gpus) if not isinstance(judgement, Observation)]


@pytest.mark.parametrize(
    ("more", "findings"),
    [
        ({"ecc": EccCounts(0, 0, 0, 0)}, []),
        ({"ecc": EccCounts(0, 1, 0, 1)}, [UNCORRECTED]),
        ({"ecc": EccCounts(0, 5000, 0, 5000)}, [UNCORRECTED]),
        ({"ecc": EccCounts(1_000_000, 0, 0, 0)}, []),
        ({"ecc": EccCounts(0, 0, 1_000_000, 0)}, []),
        ({"ecc": EccCounts(0, 0, 0, 77)}, []),
        ({"sram_threshold_exceeded": True}, [SRAM]),
        ({"ecc": EccCounts(0, 1, 0, 1), "sram_threshold_exceeded": True}, [UNCORRECTED, SRAM]),
        ({"ecc": None}, []),
        ({"sram_threshold_exceeded": None}, [UNTOLD]),
        ({"sram_unique": SramUnique(4, 2)}, []),
        ({"sram_unique": SramUnique(5, 0)}, [BANK]),
        ({"sram_unique": SramUnique(0, 3)}, [bank(SECDED)]),
        ({"sram_unique": SramUnique(5, 3)}, [bank(PARITY, SECDED)]),
        ({"sram_unique": SramUnique(5, 3), "sram_threshold_exceeded": True}, [SRAM]),
        ({"sram_unique": SramUnique(5, 0), "sram_threshold_exceeded": None}, [BANK, UNTOLD]),
        ({"sram_unique": None}, [UNIQUE_UNTOLD]),
        ({"sram_unique": None, "sram_threshold_exceeded": None}, [UNTOLD]),
        ({"sram_unique": None, "sram_threshold_exceeded": True}, [SRAM]),
    ],
)
def test_gpu_facts_give_the_expected_judgements(more: dict[str, Any], findings: list[Judgement]) -> None:
    assert found(**more) == findings


@pytest.mark.parametrize(
    ("reading", "name", "other"),
    [
        ("ecc", "ecc", {"sram_threshold_exceeded": True}),
        ("sram_threshold_exceeded", "sram threshold exceeded", {"ecc": EccCounts(0, 1, 0, 1)}),
    ],
)
def test_a_reading_that_failed_hides_nothing_of_the_other(reading: str, name: str, other: dict[str, Any]) -> None:
    findings = found(**{reading: None}, errors={reading: 999}, **other)

    assert findings == [
        SRAM if reading == "ecc" else UNCORRECTED,
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}: {name}: NVML error 999", SUBJECT),
    ]


def test_the_counts_of_a_gpus_life_are_shown() -> None:
    findings = judge(
        healthy(0, ecc=EccCounts(7, 2, 120, 3)), healthy(1, ecc=EccCounts(1, 0, 4, 5)), healthy(2, ecc=None)
    )

    assert findings[1:] == [
        Observation(
            "2 uncorrected ECC errors since the driver was loaded (ever: 8, corrected: 124), "
            "0 GPUs over the SRAM threshold",
            EXPECTED,
            "nvml.h",
        )
    ]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"ecc": None}, "0 GPUs over the SRAM threshold"),
        ({"ecc": None, "sram_threshold_exceeded": True}, "8 GPUs over the SRAM threshold"),
        (
            {"sram_threshold_exceeded": None},
            "0 uncorrected ECC errors since the driver was loaded (ever: 0, corrected: 0)",
        ),
    ],
)
def test_reading_that_no_gpu_has_is_not_shown(more: dict[str, Any], what: str) -> None:
    assert judge(*every(**more))[-1] == Observation(what, EXPECTED, "nvml.h")


def test_readings_that_all_failed_are_not_gpus_without_ecc() -> None:
    failed = {"ecc": None, "sram_threshold_exceeded": None, "errors": {"ecc": 999, "sram_threshold_exceeded": 999}}

    assert {type(judgement) for judgement in judge(*every(**failed))} == {Unobserved}
