"""Memory in use where no process is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.gpu_memory_held import CHECK, MOST_WITHOUT_A_PROCESS
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, MemoryUse, Mode
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, finds, healthy, tells

GIB = 1 << 30
SUBJECT = f"gpu/{ADDRESSES[3]}"
MIG_ON = Mode(current=True, pending=True)


def using(used: int, reserved: int = 600 << 20) -> MemoryUse:
    return MemoryUse(80 * GIB, reserved, used)


def judge(*gpus: Gpu) -> list[Judgement]:
    return finds(CHECK, P5, {NVML: driver_says(*gpus)})


def held(detail: str) -> Finding:
    about = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
    return Finding("GpuMemoryHeld", Severity.MONITOR, SUBJECT, detail, about, flickers=True)


@pytest.mark.parametrize("mode", [None, Mode(current=False, pending=False), Mode(current=False, pending=True)])
@pytest.mark.parametrize(
    ("used", "detail"),
    [
        (MOST_WITHOUT_A_PROCESS + 1, "1 GiB in use, and no process"),
        (70 * GIB, "70 GiB in use, and no process"),
        (70 * GIB + 1234567, "70 GiB in use, and no process"),
    ],
)
def test_memory_in_use_without_a_process_is_found(used: int, detail: str, mode: Mode | None) -> None:
    assert judge(healthy(2), healthy(3, memory=using(used), mig_mode=mode)) == [held(detail)]


@pytest.mark.parametrize(
    "gpu",
    [
        healthy(3),
        healthy(3, memory=using(MOST_WITHOUT_A_PROCESS)),
        # A driver that does not report its own reserved memory separately.
        healthy(3, memory=using(900 << 20, reserved=0)),
        healthy(3, memory=using(70 * GIB), processes=1),
        healthy(3, memory=using(70 * GIB), processes=None),
        healthy(3, memory=None),
        healthy(3, memory=using(70 * GIB), mig_mode=MIG_ON),
    ],
)
def test_little_used_or_unreported_memory_is_no_finding(gpu: Gpu) -> None:
    assert judge(healthy(2), gpu) == []


def test_where_processes_are_out_of_sight_nothing_is_judged() -> None:
    look = replace(driver_says(*every(memory=using(70 * GIB))), sees_every_process=False)

    assert finds(CHECK, P5, {NVML: look}) == [
        NotConfigured("this PID namespace does not show the processes of the node")
    ]


def test_the_output_has_the_highest_memory_use_of_an_unused_gpu() -> None:
    gpus = (*every()[:6], healthy(6, memory=using(512 << 20)), healthy(7, memory=using(70 * GIB), processes=2))

    assert tells(CHECK, P5, {NVML: driver_says(*gpus)}) == [
        Observation("up to 512 MiB in use on a GPU without a process", "at most 1024 MiB")
    ]
    assert tells(CHECK, P5, {NVML: driver_says(*every(processes=1))}) == [
        Observation("every GPU has a process, or MIG on")
    ]
