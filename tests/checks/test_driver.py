"""A driver read that never returns (docs/rules.md 10 and 11), and a library of another version.

The library does not match the kernel module.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.driver import CHECK, being_changed
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation, Severity, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading
from tests.checks.evidence import P5, driver_is_silent, driver_says, finds, tells

SILENT = Unobserved(
    UnobservedCause.named("DriverNotAnswering"), "no answer in time; its process was killed (deadline 60 s)"
)


def judge(look: DriverReading) -> list[Judgement]:
    return finds(CHECK, P5, {NVML: look})


def unresponsive(detail: str) -> Finding:
    return Finding("DriverUnresponsive", Severity.REBOOT, "driver", detail)


def test_a_driver_that_answers_is_no_finding() -> None:
    assert judge(driver_says()) == []


@pytest.mark.parametrize("missed", [(1000.0,), (1000.0, 1000.0), (1000.0, 1029.9)])
def test_one_or_two_close_misses_are_unobserved(missed: tuple[float, ...]) -> None:
    assert judge(driver_is_silent(SILENT, *missed)) == [SILENT]


@pytest.mark.parametrize("missed", [(1000.0, 1030.0), (1000.0, 9000.0)])
def test_two_misses_half_a_minute_apart_are_a_fault(missed: tuple[float, ...]) -> None:
    assert judge(driver_is_silent(SILENT, *missed)) == [unresponsive("no answer within 60 s, since 1000 s after boot")]


def test_hang_gives_the_same_finding_in_every_cycle() -> None:
    assert judge(driver_is_silent(SILENT, 1000.0, 1300.0)) == judge(driver_is_silent(SILENT, 1000.0, 1600.0))


def test_a_child_that_cannot_be_killed_is_named() -> None:
    assert judge(driver_is_silent(SILENT, 1000.0, 1030.0, stuck_pid=4711)) == [
        unresponsive("no answer within 60 s, since 1000 s after boot; process 4711 can't be killed")
    ]


@pytest.mark.parametrize("cause", ["DriverBeingChanged", "DriverNotLoaded", "NvmlCrashed", "NvmlNonsense"])
def test_other_missing_answer_is_unobserved(cause: str) -> None:
    assert judge(driver_is_silent(Unobserved(UnobservedCause.named(cause), "why"))) == [
        Unobserved(UnobservedCause.named(cause), "why")
    ]


MODULE, OTHER = "570.124.06", "570.133.20"


def versions(look: DriverReading, module: str, *libraries: str) -> DriverReading:
    return replace(look, module_version=module, library_versions=libraries)


def mismatch(detail: str) -> Finding:
    return Finding("DriverVersionMismatch", Severity.MONITOR, "driver", detail, flickers=True)


@pytest.mark.parametrize(
    ("module", "libraries"),
    [
        (MODULE, (MODULE,)),
        # A library that an image left behind, and the one that a driver container brought.
        (MODULE, ("535.183.01", MODULE)),
        # A library without a version in its name, or outside the searched folders.
        (MODULE, ()),
        ("", (OTHER,)),
        ("", ()),
    ],
)
def test_a_library_of_the_modules_version_or_none_that_tells_is_no_finding(
    module: str, libraries: tuple[str, ...]
) -> None:
    assert judge(versions(driver_says(), module, *libraries)) == []


def test_a_library_of_another_version_is_found_while_nvml_still_opens() -> None:
    """The agent's own library is the old one, mounted when its container started."""
    assert judge(versions(driver_says(), MODULE, OTHER)) == [mismatch(f"kernel module {MODULE}, library {OTHER}")]


def test_a_library_of_another_version_is_found_when_nvml_does_not_open() -> None:
    blind = Unobserved(UnobservedCause.named("NvmlLibraryMismatch"), "NVML: Driver/library version mismatch")

    assert judge(versions(driver_is_silent(blind), MODULE, OTHER, "580.65.06")) == [
        blind,
        mismatch(f"kernel module {MODULE}, library {OTHER}, 580.65.06"),
    ]


def mismatched(seconds: float | None) -> DriverReading:
    blind = Unobserved(UnobservedCause.named("NvmlLibraryMismatch"), "NVML: Driver/library version mismatch")
    return replace(driver_is_silent(blind), mismatch_seconds=seconds)


@pytest.mark.parametrize(("seconds", "confirmed"), [(None, False), (0.0, False), (179.9, False), (180.0, True)])
def test_a_library_that_nvml_refuses_for_180_s_is_a_fault_in_place_of_the_warning(
    seconds: float | None, confirmed: bool
) -> None:
    message = f"kernel module {MODULE}, library {OTHER}"
    fault = Finding("DriverLibraryMismatch", Severity.RESET, "driver", message)

    assert judge(versions(mismatched(seconds), MODULE, OTHER))[1] == (fault if confirmed else mismatch(message))


@pytest.mark.parametrize("libraries", [(MODULE,), (OTHER, MODULE), ()])
def test_a_failed_nvml_open_is_no_fault_with_a_matching_library(libraries: tuple[str, ...]) -> None:
    """The library in our own container is older than the driver that was loaded since, or the node's is unknown."""
    look = mismatched(600.0)

    assert judge(versions(look, MODULE, *libraries)) == [look.answer]


def test_the_output_has_both_versions() -> None:
    source = "NVML's rule"

    assert tells(CHECK, P5, {NVML: versions(driver_says(), MODULE, MODULE)}) == [
        Observation(f"kernel module {MODULE}, library {MODULE}", "the same version", source)
    ]
    assert tells(CHECK, P5, {NVML: versions(driver_says(), MODULE)}) == [
        Observation(f"kernel module {MODULE}, library not found", "the same version", source)
    ]
    assert tells(CHECK, P5, {NVML: driver_says()}) == []


@pytest.mark.parametrize(
    ("labels", "message"),
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
def test_node_labels_show_who_changes_the_driver(labels: dict[str, str], message: str) -> None:
    assert being_changed(labels) == message
