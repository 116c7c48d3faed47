"""A corrupted InfoROM, reported by the driver's own InfoROM test or instead of a GPU handle."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.inforom import CHECK
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
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import (
    ADDRESSES,
    P5,
    driver_says,
    every,
    finds,
    functions,
    healthy,
    tells,
)

CORRUPTED = 14
SUBJECT = f"gpu/{ADDRESSES[3]}"
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}


def judge(*gpus: Gpu) -> list[Judgement]:
    return finds(CHECK, P5, {NVML: driver_says(*gpus), FUNCTIONS: functions(*ADDRESSES)})


def corrupted(about: dict[str, str]) -> Finding:
    return Finding("InforomCorrupted", Severity.RESET, SUBJECT, "the InfoROM is corrupted", about)


def with_one(gpu: Gpu) -> tuple[Gpu, ...]:
    return tuple(gpu if one.index == gpu.index else one for one in every())


def test_a_wrong_checksum_is_found_on_its_gpu() -> None:
    assert judge(*with_one(healthy(3, inforom_valid=False))) == [corrupted(ABOUT)]


def test_a_handle_refused_for_it_is_found_at_the_address_that_is_left() -> None:
    assert judge(*with_one(Gpu(3, CORRUPTED))) == [corrupted({"index": "3"})]


def test_a_call_that_answers_it_is_found_with_all_names() -> None:
    assert judge(*with_one(replace(healthy(3, inforom_valid=None), error=CORRUPTED))) == [corrupted(ABOUT)]
    assert judge(*with_one(healthy(3, errors={"ecc_mode": CORRUPTED}))) == [corrupted(ABOUT)]
    assert judge(*with_one(replace(healthy(3), recovery_error=CORRUPTED))) == [corrupted(ABOUT)]


def test_answering_pair_does_not_tell_which_gpu_is_at_fault() -> None:
    assert judge(*every(errors={"p2p": CORRUPTED})) == []


@pytest.mark.parametrize("valid", [True, None])
def test_a_valid_one_or_a_gpu_that_has_no_such_test_is_no_finding(valid: bool | None) -> None:
    assert judge(*with_one(healthy(3, inforom_valid=valid))) == []


@pytest.mark.parametrize("error", [1, 8, 10, 15, 16, 999])
def test_gpu_without_an_answer_is_unobserved(error: int) -> None:
    silent = Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}: NVML error {error}", SUBJECT)

    assert judge(*with_one(Gpu(3, error))) == [silent]
    assert judge(*with_one(replace(healthy(3), error=error))) == [silent]


def test_a_wrong_checksum_counts_whatever_else_failed_on_the_gpu() -> None:
    assert judge(*with_one(replace(healthy(3, inforom_valid=False), error=999))) == [corrupted(ABOUT)]


def test_the_output_counts_the_valid_inforoms() -> None:
    gpus = with_one(healthy(3, inforom_valid=False))

    assert tells(CHECK, P5, {NVML: driver_says(*gpus), FUNCTIONS: ()}) == [Observation("valid on 7 of 8 GPUs", "all")]
    assert judge(*every(inforom_valid=None)) == [NotConfigured("no GPU here supports a test of its InfoROM")]
