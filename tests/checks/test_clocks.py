"""Clocks that the hardware holds down."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.clocks import CHECK
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    TooEarly,
)
from gpu_healthcheck.healthcheck.model.node_facts import DeepDiagnostic
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, Snapshot, ThrottledTime
from tests.checks.evidence import ADDRESSES, BUSY, IDLE, P5, driver_says, every, finds, healthy, tells

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
def test_throttling_by_software_or_a_person_is_no_finding(bits: int | None) -> None:
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
def test_deep_tests_effect_on_clocks_is_neither_found_nor_ended(run: DeepDiagnostic | None, is_flag: bool) -> None:
    """The check cycle is at 0 s."""
    look = {NVML: driver_says(healthy(2), healthy(3, clock_reasons=0x48))}
    findings = finds(CHECK, replace(P5, deep_run=run), look)

    untold = TooEarly("a deep test loads the GPU", SUBJECT, ("ClocksThermalSlowdown",))
    assert findings == ([held(*THERMAL)] if is_flag else [untold])


SECOND = 10**9
COUNTERS = {"hardware_thermal": "ClocksThermalSlowdown", "power_brake": "PowerBrake"}


def looked(now: Gpu, *earlier: tuple[float, Gpu], run: DeepDiagnostic | None = None) -> list[Judgement]:
    """Judgements at 10,000 s with a history of such ages in seconds, oldest first."""
    history = tuple(Snapshot(10_000.0 - age, (gpu,)) for age, gpu in earlier)
    reading = replace(driver_says(now), read_at=10_000.0, history=history)
    judgements = CHECK.judge(Evidence({NVML: reading}, 10_000.0), replace(P5, deep_run=run))
    return [judgement for judgement in judgements if not isinstance(judgement, Observation)]


def throttled(counter: str, seconds: float | None, *, busy: bool = True) -> Gpu:
    counts = {counter: None if seconds is None else int(seconds * SECOND)}
    return healthy(3, throttled=replace(ThrottledTime(0, 0, 0, 0), **counts), load=BUSY if busy else IDLE)


def slowed(reason: str, share: str) -> Finding:
    causes = {
        "ClocksThermalSlowdown": "slowed down by heat",
        "PowerBrake": "slowed down by the power supply",
        "ThermalThrottling": "reduced because of heat",
    }
    detail = f"over {share} of the time: clocks {causes[reason]}"
    return Finding(reason, Severity.MONITOR, SUBJECT, detail, {"index": "3", "uuid": "GPU-3", "serial": "1653"})


def early(reason: str) -> TooEarly:
    text = "its slowdown was not measured twice yet"
    if reason == "ThermalThrottling":
        text = "its slowdown is not measured for long enough"
    return TooEarly(text, SUBJECT, (reason,))


@pytest.mark.parametrize(("counter", "reason"), COUNTERS.items())
@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # 600 s ago, 300 s ago, now
        ((0, 0, 0), "none"),
        ((0, 16, 32), "5%"),
        ((0, 60, 92), "10%"),
        ((0, 60, 361), "90%"),
        ((0, 15, 31), "none"),
        ((0, 16, 31), "none"),
        ((7, 200, 400), "50%"),
        ((100, 0, 16), "early"),  # the driver was loaded anew
        ((100, 116, 10), "early"),
        ((None, 16, 32), "early"),
        ((0, None, 32), "early"),
        ((0, 16, None), "none"),
        ((0, 300, 700), "early"),  # more than the time that passed
    ],
)
def test_slowdown_by_hardware_counts_in_two_windows(
    counter: str, reason: str, seconds: tuple[float | None, ...], expected: str
) -> None:
    oldest, older, now = (throttled(counter, one) for one in seconds)

    findings = looked(now, (600.0, oldest), (300.0, older))

    assert findings == {"none": [], "early": [early(reason)]}.get(expected, [slowed(reason, expected)])


@pytest.mark.parametrize(("counter", "reason"), COUNTERS.items())
def test_windows_that_are_too_short_or_absent_are_waited_for(counter: str, reason: str) -> None:
    gpu = throttled(counter, 100)

    assert looked(gpu) == [early(reason)]
    assert looked(gpu, (239.0, throttled(counter, 0))) == [early(reason)]
    assert looked(gpu, (300.0, throttled(counter, 50))) == [early(reason)]
    assert looked(gpu, (479.0, throttled(counter, 0)), (240.0, throttled(counter, 50))) == [early(reason)]
    assert looked(gpu, (480.0, throttled(counter, 0)), (240.0, throttled(counter, 50))) == [slowed(reason, "10%")]


@pytest.mark.parametrize(("counter", "reason"), COUNTERS.items())
def test_slowdown_of_an_idle_gpu_is_no_finding(counter: str, reason: str) -> None:
    history = ((600.0, throttled(counter, 0)), (300.0, throttled(counter, 50)))
    unknown = replace(throttled(counter, 100), load=None, processes=0)

    assert looked(throttled(counter, 100, busy=False), *history) == looked(unknown, *history) == []
    assert looked(replace(unknown, processes=1), *history) == [slowed(reason, "10%")]


@pytest.mark.parametrize(("counter", "kind"), [("hardware_thermal", THERMAL), ("power_brake", POWER)])
def test_a_bit_is_found_with_the_time_where_it_is_known(counter: str, kind: tuple[str, int]) -> None:
    long, short = (replace(throttled(counter, seconds), clock_reasons=kind[1]) for seconds in (150, 30))
    before = ((600.0, throttled(counter, 0)), (300.0, throttled(counter, 16)))
    timed = replace(held(*kind), detail=f"over 25% of the time: {held(*kind).detail}")

    assert looked(long, *before) == [timed]
    assert looked(short, *before) == looked(long) == [held(*kind)]


@pytest.mark.parametrize(
    ("seconds", "age", "busy", "expected"),
    [
        (0, 600.0, True, "none"),
        (120, 600.0, True, "none"),
        (121, 600.0, True, "20%"),
        (160, 600.0, True, "25%"),
        (121, 600.0, False, "none"),
        (121, 599.0, True, "early"),
        (-1, 600.0, True, "early"),
        (700, 600.0, True, "early"),
        (200, 900.0, True, "20%"),
    ],
)
def test_slowdown_by_the_driver_counts_over_ten_minutes(seconds: int, age: float, busy: bool, expected: str) -> None:
    counter, reason = "software_thermal", "ThermalThrottling"
    now = throttled(counter, 1000 + seconds if seconds else 0, busy=busy)

    findings = looked(now, (age, throttled(counter, 1000 if seconds else 0)))

    assert findings == {"none": [], "early": [early(reason)]}.get(expected, [slowed(reason, expected)])


def test_a_power_cap_is_never_a_finding() -> None:
    history = ((900.0, throttled("software_power", 0)), (300.0, throttled("software_power", 600)))
    assert looked(throttled("software_power", 900), *history) == []


@pytest.mark.parametrize(
    ("run", "is_tested"),
    [
        (DeepDiagnostic("l2", 9_990.0), True),
        (DeepDiagnostic("l2", 10_001.0), False),
        (DeepDiagnostic("sweep", 9_000.0, 9_340.0), True),  # its effects may last a minute
        (DeepDiagnostic("sweep", 9_000.0, 9_339.0), False),
        (None, False),
    ],
)
@pytest.mark.parametrize(("counter", "reason"), [*COUNTERS.items(), ("software_thermal", "ThermalThrottling")])
def test_slowdown_in_a_time_with_a_deep_test_is_put_down_to_it(
    counter: str, reason: str, run: DeepDiagnostic | None, is_tested: bool
) -> None:
    history = ((600.0, throttled(counter, 1)), (300.0, throttled(counter, 201)))

    findings = looked(throttled(counter, 401), *history, run=run)

    tested = TooEarly("a deep test loaded the GPU", SUBJECT, (reason,))
    assert findings == [tested if is_tested else slowed(reason, "50%")]


def test_a_driver_without_counters_is_judged_by_the_bits() -> None:
    gpu = healthy(3, clock_reasons=0x48, throttled=None, load=BUSY)

    assert looked(gpu, (600.0, gpu), (300.0, gpu)) == [held(*THERMAL)]
