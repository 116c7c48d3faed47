"""ECC on, where the instance type's GPUs come with it on."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.ecc_mode import CHECK
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, Mode
from tests.checks.evidence import ADDRESSES, G6, P5, UNKNOWN_TYPE, driver_says, every, finds, healthy, tells

SUBJECT = f"gpu/{ADDRESSES[3]}"
ON, OFF = Mode(current=True, pending=True), Mode(current=False, pending=False)
TO_BE_ON, TO_BE_OFF = Mode(current=False, pending=True), Mode(current=True, pending=False)


def judge(*gpus: Gpu, expected: Expectation = P5) -> list[Judgement]:
    return finds(CHECK, expected, {NVML: driver_says(*gpus)})


def off(detail: str) -> Finding:
    about = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
    return Finding("EccModeOff", Severity.MONITOR, SUBJECT, detail, about)


@pytest.mark.parametrize("expected", [P5, G6])
@pytest.mark.parametrize(
    ("mode", "detail"),
    [(OFF, "ECC is off, and stays off after the next reset"), (TO_BE_ON, "ECC is off, on after the next reset")],
)
def test_off_is_found_on_its_gpu(mode: Mode, detail: str, expected: Expectation) -> None:
    assert judge(healthy(2), healthy(3, ecc_mode=mode), expected=expected) == [off(detail)]


@pytest.mark.parametrize("mode", [ON, TO_BE_OFF, None])
def test_on_or_a_gpu_that_can_not_do_ecc_is_no_finding(mode: Mode | None) -> None:
    assert judge(healthy(2), healthy(3, ecc_mode=mode)) == []


@pytest.mark.parametrize("mode", [OFF, TO_BE_ON])
def test_an_unknown_instance_type_has_no_expectation(mode: Mode) -> None:
    assert judge(*every(ecc_mode=mode), expected=UNKNOWN_TYPE) == []


def test_the_output_counts_the_gpus_with_the_mode_and_pending_changes() -> None:
    gpus = (*every()[:6], healthy(6, ecc_mode=OFF), healthy(7, ecc_mode=TO_BE_OFF))
    source = "p5.48xlarge in instance-profiles.conf"

    assert tells(CHECK, P5, {NVML: driver_says(*every())}) == [Observation("on for 8 of 8 GPUs", "all", source)]
    assert tells(CHECK, P5, {NVML: driver_says(*gpus)}) == [
        Observation("on for 7 of 8 GPUs, to change for 1 at the next reset", "all", source)
    ]
    assert tells(CHECK, UNKNOWN_TYPE, {NVML: driver_says(*every())}) == [Observation("on for 8 of 8 GPUs")]
    assert judge(*every(ecc_mode=None)) == [NotConfigured("no GPU here supports ECC")]
