"""The NVLinks of each GPU: how many, whether active, of which version."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.nvlink import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu, Mode, NvLink
from tests.checks.evidence import ADDRESSES, G6, P5, UNKNOWN_TYPE, driver_says, every, judgements
from tests.checks.evidence import healthy as healthy_gpu

ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
SUBJECT = f"gpu/{ADDRESSES[3]}"
P3DN = Expectation(InstanceProfile("p3dn.24xlarge", 8, 1, True, "efa"), "p3dn.24xlarge")
NEW_TYPE = Expectation(InstanceProfile("p9.48xlarge", 8, 32, True, "efa"), "p9.48xlarge")
WITHOUT_NVLINK = replace(P5, profile=InstanceProfile("p5.48xlarge", 8, 32, False, "efa"))


def links(count: int = 18, down: tuple[int, ...] = (), version: int | None = 6) -> tuple[NvLink, ...]:
    return tuple(
        NvLink(link, active=link not in down, version=None if link in down else version) for link in range(count)
    )


def judge(expected: Expectation, *gpus: Gpu) -> list[Judgement]:
    return judgements(CHECK, expected, {NVML: driver_says(*gpus)})


def findings(expected: Expectation, *gpus: Gpu) -> list[Judgement]:
    return [finding for finding in judge(expected, *gpus) if isinstance(finding, (Finding, Unobserved))]


def seen(message: str) -> Observation:
    return Observation(message, "18 of version 4.0 per GPU", "p5.48xlarge in fabrics.csv")


@pytest.mark.parametrize(
    ("more", "reason", "severity", "detail"),
    [
        (links(down=(5,)), "NvLinkDown", Severity.RESET, "1 of 18 NVLinks (5) inactive"),
        (links(down=(0, 17)), "NvLinkDown", Severity.RESET, "2 of 18 NVLinks (0, 17) inactive"),
        (links(down=tuple(range(18))), "NvLinkDown", Severity.RESET, "all 18 NVLinks inactive"),
        (
            (*links(17), NvLink(17, active=True, version=6, traffic_disabled=True)),
            "NvLinkTrafficDisabled",
            Severity.MONITOR,
            "1 of 18 NVLinks (17) active without traffic",
        ),
        (links(17), "NvLinkCountLow", Severity.RESET, "17 NVLinks, p5.48xlarge has 18 per GPU"),
        ((), "NvLinkCountLow", Severity.RESET, "0 NVLinks, p5.48xlarge has 18 per GPU"),
        (links(version=5), "NvLinkVersionLow", Severity.MONITOR, "all 18 NVLinks older than version 4.0"),
        (
            (*links(17), NvLink(17, active=True, version=4)),
            "NvLinkVersionLow",
            Severity.MONITOR,
            "1 of 18 NVLinks (17) older than version 4.0",
        ),
    ],
)
def test_a_fault_is_found_once_on_its_gpu_with_its_links(
    more: tuple[NvLink, ...], reason: str, severity: Severity, detail: str
) -> None:
    assert findings(P5, healthy_gpu(2), healthy_gpu(3, nvlinks=more), healthy_gpu(4)) == [
        Finding(reason, severity, SUBJECT, detail, ABOUT, flickers=True)
    ]


@pytest.mark.parametrize(
    "more", [links(), links(19), links(version=7), links(version=0), links(version=None), None], ids=str
)
def test_full_count_of_the_type_is_no_fault(more: tuple[NvLink, ...] | None) -> None:
    """An unknown version (None) and an invalid one (0) are no old version."""
    assert findings(P5, healthy_gpu(3, nvlinks=more)) == []


def test_a_person_reads_how_many_are_active() -> None:
    assert judge(P5, *every()) == [seen("144 of 144 NVLinks active")]
    assert judge(P5, *every(nvlinks=links(down=(5,))))[-1] == seen("136 of 144 NVLinks active")


def test_a_driver_without_nvlink_is_shown_with_the_expected_links() -> None:
    assert judge(P5, *every(nvlinks=None)) == [seen("0 of 0 NVLinks active")]


@pytest.mark.parametrize("expected", [G6, UNKNOWN_TYPE, WITHOUT_NVLINK], ids=lambda entry: entry.instance_type)
def test_without_nvlink_in_the_profile_nothing_is_a_fault(expected: Expectation) -> None:
    """A PCIe card without a bridge shows inactive links."""
    assert judge(expected, healthy_gpu(3, nvlinks=links(12, down=tuple(range(12))))) == [
        Observation("0 of 12 NVLinks active")
    ]
    assert judge(expected, healthy_gpu(3, nvlinks=None)) == [NotConfigured("no GPU has an NVLink")]


def test_a_type_with_nvlink_that_is_in_no_table_has_links_that_must_be_active() -> None:
    findings = judge(NEW_TYPE, healthy_gpu(3, nvlinks=links(2, down=(1,), version=1)))

    assert findings == [
        Finding("NvLinkDown", Severity.RESET, SUBJECT, "1 of 2 NVLinks (1) inactive", ABOUT, flickers=True),
        Observation("1 of 2 NVLinks active"),
    ]


@pytest.mark.parametrize(("count", "found"), [(6, []), (5, ["NvLinkCountLow"])])
def test_each_type_has_its_own_links(count: int, found: list[str]) -> None:
    said = findings(P3DN, healthy_gpu(3, nvlinks=links(count, version=2)))

    assert [finding.reason for finding in said if isinstance(finding, Finding)] == found


def test_a_gpu_in_mig_mode_may_have_its_links_off() -> None:
    divided = Mode(current=True, pending=True)

    assert findings(P5, healthy_gpu(3, nvlinks=links(down=tuple(range(18))), mig_mode=divided)) == []


@pytest.mark.parametrize(("age", "judged"), [(0.0, False), (179.9, False), (180.0, True)])
def test_links_are_judged_once_the_fabric_had_time_to_come_up(age: float, judged: bool) -> None:
    said = findings(replace(P5, driver_age_seconds=age), healthy_gpu(3, nvlinks=links(down=(5,))))

    waits = "1 of 18 NVLinks (5) inactive; judged 180 s after the driver was loaded"
    finding = Finding("NvLinkDown", Severity.RESET, SUBJECT, "1 of 18 NVLinks (5) inactive", ABOUT, flickers=True)
    assert said == [finding if judged else Unobserved(UnobservedCause.named("DriverJustLoaded"), waits, SUBJECT)]


def test_a_healthy_gpu_needs_no_grace() -> None:
    assert findings(replace(P5, driver_age_seconds=1.0), *every()) == []
