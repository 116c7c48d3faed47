"""libfabric lists every EFA device that programs can open."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.efa_provider import CHECK
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
from gpu_healthcheck.healthcheck.probes.efa.libfabric import LIBFABRIC, LibfabricReading, Listing
from tests.checks.evidence import P5, judgements

DEVICES = tuple(f"rdmap{number}s0" for number in range(16, 48))


def judge(look: LibfabricReading) -> list[Judgement]:
    return judgements(CHECK, P5, {LIBFABRIC: look})


def listing(*listed: str, code: int = 0, version: str = "203.0", message: str = "") -> LibfabricReading:
    return LibfabricReading(Listing(DEVICES, code, listed, version, message))


def found(detail: str) -> Finding:
    return Finding("EfaProviderMissing", Severity.MONITOR, "node", detail, flickers=True)


def test_all_as_it_should_be_is_one_line() -> None:
    assert judge(listing(*DEVICES)) == [Observation("provider efa 203.0 lists 32 EFA devices", "32", "/sys")]


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (1, "rdmap16s0"),
        (4, "rdmap16s0, rdmap17s0, rdmap18s0, rdmap19s0"),
        (5, "rdmap16s0, rdmap17s0, rdmap18s0, rdmap19s0 and 1 more"),
    ],
)
def test_devices_that_are_not_listed_are_named(missing: int, named: str) -> None:
    left = 32 - missing

    assert judge(listing(*DEVICES[missing:])) == [
        found(f"fi_info -p efa lists {left} of 32 EFA devices; missing: {named}"),
        Observation(f"provider efa 203.0 lists {left} EFA devices", "32", "/sys"),
    ]


def test_missing_provider_is_a_finding_with_fi_infos_output() -> None:
    message = "fi_getinfo: -61 (No data available)"

    assert judge(listing(code=61, version="", message=message)) == [
        found(f"fi_info -p efa lists none of 32 EFA devices (exit code 61): {message}"),
        Observation("provider efa lists 0 EFA devices", "32", "/sys"),
    ]


def test_a_listing_without_a_device_is_one_too() -> None:
    assert judge(listing()) == [
        found("fi_info -p efa lists none of 32 EFA devices (exit code 0)"),
        Observation("provider efa 203.0 lists 0 EFA devices", "32", "/sys"),
    ]


def test_a_device_more_than_sys_shows_is_no_fault() -> None:
    assert judge(listing(*DEVICES, "rdmap99s0")) == [
        Observation("provider efa 203.0 lists 32 EFA devices", "32", "/sys")
    ]


def test_an_answer_that_is_still_to_come_is_waited_for() -> None:
    assert judge(LibfabricReading()) == [TooEarly("fi_info has not answered yet")]


def test_missing_answer_is_unobserved() -> None:
    silent = Unobserved(
        UnobservedCause.named("LibfabricNotAnswering"), "fi_info: no end within 10 s; its process was ended"
    )

    assert judge(LibfabricReading(silent)) == [silent]


def test_missing_source_does_not_apply_to_the_node() -> None:
    assert judge(LibfabricReading(absent="fi_info is not installed here")) == [
        NotConfigured("fi_info is not installed here")
    ]
