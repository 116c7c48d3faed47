"""Readings of a GPU that are missing: each check that judges GPUs reports the GPU and the reading, and no fault."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import CHECKS, checks_named
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Probe,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes import pci, services
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu
from tests.checks.evidence import ADDRESSES, P5, driver_is_silent, driver_says, every, functions, gpu, healthy

SUBJECT = f"gpu/{ADDRESSES[3]}"
OTHERS: dict[Probe[Any], Any] = {
    pci.FUNCTIONS: functions(*ADDRESSES),
    services.SERVICES: services.Services(True),
}
OF_NVML = [check for check in CHECKS if NVML in check.needs]
OF_EACH_GPU = [
    check for check in OF_NVML if check.name not in ("driver", "gpu-count", "fabric-manager", "device-files")
]
"""Checks that judge each GPU by its readings alone."""
READINGS = [
    ("ecc", "ecc", "ecc"),
    ("ecc", "sram_threshold_exceeded", "sram threshold exceeded"),
    ("row-remap", "row_remap", "row remap"),
    ("row-remap", "exhausted_banks", "exhausted banks"),
    ("retired-pages", "retired_pages", "retired pages"),
    ("gpu-repair", "repair", "repair"),
    ("inforom", "inforom_valid", "inforom valid"),
    ("ecc-mode", "ecc_mode", "ecc mode"),
    ("mig-mode", "mig_mode", "mig mode"),
    ("persistence-mode", "persistence", "persistence"),
    ("clocks", "clock_reasons", "clock reasons"),
    ("temperature", "temperature", "temperature"),
    ("gpu-memory-held", "memory", "memory"),
    ("gpu-memory-held", "processes", "processes"),
    ("gpu-memory-held", "mig_mode", "mig mode"),
    ("nvlink", "nvlinks", "nvlinks"),
    ("nvlink", "mig_mode", "mig mode"),
    ("nvlink-errors", "nvlinks", "NVLinks"),
    ("pcie-link", "pcie", "pcie"),
    ("pcie-replays", "pcie_replays", "PCIe replays"),
    ("fabric", "fabric", "fabric"),
]
LACKING = [
    ("ecc", ("ecc", "sram_threshold_exceeded"), "no GPU here counts ECC errors"),
    ("row-remap", ("row_remap", "exhausted_banks"), "no GPU here reports remapped rows"),
    ("retired-pages", ("retired_pages",), "no GPU here retires pages: from Ampere on they remap rows"),
    ("gpu-repair", ("repair", "unrepairable_memory"), "no GPU here reports repairs"),
    ("inforom", ("inforom_valid",), "no GPU here supports a test of its InfoROM"),
    ("ecc-mode", ("ecc_mode",), "no GPU here supports ECC"),
    ("mig-mode", ("mig_mode",), "no GPU here supports MIG"),
    ("persistence-mode", ("persistence",), "no GPU here has a persistence mode"),
    ("clocks", ("clock_reasons",), "no GPU here reports why its clocks are slowed down"),
    ("temperature", ("temperature",), "no GPU here reports its temperature"),
    ("gpu-memory-held", ("memory",), "no GPU here reports both its memory and its processes"),
    ("gpu-memory-held", ("processes",), "no GPU here reports both its memory and its processes"),
    ("pcie-link", ("pcie",), "no GPU reports a plausible PCIe width"),
    ("pcie-replays", ("pcie_replays",), "no GPU counts PCIe replays"),
    ("nvlink-errors", ("nvlinks",), "no GPU counts NVLink errors"),
    ("fabric", ("fabric",), "NVML reports no NVLink fabric here"),
]


def judge(check: Check, reading: DriverReading) -> list[Judgement]:
    return list(check.judge(Evidence({NVML: reading, **OTHERS}), P5))


def blind(*gpus: Gpu, check: Check) -> list[Unobserved]:
    """Return what could not be checked. Nothing of it is a fault."""
    judgements = judge(check, driver_says(*gpus))
    assert not [judgement for judgement in judgements if isinstance(judgement, Finding)]
    return [judgement for judgement in judgements if isinstance(judgement, Unobserved)]


def not_answering(message: str) -> Unobserved:
    return Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}{message}", SUBJECT)


@pytest.mark.parametrize("check", [*OF_EACH_GPU, *checks_named("gpu-count")], ids=lambda check: check.name)
def test_a_driver_without_an_answer_could_not_be_checked(check: Check) -> None:
    cause = Unobserved(UnobservedCause.named("DriverNotLoaded"), "why")

    assert judge(check, driver_is_silent(cause)) == [cause]


@pytest.mark.parametrize("check", OF_EACH_GPU, ids=lambda check: check.name)
def test_a_gpu_without_an_answer_could_not_be_checked(check: Check) -> None:
    lost = replace(gpu(3, ADDRESSES[3], error=15), recovery_action=None)

    assert blind(healthy(2), lost, check=check) == [not_answering(": NVML error 15")]


@pytest.mark.parametrize("error", [1, 10, 999])
@pytest.mark.parametrize(("name", "reading", "shown"), READINGS)
def test_a_reading_that_failed_could_not_be_checked(name: str, reading: str, shown: str, error: int) -> None:
    (check,) = checks_named(name)
    failed = healthy(3, **{reading: None}, errors={reading: error})

    assert blind(healthy(2), failed, check=check) == [not_answering(f": {shown}: NVML error {error}")]


@pytest.mark.parametrize(("name", "readings", "message"), LACKING)
def test_a_reading_that_no_gpu_supports_does_not_apply(name: str, readings: tuple[str, ...], message: str) -> None:
    (check,) = checks_named(name)
    lacking = driver_says(*every(**dict.fromkeys(readings)))
    judgements = judge(check, lacking)

    assert [judgement for judgement in judgements if isinstance(judgement, NotConfigured)] == [NotConfigured(message)]
    assert not [judgement for judgement in judgements if isinstance(judgement, Finding | Unobserved)]
