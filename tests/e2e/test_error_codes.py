"""Every error code of NVML at every call of the child, from the driver's library to the verdict.

nvml.h gives the expected result: absent, a fault of that GPU, or unobserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Host
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, READINGS
from gpu_healthcheck.sim import nvml_library
from gpu_healthcheck.sim.node import SimulatedNode

CODES = [*range(1, 31), 999]
ABSENT = {2, 3, 13, 25}
"""Not supported, no such function; an older library finds a newer argument invalid, or of another version."""
FAULTS = {
    8: "GpuPowerInsufficient",
    11: "GpuIrqIssue",
    14: "InforomCorrupted",
    15: "GpuLost",
    16: "GpuResetRequired",
}
# Two of the eight GPUs remain: more would be slower, and no missing GPU is expected here.
EXPECTED = Expectation(InstanceProfile("p5.48xlarge", 2, 32, True, "efa"), "p5.48xlarge")

RETIRED_PAGES = [("retired_sbe", 0), ("retired_dbe", 0), ("retired_pending", 0)]

OF_THE_SYSTEM = ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion"]
NAMES = ["nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial", "nvmlDeviceGetName"]
CALLS = [
    *(row.call for name, row in READINGS.items() if row.call.startswith("nvml") and name != "minor"),
    *("nvmlDeviceGetMigMode", "nvmlDeviceGetTotalEccErrors"),
    *("nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperature"),
    *("nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetMarginTemperature", "nvmlDeviceValidateInforom"),
    *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"),
    *("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    *("nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"),
    *("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetGpuFabricInfoV"),
    *("nvmlDeviceGetFieldValues", "field.29", "field.30", "field.31", "field.230", "field.194"),
    *("field.161", "field.162", "field.163"),
]
OLD_READINGS = [
    *("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetGpuFabricInfo"),
    *("nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    "nvmlDeviceGetNvLinkErrorCounter",
]
"""What is asked only of a library that lacks the newer call."""
MIG_READINGS = [
    *("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"),
]
"""What is asked only of a GPU in MIG mode."""


@dataclass(frozen=True)
class Said:
    """Of a whole look: the findings, and whom it could not see."""

    findings: list[str]
    unseen: set[str]


NOTHING = Said([], set())


class Stage:
    """One node, one child: the outcomes of all checks when a call fails."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.driver = Driver(node.root, use_loader=False)
        evidence = read_probes(Host(node.root, self.driver.read), CHECKS)
        self.seen = {probe: evidence[probe] for probe in evidence.probes}
        self.gpu = f"gpu/{node.gpus[0].address}"
        self.other = f"gpu/{node.gpus[1].address}"

    def says(self) -> Said:
        outcomes = judge(CHECKS, Evidence({**self.seen, NVML: self.driver.read()}), EXPECTED)
        return Said(
            [f"{finding.reason} {finding.subject}" for outcome in outcomes for finding in outcome.findings],
            {cause.subject for outcome in outcomes for cause in outcome.unobserved},
        )

    def of_each_code(self, file: str) -> dict[int, Said]:
        reported = {}
        for code in CODES:
            self.node.write_value(f"nvml/{file}", code)
            if "Inforom" in file:
                self.driver.end()  # a valid one is believed for an hour, by the child that found it so
            reported[code] = self.says()
        (self.node.root / "nvml" / file).unlink()
        assert self.says() == NOTHING
        return reported

    def expected(self, code: int, absent: set[int]) -> Said:
        """Of a call that fails on the first GPU."""
        if code in absent:
            return NOTHING
        return Said([f"{FAULTS[code]} {self.gpu}"] if code in FAULTS else [], {self.gpu})


@contextmanager
def staged(folder: Path, befall: Callable[[SimulatedNode], None] = lambda _: None) -> Iterator[Stage]:
    with SimulatedNode.create(folder / "node", "p5.48xlarge") as node:
        for index in range(2, 8):
            node.remove_gpu(index)
        # In use, so that a list of processes that is missing matters; and as a GPU that retires pages, too.
        for index in range(2):
            for file, value in [("memory_used", 70 << 30), ("processes", 4711), *RETIRED_PAGES]:
                node.write_value(f"nvml/gpu{index}/{file}", value)
        befall(node)
        stage = Stage(node)
        assert stage.says() == NOTHING
        yield stage
        stage.driver.end()


def grow_old(node: SimulatedNode) -> None:
    library = node.library.resolve()
    library.unlink()
    library.write_bytes(nvml_library.build("-DOLD_LIBRARY").read_bytes())
    for field in (161, 162, 163):
        node.write_value(f"nvml/gpu0/error.field.{field}", 3)


def divide(node: SimulatedNode) -> None:
    node.divide_gpu(0, {0: 1})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("codes")) as one:
        yield one


@pytest.fixture(scope="module")
def old_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("codes"), grow_old) as stage:
        yield stage


@pytest.fixture(scope="module")
def divided_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("codes"), divide) as stage:
        yield stage


@pytest.mark.parametrize("call", OF_THE_SYSTEM)
def test_call_about_no_gpu_is_unobserved(stage: Stage, call: str) -> None:
    assert stage.of_each_code(f"error/{call}") == dict.fromkeys(CODES, Said([], {""}))


def test_handle_error_is_a_fault_of_the_gpu_or_unobserved(stage: Stage) -> None:
    """No handle is never an absence: that GPU is there."""
    faults = FAULTS | {999: "GpuInitFailed"}
    expected = {code: Said([f"{faults[code]} {stage.gpu}"] if code in faults else [], {stage.gpu}) for code in CODES}

    assert stage.of_each_code("gpu0/error") == expected


@pytest.mark.parametrize("call", NAMES)
def test_a_name_is_missed_or_the_gpu_tells_its_fault(stage: Stage, call: str) -> None:
    fields = stage.of_each_code(f"gpu0/error.{call}")

    # Who may not read it (4) sees the GPU all the same. An argument that is invalid (2) is nothing that a name can be.
    expected = {code: stage.expected(code, {3, 4, 13, 25}) for code in CODES}
    assert fields == expected


@pytest.mark.parametrize("call", CALLS)
def test_reading_is_absent_a_fault_or_unobserved(stage: Stage, call: str) -> None:
    expected = {code: stage.expected(code, ABSENT) for code in CODES}
    if call == "nvmlDeviceValidateInforom":  # the very answer that was asked for
        expected[14] = Said(expected[14].findings, set())

    assert stage.of_each_code(f"gpu0/error.{call}") == expected


@pytest.mark.parametrize("call", OLD_READINGS)
def test_a_reading_of_an_old_library_too(old_stage: Stage, call: str) -> None:
    assert old_stage.of_each_code(f"gpu0/error.{call}") == {code: old_stage.expected(code, ABSENT) for code in CODES}


@pytest.mark.parametrize("call", MIG_READINGS)
def test_a_reading_of_a_divided_gpu_too(divided_stage: Stage, call: str) -> None:
    expected = {code: divided_stage.expected(code, ABSENT) for code in CODES}
    if call == "nvmlDeviceGetMigDeviceHandleByIndex":  # there is none: a GPU in MIG mode and nothing on it
        expected[6] = Said([f"MigModeInconsistent {divided_stage.gpu}"], set())

    assert divided_stage.of_each_code(f"gpu0/error.{call}") == expected


def test_pair_is_absent_or_unobserved(stage: Stage) -> None:
    """Which of the two is broken it does not say: that one says so itself."""
    assert stage.of_each_code("gpu0/error.nvmlDeviceGetP2PStatus") == {
        code: NOTHING if code in ABSENT else Said([], {stage.gpu, stage.other}) for code in CODES
    }


def test_a_shutdown_that_fails_spoils_nothing(stage: Stage) -> None:
    assert stage.of_each_code("error/nvmlShutdown") == dict.fromkeys(CODES, NOTHING)
