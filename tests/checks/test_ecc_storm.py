"""Errors that ECC corrects at a rate that slows a GPU down."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import examine
from gpu_healthcheck.healthcheck.checks.ecc_storm import CHECK
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, MemoryRules, after_cycle
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    TooEarly,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, MemoryErrors, RowRemap, Snapshot
from tests.checks.evidence import ADDRESSES, BUSY, IDLE, P5, driver_says, healthy
from tests.examples import NOW, memory_with

ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
SUBJECT = f"gpu/{ADDRESSES[3]}"
EARLY = TooEarly("a rate needs the DRAM errors of two check cycles", SUBJECT)
IDLE_GPU = TooEarly("an idle GPU hardly uses its memory", SUBJECT)


def gpu(dram: int | None, *, sram: int | None = 0, busy: bool = True, index: int = 3, remapped: int = 0) -> Gpu:
    return healthy(
        index,
        memory_errors=MemoryErrors(dram, sram),
        load=BUSY if busy else IDLE,
        row_remap=RowRemap(remapped, 0, pending=False, failed=False),
    )


def evidence(*now: Gpu, before: tuple[Gpu, ...] = (), seconds: float = 300.0) -> Evidence:
    earlier = Evidence({NVML: driver_says(*before)}, 1000.0) if before else None
    return Evidence({NVML: driver_says(*now)}, 1000.0 + seconds, earlier)


def judge(seen: Evidence) -> list[Judgement]:
    return [judgement for judgement in CHECK.judge(seen, P5) if not isinstance(judgement, Observation)]


def storm(detail: str, *, flickers: bool = True) -> Finding:
    return Finding("EccCorrectedStorm", Severity.MONITOR, SUBJECT, detail, ABOUT, flickers=flickers)


@pytest.mark.parametrize(
    ("before", "now", "busy", "expected"),
    [
        (0, 0, True, []),
        (0, 29_999, True, []),
        (0, 30_000, True, [storm("100 or more corrected DRAM errors a second")]),
        (7_000_000, 7_030_000, True, [storm("100 or more corrected DRAM errors a second")]),
        (0, 5_297_100, True, [storm("10,000 or more corrected DRAM errors a second")]),
        (0, 30_000, False, [storm("100 or more corrected DRAM errors a second")]),
        (5_000_000, 5_000_000, False, [IDLE_GPU]),
        (5_000_000, 5_000_000, True, []),
        (0, 99, False, []),
        (7_000, 0, True, [EARLY]),
        (7_000, 6_999, False, [EARLY]),
        (None, 7_000, True, [EARLY]),
        (7_000, None, True, [EARLY]),
    ],
)
def test_the_rate_since_the_previous_cycle_decides(
    before: int | None, now: int | None, busy: bool, expected: list[Judgement]
) -> None:
    assert judge(evidence(gpu(now, busy=busy), before=(gpu(before),))) == expected


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize(
    ("dram", "sram", "detail"),
    [
        (20_000_001, 0, "more than 20,000,000 corrected DRAM errors since the driver was loaded"),
        (0, 10_001, "more than 10,000 corrected SRAM errors since the driver was loaded"),
        (None, 10_001, "more than 10,000 corrected SRAM errors since the driver was loaded"),
    ],
)
def test_the_total_decides_at_once(dram: int | None, sram: int, detail: str, busy: bool) -> None:
    assert judge(evidence(gpu(dram, sram=sram, busy=busy))) == [storm(detail, flickers=False)]


def test_the_limits_themselves_are_allowed() -> None:
    assert judge(evidence(gpu(20_000_000, sram=10_000), before=(gpu(20_000_000, sram=10_000),))) == []


@pytest.mark.parametrize(
    ("grown", "rate"), [(0, "less than 1"), (299, "less than 1"), (300, "1 or more"), (3_000, "10 or more")]
)
def test_the_rates_of_the_other_gpus_are_in_the_detail(grown: int, rate: str) -> None:
    before = tuple(gpu(0, index=index) for index in range(8))
    now = (gpu(0, index=0), gpu(grown, index=1), *(gpu(0, index=index) for index in (2, 4, 5, 6, 7)))

    detail = f"1,000 or more corrected DRAM errors a second; the other 7 GPUs of the node: {rate}"
    assert judge(evidence(gpu(300_000), *now, before=before)) == [storm(detail)]


@pytest.mark.parametrize(("earlier", "rises"), [(8, False), (7, True)])
@pytest.mark.parametrize("is_in_history", [False, True])
def test_rows_that_were_remapped_lately_are_named(earlier: int, rises: bool, is_in_history: bool) -> None:
    first = gpu(0, remapped=earlier)
    seen = evidence(gpu(30_000, remapped=8), before=(gpu(0, remapped=8) if is_in_history else first,))
    if is_in_history:
        reading = replace(seen[NVML], read_at=4600.0, history=(Snapshot(1000.0, (first,)),))
        seen = Evidence({NVML: reading}, seen.at, seen.before)

    (finding,) = judge(seen)

    assert isinstance(finding, Finding)
    assert ("rows were recently remapped" in finding.detail) is rises


@pytest.mark.parametrize("errors", [None, MemoryErrors()])
def test_a_gpu_that_counts_nothing_has_none(errors: MemoryErrors | None) -> None:
    findings = judge(evidence(healthy(3, memory_errors=errors)))

    assert findings == ([NotConfigured("no GPU counts corrected ECC errors by memory")] if errors is None else [EARLY])


def test_the_summary_has_the_limits() -> None:
    limits = "below 100 a second in DRAM, 20,000,000 in DRAM and 10,000 in SRAM in all"
    summary = Observation("corrected ECC errors of 1 GPU read", limits, "NVSentinel; Azure")
    assert list(CHECK.judge(evidence(gpu(0)), P5))[-1] == summary


def after(memory: Memory, now: Gpu, before: Gpu) -> Memory:
    outcomes = examine.judge([CHECK], evidence(now, before=(before,)), P5)
    return after_cycle(memory, JudgedCycle(outcomes), NOW, MemoryRules(cycles_to_confirm=1))


def test_a_storm_lasts_while_the_gpu_is_idle_and_ends_by_a_reset_or_by_clean_work() -> None:
    memory = after(memory_with(), gpu(60_000), gpu(0))
    assert [active.finding.reason for active in memory.active] == ["EccCorrectedStorm"]
    idle = after(memory, gpu(60_000, busy=False), gpu(60_000))
    assert len(idle.active) == 1

    assert after(idle, gpu(60_100), gpu(60_000, busy=False)).active == ()
    at_reset = after(idle, gpu(0, busy=False), gpu(60_000))
    assert len(at_reset.active) == 1
    assert after(at_reset, gpu(0, busy=False), gpu(0, busy=False)).active == ()


def test_a_total_ends_by_a_reset() -> None:
    memory = after(memory_with(), gpu(30_000_000), gpu(30_000_000))
    assert len(memory.active) == 1

    at_reset = after(memory, gpu(0, busy=False), gpu(30_000_000))
    assert after(at_reset, gpu(0, busy=False), gpu(0, busy=False)).active == ()
