"""The simulated driver's library, asked by NVIDIA's own binding in a process of its own."""

import json
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.node import SimulatedNode

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


def test_a_healthy_node_answers_with_its_own_values(node: SimulatedNode, nvml: Binding) -> None:
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


def test_a_gpu_tells_its_pci_address_in_nvml_s_form(nvml: Binding) -> None:
    fields = "(p.busId, p.busIdLegacy, p.domain, p.bus, p.device, hex(p.pciDeviceId))"

    assert nvml.ask(f"(lambda p: {fields})(pynvml.nvmlDeviceGetPciInfo(gpu(7)))") == [
        *("00000000:CA:00.0", "0000:CA:00.0", 0, 0xCA, 0, "0x233010de")
    ]


def test_versioned_structures_are_filled_and_a_version_that_it_does_not_know_is_refused(nvml: Binding) -> None:
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


def test_links_are_those_that_have_a_folder(node: SimulatedNode, nvml: Binding) -> None:
    node.write_value("nvml/gpu3/nvlink/5/state", 0)

    state = "pynvml.nvmlDeviceGetNvLinkState(gpu(3), {})"
    assert [nvml.ask(state.format(link)) for link in (0, 5, 17)] == [1, 0, 1]
    assert [nvml.ask(state.format(link))["error"] for link in (18, 36)] == [3, 2]
    assert nvml.ask("pynvml.nvmlDeviceGetNvLinkVersion(gpu(3), 17)") == 6
    assert nvml.ask("[v.nvmlReturn for v in pynvml.nvmlDeviceGetFieldValues(gpu(3), [(161, 17), (161, 18)])]") == [0, 3]


def test_p2p_goes_by_nvlink_where_both_have_it(node: SimulatedNode, nvml: Binding) -> None:
    p2p = "[pynvml.nvmlDeviceGetP2PStatus(gpu(0), gpu({}), caps) for caps in (0, 2)]"
    shutil.rmtree(node.root / "nvml/gpu2/nvlink")
    node.write_value("nvml/gpu0/p2p_read.3", 1)

    assert [nvml.ask(p2p.format(other)) for other in (1, 2, 3)] == [[0, 0], [0, 5], [1, 0]]


def test_processes_are_counted_before_they_are_listed(node: SimulatedNode, nvml: Binding) -> None:
    node.write_value("nvml/gpu3/processes", "4711 4712")

    assert nvml.ask("[p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(3))]") == [4711, 4712]
    assert nvml.ask("pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu(3))") == []


def test_a_value_written_to_a_file_is_the_next_answer(node: SimulatedNode, nvml: Binding) -> None:
    remapped, ecc = "pynvml.nvmlDeviceGetRemappedRows(gpu(0))", "pynvml.nvmlDeviceGetTotalEccErrors(gpu(0), 1, 0)"
    assert (nvml.ask(remapped), nvml.ask(ecc)) == ([0, 0, 0, 0], 0)

    node.write_value("nvml/gpu0/remap_pending", 1)
    node.write_value("nvml/gpu0/ecc_uncorrected_volatile", 2**40)

    assert (nvml.ask(remapped), nvml.ask(ecc)) == ([0, 0, 1, 0], 2**40)


def test_each_field_value_has_its_own_return_code(node: SimulatedNode, nvml: Binding) -> None:
    node.write_value("nvml/gpu1/field/230", 2)
    fields = "[(v.nvmlReturn, v.value.uiVal) for v in pynvml.nvmlDeviceGetFieldValues(gpu(1), [230, 91])]"

    assert nvml.ask(fields) == [[0, 2], [3, 0]]


def test_a_field_has_an_error_of_its_own(node: SimulatedNode, nvml: Binding) -> None:
    node.write_value("nvml/gpu1/error.field.230", 999)
    fields = "[v.nvmlReturn for v in pynvml.nvmlDeviceGetFieldValues(gpu({}), [230])]"

    assert nvml.ask(fields.format(1)) == [999]
    assert nvml.ask(fields.format(2)) == [0]


def test_mig_devices_are_those_that_were_made_and_only_while_the_mode_is_on(node: SimulatedNode, nvml: Binding) -> None:
    count, handle = "pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(3))", "pynvml.nvmlDeviceGetMigDeviceHandleByIndex"
    assert (nvml.ask(count), nvml.ask(f"{handle}(gpu(3), 0)")) == (0, {"error": 6, "text": "Not Found"})

    node.divide_gpu(3, {0: 2, 5: 11})

    assert (nvml.ask("pynvml.nvmlDeviceGetMigMode(gpu(3))"), nvml.ask(count)) == ([1, 1], 7)
    assert [nvml.ask(f"pynvml.nvmlDeviceGetGpuInstanceId({handle}(gpu(3), {index}))") for index in (0, 5)] == [2, 11]
    assert [nvml.ask(f"{handle}(gpu(3), {index})")["error"] for index in (1, 7, 99)] == [6, 6, 2]
    assert nvml.ask("pynvml.nvmlDeviceGetGpuInstanceId(gpu(3))")["error"] == 2
    assert nvml.ask(f"{handle}(gpu(2), 0)")["error"] == 6


def test_a_mig_device_s_handle_does_not_outlive_it(node: SimulatedNode, nvml: Binding) -> None:
    node.divide_gpu(3, {0: 2})
    nvml.ask("globals().update(mig=pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(3), 0))")
    node.divide_gpu(3, {})

    assert nvml.ask("pynvml.nvmlDeviceGetGpuInstanceId(mig)")["error"] == 6


def test_an_absent_value_is_not_supported(node: SimulatedNode, nvml: Binding) -> None:
    (node.root / "nvml/gpu0/serial").unlink()

    assert nvml.ask("pynvml.nvmlDeviceGetSerial(gpu(0))") == {"error": 3, "text": "Not Supported"}


def test_a_lost_gpu_is_counted_but_gives_no_handle(node: SimulatedNode, nvml: Binding) -> None:
    node.lose_gpu(3)

    assert nvml.ask("pynvml.nvmlDeviceGetCount()") == 8
    assert nvml.ask("gpu(3)") == {"error": 15, "text": "GPU is lost"}
    assert nvml.ask("pynvml.nvmlDeviceGetUUID(gpu(4))") == node.gpus[4].uuid


def test_a_removed_gpu_moves_the_later_ones_up(node: SimulatedNode, nvml: Binding) -> None:
    node.remove_gpu(3)

    assert nvml.ask("pynvml.nvmlDeviceGetCount()") == 7
    assert nvml.ask("pynvml.nvmlDeviceGetUUID(gpu(3))") == node.gpus[4].uuid
    assert nvml.ask("gpu(7)")["error"] == 2


def test_a_written_error_is_returned_by_that_function_on_that_gpu_only(node: SimulatedNode, nvml: Binding) -> None:
    node.write_value("nvml/error/nvmlDeviceGetCount_v2", 999)
    node.write_value("nvml/gpu2/error.nvmlDeviceGetUUID", 16)

    assert nvml.ask("pynvml.nvmlDeviceGetCount()")["error"] == 999
    assert nvml.ask("pynvml.nvmlDeviceGetUUID(gpu(2))")["error"] == 16
    assert nvml.ask("pynvml.nvmlDeviceGetSerial(gpu(2))") == node.gpus[2].serial
    assert nvml.ask("pynvml.nvmlDeviceGetUUID(gpu(1))") == node.gpus[1].uuid


def test_nonsense_in_a_file_reaches_the_caller(node: SimulatedNode, nvml: Binding) -> None:
    node.write_value("nvml/count", 4294967295)
    node.write_value("nvml/gpu0/minor", "three")

    assert nvml.ask("pynvml.nvmlDeviceGetCount()") == 4294967295
    assert nvml.ask("pynvml.nvmlDeviceGetMinorNumber(gpu(0))")["error"] == 999


def test_nothing_answers_before_initialisation(binding: Binding) -> None:
    assert binding.ask("pynvml.nvmlDeviceGetCount()") == {"error": 1, "text": "Uninitialized"}


def test_device_descriptors_are_open_only_between_init_and_shutdown(binding: Binding) -> None:
    assert binding.ask("devices()") == []
    binding.ask("pynvml.nvmlInit()")
    assert binding.ask("devices()") == ["nvidiactl"]
    assert binding.ask("[gpu(5) and None, gpu(5) and None, devices()]")[-1] == ["nvidia5", "nvidiactl"]
    binding.ask("pynvml.nvmlShutdown()")
    assert binding.ask("devices()") == []


def test_only_the_last_shutdown_closes(nvml: Binding) -> None:
    nvml.ask("pynvml.nvmlInit()")
    nvml.ask("pynvml.nvmlShutdown()")
    assert nvml.ask("devices()") == ["nvidiactl"]
    nvml.ask("pynvml.nvmlShutdown()")
    assert nvml.ask("devices()") == []


def test_a_hung_driver_answers_nothing_until_its_process_is_killed(node: SimulatedNode, nvml: Binding) -> None:
    node.hang()
    nvml.send("pynvml.nvmlDeviceGetCount()")
    assert nvml.is_silent()

    node.unhang()
    assert nvml.is_silent()

    nvml.process.kill()
    assert nvml.process.wait() == -signal.SIGKILL


def test_a_hang_can_be_that_of_one_function(node: SimulatedNode, nvml: Binding) -> None:
    node.hang("nvmlDeviceGetSerial")
    assert nvml.ask("pynvml.nvmlDeviceGetCount()") == 8

    nvml.send("pynvml.nvmlDeviceGetSerial(gpu(0))")
    assert nvml.is_silent()


def test_a_crash_ends_the_process_by_its_signal(node: SimulatedNode, nvml: Binding) -> None:
    node.crash("nvmlDeviceGetSerial")
    assert nvml.ask("pynvml.nvmlDeviceGetCount()") == 8

    nvml.send("pynvml.nvmlDeviceGetSerial(gpu(0))")

    assert nvml.process.wait() == -signal.SIGSEGV


def test_an_unloaded_driver_refuses_initialisation(node: SimulatedNode, binding: Binding) -> None:
    node.driver_unload()
    assert binding.ask("pynvml.nvmlInit()")["error"] == 9

    node.driver_load()
    assert binding.ask("pynvml.nvmlInit()") is None


def test_a_process_with_the_old_library_mismatches_a_new_driver_for_ever(node: SimulatedNode, binding: Binding) -> None:
    node.driver_unload()
    node.driver_load("580.65.06")
    fresh = Binding(node.library)

    assert binding.ask("pynvml.nvmlInit()")["error"] == 18
    assert fresh.ask("pynvml.nvmlInit()") is None
    assert fresh.ask("pynvml.nvmlSystemGetDriverVersion()") == "580.65.06"
    fresh.end()


def test_an_upgraded_library_mismatches_until_the_reboot(node: SimulatedNode) -> None:
    node.install_library("580.65.06")
    before = Binding(node.library)
    assert before.ask("pynvml.nvmlInit()")["error"] == 18
    before.end()

    node.reboot()
    after = Binding(node.library)
    assert after.ask("pynvml.nvmlInit()") is None
    after.end()


def test_two_nodes_in_two_directories_answer_each_for_itself(make_node: Callable[[str], SimulatedNode]) -> None:
    counts = []
    for instance_type in ("g6.xlarge", "p4d.24xlarge"):
        child = Binding(make_node(instance_type).library)
        child.ask("pynvml.nvmlInit()")
        counts.append(child.ask("pynvml.nvmlDeviceGetCount()"))
        child.end()

    assert counts == [1, 8]
