"""IMEX on the nodes of a rack."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.imex import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.services import FABRIC_MANAGER, IMEX, SERVICES, Service, Services
from tests.checks.evidence import G6, P5, UNKNOWN_TYPE, judgements

GB200 = replace(P5, instance_type="p6e-gb200.36xlarge")
RACKS = [replace(P5, instance_type=f"p6e-{one}.36xlarge") for one in ("gb200", "gb300", "gb300r")]
RUNNING = (Service(IMEX, 1041, 3600.0),)
SOURCE = "p6e-gb200.36xlarge in fabrics.csv"


def judge(expected: Expectation, services: Services) -> list[Judgement]:
    return judgements(CHECK, expected, {SERVICES: services})


@pytest.mark.parametrize("expected", RACKS)
def test_enabled_and_not_running_it_is_found(expected: Expectation) -> None:
    other = (Service(FABRIC_MANAGER, 1042, 3600.0),)

    assert judge(expected, Services(of_host=True, running=other, imex_enabled=True)) == [
        Finding(
            "ImexNotRunning",
            Severity.MONITOR,
            "node",
            "no process nvidia-imex, although systemd starts it here",
            flickers=True,
        ),
        Observation("not running", "running", f"{expected.instance_type} in fabrics.csv"),
    ]


@pytest.mark.parametrize("enabled", [True, False])
def test_running_program_is_no_finding(enabled: bool) -> None:
    assert judge(GB200, Services(of_host=True, running=RUNNING, imex_enabled=enabled)) == [
        Observation("running", "running", SOURCE)
    ]


@pytest.mark.parametrize("of_host", [True, False])
def test_where_the_host_does_not_start_it_nothing_is_expected(of_host: bool) -> None:
    assert judge(GB200, Services(of_host)) == [NotConfigured("systemd does not start nvidia-imex on this node")]


def test_hidden_host_processes_are_unobserved() -> None:
    assert judge(GB200, Services(of_host=False, imex_enabled=True)) == [
        Unobserved(UnobservedCause.named("HostProcessesHidden"), "the host's processes are not visible")
    ]


@pytest.mark.parametrize("expected", [P5, G6, UNKNOWN_TYPE])
@pytest.mark.parametrize("running", [RUNNING, ()])
def test_elsewhere_it_is_nobodys_business(expected: Expectation, running: tuple[Service, ...]) -> None:
    services = Services(of_host=True, running=running, imex_enabled=True)

    assert judge(expected, services) == [NotConfigured("no NVLink fabric spans this node and others")]
