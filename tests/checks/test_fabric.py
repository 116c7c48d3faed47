"""The GPUs' registration with their NVLink fabric, and its health."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.fabric import CHECK
from gpu_healthcheck.healthcheck.checks.per_gpu import FABRIC_GRACE
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Fabric, Mode
from gpu_healthcheck.healthcheck.probes.services import FABRIC_MANAGER, SERVICES, Service, Services
from tests.checks.evidence import ADDRESSES, G6, P5, UNKNOWN_TYPE, driver_says, every, healthy, judgements

GB200 = replace(P5, instance_type="p6e-gb200.36xlarge")
P5_SMALL = replace(P5, instance_type="p5.4xlarge")
SUBJECT = f"gpu/{ADDRESSES[3]}"
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1653"}
REGISTERED = Fabric(3, 0)
ALL_SEEN = Observation("8 of 8 GPUs registered with the NVLink fabric", "all", "p5.48xlarge in fabrics.csv")
ONE_MISSING = Observation("7 of 8 GPUs registered with the NVLink fabric", "all", "p5.48xlarge in fabrics.csv")
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK: a healthy GPU has each field at 2 and the configuration at 1, or not supported.
HEALTHY_MASKS = [0, 0x1AA, 0x80, 0x1A8, 0x02, 0x100, 0x11AA, 0x51AA, 0xA1AA]


def up(age_seconds: float | None) -> Services:
    return Services(of_host=True, running=(Service(FABRIC_MANAGER, 1041, age_seconds),))


UP = up(3600.0)
NO_MANAGER = Services(of_host=True)


def judge(
    fabric: Fabric | None, expected: Expectation = P5, services: Services = UP, **more: object
) -> list[Judgement]:
    """Judgements of a node with this fabric on its fourth GPU, and seven healthy ones."""
    gpus = tuple(healthy(n, fabric=fabric, **more) if n == 3 else healthy(n) for n in range(8))
    return look_judged(driver_says(*gpus), expected, services)


def look_judged(look: DriverReading, expected: Expectation = P5, services: Services = UP) -> list[Judgement]:
    return judgements(CHECK, expected, {NVML: look, SERVICES: services})


def finding(reason: str, severity: Severity, detail: str) -> Finding:
    return Finding(reason, severity, SUBJECT, detail, ABOUT, flickers=True)


def test_a_healthy_board_is_no_finding() -> None:
    assert look_judged(driver_says(*every())) == [ALL_SEEN]


@pytest.mark.parametrize(("state", "name"), [(1, "not started"), (2, "in progress")])
def test_a_gpu_that_is_not_registered_in_time_is_found(state: int, name: str) -> None:
    assert judge(Fabric(state, 0)) == [
        finding("FabricNotReady", Severity.RESET, f"fabric state {state} ({name})"),
        ONE_MISSING,
    ]


@pytest.mark.parametrize(("age", "found"), [(0.0, False), (179.9, False), (180.0, True), (1e9, True)])
def test_registration_is_judged_from_the_managers_start(age: float, found: bool) -> None:
    coming = f"{SUBJECT}: fabric state 2 (in progress); judged 180 s after the fabric manager was started"

    assert judge(Fabric(2, 0), services=up(age))[0] == (
        finding("FabricNotReady", Severity.RESET, "fabric state 2 (in progress)")
        if found
        else Unobserved(UnobservedCause.named("FabricComingUp"), coming, SUBJECT)
    )
    assert FABRIC_GRACE.seconds == 180


@pytest.mark.parametrize("services", [NO_MANAGER, up(None), Services(of_host=False)])
@pytest.mark.parametrize(("age", "found"), [(179.9, False), (180.0, True)])
def test_where_no_managers_start_is_known_it_is_the_drivers(services: Services, age: float, found: bool) -> None:
    findings = judge(Fabric(1, 0), replace(P5, driver_age_seconds=age), services)

    assert isinstance(findings[0], Finding if found else Unobserved)


@pytest.mark.parametrize("fabric", [Fabric(1, 0), Fabric(2, 0), Fabric(3, 27), Fabric(3, 0, health_mask=0x01)])
def test_a_gpu_in_mig_mode_takes_no_part_in_a_fabric(fabric: Fabric) -> None:
    seven = Observation("7 of 7 GPUs registered with the NVLink fabric", "all", "p5.48xlarge in fabrics.csv")

    assert judge(fabric, mig_mode=Mode(current=True, pending=True)) == [seven]
    assert judge(fabric, mig_mode=Mode(current=False, pending=True)) != [seven]


def test_gpu_initialised_by_our_read_is_not_judged_as_pending() -> None:
    message = "fabric state 2 (in progress), and with persistence mode off each first use registers again"

    assert judge(Fabric(2, 0), persistence=False) == [TooEarly(message, SUBJECT), ONE_MISSING]
    assert isinstance(judge(Fabric(1, 0), persistence=False)[0], Finding)


def test_a_node_of_a_rack_is_registered_without_a_manager_of_its_own() -> None:
    findings = judge(Fabric(2, 0), GB200, NO_MANAGER)

    assert findings[0] == finding("FabricNotReady", Severity.RESET, "fabric state 2 (in progress)")


def test_one_gpu_of_a_board_need_not_be_registered() -> None:
    findings = look_judged(driver_says(healthy(0, fabric=Fabric(2, 0))), P5_SMALL, NO_MANAGER)

    assert findings == [Observation("0 of 1 GPU registered with the NVLink fabric", "not required")]


@pytest.mark.parametrize(("services", "found"), [(up(3600.0), True), (NO_MANAGER, False)])
def test_unknown_type_needs_the_manager_that_runs(services: Services, found: bool) -> None:
    findings = judge(Fabric(1, 0), UNKNOWN_TYPE, services)

    assert [type(judgement) for judgement in findings] == ([Finding, Observation] if found else [Observation])


@pytest.mark.parametrize("fabric", [None, Fabric(0, 0), Fabric(0, 3), Fabric(0, 23, 0, "", 0x1A9, 2)])
def test_a_gpu_that_has_no_fabric_is_none_that_fails(fabric: Fabric | None) -> None:
    assert judge(fabric) == [
        Observation("7 of 7 GPUs registered with the NVLink fabric", "all", "p5.48xlarge in fabrics.csv")
    ]


@pytest.mark.parametrize("fabric", [None, Fabric(0, 3)])
@pytest.mark.parametrize("expected", [P5, G6, UNKNOWN_TYPE])
def test_gpus_before_hopper_and_cards_have_nothing_to_check(fabric: Fabric | None, expected: Expectation) -> None:
    findings = look_judged(driver_says(*every(fabric=fabric)), expected)

    assert findings == [NotConfigured("NVML reports no NVLink fabric here")]


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (23, "registration ended with NVML error 23 (insufficient resources)"),
        (27, "registration ended with NVML error 27 (not ready)"),
        (999, "registration ended with NVML error 999"),
    ],
)
@pytest.mark.parametrize("expected", [P5, P5_SMALL, UNKNOWN_TYPE])
def test_a_registration_that_failed_is_found_on_any_type(expected: Expectation, status: int, detail: str) -> None:
    findings = judge(Fabric(3, status), expected, NO_MANAGER)

    assert [one for one in findings if isinstance(one, Finding)] == [finding("FabricError", Severity.RESET, detail)]


def test_a_status_counts_only_once_the_registration_has_ended() -> None:
    assert judge(Fabric(2, 27), services=up(10.0))[0] == Unobserved(
        UnobservedCause.named("FabricComingUp"),
        f"{SUBJECT}: fabric state 2 (in progress); judged 180 s after the fabric manager was started",
        SUBJECT,
    )


def test_unknown_state_is_neither_right_nor_wrong() -> None:
    assert judge(Fabric(4, 0)) == [
        Unobserved(UnobservedCause.named("FabricStateUnknown"), f"{SUBJECT}: fabric state 4", SUBJECT),
        ONE_MISSING,
    ]


@pytest.mark.parametrize("summary", [None, 0, 1, 4])
@pytest.mark.parametrize("mask", [None, *HEALTHY_MASKS])
def test_a_healthy_mask_need_not_be_zero(mask: int | None, summary: int | None) -> None:
    assert judge(replace(REGISTERED, health_mask=mask, health_summary=summary)) == [ALL_SEEN]


@pytest.mark.parametrize(
    ("mask", "faults"),
    [
        (0x1A9, "degraded bandwidth"),
        (0x1A6, "route recovery"),
        (0x19A, "unhealthy route"),
        (0x16A, "access timeout recovery"),
        (0x001, "degraded bandwidth"),
        (0x155, "degraded bandwidth, route recovery, unhealthy route, access timeout recovery"),
        (0x2AA, "incorrect configuration 2"),
        (0xFAA, "incorrect configuration 15"),
        (0x299, "degraded bandwidth, unhealthy route, incorrect configuration 2"),
    ],
)
def test_a_field_of_the_mask_at_its_fault_is_found(mask: int, faults: str) -> None:
    for summary in (None, 0, 1, 2, 3):
        assert judge(replace(REGISTERED, health_mask=mask, health_summary=summary)) == [
            finding("FabricUnhealthy", Severity.RESET, f"health mask: {faults}"),
            ALL_SEEN,
        ]


@pytest.mark.parametrize("mask", [None, 0, 0x1AA])
def test_a_summary_counts_where_the_mask_names_no_fault(mask: int | None) -> None:
    assert judge(replace(REGISTERED, health_mask=mask, health_summary=2)) == [
        finding("FabricUnhealthy", Severity.RESET, "health summary: unhealthy"),
        ALL_SEEN,
    ]
    assert judge(replace(REGISTERED, health_mask=mask, health_summary=3)) == [
        finding("FabricLimitedCapacity", Severity.MONITOR, "health summary: limited capacity"),
        ALL_SEEN,
    ]


NO_PARTITION, PARTITION, NO_CONFIGURATION = 0x21AA, 0x11AA, 0x4AA
"""Masks of a GPU without and with a partition, and that of a driver before R595 for one without."""


def unassigned(detail: str = "health mask: no partition assigned") -> Finding:
    return finding("FabricPartitionMissing", Severity.RESET, detail)


@pytest.mark.parametrize("summary", [None, 1, 2, 3])
@pytest.mark.parametrize(
    ("expected", "beside", "mask", "is_found"),
    [
        (P5, PARTITION, NO_PARTITION, True),
        (P5, 0x1AA, NO_CONFIGURATION, True),
        (GB200, 0x1AA, NO_PARTITION, True),
        (UNKNOWN_TYPE, PARTITION, NO_PARTITION, True),
        (P5, PARTITION, PARTITION, False),
        (GB200, PARTITION, PARTITION, False),
        (GB200, 0x1AA, 0x1AA, False),
        (P5, NO_PARTITION, NO_PARTITION, False),
        (P5, 0x1AA, NO_PARTITION, False),
        (UNKNOWN_TYPE, NO_PARTITION, NO_PARTITION, False),
    ],
)
def test_a_gpu_without_a_partition_is_found_where_others_have_one(
    expected: Expectation, beside: int, mask: int, is_found: bool, summary: int | None
) -> None:
    """A machine without partitions reports none for all its GPUs; its summary then counts as before."""
    gpus = [healthy(n, fabric=replace(REGISTERED, health_mask=beside)) for n in range(8)]
    gpus[3] = healthy(3, fabric=replace(REGISTERED, health_mask=mask, health_summary=summary))
    judged = [one for one in look_judged(driver_says(*gpus), expected) if isinstance(one, Finding)]

    by_summary = {2: "FabricUnhealthy", 3: "FabricLimitedCapacity"}.get(summary or 0)
    assert [one.reason for one in judged] == (
        ["FabricPartitionMissing"] if is_found else [by_summary] if by_summary else []
    )
    assert not is_found or judged == [unassigned()]


def test_another_fault_of_the_mask_comes_before_a_missing_partition() -> None:
    faults = "health mask: degraded bandwidth"
    assert judge(replace(REGISTERED, health_mask=0x4A9))[0] == finding("FabricUnhealthy", Severity.RESET, faults)


def test_failed_readings_do_not_prove_that_there_is_no_fabric() -> None:
    findings = look_judged(driver_says(*every(fabric=None, errors={"fabric": 999})))

    assert {type(judgement) for judgement in findings} == {Unobserved}
