"""MIG modes that wait for a reset, and a GPU left between the two."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.healthcheck.checks.mig_mode import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, Mode
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, finds, healthy, tells

SUBJECT = f"gpu/{ADDRESSES[3]}"
ON, OFF = Mode(current=True, pending=True), Mode(current=False, pending=False)
TO_BE_ON, TO_BE_OFF = Mode(current=False, pending=True), Mode(current=True, pending=False)


def judge(*gpus: Gpu) -> list[Judgement]:
    return finds(CHECK, P5, {NVML: driver_says(*gpus)})


def found(reason: str, detail: str) -> Finding:
    about = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
    return Finding(reason, Severity.MONITOR, SUBJECT, detail, about, flickers=True)


@pytest.mark.parametrize("instances", [(), (5,), None])
@pytest.mark.parametrize(
    ("mode", "detail"),
    [(TO_BE_ON, "MIG is off, but on after the next reset"), (TO_BE_OFF, "MIG is on, but off after the next reset")],
)
def test_a_mode_that_waits_for_a_reset_is_found(mode: Mode, detail: str, instances: tuple[int, ...] | None) -> None:
    assert judge(healthy(2), healthy(3, mig_mode=mode, instances=instances)) == [found("MigModePending", detail)]


def test_a_mig_gpu_without_instances_among_whole_gpus_is_found() -> None:
    assert judge(healthy(2), healthy(3, mig_mode=ON), healthy(4, mig_mode=ON, instances=(1, 2))) == [
        found("MigModeInconsistent", "MIG is on but no instance exists, while MIG is off for other GPUs")
    ]


@pytest.mark.parametrize(
    "gpus",
    [
        every(),
        # All on: divided, to be divided, or unreadable.
        every(mig_mode=ON, instances=(1, 2)),
        every(mig_mode=ON, instances=()),
        # Some on, by a person's choice, and in use; or unreadable.
        (healthy(2), healthy(3, mig_mode=ON, instances=(1, 2))),
        (healthy(2), healthy(3, mig_mode=ON, instances=None)),
        # A GPU that can't do MIG does not count as a GPU with MIG off.
        (healthy(2, mig_mode=None), healthy(3, mig_mode=ON)),
    ],
)
def test_possibly_requested_state_is_no_finding(gpus: tuple[Gpu, ...]) -> None:
    assert judge(*gpus) == []


def test_instances_that_could_not_be_read_are_missed_only_where_they_matter() -> None:
    unread: dict[str, Any] = {"instances": None, "errors": {"instances": 999}}

    assert judge(healthy(2), healthy(3, mig_mode=ON, **unread)) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}: instances: NVML error 999", SUBJECT)
    ]
    assert judge(*every(mig_mode=ON, **unread)) == judge(*every(**unread)) == []


def test_the_output_counts_the_gpus_with_the_mode() -> None:
    gpus = (*every()[:6], healthy(6, mig_mode=ON, instances=(1,)), healthy(7, mig_mode=TO_BE_OFF, instances=(1,)))

    assert tells(CHECK, P5, {NVML: driver_says(*gpus)}) == [Observation("on for 2 of 8 GPUs")]
    assert judge(*every(mig_mode=None)) == [NotConfigured("no GPU here supports MIG")]
