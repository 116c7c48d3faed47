"""The width of each GPU's PCIe link."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.pcie_link import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    TooEarly,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, PcieLink
from tests.checks.evidence import ADDRESSES, P5, UNKNOWN_TYPE, driver_says, healthy, judgements

ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
SUBJECT = f"gpu/{ADDRESSES[3]}"


def judge(*gpus: Gpu) -> list[Judgement]:
    return judgements(CHECK, P5, {NVML: driver_says(*gpus)})


def seen(message: str) -> Observation:
    return Observation(message, "all", "NVML's maximum of GPU and slot")


@pytest.mark.parametrize(("width", "most"), [(8, 16), (4, 16), (1, 16), (12, 16), (4, 8), (16, 32)])
def test_a_link_with_fewer_lanes_than_it_could_have_is_found(width: int, most: int) -> None:
    assert judge(healthy(2), healthy(3, pcie=PcieLink(width, most, 5, 5))) == [
        Finding(
            "PcieWidthLow", Severity.RESET, SUBJECT, f"x{width}, GPU and slot support x{most}", ABOUT, flickers=True
        ),
        seen("full width on 1 of 2 GPUs"),
    ]


@pytest.mark.parametrize(
    ("generation", "most", "processes"),
    [(1, 5, 1), (4, 5, 8), (5, 5, 0), (5, 5, None), (None, None, 1), (None, 5, 1), (0, 0, 1)],
)
def test_a_narrow_link_counts_at_its_highest_generation_or_in_use(
    generation: int | None, most: int | None, processes: int | None
) -> None:
    findings = judge(healthy(3, pcie=PcieLink(8, 16, generation, most), processes=processes))

    assert [finding.reason for finding in findings if isinstance(finding, Finding)] == ["PcieWidthLow"]


@pytest.mark.parametrize(
    ("generation", "most", "processes"),
    [(1, 5, 0), (4, 5, 0), (1, 5, None), (None, None, 0), (None, None, None), (5, None, 0), (0, 0, 0)],
)
def test_a_narrow_link_of_a_gpu_that_may_be_idle_is_neither_full_nor_low(
    generation: int | None, most: int | None, processes: int | None
) -> None:
    message = f"{SUBJECT}: x8, GPU and slot support x16; an idle GPU may lower its width"

    assert judge(healthy(2), healthy(3, pcie=PcieLink(8, 16, generation, most), processes=processes)) == [
        TooEarly(message, SUBJECT, ("PcieWidthLow",)),
        seen("full width on 1 of 2 GPUs"),
    ]


@pytest.mark.parametrize("width", [1, 4, 8, 16])
def test_a_slot_that_has_no_more_lanes_is_no_fault(width: int) -> None:
    assert judge(healthy(3, pcie=PcieLink(width, width))) == [seen("full width on 1 of 1 GPU")]


@pytest.mark.parametrize(
    "link",
    [
        PcieLink(0, 0),
        PcieLink(0, 16),
        PcieLink(16, 0),
        PcieLink(255, 16),
        PcieLink(16, 255),
        PcieLink(3, 16),
        PcieLink(4294967295, 4294967295),
        None,
    ],
)
def test_impossible_and_unreported_links_are_not_judged(link: PcieLink | None) -> None:
    assert judge(healthy(3, pcie=link)) == [NotConfigured("no GPU reports a plausible PCIe width")]


def test_no_instance_type_is_needed() -> None:
    findings = judgements(CHECK, UNKNOWN_TYPE, {NVML: driver_says(healthy(3, pcie=PcieLink(8, 16, 5, 5)))})

    assert [finding.reason for finding in findings if isinstance(finding, Finding)] == ["PcieWidthLow"]
