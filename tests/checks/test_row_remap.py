"""Rows of memory that wait to be replaced, could not be, or have no spare row left."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import examine
from gpu_healthcheck.healthcheck.checks.row_remap import CHECK
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Judgement,
    Observation,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, RowRemap
from tests.checks.evidence import ADDRESSES, P5, driver_says, every, healthy, judgements
from tests.examples import NOW, memory_with

SUBJECT = f"gpu/{ADDRESSES[3]}"
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
EXPECTED = "none failed, none pending, a spare row in every bank"
FAILED = Finding("RowRemapFailed", Severity.ISOLATE, SUBJECT, "a faulty row could not be remapped", ABOUT)
PENDING = Finding("RowRemapPending", Severity.RESET, SUBJECT, "rows are remapped at the next reset of the GPU", ABOUT)
EXHAUSTED = Finding("RowBanksExhausted", Severity.MONITOR, SUBJECT, "banks of memory without a spare row: 1", ABOUT)

ALL_ROWS = replace(EXHAUSTED, detail="more than 511 rows are replaced, as many as a GPU can")


def untold(reading: str, reason: str, subject: str = SUBJECT) -> TooEarly:
    return TooEarly(f"{subject} does not report its {reading}", subject, (reason,))


UNTOLD = [untold("row remap", "RowRemapFailed"), untold("exhausted banks", "RowBanksExhausted")]


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
        ({"row_remap": RowRemap(0, 0, pending=False, failed=False)}, []),
        ({"row_remap": RowRemap(9, 500, pending=False, failed=False)}, []),
        ({"row_remap": RowRemap(11, 500, pending=False, failed=False)}, []),
        ({"row_remap": RowRemap(12, 500, pending=False, failed=False)}, [ALL_ROWS]),
        ({"row_remap": RowRemap(12, 500, pending=False, failed=False), "exhausted_banks": 1}, [EXHAUSTED]),
        ({"row_remap": RowRemap(0, 1, pending=True, failed=False)}, [PENDING]),
        ({"row_remap": RowRemap(0, 8, pending=False, failed=True)}, [FAILED]),
        ({"row_remap": RowRemap(0, 9, pending=True, failed=True)}, [FAILED, PENDING]),
        ({"exhausted_banks": 0}, []),
        ({"exhausted_banks": 1}, [EXHAUSTED]),
        ({"row_remap": RowRemap(0, 9, pending=True, failed=True), "exhausted_banks": 1}, [FAILED, PENDING, EXHAUSTED]),
        ({"row_remap": None, "exhausted_banks": None}, UNTOLD),
        ({"row_remap": None, "exhausted_banks": 1}, [EXHAUSTED, UNTOLD[0]]),
        (
            {"row_remap": RowRemap(0, 9, pending=True, failed=True), "exhausted_banks": None},
            [FAILED, PENDING, UNTOLD[1]],
        ),
    ],
)
def test_gpu_facts_give_the_expected_judgements(more: dict[str, Any], findings: list[Judgement]) -> None:
    assert found(**more) == findings


@pytest.mark.parametrize(
    ("reading", "name", "other", "finding"),
    [
        ("row_remap", "row remap", {"exhausted_banks": 1}, EXHAUSTED),
        (
            "exhausted_banks",
            "exhausted banks",
            {"row_remap": RowRemap(0, 8, pending=False, failed=True)},
            FAILED,
        ),
    ],
)
def test_a_reading_that_failed_hides_nothing_of_the_other(
    reading: str, name: str, other: dict[str, Any], finding: Finding
) -> None:
    assert found(**{reading: None}, errors={reading: 999}, **other) == [
        finding,
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}: {name}: NVML error 999", SUBJECT),
    ]


def test_replacement_is_shown() -> None:
    findings = judge(
        healthy(0, row_remap=RowRemap(1, 2, pending=False, failed=False), exhausted_banks=3),
        healthy(1, row_remap=RowRemap(10, 20, pending=False, failed=False, inactive=4)),
        healthy(2, row_remap=None, exhausted_banks=None),
    )

    remaps = "remaps failed on 0 and pending on 0 GPUs, done for 22 uncorrectable and 11 correctable errors"
    what = f"{remaps}, 4 replaced rows not in use, 3 banks without a spare row"
    assert findings[-1] == Observation(what, EXPECTED, "nvml.h")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"row_remap": None}, "0 banks without a spare row"),
        (
            {"exhausted_banks": None},
            "remaps failed on 0 and pending on 0 GPUs, done for 0 uncorrectable and 0 correctable errors",
        ),
    ],
)
def test_reading_that_no_gpu_has_is_not_shown(more: dict[str, Any], what: str) -> None:
    assert judge(*every(**more))[-1] == Observation(what, EXPECTED, "nvml.h")


def test_remapping_fault_stays_while_mig_mode_hides_it() -> None:
    fault = RowRemap(0, 9, pending=True, failed=True)
    memory = _after(memory_with(), healthy(3, row_remap=fault, exhausted_banks=1))
    assert [finding.finding.reason for finding in memory.active] == [
        "RowRemapFailed",
        "RowRemapPending",
        "RowBanksExhausted",
    ]

    memory = _after(memory, healthy(3, row_remap=None, exhausted_banks=None))
    assert [finding.finding.reason for finding in memory.active] == ["RowRemapFailed", "RowBanksExhausted"]

    assert _after(memory, healthy(3)).active == ()


def _after(memory: Memory, gpu: Gpu) -> Memory:
    """Return the memory after a check cycle with that GPU."""
    return after_cycle(memory, JudgedCycle(examine.judge([CHECK], Evidence({NVML: driver_says(gpu)}), P5)), NOW)
