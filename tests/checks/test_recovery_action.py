"""Recovery actions that the driver requests for a GPU."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.recovery_action import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation, Severity, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus
from tests.checks.evidence import ADDRESSES, P5, driver_says, gpu, judgements

# docs/rules.md 16, as drivers from R610 on define the numbers.
WANTED = [
    (1, Severity.RESET, "recovery action 1 (GPU Reset Required)"),
    (2, Severity.REBOOT, "recovery action 2 (Node Reboot Required)"),
    (3, Severity.RESET, "recovery action 3 (Drain P2P)"),
    (4, Severity.RESET, "recovery action 4 (Drain and Reset)"),
    (6, Severity.RESET, "recovery action 6 (Bus Reset)"),
    (7, Severity.REBOOT, "recovery action 7 (System Reboot)"),
    (8, Severity.MONITOR, "recovery action 8 (unknown in nvml.h)"),
    (4294967295, Severity.MONITOR, "recovery action 4294967295 (unknown in nvml.h)"),
]


def wants(index: int, action: int | None, recovery_error: int = 0) -> Gpu:
    return replace(gpu(index, ADDRESSES[index]), recovery_action=action, recovery_error=recovery_error)


def judge(*gpus: Gpu, driver: str = "610.43.02") -> list[Judgement]:
    look = driver_says(*gpus)
    assert isinstance(look.answer, Gpus)
    return look_judged(replace(look, answer=replace(look.answer, driver_version=driver)))


def look_judged(look: DriverReading) -> list[Judgement]:
    return [judgement for judgement in judgements(CHECK, P5, {NVML: look}) if not isinstance(judgement, Observation)]


@pytest.mark.parametrize(("action", "severity", "detail"), WANTED)
def test_an_action_is_found_on_its_gpu_with_its_number(action: int, severity: Severity, detail: str) -> None:
    about = {"index": "3", "uuid": "GPU-3", "serial": "1653"}

    assert judge(wants(2, 0), wants(3, action), wants(4, 0)) == [
        Finding("GpuRecoveryAction", severity, f"gpu/{ADDRESSES[3]}", detail, about)
    ]


@pytest.mark.parametrize("driver", ["595.45.04", "610.43.02", "615.71"])
def test_an_imex_domain_to_recover_is_one_finding_of_the_node(driver: str) -> None:
    detail = "recovery action 5 (Recover IMEX Domain) of 4 GPUs"

    assert judge(*(wants(index, 5) for index in range(4)), driver=driver) == [
        Finding("ImexRecoveryRequired", Severity.MONITOR, "node", detail)
    ]


@pytest.mark.parametrize(
    ("driver", "severity", "name"),
    [
        ("570.133.20", Severity.RESET, "Bus Reset"),
        ("580.126.09", Severity.RESET, "Bus Reset"),
        ("590.48.01", Severity.MONITOR, "unknown in nvml.h"),
    ],
)
def test_the_same_number_of_an_older_driver_is_a_finding_of_its_gpu(driver: str, severity: Severity, name: str) -> None:
    (judgement,) = judge(wants(3, 5), driver=driver)

    assert isinstance(judgement, Finding)
    assert (judgement.reason, judgement.severity, judgement.subject, judgement.detail) == (
        "GpuRecoveryAction",
        severity,
        f"gpu/{ADDRESSES[3]}",
        f"recovery action 5 ({name})",
    )


def test_a_reset_is_found_on_its_own_gpu_with_an_imex_domain() -> None:
    findings = judge(wants(1, 5), wants(2, 1))

    assert [(finding.reason, finding.subject) for finding in findings if isinstance(finding, Finding)] == [
        ("GpuRecoveryAction", f"gpu/{ADDRESSES[2]}"),
        ("ImexRecoveryRequired", "node"),
    ]


@pytest.mark.parametrize("action", [0, None])
def test_missing_action_is_no_finding(action: int | None) -> None:
    assert judge(*(wants(index, action) for index in range(8))) == []


def test_several_gpus_are_several_findings() -> None:
    findings = judge(wants(1, 1), wants(5, 2))

    assert [(finding.subject, finding.severity) for finding in findings if isinstance(finding, Finding)] == [
        (f"gpu/{ADDRESSES[1]}", Severity.RESET),
        (f"gpu/{ADDRESSES[5]}", Severity.REBOOT),
    ]


@pytest.mark.parametrize("error", [1, 10, 15, 16, 17, 999])
def test_unread_action_is_neither_present_nor_ended(error: int) -> None:
    subject = f"gpu/{ADDRESSES[3]}"

    assert judge(wants(3, None, recovery_error=error)) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"{subject}: recovery action: NVML error {error}", subject)
    ]


@pytest.mark.parametrize("error", [15, 16, 999])
def test_a_gpu_without_a_handle_could_not_be_asked_and_may_be_any(error: int) -> None:
    assert judge(Gpu(3, error)) == [
        Unobserved(UnobservedCause.named("GpuNotAnswering"), f"gpu/index-3: NVML error {error}")
    ]


def test_an_action_counts_whatever_else_failed_on_the_gpu() -> None:
    findings = judge(replace(wants(3, 1), error=999))

    assert [type(judgement) for judgement in findings] == [Finding]


def test_a_person_reads_how_many_want_it() -> None:
    some, none = (wants(1, 1), wants(2, 0), wants(3, None), Gpu(4, 15)), (wants(3, None),)
    seen = [judgements(CHECK, P5, {NVML: driver_says(*gpus)})[-1] for gpus in (some, none)]

    source = "nvml.h, field 230"
    assert seen == [
        Observation("a recovery is requested for 1 of 2 GPUs", "none", source),
        Observation("no GPU reports its recovery action", "none", source),
    ]
