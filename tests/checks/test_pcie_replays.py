"""Rate at which each GPU's PCIe link sends packets again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.pcie_replays import CHECK
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
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu
from tests.checks.evidence import ADDRESSES, P5, driver_is_silent, driver_says, healthy

ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
SUBJECT = f"gpu/{ADDRESSES[3]}"


def judge(now: Gpu, before: Gpu | DriverReading | None, seconds: float = 300.0) -> list[Judgement]:
    """Judgements of a cycle after another, without the summary."""
    earlier = driver_says(before) if isinstance(before, Gpu) else before
    first = None if earlier is None else Evidence({NVML: earlier}, at=1000.0)
    findings = CHECK.judge(Evidence({NVML: driver_says(now)}, 1000.0 + seconds, first), P5)
    return [judgement for judgement in findings if not isinstance(judgement, Observation)]


@pytest.mark.parametrize(
    ("before", "now", "seconds", "too_many"),
    [
        (0, 310, 300.0, False),  # 62 a minute
        (0, 311, 300.0, True),
        (7_000_000, 7_000_311, 300.0, True),
        (7_000_000, 7_000_000, 300.0, False),
        (0, 10, 10.0, False),
        (0, 11, 10.0, True),
        (0, 0, 10.0, False),
    ],
)
def test_the_rate_decides_and_never_the_count(before: int, now: int, seconds: float, too_many: bool) -> None:
    findings = judge(healthy(3, pcie_replays=now), healthy(3, pcie_replays=before), seconds)

    detail = "more than 62 replays a minute on its PCIe link"
    finding = Finding("PcieReplayRate", Severity.MONITOR, SUBJECT, detail, ABOUT, flickers=True)
    assert findings == ([finding] if too_many else [])


@pytest.mark.parametrize(
    "before",
    [
        healthy(2, pcie_replays=0),
        replace(healthy(3, pcie_replays=0), uuid="GPU-another"),
        healthy(3, pcie_replays=None),
        healthy(3, pcie_replays=10_001),
    ],
    ids=["another address", "another GPU", "no count", "counts anew"],
)
def test_a_gpu_without_an_earlier_count_is_judged_later(before: Gpu) -> None:
    early = TooEarly("its counter was not read in the previous check cycle, or was reset", SUBJECT)

    assert judge(healthy(3, pcie_replays=10_000), before) == [early]


@pytest.mark.parametrize(
    "before",
    [None, driver_is_silent(Unobserved(UnobservedCause.named("DriverNotLoaded"), "why"))],
    ids=["first look", "blind before"],
)
def test_without_an_earlier_cycle_all_is_judged_later(before: DriverReading | None) -> None:
    assert judge(healthy(3, pcie_replays=10_000), before) == [TooEarly("a rate needs an earlier check cycle")]
