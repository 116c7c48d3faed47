"""NVML against PCI and the instance type's profile."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_count import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Probe,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD, EarlierHardware
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import (
    ADDRESSES,
    G6,
    NO_GPUS,
    P5,
    UNKNOWN_TYPE,
    driver_is_silent,
    driver_says,
    finds,
    functions,
    gpu,
    gpu_function,
    tells,
)

ALL = tuple(gpu(index, address) for index, address in enumerate(ADDRESSES))
LOST = 15
NOT_LOADED = Unobserved(UnobservedCause.named("DriverNotLoaded"), "NVML: Driver Not Loaded")


def judge(look: DriverReading, pci: tuple[PciFunction, ...], expected: Expectation = P5) -> list[Judgement]:
    return finds(CHECK, expected, {NVML: look, FUNCTIONS: pci})


def low(listed: int, pci: int, message: str = ", p5.48xlarge has 8") -> Finding:
    return Finding("GpuCountLow", Severity.REBOOT, "node", f"NVML lists {listed}, PCI {pci}{message}", flickers=True)


def lost(address: str, index: int) -> Finding:
    about = {"index": str(index)}
    return Finding("GpuLost", Severity.REBOOT, f"gpu/{address}", "NVML error 15", about, flickers=True)


@pytest.mark.parametrize("expected", [P5, UNKNOWN_TYPE])
def test_eight_gpus_that_answer_are_no_finding(expected: Expectation) -> None:
    assert judge(driver_says(*ALL), functions(*ADDRESSES), expected) == []


@pytest.mark.parametrize("index", range(8))
def test_a_lost_gpu_is_found_at_its_own_address(index: int) -> None:
    gpus = list(ALL)
    gpus[index] = Gpu(index, LOST)

    assert judge(driver_says(*gpus), functions(*ADDRESSES)) == [lost(ADDRESSES[index], index)]


def test_several_lost_gpus_are_found_in_the_order_of_the_bus() -> None:
    gpus = [Gpu(gpu.index, LOST) if gpu.index in (1, 4, 7) else gpu for gpu in ALL]

    assert judge(driver_says(*gpus), functions(*ADDRESSES)) == [lost(ADDRESSES[index], index) for index in (1, 4, 7)]


@pytest.mark.parametrize("driver", ["", "vfio-pci", "pci-stub"])
def test_function_of_another_driver_is_not_the_lost_gpu(driver: str) -> None:
    gpus = [Gpu(0, LOST), *(replace(ALL[index], index=index - 1) for index in range(2, 8))]
    pci = (gpu_function(ADDRESSES[0], driver), *functions(*ADDRESSES[1:]))

    assert judge(driver_says(*gpus), pci)[0] == lost(ADDRESSES[1], 0)


def test_a_lost_gpu_that_pci_no_longer_shows_is_named_by_its_index() -> None:
    gpus = [Gpu(3, LOST) if gpu.index == 3 else gpu for gpu in ALL]

    assert judge(driver_says(*gpus), functions(*ADDRESSES[:3], *ADDRESSES[4:])) == [
        Finding("GpuLost", Severity.REBOOT, "gpu/index-3", "NVML error 15", {"index": "3"}, flickers=True)
    ]


def test_gpu_lost_during_a_read_keeps_all_its_names() -> None:
    gpus = [replace(gpu, error=LOST) if gpu.index == 2 else gpu for gpu in ALL]

    assert judge(driver_says(*gpus), functions(*ADDRESSES)) == [
        Finding(
            "GpuLost",
            Severity.REBOOT,
            f"gpu/{ADDRESSES[2]}",
            "NVML error 15",
            {"index": "2", "uuid": "GPU-2", "serial": "1652"},
            flickers=True,
        )
    ]


@pytest.mark.parametrize(
    ("error", "reason", "severity", "flickers"),
    [
        (8, "GpuPowerInsufficient", Severity.ISOLATE, False),
        (11, "GpuIrqIssue", Severity.REBOOT, False),
        (16, "GpuResetRequired", Severity.RESET, True),
    ],
)
def test_a_handle_with_an_error_of_the_hardware_is_found(
    error: int, reason: str, severity: Severity, flickers: bool
) -> None:
    gpus = [Gpu(5, error) if gpu.index == 5 else gpu for gpu in ALL]

    assert judge(driver_says(*gpus), functions(*ADDRESSES)) == [
        Finding(reason, severity, f"gpu/{ADDRESSES[5]}", f"NVML error {error}", {"index": "5"}, flickers=flickers)
    ]


def test_a_corrupted_inforom_is_another_checks_to_tell_and_its_gpu_is_counted() -> None:
    gpus = [Gpu(5, 14) if gpu.index == 5 else gpu for gpu in ALL]

    assert judge(driver_says(*gpus), functions(*ADDRESSES)) == []


def test_a_handle_with_an_unknown_error_is_a_gpu_that_did_not_start_and_a_reading_with_one_is_not() -> None:
    no_handle = [Gpu(5, 999) if gpu.index == 5 else gpu for gpu in ALL]
    no_serial = [replace(gpu, error=999) if gpu.index == 5 else gpu for gpu in ALL]
    subject = f"gpu/{ADDRESSES[5]}"

    assert judge(driver_says(*no_handle), functions(*ADDRESSES)) == [
        Finding("GpuInitFailed", Severity.RESET, subject, "no handle: NVML error 999", {"index": "5"}, flickers=True)
    ]
    assert judge(driver_says(*no_serial), functions(*ADDRESSES)) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{subject}: NVML error 999", subject)
    ]


@pytest.mark.parametrize("error", [1, 2, 4, 6, 9, 10, 12, 17, 18, 19, 27])
def test_other_gpu_error_is_unobserved_and_never_a_count(error: int) -> None:
    subject = f"gpu/{ADDRESSES[5]}"
    gpus = [Gpu(5, error) if gpu.index == 5 else gpu for gpu in ALL]

    assert judge(driver_says(*gpus), functions(*ADDRESSES)) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{subject}: NVML error {error}", subject)
    ]


@pytest.mark.parametrize(
    ("listed", "on_pci", "expected", "findings"),
    [
        (7, 8, P5, [low(7, 8)]),
        (7, 7, P5, [low(7, 7)]),
        (0, 8, P5, [low(0, 8)]),
        (0, 0, P5, [low(0, 0)]),
        (7, 8, UNKNOWN_TYPE, [low(7, 8, "")]),
        (7, 7, UNKNOWN_TYPE, []),
        (8, 7, P5, []),
        (8, 8, G6, []),
        (0, 0, G6, [low(0, 0, ", g6.xlarge has 1")]),
        (0, 1, UNKNOWN_TYPE, [low(0, 1, "")]),
    ],
)
def test_fewer_than_pci_or_the_profile_promise_is_low(
    listed: int, on_pci: int, expected: Expectation, findings: list[Judgement]
) -> None:
    assert judge(driver_says(*ALL[:listed]), functions(*ADDRESSES[:on_pci]), expected) == findings


def once_had(gpus: int, expected: Expectation = UNKNOWN_TYPE) -> Expectation:
    return replace(expected, first=EarlierHardware(gpus=gpus))


def missed(listed: int, pci: int, once: int = 8) -> Finding:
    return replace(low(listed, pci, f", this machine had {once}"), source=ONCE_HAD)


@pytest.mark.parametrize(
    ("listed", "on_pci", "expected", "findings"),
    [
        (7, 7, once_had(8), [missed(7, 7)]),
        (0, 0, once_had(8), [missed(0, 0)]),
        (8, 8, once_had(8), []),
        (8, 8, once_had(4), []),
        (7, 7, once_had(0), []),
        # PCI itself shows more: no release accepts that.
        (6, 7, once_had(8), [low(6, 7, ", this machine had 8")]),
        # The profile is set by a person: a smaller number in it means that GPUs were removed on purpose.
        (1, 1, once_had(8, G6), []),
        (7, 7, once_had(8, P5), [low(7, 7)]),
    ],
)
def test_missing_profile_is_replaced_by_earlier_hardware(
    listed: int, on_pci: int, expected: Expectation, findings: list[Judgement]
) -> None:
    assert judge(driver_says(*ALL[:listed]), functions(*ADDRESSES[:on_pci]), expected) == findings


def test_gpus_of_another_driver_or_none_are_not_missing() -> None:
    away = (*functions(*ADDRESSES[:6]), *functions(*ADDRESSES[6:], driver="vfio-pci"))
    left = (*functions(*ADDRESSES[:7]), gpu_function(ADDRESSES[7], ""))

    assert judge(driver_says(*ALL[:6]), away, once_had(8)) == []
    assert judge(driver_says(*ALL[:5]), away[1:], once_had(8)) == [missed(5, 5)]
    assert judge(driver_says(*ALL[:7]), left, once_had(8)) == [unbound(ADDRESSES[7])]


@pytest.mark.parametrize("expected", [once_had(1), once_had(1, G6)])
def test_last_gpu_missing_on_pci_is_reported_without_a_driver(expected: Expectation) -> None:
    gone = replace(missed(0, 0), detail="PCI shows none, this machine had 1")

    assert judge(driver_is_silent(NOT_LOADED), (), expected) == [NOT_LOADED, gone]
    assert judge(driver_is_silent(NOT_LOADED), functions(ADDRESSES[0]), expected) == [NOT_LOADED]
    changing = Unobserved(UnobservedCause.named("DriverBeingChanged"), "why")
    assert judge(driver_is_silent(changing), (), expected) == [changing]


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub", "nouveau"])
def test_gpus_given_to_a_virtual_machine_are_not_counted(driver: str) -> None:
    pci = (*functions(*ADDRESSES[:6]), *functions(*ADDRESSES[6:], driver=driver))

    assert judge(driver_says(*ALL[:6]), pci) == []
    assert judge(driver_says(*ALL[:5]), pci) == [low(5, 6)]


def unbound(address: str) -> Finding:
    return Finding("GpuUnbound", Severity.MONITOR, f"gpu/{address}", "bound to no driver", flickers=True)


@pytest.mark.parametrize("expected", [P5, UNKNOWN_TYPE])
def test_a_gpu_without_a_driver_is_unbound_and_not_missing(expected: Expectation) -> None:
    pci = (*functions(*ADDRESSES[:7]), gpu_function(ADDRESSES[7], ""))

    assert judge(driver_says(*ALL[:7]), pci, expected) == [unbound(ADDRESSES[7])]


def test_an_unbound_gpu_excuses_no_other_one() -> None:
    pci = (*functions(*ADDRESSES[:7]), gpu_function(ADDRESSES[7], ""))

    assert judge(driver_says(*ALL[:6]), pci) == [unbound(ADDRESSES[7]), low(6, 8)]
    assert judge(driver_says(*ALL[:6]), pci[1:]) == [unbound(ADDRESSES[7]), low(6, 7)]


def test_gpu_that_nvml_lists_counts_as_bound() -> None:
    pci = (*functions(*ADDRESSES[:7]), gpu_function(ADDRESSES[7], ""))

    assert judge(driver_says(*ALL), pci) == []


def test_a_driver_that_was_just_loaded_may_still_bind_its_gpus() -> None:
    pci = (*functions(*ADDRESSES[:7]), gpu_function(ADDRESSES[7], ""))
    subject = f"gpu/{ADDRESSES[7]}"

    assert judge(driver_says(*ALL[:7]), pci, replace(P5, driver_age_seconds=119.9)) == [
        Unobserved(
            UnobservedCause.named("DriverJustLoaded"),
            "bound to no driver; judged 120 s after the driver was loaded",
            subject,
        )
    ]


def test_switches_audio_and_virtual_functions_are_no_gpus() -> None:
    pci = (
        *functions(*ADDRESSES),
        gpu_function("0000:cb:00.0", "nvidia-nvswitch", pci_class=0x068000),
        gpu_function("0000:53:00.1", "snd_hda_intel", pci_class=0x040300),
        gpu_function("0000:53:00.4", virtual=True),
        PciFunction("0000:00:02.0", 0x1D0F, 0x1111, 0x030000, ""),
    )

    assert judge(driver_says(*ALL), pci) == []


@pytest.mark.parametrize(("age", "judged"), [(0.0, False), (119.9, False), (120.0, True), (float("inf"), True)])
def test_counts_are_judged_two_minutes_after_the_driver_was_loaded(age: float, judged: bool) -> None:
    findings = judge(driver_says(*ALL[:7]), functions(*ADDRESSES), replace(P5, driver_age_seconds=age))

    early = Unobserved(
        UnobservedCause.named("DriverJustLoaded"),
        "NVML lists 7, PCI 8, p5.48xlarge has 8; judged 120 s after the driver was loaded",
        "node",
    )
    assert findings == [low(7, 8) if judged else early]


def test_a_young_driver_hides_no_lost_gpu() -> None:
    gpus = [Gpu(0, LOST), *ALL[1:]]

    assert judge(driver_says(*gpus), functions(*ADDRESSES), replace(P5, driver_age_seconds=3.0)) == [
        lost(ADDRESSES[0], 0)
    ]


@pytest.mark.parametrize("cause", ["DriverNotLoaded", "NvmlLibraryMismatch", "NvmlLibraryNotFound", "NvmlCrashed"])
@pytest.mark.parametrize("expected", [P5, UNKNOWN_TYPE])
@pytest.mark.parametrize("on_pci", [0, 8])
def test_a_driver_that_does_not_answer_is_never_a_count(cause: str, expected: Expectation, on_pci: int) -> None:
    blind = Unobserved(UnobservedCause.named(cause), "why")

    assert judge(driver_is_silent(blind), functions(*ADDRESSES[:on_pci]), expected) == [blind]


@pytest.mark.parametrize("expected", [UNKNOWN_TYPE, NO_GPUS])
def test_a_node_without_gpus_that_expects_none_is_not_configured(expected: Expectation) -> None:
    assert judge(driver_says(), (), expected) == [NotConfigured("no GPU on PCI, none in NVML, none expected")]


def test_the_output_has_both_counts_and_the_source_of_the_expectation() -> None:
    seen: dict[Probe[Any], Any] = {NVML: driver_says(*ALL[:7]), FUNCTIONS: functions(*ADDRESSES)}

    assert tells(CHECK, P5, seen) == [
        Observation("7 GPUs in NVML, 8 on PCI", "8 each", "p5.48xlarge in instance-profiles.conf"),
    ]
    assert tells(CHECK, UNKNOWN_TYPE, seen) == [
        Observation("7 GPUs in NVML, 8 on PCI", "as many in NVML as on PCI"),
    ]
    assert tells(CHECK, once_had(8), seen) == [
        Observation("7 GPUs in NVML, 8 on PCI", "8 each", "what this machine once had"),
    ]
