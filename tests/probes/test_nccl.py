"""all_reduce_perf: the simulated node's own really run, and its output in the forms that the versions have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.host.command import ProgramEnd
from gpu_healthcheck.healthcheck.model import Host, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.nccl import (
    NOT_RUN,
    AllReduce,
    AllReduceReading,
    Failed,
    Reduced,
    read_all_reduce,
    read_all_reduce_look,
)
from gpu_healthcheck.sim.node import SimulatedNode
from tests.captures.saving import saved_and_read
from tests.waiting import eventually

ABOVE = b"""# nThread 1 nGpus 8 minBytes 1073741824 maxBytes 4294967296 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  65234 on      gpu49 device  0 [0x0a] NVIDIA H200
NCCL version 2.20.3+cuda12.3
#
"""
ROOTED = b"""#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    67108864      16777216     float     sum      -1    302.1  222.15  999.00      0    301.0  222.90  999.00      0
  1073741824     268435456     float     sum      -1   4115.4  260.91  456.59      0   4116.6  260.83  456.46      0
  4294967296    1073741824     float     sum      -1    15834  271.25  474.69      0    15829  271.34  474.84    N/A
"""
WITHOUT_ROOT = b"""#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456   float     sum   8199.7  130.95  229.16  1e-07   8200.1  130.94  229.15  1e-07
"""
ITERATIONS = "i_min i_max i_p99 i_cv%"
PER_ITERATION = (
    f"# size count type redop root cputime algbw busbw #wrong {ITERATIONS} "
    f"cputime algbw busbw #wrong {ITERATIONS} timestamp\n"
    "  1073741824 268435456 float sum -1 4115.4 260.91 456.59 0 4100.00 4200.00 4190.00 1.20 "
    "4116.6 260.83 456.46 0 4100.00 4200.00 4190.00 1.20 2026-11-21 01:02:03\n"
).encode()
"""As with its options for times of each iteration and of day; its columns are padded."""
BELOW = b"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 465.645 \n#\n"


@pytest.mark.parametrize(("table", "bandwidth"), [(ROOTED, 474.84), (WITHOUT_ROOT, 229.16), (PER_ITERATION, 456.59)])
def test_the_best_bus_bandwidth_of_large_messages_is_read_from_every_form_of_the_table(
    table: bytes, bandwidth: float
) -> None:
    assert read_all_reduce(ProgramEnd(0, ABOVE + table + BELOW, b""), 8) == Reduced(8, bandwidth, 0)


@pytest.mark.parametrize(
    ("out", "wrong"),
    [
        (ROOTED.replace(b"474.69      0", b"474.69     12") + BELOW, 12),
        (ROOTED.replace(b"474.69      0", b"474.69  1e+06").replace(b"456.46      0", b"456.46      1"), 1000001),
        (WITHOUT_ROOT + b"# Out of bounds values : 7 FAILED\n# Avg bus bandwidth    : 229.1 \n", 7),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_wrong_values_are_counted_from_the_table_or_from_its_foot(code: int, out: bytes, wrong: int) -> None:
    found = read_all_reduce(ProgramEnd(code, ABOVE + out, b""), 8)

    assert isinstance(found, Reduced)
    assert found.wrong == wrong


HARDWARE = [
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
    "Invalid access of peer GPU memory over nvlink or a hardware error",
    "hardware stack error",
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "misaligned address",
    "invalid program counter",
    "unspecified launch failure",
]
ANYBODY_S = [
    "out of memory",
    "no CUDA-capable device is detected",
    "CUDA-capable device(s) is/are busy or unavailable",
    "system not yet initialized",
    "CUDA driver version is insufficient for CUDA runtime version",
    "invalid device ordinal",
    "unknown error",
    "unhandled system error (run with NCCL_DEBUG=INFO for details) / Error while creating shared memory segment",
]


def failure(kind: str, text: str) -> bytes:
    return (
        f"gpu49: Test {kind} failure common.cu:1027 '{text}'\n .. gpu49 pid 12: Test failure common.cu:891\n".encode()
    )


@pytest.mark.parametrize("text", HARDWARE)
def test_an_error_that_only_hardware_makes_is_a_fault(text: str) -> None:
    within = f"unhandled cuda error (run with NCCL_DEBUG=INFO for details) / Cuda failure '{text}'"

    assert read_all_reduce(ProgramEnd(2, ABOVE + failure("CUDA", text), b""), 8) == Failed(text)
    assert read_all_reduce(ProgramEnd(3, ABOVE + ROOTED + failure("NCCL", within), b""), 8) == Failed(within)


@pytest.mark.parametrize("text", ANYBODY_S)
def test_other_error_is_unobserved(text: str) -> None:
    found = read_all_reduce(ProgramEnd(2, ABOVE + failure("CUDA", text), b""), 8)

    assert found == Unobserved(NOT_RUN, f"all_reduce_perf: {text}")


@pytest.mark.parametrize(
    ("code", "out", "err", "message"),
    [
        (
            127,
            b"",
            b"all_reduce_perf: libnccl.so.2: cannot open\n",
            "ended with exit code 127: all_reduce_perf: libnccl",
        ),
        (
            7,
            ABOVE,
            b"Invalid number of GPUs: 8 requested but only 1 were found.\n",
            "ended with exit code 7: Invalid num",
        ),
        (-9, ABOVE + ROOTED, b"", "was ended by SIGKILL: 4294967296"),
        (0, ABOVE, b"", "ended with exit code 0: NCCL version 2.20.3+cuda12.3"),
        (0, b"", b"", "ended with exit code 0"),
        (1, ABOVE + ROOTED + BELOW, b"", "ended with exit code 1: # Avg bus bandwidth"),
    ],
)
def test_exit_without_a_whole_measurement_is_unobserved(code: int, out: bytes, err: bytes, message: str) -> None:
    found = read_all_reduce(ProgramEnd(code, out, err), 8)

    assert isinstance(found, Unobserved)
    assert (found.cause, found.detail.startswith(f"all_reduce_perf {message}")) == (NOT_RUN, True)


def test_small_messages_alone_are_no_measurement() -> None:
    small = b"\n".join(ROOTED.split(b"\n")[:4]) + b"\n"

    assert isinstance(read_all_reduce(ProgramEnd(0, ABOVE + small + BELOW, b""), 8), Unobserved)


WRITTEN = st.lists(
    st.one_of(st.sampled_from([ABOVE, ROOTED, WITHOUT_ROOT, BELOW, failure("CUDA", "x")]), st.binary(max_size=80))
).map(b"".join)


@given(st.sampled_from([0, 1, 3, -9]), WRITTEN, WRITTEN)
def test_whatever_it_writes_is_read_and_can_be_written_down(code: int, out: bytes, err: bytes) -> None:
    look = AllReduceReading(read_all_reduce(ProgramEnd(code, out, err), 8))

    assert saved_and_read(look) == look


# The simulated node's program.


@pytest.fixture
def all_reduce(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[AllReduce]:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nccl")
    node.write_value("nccl/asked", "")
    reduce = AllReduce(node.root, 30.0, f"{node.install_nccl_tests()}:/usr/bin:/bin")
    yield reduce
    reduce.stop()


def test_test_runs_over_all_gpus_without_a_network(all_reduce: AllReduce, node: SimulatedNode) -> None:
    assert all_reduce.run() == AllReduceReading(Reduced(8, 472.31, 0))

    asked = (node.root / "nccl/asked").read_text().split("\n")
    assert "-b 1G -e 4G -f 2 -g 8" in asked
    assert {"NCCL_SOCKET_IFNAME=lo", "NCCL_NET=Socket", "LD_LIBRARY_PATH=/nccl"} <= set(asked)
    assert not any(line.startswith(("NCCL_ALGO", "HOME", "CUDA")) for line in asked)


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        ("wrong", Reduced(8, 472.31, 9)),
        (
            "nvlink",
            Failed("unhandled cuda error / Cuda failure 'uncorrectable NVLink error detected during the execution'"),
        ),
        ("memory", Unobserved(NOT_RUN, "all_reduce_perf: out of memory")),
    ],
)
def test_fault_of_the_node_is_observed(
    all_reduce: AllReduce, node: SimulatedNode, fault: str, answer: Reduced | Failed | Unobserved
) -> None:
    node.write_value("nccl/fails", fault)

    assert all_reduce.run() == AllReduceReading(answer)


def test_a_run_without_an_end_is_ended_and_is_a_fault(all_reduce: AllReduce, node: SimulatedNode) -> None:
    node.write_value("nccl/fails", "hang")
    all_reduce.deadline_seconds = 0.5

    assert all_reduce.run() == AllReduceReading(Failed("all_reduce_perf: no end within 0.5 s"))


def test_stopped_run_is_unobserved(all_reduce: AllReduce, node: SimulatedNode) -> None:
    node.write_value("nccl/fails", "hang")
    looks: list[AllReduceReading] = []
    thread = threading.Thread(target=lambda: looks.append(all_reduce.run()))
    thread.start()
    eventually(lambda: "NCCL_NET" in (node.root / "nccl/asked").read_text())

    all_reduce.stop()
    thread.join()

    assert isinstance(looks[0].answer, Unobserved)


def test_one_gpu_or_no_program_is_nothing_to_run(
    make_node: Callable[[str], SimulatedNode], node: SimulatedNode, tmp_path: Path
) -> None:
    alone = make_node("g6.xlarge")

    few = AllReduceReading(absent="an all-reduce needs two GPUs or more")
    assert AllReduce(alone.root, 30.0, path=f"{alone.install_nccl_tests()}:/bin").run() == few
    assert AllReduce(node.root, 30.0, path=str(tmp_path)).run().absent == "all_reduce_perf is not installed here"


def test_a_gpu_that_works_for_a_virtual_machine_takes_no_part(all_reduce: AllReduce, node: SimulatedNode) -> None:
    node.hand_gpu_to_a_virtual_machine(3)

    assert all_reduce.run() == AllReduceReading(Reduced(7, 472.31, 0))


def test_light_cycle_runs_no_deep_check(node: SimulatedNode, all_reduce: AllReduce) -> None:
    with pytest.raises(ProbeError, match="only a deep diagnostic"):
        read_all_reduce_look(Host(node.root))
    assert read_all_reduce_look(Host(node.root, ask_all_reduce=all_reduce.run)).answer == Reduced(8, 472.31, 0)
