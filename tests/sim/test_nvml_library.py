"""The simulated driver's library, asked by NVIDIA's own binding in a process of its own."""

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.sim.node import SimulatedNode

# Answers one JSON line per expression on its standard input. Loaded by path first, the library is found by pynvml.
CHILD = """
import ctypes, json, os, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
import pynvml
def devices():
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    links = [os.readlink(path) for path in paths if os.path.islink(path)]
    return sorted(os.path.basename(link) for link in links if "/dev/nvidia" in link)
def gpu(index):
    return pynvml.nvmlDeviceGetHandleByIndex(index)
for line in sys.stdin:
    try:
        answer = eval(line)
    except pynvml.NVMLError as error:
        answer = {"error": error.value, "text": str(error)}
    print(json.dumps(answer), flush=True)
"""


class Binding:
    """The child process; a call that hangs in the library hangs only there."""

    def __init__(self, library: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        self.ask("None")  # from here on it has loaded the library

    def send(self, expression: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def ask(self, expression: str) -> Any:
        assert self.process.stdout
        self.send(expression)
        return json.loads(self.process.stdout.readline())

    def is_silent(self) -> bool:
        assert self.process.stdout
        return select.select([self.process.stdout], [], [], 0.3)[0] == []

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def binding(node: SimulatedNode) -> Iterator[Binding]:
    child = Binding(node.library)
    yield child
    child.end()


@pytest.fixture
def nvml(binding: Binding) -> Binding:
    assert binding.ask("pynvml.nvmlInit()") is None
    return binding


def test_nvml_of_a_healthy_node_returns_its_values(node: SimulatedNode, nvml: Binding) -> None:
    third = node.gpus[3]

    assert nvml.ask("pynvml.nvmlSystemGetDriverVersion()") == "570.133.20"
    assert nvml.ask("pynvml.nvmlSystemGetNVMLVersion()") == "12.570.133.20"
    assert nvml.ask("pynvml.nvmlDeviceGetCount()") == 8
    assert nvml.ask("pynvml.nvmlDeviceGetUUID(gpu(3))") == third.uuid
    assert nvml.ask("pynvml.nvmlDeviceGetSerial(gpu(3))") == third.serial
    assert nvml.ask("pynvml.nvmlDeviceGetName(gpu(3))") == "NVIDIA H100 80GB HBM3"
    assert nvml.ask("pynvml.nvmlDeviceGetMinorNumber(gpu(3))") == 3
    assert nvml.ask("pynvml.nvmlDeviceGetPersistenceMode(gpu(3))") == 1
    assert nvml.ask("pynvml.nvmlDeviceGetMigMode(gpu(3))") == [0, 0]
    assert nvml.ask("pynvml.nvmlDeviceGetRemappedRows(gpu(3))") == [0, 0, 0, 0]
    assert nvml.ask("pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu(3))") == 1


def test_nvml_fills_versioned_structures_and_refuses_unknown_versions(nvml: Binding) -> None:
    nvml.ask("globals().update(fabric=pynvml.c_nvmlGpuFabricInfo_v3_t(), sram=pynvml.c_nvmlEccSramErrorStatus_v1_t())")

    memory = "(lambda m: (m.total, m.reserved, m.used))(pynvml.nvmlDeviceGetMemoryInfo(gpu(3), pynvml.nvmlMemory_v2))"
    assert nvml.ask(memory) == [80 << 30, 600 << 20, 0]
    assert nvml.ask("pynvml.nvmlDeviceGetMemoryInfo(gpu(3)).used") == 600 << 20
    assert nvml.ask("pynvml.nvmlDeviceGetGpuFabricInfoV(gpu(3), ctypes.byref(fabric))") == 0
    assert nvml.ask("(fabric.state, fabric.status, fabric.healthMask, fabric.healthSummary)") == [3, 0, 0x1AA, 0]
    assert nvml.ask("pynvml.nvmlDeviceGetSramEccErrorStatus(gpu(3), ctypes.byref(sram))") == 0
    assert nvml.ask("sram.bThresholdExceeded") == 0
    assert nvml.ask("pynvml.nvmlDeviceGetRepairStatus(gpu(3))") == [0, 0]
    assert nvml.ask("pynvml.nvmlDeviceGetMarginTemperature(gpu(3))") == 52

    nvml.ask("globals().update(fabric=pynvml.c_nvmlGpuFabricInfo_t())")
    assert nvml.ask("pynvml.nvmlDeviceGetGpuFabricInfoV(gpu(3), ctypes.byref(fabric))")["error"] == 25


def test_nvml_field_value_has_its_own_return_code(node: SimulatedNode, nvml: Binding) -> None:
    node.write_value("nvml/gpu1/field/230", 2)
    fields = "[(v.nvmlReturn, v.value.uiVal) for v in pynvml.nvmlDeviceGetFieldValues(gpu(1), [230, 91])]"

    assert nvml.ask(fields) == [[0, 2], [3, 0]]


def test_nvml_lists_mig_devices_only_in_mig_mode(node: SimulatedNode, nvml: Binding) -> None:
    count, handle = "pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(3))", "pynvml.nvmlDeviceGetMigDeviceHandleByIndex"
    assert (nvml.ask(count), nvml.ask(f"{handle}(gpu(3), 0)")) == (0, {"error": 6, "text": "Not Found"})

    node.divide_gpu(3, {0: 2, 5: 11})

    assert (nvml.ask("pynvml.nvmlDeviceGetMigMode(gpu(3))"), nvml.ask(count)) == ([1, 1], 7)
    assert [nvml.ask(f"pynvml.nvmlDeviceGetGpuInstanceId({handle}(gpu(3), {index}))") for index in (0, 5)] == [2, 11]
    assert [nvml.ask(f"{handle}(gpu(3), {index})")["error"] for index in (1, 7, 99)] == [6, 6, 2]
    assert nvml.ask("pynvml.nvmlDeviceGetGpuInstanceId(gpu(3))")["error"] == 2
    assert nvml.ask(f"{handle}(gpu(2), 0)")["error"] == 6


def test_nvml_hangs_until_its_process_is_killed(node: SimulatedNode, nvml: Binding) -> None:
    node.hang()
    nvml.send("pynvml.nvmlDeviceGetCount()")
    assert nvml.is_silent()

    node.unhang()
    assert nvml.is_silent()

    nvml.process.kill()
    assert nvml.process.wait() == -signal.SIGKILL


def test_nvml_crash_ends_the_process_by_a_signal(node: SimulatedNode, nvml: Binding) -> None:
    node.crash("nvmlDeviceGetSerial")
    assert nvml.ask("pynvml.nvmlDeviceGetCount()") == 8

    nvml.send("pynvml.nvmlDeviceGetSerial(gpu(0))")

    assert nvml.process.wait() == -signal.SIGSEGV


def test_nvml_library_mismatches_a_later_driver_permanently(node: SimulatedNode, binding: Binding) -> None:
    node.driver_unload()
    node.driver_load("580.65.06")
    fresh = Binding(node.library)

    assert binding.ask("pynvml.nvmlInit()")["error"] == 18
    assert fresh.ask("pynvml.nvmlInit()") is None
    assert fresh.ask("pynvml.nvmlSystemGetDriverVersion()") == "580.65.06"
    fresh.end()
