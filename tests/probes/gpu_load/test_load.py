"""The load test on the simulated driver's CUDA library: speeds, wrong results, errors, and reasons not to measure."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.host.command import ProgramEnd
from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.gpu_load import load_child
from gpu_healthcheck.healthcheck.probes.gpu_load.cuda import Cuda
from gpu_healthcheck.healthcheck.probes.gpu_load.load_run import GpuLoad
from gpu_healthcheck.healthcheck.probes.gpu_load.speeds import (
    NOT_RUN,
    GpuSpeeds,
    LoadReading,
    LoadRequest,
    read_gpu_load,
    read_load_answer,
)
from gpu_healthcheck.sim.node import SimulatedNode
from tests.captures.saving import saved_and_read
from tests.waiting import eventually

HEALTHY = {"fp32": 60.0, "bf16": 930.0, "h2d": 52.0, "d2h": 52.0, "peer": 370.0}
QUANTITIES = list(HEALTHY)


def loaded(node: SimulatedNode, *gpus: str, seconds: float = 1.0) -> LoadReading:
    return GpuLoad(node.root, gpus, 0.1, seconds, 60.0).run()


def rounded(gpu: GpuSpeeds) -> dict[str, float]:
    return {name: round(speed, 1) for name, speed in gpu.speeds.items()}


def test_healthy_gpus_are_all_as_fast(node: SimulatedNode) -> None:
    reading = loaded(node)

    assert (reading.failed, reading.absent) == (None, "")
    assert [(gpu.address, gpu.uuid, gpu.name) for gpu in reading.gpus] == [
        (gpu.address, gpu.uuid, "NVIDIA H100 80GB HBM3") for gpu in node.gpus
    ]
    assert [(rounded(gpu), gpu.wrong, gpu.error) for gpu in reading.gpus] == [(HEALTHY, [], "")] * 8


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_slow_gpu_is_measured_and_its_siblings_are_fast(node: SimulatedNode, quantity: str) -> None:
    node.write_value(f"cuda/gpu3/{quantity}", 20)

    speeds = [rounded(gpu) for gpu in loaded(node).gpus]

    assert speeds[3] == {**HEALTHY, quantity: 20.0}
    assert [fast for number, fast in enumerate(speeds) if number != 3] == [HEALTHY] * 7


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("fp32", "fp32: "),
        ("bf16", "bf16: "),
        ("d2h", "copies from and to this machine's memory change data"),
        ("peer", "copies between it and "),
    ],
)
def test_a_wrong_result_is_that_gpus(node: SimulatedNode, wrong: str, text: str) -> None:
    node.write_value("cuda/gpu5/wrong", wrong)

    reading = loaded(node)

    assert [number for number, gpu in enumerate(reading.gpus) if gpu.wrong] == [5]
    assert reading.gpus[5].wrong[0].startswith(text)


@pytest.mark.parametrize(
    ("file", "value", "code", "text"),
    [
        ("fails", 214, 214, "fp32: cuLaunchKernel: CUDA_ERROR_ECC_UNCORRECTABLE (214)"),
        ("fails", 2, 2, "fp32: cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        ("used", 20, 0, "other processes use 20.0 GiB of its memory"),
    ],
)
def test_an_error_of_one_gpu_leaves_the_others(
    node: SimulatedNode, file: str, value: int, code: int, text: str
) -> None:
    node.write_value(f"cuda/gpu0/{file}", value)

    first, *others = loaded(node).gpus

    assert (first.code, first.error, first.speeds) == (code, text, {})
    assert [rounded(gpu) for gpu in others] == [HEALTHY] * 7


def test_a_gpu_that_hangs_ends_the_measurement_in_time(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write_value("cuda/gpu1/hangs", "")
    monkeypatch.setattr(load_child, "_GRACE_SECONDS", 0.5)

    speeds = load_child.measure(Cuda(str(node.root)), LoadRequest(seconds=0.2), node.root)

    assert (speeds[1].error, speeds[1].code, speeds[1].speeds) == ("fp32: no end in time", 0, {})
    assert [rounded(gpu) for number, gpu in enumerate(speeds) if number != 1] == [HEALTHY] * 7


def test_gpus_without_nvlink_have_no_speed_to_peers(node: SimulatedNode) -> None:
    for gpu in node.gpus:
        node.write_value(f"cuda/gpu{gpu.index}/unlinked", "")
    assert {name for gpu in loaded(node).gpus for name in gpu.speeds} == {"fp32", "bf16", "h2d", "d2h"}


def test_only_the_named_gpus_are_loaded(node: SimulatedNode) -> None:
    address = node.gpus[2].address
    node.write_value("cuda/gpu1/fails", 214)

    (gpu,) = loaded(node, address).gpus

    alone = {name: speed for name, speed in HEALTHY.items() if name != "peer"}
    assert (gpu.address, gpu.error, rounded(gpu)) == (address, "", alone)


def test_a_gpu_that_cuda_does_not_list_is_unmeasured(node: SimulatedNode) -> None:
    node.lose_gpu(7)
    assert [(gpu.address, gpu.error) for gpu in loaded(node).gpus if gpu.error] == [
        (node.gpus[7].address, "CUDA does not list it")
    ]


class TestWhatCannotBeMeasured:
    def cause(self, node: SimulatedNode) -> str:
        failed = loaded(node).failed
        assert failed is not None
        assert failed.cause == NOT_RUN
        return failed.detail

    def test_without_a_cuda_library(self, node: SimulatedNode) -> None:
        for library in (node.root / "usr/lib/x86_64-linux-gnu").glob("libcuda.so*"):
            library.unlink()
        assert f"libcuda.so.1 was not found under {node.root}" in self.cause(node)

    def test_with_a_library_that_refuses(self, node: SimulatedNode) -> None:
        node.write_value("cuda/error", 802)
        assert self.cause(node) == "the load test: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"

    def test_with_a_library_that_crashes(self, node: SimulatedNode) -> None:
        node.write_value("cuda/crash", "")
        assert self.cause(node).startswith("the load test was ended by SIGSEGV")

    def test_when_it_misses_its_deadline(self, node: SimulatedNode) -> None:
        node.write_value("cuda/gpu0/hangs", "")
        failed = GpuLoad(node.root, (), 0.0, 0.1, 2.0).run().failed
        assert failed is not None
        assert "no end within 2 s" in failed.detail

    def test_when_it_is_stopped(self, node: SimulatedNode) -> None:
        node.write_value("cuda/gpu0/hangs", "")
        load = GpuLoad(node.root)
        readings: list[LoadReading] = []
        runner = threading.Thread(target=lambda: readings.append(load.run()))
        runner.start()
        eventually(lambda: load._program._process is not None)
        load.stop()
        runner.join()
        assert readings[0].failed is not None
        assert "stopped" in readings[0].failed.detail

    def test_a_node_without_gpus_of_the_driver(self, node: SimulatedNode) -> None:
        for gpu in node.gpus:
            node.hand_gpu_to_a_virtual_machine(gpu.index)
        assert loaded(node) == LoadReading(absent="no GPU belongs to NVIDIA's driver")


def test_the_environment_of_this_process_hides_no_gpu(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    load = GpuLoad(node.root, libraries=Path("/driver"))
    assert "CUDA_VISIBLE_DEVICES" not in load._program.env
    assert load._program.env["LD_LIBRARY_PATH"] == "/driver:/nowhere"


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("0-99999999999", list(range(8193)))]
)
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    assert list(load_child._cpus(text)) == cpus


@pytest.mark.parametrize("text", ["", "x", "\x00", "99999-1"])
def test_the_cpus_are_restored(node: SimulatedNode, text: str) -> None:
    address, before = node.gpus[0].address, os.sched_getaffinity(0)
    (node.root / "sys/bus/pci/devices" / address / "local_cpulist").write_text(text)
    with load_child._near(node.root, address):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_memory_is_pinned_near_the_gpu(node: SimulatedNode) -> None:
    address, before = node.gpus[0].address, os.sched_getaffinity(0)
    first = min(before)
    (node.root / "sys/bus/pci/devices" / address / "local_cpulist").write_text(f"{first}\n")
    with load_child._near(node.root, address):
        assert os.sched_getaffinity(0) == {first}
    assert os.sched_getaffinity(0) == before


@given(st.binary(max_size=200))
def test_any_answer_is_read_or_refused(text: bytes) -> None:
    with contextlib.suppress(ProbeError):
        read_load_answer(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"gpus":[{"address":"x","speeds":{"fp32":-1}}]}',
        b'{"gpus":[{"address":"x","speeds":{"fp32":1e99}}]}',
        b'{"gpus":[{"address":"' + b"x" * 99 + b'"}]}',
        b'{"gpus":[{}]}',
        b"",
    ],
)
def test_an_implausible_answer_is_refused(text: bytes) -> None:
    with pytest.raises(ProbeError):
        read_load_answer(text)


def test_a_malformed_answer_is_unobserved(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    load = GpuLoad(node.root)
    answers: Callable[..., ProgramEnd] = lambda *_: ProgramEnd(0, b"{", b"")  # noqa: E731
    monkeypatch.setattr(load._program, "run", answers)
    with pytest.raises(ProbeError, match="malformed"):
        load.run()


def test_only_a_deep_diagnostic_loads_gpus(node: SimulatedNode) -> None:
    with pytest.raises(ProbeError, match="only a deep diagnostic"):
        read_gpu_load(Host(node.root))


def test_a_reading_can_be_saved() -> None:
    gpu = GpuSpeeds("0000:18:00.0", "GPU-1", "NVIDIA H200", {"fp32": 60.0}, ["x"], "y", 214)
    reading = LoadReading((gpu,), absent="z")
    assert saved_and_read(reading) == reading
