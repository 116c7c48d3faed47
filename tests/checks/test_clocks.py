"""Clocks that the hardware holds down."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthcheck.checks.clocks import CHECK
from healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    TooEarly,
)
from healthcheck.model.node_facts import DeepDiagnostic
from healthcheck.probes.nvml.gpus import NVML, Gpu
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, finds, healthy, tells

SUBJECT = f"gpu/{ADDRESSES[3]}"
# nvml.h: idle, application clocks, software power cap, sync boost, software thermal, display; and one to come.
NO_FAULT = (0x1, 0x2, 0x4, 0x10, 0x20, 0x100, 0x200)
HARDWARE, THERMAL, POWER = ("ClocksHardwareSlowdown", 0x8), ("ClocksThermalSlowdown", 0x40), ("PowerBrake", 0x80)
CAUSES = {0x8: "the hardware", 0x40: "heat", 0x80: "the power supply"}


def judge(*gpus: Gpu) -> list[Judgement]:
    return finds(CHECK, P5, {NVML: driver_says(*gpus)})


def held(reason: str, bit: int) -> Finding:
    about = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
    detail = f"clocks slowed down by {CAUSES[bit]} (event reason {bit:#x})"
    return Finding(reason, Severity.MONITOR, SUBJECT, detail, about, flickers=True)


@pytest.mark.parametrize("number", [0, *NO_FAULT, sum(NO_FAULT)])
@pytest.mark.parametrize(
    ("bits", "entries"),
    [
        (0x8, [HARDWARE]),
        (0x40, [THERMAL]),
        (0x80, [POWER]),
        (0x48, [THERMAL]),
        (0x88, [POWER]),
        (0xC0, [THERMAL, POWER]),
        (0xC8, [THERMAL, POWER]),
    ],
)
def test_each_bit_is_its_own_fault_and_the_general_one_only_alone(
    bits: int, number: int, entries: list[tuple[str, int]]
) -> None:
    assert judge(healthy(2), healthy(3, clock_reasons=bits | number)) == [held(*pair) for pair in entries]


@pytest.mark.parametrize("bits", [0, None, *NO_FAULT, sum(NO_FAULT)])
def test_what_software_or_a_person_sets_and_no_answer_are_no_finding(bits: int | None) -> None:
    assert judge(healthy(2), healthy(3, clock_reasons=bits)) == []


def test_the_output_counts_the_throttled_gpus() -> None:
    gpus = (*every()[:6], healthy(6, clock_reasons=0xC8), healthy(7, clock_reasons=0x8))

    assert tells(CHECK, P5, {NVML: driver_says(*gpus)}) == [
        Observation("slowed down by hardware on 2 of 8 GPUs", "none")
    ]
    assert judge(*every(clock_reasons=None)) == [NotConfigured("no GPU here reports why its clocks are slowed down")]


@pytest.mark.parametrize(
    ("run", "is_flag"),
    [
        (DeepDiagnostic("l2", -10.0), False),
        (DeepDiagnostic("sweep", -100.0, -60.0), False),
        (DeepDiagnostic("sweep", -100.0, -60.1), True),
        (DeepDiagnostic("l2", 0.1), True),
        (None, True),
    ],
)
def test_what_a_deep_test_does_to_the_clocks_is_neither_found_nor_shown_gone(
    run: DeepDiagnostic | None, is_flag: bool
) -> None:
    """The check cycle is at 0 s."""
    look = {NVML: driver_says(healthy(2), healthy(3, clock_reasons=0x48))}
    findings = finds(CHECK, replace(P5, deep_run=run), look)

    untold = TooEarly("a deep test loads the GPU", SUBJECT, ("ClocksThermalSlowdown",))
    assert findings == ([held(*THERMAL)] if is_flag else [untold])
