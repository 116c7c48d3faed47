"""Device files: required ones, wrong numbers, and a host that is not in use yet."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.device_files import CHECK
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.driver_files import DEVICE_FILES, FOLDERS, DeviceFile, DeviceFiles
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpu
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import ADDRESSES, P5, driver_is_silent, driver_says, finds, functions, healthy, judgements

HOST, CONTAINER = FOLDERS
UVM = 510
MAJORS = {"nvidia": 195, "nvidia-uvm": UVM, "nvidia-caps": 236}
NUMBERS = {
    "nvidia0": (195, 0),
    "nvidia1": (195, 1),
    "nvidia-modeset": (195, 254),
    "nvidiactl": (195, 255),
    "nvidia-uvm": (UVM, 0),
    "nvidia-uvm-tools": (UVM, 1),
    "nvidia-caps/nvidia-cap12": (236, 12),
}
GPUS = (healthy(0), healthy(1))


def files(*without: str, folder: str = HOST, **other: tuple[int, int] | None) -> tuple[DeviceFile, ...]:
    """Return the device files of two GPUs.

    `other` gives a file another device number. With None, the file is no device.
    """
    numbers = {name: other.get(name.replace("-", "_"), number) for name, number in NUMBERS.items()}
    fields = {name: number for name, number in numbers.items() if name not in without}
    return tuple(
        DeviceFile(folder, name, number is not None, *(number if number is not None else (0, 0)))
        for name, number in fields.items()
    )


def device_files(
    *some: DeviceFile, folders: tuple[str, ...] = (HOST,), majors: dict[str, int] | None = None
) -> DeviceFiles:
    return DeviceFiles(folders, some, MAJORS if majors is None else majors)


def judge(there: DeviceFiles, *gpus: Gpu, expected: Expectation = P5) -> list[Judgement]:
    facts: dict[Any, Any] = {DEVICE_FILES: there, NVML: driver_says(*(gpus or GPUS)), FUNCTIONS: functions(*ADDRESSES)}
    return finds(CHECK, expected, facts)


def lacks(reason: str, detail: str, gpu: Gpu | None = None) -> Finding:
    subject, about = (gpu.subject, gpu.about) if gpu is not None else ("driver", {})
    return Finding(reason, Severity.MONITOR, subject, detail, about, flickers=True)


def test_where_all_are_there_nothing_is_found() -> None:
    assert judge(device_files(*files())) == []
    facts: dict[Any, Any] = {
        DEVICE_FILES: device_files(*files()),
        NVML: driver_says(*GPUS),
        FUNCTIONS: functions(*ADDRESSES),
    }
    assert judgements(CHECK, P5, facts) == [Observation("7 device files in /dev", "7")]

    unused = device_files(*files("nvidia-uvm", "nvidia-uvm-tools"), majors={"nvidia": 195})
    assert judgements(CHECK, P5, facts | {DEVICE_FILES: unused}) == [
        Observation("4 device files in /dev, nvidia-uvm not loaded yet", "4")
    ]


def test_gpus_that_are_on_no_pci_bus_have_other_files() -> None:
    """On WSL, for example, NVML answers and there is no nvidiactl."""
    facts: dict[Any, Any] = {DEVICE_FILES: device_files(), NVML: driver_says(*GPUS), FUNCTIONS: ()}

    assert judgements(CHECK, P5, facts) == [NotConfigured("no GPU on PCI is bound to the NVIDIA driver")]


@pytest.mark.parametrize(
    ("missing", "gpu"), [("nvidiactl", None), ("nvidia-uvm", None), ("nvidia0", GPUS[0]), ("nvidia1", GPUS[1])]
)
def test_required_file_is_missing(missing: str, gpu: Gpu | None) -> None:
    assert judge(device_files(*files(missing))) == [lacks("DeviceFileMissing", f"no /dev/{missing}", gpu)]


@pytest.mark.parametrize("missing", ["nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/nvidia-cap12"])
def test_one_that_is_made_when_somebody_wants_it_is_not(missing: str) -> None:
    assert judge(device_files(*files(missing))) == []


def test_unused_module_needs_no_device_file() -> None:
    """Nor is one judged that was left over from a time when it was loaded."""
    for there in (files("nvidia-uvm", "nvidia-uvm-tools"), files(nvidia_uvm=(508, 0))):
        assert judge(device_files(*there, majors={"nvidia": 195})) == []


@pytest.mark.parametrize(
    ("name", "number", "detail"),
    [
        ("nvidiactl", (195, 0), "the character device 195:0, expected 195:255"),
        ("nvidiactl", None, "not a character device, expected 195:255"),
        ("nvidia-modeset", (195, 1), "the character device 195:1, expected 195:254"),
        ("nvidia-uvm", (508, 0), "the character device 508:0, expected 510:0"),
        ("nvidia-uvm", (510, 1), "the character device 510:1, expected 510:0"),
        ("nvidia-uvm-tools", (510, 0), "the character device 510:0, expected 510:1"),
        ("nvidia-caps/nvidia-cap12", (236, 1), "the character device 236:1, expected 236:12"),
    ],
)
def test_one_of_another_kind_or_number_is_wrong(name: str, number: tuple[int, int] | None, detail: str) -> None:
    wrong = DeviceFile(HOST, name, number is not None, *(number or (0, 0)))

    assert judge(device_files(*files(name), wrong)) == [lacks("DeviceFileWrong", f"/dev/{name} is {detail}")]


def test_a_device_file_of_a_gpu_is_reported_on_that_gpu() -> None:
    there = device_files(*files(nvidia1=(195, 0)))

    assert judge(there) == [
        lacks("DeviceFileWrong", "/dev/nvidia1 is the character device 195:0, expected 195:1", GPUS[1])
    ]


def test_several_of_the_driver_are_one_finding() -> None:
    detail = "no /dev/nvidiactl; no /dev/nvidia-uvm"

    assert judge(device_files(*files("nvidiactl", "nvidia-uvm"))) == [lacks("DeviceFileMissing", detail)]


def test_the_minor_number_is_the_drivers_and_not_the_index() -> None:
    swapped = (replace(GPUS[0], minor=1), replace(GPUS[1], minor=0))
    assert judge(device_files(*files()), *swapped) == []

    assert judge(device_files(*files()), replace(GPUS[0], minor=4)) == [
        lacks("DeviceFileMissing", "no /dev/nvidia4", GPUS[0])
    ]


def test_correct_device_file_in_either_folder_counts() -> None:
    both = (HOST, CONTAINER)
    assert judge(device_files(*files(folder=CONTAINER), folders=both)) == []
    assert judge(device_files(*files(nvidia_uvm=(508, 0)), *files(folder=CONTAINER), folders=both)) == []

    missing = "no /dev/nvidia-uvm or /run/nvidia/driver/dev/nvidia-uvm"
    assert judge(device_files(*files("nvidia-uvm", folder=CONTAINER), folders=both)) == [
        lacks("DeviceFileMissing", missing)
    ]


def test_where_nvml_fails_a_missing_control_file_may_be_why() -> None:
    silent = Unobserved(UnobservedCause.named("DriverNotLoaded"), "NVML: Driver Not Loaded")
    facts: dict[Any, Any] = {
        DEVICE_FILES: device_files(*files("nvidiactl")),
        NVML: driver_is_silent(silent),
        FUNCTIONS: functions(*ADDRESSES),
    }
    assert judgements(CHECK, P5, facts) == [silent, lacks("DeviceFileMissing", "no /dev/nvidiactl")]

    # Nothing is missed of a driver that has no GPU here.
    assert judgements(CHECK, P5, facts | {FUNCTIONS: functions(*ADDRESSES, driver="")}) == [silent]


def test_copied_tree_has_no_devices_and_no_finding_about_them() -> None:
    copied = "this root is a copy of a host's tree, without device files"

    assert judge(DeviceFiles((), (), MAJORS)) == [NotConfigured(copied)]


def test_while_the_driver_comes_up_they_are_still_being_made() -> None:
    young = replace(P5, driver_age_seconds=119.0)
    wait = "no /dev/nvidia-uvm; judged 120 s after the driver was loaded"

    assert judge(device_files(*files("nvidia-uvm")), expected=young) == [
        Unobserved(UnobservedCause.named("DriverJustLoaded"), wait, "driver")
    ]


def test_many_that_are_wrong_are_counted() -> None:
    some = [DeviceFile(HOST, f"nvidia-caps/nvidia-cap{number}", True, 1, number) for number in range(9)]

    (judgement,) = judge(device_files(*files(), *some))
    assert isinstance(judgement, Finding)
    assert judgement.detail.endswith("; and 5 more")


def test_missing_list_of_majors_judges_fixed_ones_only() -> None:
    there = DeviceFiles((HOST,), files("nvidia-uvm", nvidia_uvm_tools=(1, 1)), None)

    assert judge(there) == []
