"""A look that never returns (contract, section 2, rules 10 and 11)."""

from __future__ import annotations

import pytest

from healthcheck.checks.driver import CHECK, being_changed
from healthcheck.model import Finding, Judgement, Severity, Unobserved
from healthcheck.probes.nvml import NVML, DriverLook
from tests.checks.evidence import P5, driver_is_silent, driver_says, says

SILENT = Unobserved("DriverNotAnswering", "no answer in time; its process was killed (60 s)")


def judge(look: DriverLook) -> list[Judgement]:
    return says(CHECK, P5, {NVML: look})


def unresponsive(detail: str) -> Finding:
    return Finding("DriverUnresponsive", Severity.REBOOT, "driver", detail)


def test_a_driver_that_answers_is_no_finding() -> None:
    assert judge(driver_says()) == []


@pytest.mark.parametrize("missed", [(1000.0,), (1000.0, 1000.0), (1000.0, 1029.9)])
def test_one_miss_or_two_close_together_could_not_look(missed: tuple[float, ...]) -> None:
    assert judge(driver_is_silent(SILENT, *missed)) == [SILENT]


@pytest.mark.parametrize("missed", [(1000.0, 1030.0), (1000.0, 9000.0)])
def test_two_misses_half_a_minute_apart_are_a_fault(missed: tuple[float, ...]) -> None:
    assert judge(driver_is_silent(SILENT, *missed)) == [unresponsive("no answer within 60 s, since 1000 s after boot")]


def test_the_same_hang_reads_the_same_at_every_look() -> None:
    assert judge(driver_is_silent(SILENT, 1000.0, 1300.0)) == judge(driver_is_silent(SILENT, 1000.0, 1600.0))


def test_a_child_that_cannot_be_killed_is_named() -> None:
    assert judge(driver_is_silent(SILENT, 1000.0, 1030.0, stuck_pid=4711)) == [
        unresponsive("no answer within 60 s, since 1000 s after boot; process 4711 can't be killed")
    ]


@pytest.mark.parametrize("cause", ["DriverBeingChanged", "DriverNotLoaded", "NvmlCrashed", "NvmlNonsense"])
def test_any_other_reason_for_no_answer_could_not_look(cause: str) -> None:
    assert judge(driver_is_silent(Unobserved(cause, "why"))) == [Unobserved(cause, "why")]


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({}, ""),
        ({"nvidia.com/gpu.deploy.driver": "true", "nvidia.com/mig.config.state": "success"}, ""),
        ({"nvidia.com/gpu.deploy.driver": "false"}, ""),
        (
            {"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"},
            "label nvidia.com/gpu.deploy.device-plugin=paused-for-driver-upgrade",
        ),
        (
            {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change", "nvidia.com/mig.config.state": "pending"},
            "label nvidia.com/gpu.deploy.dcgm=paused-for-mig-change",
        ),
        ({"nvidia.com/mig.config.state": "pending"}, "label nvidia.com/mig.config.state=pending"),
        ({"nvidia.com/mig.config.state": "rebooting"}, ""),
        ({"team/gpu.deploy.driver": "paused-x"}, ""),
    ],
)
def test_the_nodes_labels_say_who_is_at_work_on_the_driver(labels: dict[str, str], told: str) -> None:
    assert being_changed(labels) == told
