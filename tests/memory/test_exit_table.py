"""The table of exits: each recorded exit ends its finding, and no other condition does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import product

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.driver_reasons import PROBE_FAILED
from gpu_healthcheck.healthcheck.memory import exit_table as table
from gpu_healthcheck.healthcheck.memory.exit_table import EXITS, Exit, exit_words
from gpu_healthcheck.healthcheck.memory.exits import (
    after_release,
    begin,
    driver_loaded,
    expired,
    gpus_answered,
    passed,
    recovered,
    retested,
)
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, ActiveFinding, Memory, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import KernelEvent, Nature, Outcome, Passed, Severity
from gpu_healthcheck.healthcheck.probes.nvml.gpus import SUCCESS, Gpu
from tests.examples import GPU, MACHINE, MONOTONIC, NOW, WALL, active_finding, fault, kernel_event, later, memory_with

ADDRESS = GPU.removeprefix("gpu/")
ABOUT = {"index": "0", "uuid": "GPU-1", "serial": "1650001"}
SUBJECTS = (GPU, f"{GPU}/gi5", "nvswitch/0000:53:00.0", "driver", "node", "")
REASONS = (
    *("Xid79", "Xid154", "Xid163", "DriverLibraryMismatch", "GpuInitFailed"),
    *("Mlx5Unrecoverable", "GpuSlowerThanSiblings", "GpuComputeSlow", "GpuCopySlow"),
)
RULES = {"GpuInitFailed": PROBE_FAILED}
CHECKS = ("xid", "dcgm-diag-l2", "mlx5-messages")
DAY = 86_400.0
SOON = MONOTONIC + 60.0

STANDING = [
    active_finding(
        replace(fault(reason, severity, subject), about=ABOUT, rule=RULES.get(reason, "")), nature, check=check
    )
    for reason, severity, subject, nature, check in product(
        REASONS, [one for one in Severity if one], SUBJECTS, Nature, CHECKS
    )
]


def answers(**more: object) -> list[Gpu]:
    known = {"index": 0, "address": ADDRESS, "uuid": "GPU-1", "serial": "1650001", "error": SUCCESS, **more}
    return [Gpu(**known)]  # type: ignore[arg-type]


def released(memory: Memory) -> Memory:
    rows = [
        Acknowledgement(finding.finding.reason, finding.finding.subject, finding.boot_id, None, WALL)
        for finding in memory.active
    ]
    return after_release(memory, Release("ops", "seen", WALL, tuple(rows)), NOW)


def re_engaged(memory: Memory) -> Memory:
    subjects = {finding.finding.subject for finding in memory.active}
    again = [kernel_event(fault("Xid162", Severity.MONITOR, subject)) for subject in subjects]
    log = after_kernel_log(memory, [Outcome("xid", "0-nvidia-smi", events=tuple(again))], later(60))
    return replace(log, active=tuple(finding for finding in log.active if finding.finding.reason != "Xid162"))


def device_recovered(memory: Memory) -> Memory:
    again = [KernelEvent("Mlx5Recovered", finding.finding.subject, 99, SOON) for finding in memory.active]
    return after_kernel_log(memory, [Outcome("mlx5-messages", "9-roce", events=tuple(again))], later(60))


def retest(memory: Memory) -> Memory:
    well = [Passed(finding.finding.reason, finding.finding.subject) for finding in memory.active]
    return retested(memory, well, WALL + timedelta(seconds=1))


def reloaded(memory: Memory) -> Memory:
    """The driver was loaded anew; each GPU answers, but the one of the finding, which would be reset as well."""
    return gpus_answered(
        replace(memory, driver_loaded_at=SOON, recovery={"0000:75:00.0": 5}),
        answers(address="0000:64:00.0", uuid="GPU-2", serial="1650002"),
        SOON + 1,
        later(60),
    )


EVIDENCE: dict[tuple[str, ...], Callable[[Memory], Memory]] = {
    (table.TIME.words,): lambda memory: expired(memory, later(DAY), DAY),
    (table.REBOOT.words,): lambda memory: begin(memory, MACHINE, "another boot", later(60)),
    (table.RESET.words, table.RECOVERED.words): lambda memory: recovered(memory, ADDRESS, SOON, later(60)),
    (table.RE_ENGAGED.words,): re_engaged,
    (table.DEVICE_RECOVERED.words,): device_recovered,
    (table.ALL_RESET.words, table.LIBRARY_FITS.words): reloaded,
    (table.DRIVER_LOADED.words,): lambda memory: driver_loaded(memory, SOON),
    (table.QUARANTINE.words,): lambda memory: passed(memory, WALL + timedelta(seconds=1)),
    (table.RELEASE.words,): released,
    (table.LEVEL_2_PASSED.words, table.MEASURED.words): retest,
    (table.LIBRARY_FITS.words,): lambda memory: gpus_answered(memory, answers(), SOON, later(60)),
    (table.LIBRARY_FITS.words, table.INSTANCE_GONE.words): lambda memory: gpus_answered(
        memory, answers(instances=(7,)), SOON, later(60)
    ),
    (table.LIBRARY_FITS.words, table.OTHER_GPU.words): lambda memory: gpus_answered(
        memory, answers(uuid="GPU-2", serial="1650002"), SOON, later(60)
    ),
}


@pytest.mark.parametrize("taken", EVIDENCE, ids=" and ".join)
def test_exit_ends_the_findings_that_name_it_and_no_others(taken: tuple[str, ...]) -> None:
    for finding in STANDING:
        if finding.nature is Nature.LEVEL:  # a check cycle ends a level
            continue
        names_it = any(words in exit_words(finding).split(", ") for words in taken)
        left = EVIDENCE[taken](memory_with(finding))
        assert (left.active == ()) == names_it, (finding, exit_words(finding))


def test_every_exit_except_the_cycles_has_its_evidence_here() -> None:
    assert {words for taken in EVIDENCE for words in taken} == {way.words for way in EXITS} - {table.NOT_SHOWN.words}


def test_finding_has_an_exit_that_a_person_can_cause() -> None:
    def is_open(finding: ActiveFinding, ways: Iterable[Exit]) -> bool:
        return any(way.is_open_to(finding) for way in ways)

    assert all(is_open(finding, (table.NOT_SHOWN, table.RELEASE)) for finding in STANDING)
