"""Every EFA device sends to itself: the simulated node's own fi_pingpong, both sides really run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.efa.loopback import NOT_RUN, EfaLoopback, read_efa_loopback
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackReading, LoopbackResult, Measured
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode
from tests.host.test_command import FrozenDisk, is_gone
from tests.waiting import eventually

SHORT, LONG = 1.0, 30.0
STOPPED = Unobserved(NOT_RUN, "stopped before its end")


class Bench:
    """The four devices of a p4d.24xlarge, their reports, and the programs that ran."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.calls: list[Loopback] = []
        path = f"{node.root}/{EFA_PROGRAMS}:/usr/bin:/bin"
        self.loopback = EfaLoopback(node.root, LONG, self.calls.append, path, patience_seconds=0.5)
        self.node.write_value("fi_pingpong/log", "")

    @property
    def devices(self) -> list[str]:
        """In the order in which they are tested."""
        return sorted(self.node.efa_names)

    def befall(self, device: str, fault: str) -> None:
        self.node.write_value("fi_pingpong/fails", f"{device} {fault}")

    def answers(self) -> list[LoopbackResult]:
        return [loopback.answer for loopback in self.loopback.run().loopbacks]

    @property
    def runs(self) -> list[list[str]]:
        """Of each side: its pid, FI_EFA_ENABLE_SHM_TRANSFER, the device, whether it compared, whether it served."""
        lines = (self.node.root / "fi_pingpong/log").read_text().split("\n")
        return [line.split(" ") for line in lines if line]

    def leftovers(self) -> list[int]:
        return [int(pid) for pid, *_ in self.runs if not is_gone(int(pid))]


@pytest.fixture
def bench(make_node: Callable[[str], SimulatedNode], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("FI_EFA_ENABLE_SHM_TRANSFER", "1")
    one = Bench(make_node("p4d.24xlarge"))
    yield one
    one.loopback.stop()


def test_each_device_is_measured_and_reported_in_turn(bench: Bench) -> None:
    bench.node.write_value("fi_pingpong/megabytes", f"{bench.devices[2]} 123.45")

    look = bench.loopback.run()

    speeds = [4321.0, 4321.0, 123.45, 4321.0]
    assert look.loopbacks == tuple(
        Loopback(device, Measured(speed, 1 << 20)) for device, speed in zip(bench.devices, speeds, strict=True)
    )
    assert tuple(bench.calls) == look.loopbacks


def test_the_data_goes_through_the_device_and_is_compared_in_a_run_of_its_own(bench: Bench) -> None:
    bench.answers()

    assert {memory for _, memory, *_ in bench.runs} == {"0"}
    sides = {(device, compared, served) for _, _, device, compared, served in bench.runs}
    assert sides == {
        (device, compared, served) for device in bench.devices for compared in ("", "1") for served in ("", "1")
    }


FAULTS = [
    ("corrupt", Broken("data was changed in a message of 64 bytes", corrupt=True)),
    ("error", Broken("fi_pingpong ended with exit code 5: cq_readerr: Unresponsive remote")),
    ("timeout", Broken("fi_pingpong ended with exit code 62: fi_enable: Timer expired")),
    ("memory", Unobserved(NOT_RUN, "fi_pingpong ended with exit code 12: fi_endpoint: Cannot allocate memory")),
]


@pytest.mark.parametrize(("fault", "answer"), FAULTS)
def test_a_fault_of_one_device_is_its_own_and_the_others_are_tested(
    bench: Bench, fault: str, answer: LoopbackResult
) -> None:
    bench.befall(bench.devices[1], fault)

    well = Measured(4321.0, 1 << 20)
    assert bench.answers() == [well, answer, well, well]
    assert bench.leftovers() == []


def test_a_device_from_which_nothing_comes_back_is_ended_with_both_sides(bench: Bench) -> None:
    bench.befall(bench.devices[0], "hang")
    bench.loopback.deadline_seconds = SHORT

    assert bench.answers()[0] == Broken("fi_pingpong: no end within 1 s")
    assert bench.leftovers() == []


def test_a_device_that_fails_is_not_asked_a_second_time(bench: Bench) -> None:
    bench.befall(bench.devices[3], "error")
    bench.answers()

    assert {compared for _, _, device, compared, _ in bench.runs if device == bench.devices[3]} == {""}


def test_device_unknown_to_the_provider_is_unobserved(bench: Bench) -> None:
    program = bench.node.root / EFA_PROGRAMS / "fi_pingpong"
    program.write_text(program.read_text().replace("/sys/class/infiniband/$device", "/nowhere"))

    unknown = Unobserved(NOT_RUN, "fi_pingpong ended with exit code 61: fi_getinfo: No data available")
    assert bench.answers() == [unknown] * 4


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 1", "fi_pingpong ended with exit code 1"),
        ("echo no such option >&2; exit 1", "fi_pingpong ended with exit code 1: no such option"),
        ("kill -SEGV $$", "fi_pingpong was ended by SIGSEGV"),
        ("kill -KILL $$", "fi_pingpong: both sides were killed"),
        ("while :; do echo flood; done", "fi_pingpong: its output is longer than 1048576 bytes"),
        ("exit 0", "fi_pingpong ended without an error and without a measurement"),
    ],
)
def test_wrong_program_is_unobserved(bench: Bench, script: str, message: str) -> None:
    (bench.node.root / EFA_PROGRAMS / "fi_pingpong").write_text(f"#!/bin/sh\n{script}\n")

    assert bench.answers() == [Unobserved(NOT_RUN, message)] * 4


def test_a_client_that_comes_before_its_server_is_run_again(bench: Bench) -> None:
    program = bench.node.root / EFA_PROGRAMS / "fi_pingpong"
    late = program.read_text().replace(
        'if [ "$server" ]; then\n    mkfifo', 'if [ "$server" ]; then\n    sleep 0.5\n    mkfifo'
    )
    program.write_text(late)
    bench.node.remove_efa(1)
    bench.node.remove_efa(2)
    bench.node.remove_efa(3)

    assert bench.answers() == [Measured(4321.0, 1 << 20)]
    assert len(bench.runs) > 4


def test_stopping_ends_both_sides_and_begins_no_more(bench: Bench) -> None:
    bench.befall(bench.devices[1], "hang")
    thread = threading.Thread(target=bench.loopback.run)
    thread.start()
    eventually(lambda: len(bench.calls) == 1 and sum(run[2] == bench.devices[1] for run in bench.runs) == 2)

    bench.loopback.stop()
    thread.join()

    assert [loopback.answer for loopback in bench.calls] == [Measured(4321.0, 1 << 20), STOPPED, STOPPED, STOPPED]
    assert {run[2] for run in bench.runs} == set(bench.devices[:2])
    assert bench.leftovers() == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root can freeze a file system")
    frozen_disk = FrozenDisk(tmp_path)
    yield frozen_disk
    frozen_disk.remove()


def test_no_test_starts_while_an_unkillable_side_runs(bench: Bench, disk: FrozenDisk) -> None:
    """The kernel holds it, as it does who waits for a device in a driver."""
    program = bench.node.root / EFA_PROGRAMS / "fi_pingpong"
    stuck = f'[ ! "$server" ] || echo $$ >{disk.mount}/file\nfails='
    program.write_text(program.read_text().replace("fails=", stuck, 1))
    bench.loopback.deadline_seconds, bench.loopback.patience_seconds = SHORT, 0.1
    disk.freeze()

    hung, *others = bench.answers()

    assert hung == Broken("fi_pingpong: no end within 1 s")
    (pid,) = {int(run[0]) for run in bench.runs if run[4] == "1"}
    assert others == [Unobserved(NOT_RUN, f"process {pid} of an earlier run can't be killed")] * 3

    disk.thaw()
    eventually(lambda: is_gone(pid))


def test_a_person_s_own_program_on_the_usual_port_is_not_met(bench: Bench) -> None:
    ports = set()
    program = bench.node.root / EFA_PROGRAMS / "fi_pingpong"
    program.write_text(program.read_text().replace("root=", f'echo "$*" >>{bench.node.root}/arguments\nroot=', 1))
    bench.answers()

    for line in (bench.node.root / "arguments").read_text().split("\n")[:-1]:
        words = line.split()
        ports.add(words[words.index("-B" if "-B" in words else "-P") + 1])
    assert ports
    assert "47592" not in ports  # fi_pingpong's own default; which free one the kernel gives is its own affair


def test_without_the_program_or_a_device_nothing_is_run(bench: Bench, tmp_path: Path) -> None:
    absent = LoopbackReading(absent="fi_pingpong is not installed here")
    assert EfaLoopback(bench.node.root, LONG, path=str(tmp_path)).run() == absent

    for device in range(4):
        bench.node.remove_uverbs(device)
    assert bench.loopback.run() == LoopbackReading(absent="no EFA device that programs can open")
    assert bench.runs == []


def test_light_cycle_sends_nothing(bench: Bench) -> None:
    with pytest.raises(ProbeError, match="only a deep diagnostic"):
        read_efa_loopback(Host(bench.node.root))
    assert read_efa_loopback(Host(bench.node.root, ask_efa_loopback=bench.loopback.run)).loopbacks == tuple(bench.calls)
    assert len(bench.calls) == 4


def test_hidden_devices_are_not_reported_as_missing(bench: Bench, tmp_path: Path) -> None:
    bench.loopback.root = tmp_path

    with pytest.raises(ProbeError, match="sys/class: no such directory"):
        bench.loopback.run()
