"""Repairs that wait for a reset of the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.healthcheck.checks.gpu_repair import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity, TooEarly
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, PendingRepair
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, healthy, judgements

SUBJECT = f"gpu/{ADDRESSES[3]}"
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
CHANNEL = Finding(
    "ChannelRepairPending",
    Severity.RESET,
    SUBJECT,
    "the next GPU reset remaps a memory channel to a spare",
    ABOUT,
)
TPC = Finding("TpcRepairPending", Severity.RESET, SUBJECT, "the next GPU reset replaces a TPC by a spare", ABOUT)

UNREPAIRABLE = Finding(
    "MemoryUnrepairable", Severity.ISOLATE, SUBJECT, "it reports memory that can't be repaired", ABOUT
)


def judge(*gpus: Gpu) -> list[Judgement]:
    return judgements(CHECK, P5, {NVML: driver_says(*gpus)})


def with_third(**more: Any) -> list[Gpu]:
    gpus = [*every()]
    gpus[3] = healthy(3, **more)
    return gpus


@pytest.mark.parametrize(
    ("repair", "findings", "waiting"),
    [
        (PendingRepair(channel_pending=False, tpc_pending=False), [], 0),
        (PendingRepair(channel_pending=True, tpc_pending=False), [CHANNEL], 1),
        (PendingRepair(channel_pending=False, tpc_pending=True), [TPC], 1),
        (PendingRepair(channel_pending=True, tpc_pending=True), [CHANNEL, TPC], 2),
        (None, [], 0),
    ],
)
def test_gpu_facts_give_the_expected_judgements(
    repair: PendingRepair | None, findings: list[Judgement], waiting: int
) -> None:
    assert judge(*with_third(repair=repair)) == [
        *findings,
        Observation(
            f"{waiting} repair{'' if waiting == 1 else 's'} waiting for a reset, unrepairable memory on 0 GPUs",
            "none",
            "nvml.h",
        ),
    ]


def test_unrepairable_memory_is_a_fault_of_its_own() -> None:
    assert judge(
        *with_third(unrepairable_memory=True, repair=PendingRepair(channel_pending=True, tpc_pending=False))
    ) == [
        CHANNEL,
        UNREPAIRABLE,
        Observation("1 repair waiting for a reset, unrepairable memory on 1 GPU", "none", "nvml.h"),
    ]


def test_a_gpu_that_stops_reporting_it_keeps_it() -> None:
    reason = ("MemoryUnrepairable",)
    untold = TooEarly(f"{SUBJECT} does not report its unrepairable memory", SUBJECT, reason)
    assert judge(*with_third(unrepairable_memory=None))[:-1] == [untold]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"repair": None}, "unrepairable memory on 0 GPUs"),
        ({"unrepairable_memory": None}, "0 repairs waiting for a reset"),
    ],
)
def test_reading_that_no_gpu_has_is_not_shown(more: dict[str, Any], what: str) -> None:
    assert judge(*every(**more))[-1] == Observation(what, "none", "nvml.h")


def test_gpus_without_either_are_not_configured() -> None:
    assert judge(*every(repair=None, unrepairable_memory=None))[-1] == NotConfigured("no GPU here reports repairs")
