"""Rates at which the NVLinks of each GPU recover, replay and lose data."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.nvlink_errors import CHECK, LEAST_PER_SECOND
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
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NONSENSE, NVML, DriverReading, Gpu, NvLink
from tests.checks.evidence import ADDRESSES, P5, driver_is_silent, driver_says, healthy

ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
SUBJECT = f"gpu/{ADDRESSES[3]}"


def counts(link: int = 14, **counters: int) -> Gpu:
    """GPU 3 with these counters on one link, and zeroes of the same name on the others."""
    zeroes = dict.fromkeys(counters, 0)
    links = (NvLink(number, True, 6, counters if number == link else zeroes) for number in range(18))
    return healthy(3, nvlinks=tuple(links))


def judge(now: Gpu, before: Gpu | DriverReading | None, seconds: float = 300.0) -> list[Judgement]:
    """Judgements of a cycle after another, without the summary."""
    earlier = driver_says(before) if isinstance(before, Gpu) else before
    first = None if earlier is None else Evidence({NVML: earlier}, at=1000.0)
    findings = CHECK.judge(Evidence({NVML: driver_says(now)}, 1000.0 + seconds, first), P5)
    return [judgement for judgement in findings if not isinstance(judgement, Observation)]


def finding(message: str) -> Finding:
    detail = f"NVLinks with too many errors: {message}"
    return Finding("NvLinkErrorRate", Severity.MONITOR, SUBJECT, detail, ABOUT, flickers=True)


@pytest.mark.parametrize(
    ("counter", "more", "seconds", "too_many"),
    [
        ("crc_errors", 29_999, 300.0, False),
        ("crc_errors", 30_000, 300.0, True),
        ("crc_errors", 999, 10.0, False),
        ("crc_errors", 1_000, 10.0, True),
        ("crc_data_errors", 29_999, 300.0, False),
        ("crc_data_errors", 30_000, 300.0, True),
        *(
            (counter, more, seconds, too_many)
            for counter in ("replays", "recoveries", "recovery_failures", "symbol_errors")
            for more, seconds, too_many in [(4, 300.0, False), (5, 300.0, True), (0, 10.0, False), (1, 10.0, True)]
        ),
    ],
)
def test_the_rate_on_a_link_decides_and_never_the_count(
    counter: str, more: int, seconds: float, too_many: bool
) -> None:
    findings = judge(counts(**{counter: 70_000 + more}), counts(**{counter: 70_000}), seconds)

    assert findings == ([finding(f"{counter.replace('_', ' ')} on 14")] if too_many else [])


def test_one_finding_names_all_links_and_counters_of_a_gpu() -> None:
    before = counts(replays=0, recoveries=0)
    noisy = [
        NvLink(number, True, 6, {"replays": 50 * (number in (3, 14)), "recoveries": 50 * (number == 5)})
        for number in range(18)
    ]

    assert judge(healthy(3, nvlinks=tuple(noisy)), before) == [finding("replays on 3, 14; recoveries on 5")]


def test_a_counter_that_nobody_has_a_limit_for_is_not_judged() -> None:
    assert "effective_errors" not in LEAST_PER_SECOND
    assert judge(counts(replays=0, effective_errors=10**9), counts(replays=0, effective_errors=0)) == []


@pytest.mark.parametrize(
    "before",
    [
        healthy(2, nvlinks=counts(replays=0).nvlinks),
        replace(counts(replays=0), uuid="GPU-another"),
        healthy(3, nvlinks=None),
        counts(recoveries=0),
        counts(replays=1001),
    ],
    ids=["another address", "another GPU", "no links", "other counters", "counts anew"],
)
def test_a_gpu_without_an_earlier_count_is_judged_later(before: Gpu) -> None:
    early = TooEarly("its counters were not read in the previous check cycle, or were reset", SUBJECT)

    assert judge(counts(replays=1000), before) == [early]


@pytest.mark.parametrize(
    "before",
    [None, driver_is_silent(Unobserved(UnobservedCause.named("DriverNotLoaded"), "why"))],
    ids=["first look", "blind before"],
)
def test_without_an_earlier_cycle_all_is_judged_later(before: DriverReading | None) -> None:
    assert judge(counts(replays=1000), before) == [TooEarly("a rate needs an earlier check cycle")]


@pytest.mark.parametrize(
    ("gpu_now", "message"),
    [
        (healthy(3, nvlinks=None, errors={"nvlinks": 999}), "NVLinks: NVML error 999"),
        (healthy(3, nvlinks=counts().nvlinks, errors={"nvlink_counters": 999}), "NVLink counters: NVML error 999"),
    ],
)
def test_links_that_could_not_be_read_have_no_rate(gpu_now: Gpu, message: str) -> None:
    assert judge(gpu_now, counts(replays=0)) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}: {message}", SUBJECT)
    ]


def test_implausible_counters_are_unobserved() -> None:
    now = healthy(3, nvlinks=counts().nvlinks, errors={"nvlink_counters": NONSENSE})

    assert judge(now, counts(replays=0)) == [
        Unobserved(
            UnobservedCause.named("NvmlNonsense"), f"{SUBJECT}: NVLink counters: NVML's answer is implausible", SUBJECT
        )
    ]


def test_unread_counters_do_not_count_as_missing() -> None:
    unread = replace(counts(), errors={"nvlink_counters": 999})

    for earlier in (counts(replays=0), unread):
        assert judge(unread, earlier) == [
            Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{SUBJECT}: NVLink counters: NVML error 999", SUBJECT)
        ]
