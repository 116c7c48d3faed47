"""Every active RDMA port writes to itself: the simulated node's own ib_write_bw, both sides really run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.model import Host, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.ib_loopback import NOT_RUN, RdmaLoopback, read_rdma_loopback
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackReading, LoopbackResult, Measured
from gpu_healthcheck.sim.node import SimulatedNode
from tests.host.test_command import is_gone

SHORT, LONG = 1.0, 30.0
WELL = Measured(391.8 * 125, 65536)


class Bench:
    """Three ports of a node with mlx5 devices, their results, and the programs that ran."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.calls: list[Loopback] = []
        programs = node.install_perftest()
        for index in range(3, len(node.shape.mlx5)):
            node.remove_mlx5(index)
        self.ports = [device.name for device in sorted((node.root / "sys/class/infiniband").iterdir())]
        path = f"{programs}:/usr/bin:/bin"
        self.loopback = RdmaLoopback(node.root, LONG, self.calls.append, path, patience_seconds=0.5)

    def set_state(self, port: str, text: str) -> None:
        self.node.write_value(f"sys/class/infiniband/{port}/ports/1/state", text)

    def befall(self, port: str, fault: str) -> None:
        self.node.write_value("ib_write_bw/fails", f"{port} {fault}")

    def answers(self) -> list[LoopbackResult]:
        return [loopback.answer for loopback in self.loopback.run().loopbacks]

    @property
    def runs(self) -> list[list[str]]:
        """Of each side: its pid, the port, whether it served, its options."""
        log = self.node.root / "ib_write_bw/log"
        return [line.split(" ") for line in log.read_text().splitlines()] if log.exists() else []

    def leftovers(self) -> list[int]:
        return [int(pid) for pid, *_ in self.runs if not is_gone(int(pid))]


@pytest.fixture
def bench(make_node: Callable[[str], SimulatedNode]) -> Iterator[Bench]:
    one = Bench(make_node("p6e-gb300r.36xlarge"))
    yield one
    one.loopback.stop()


def test_each_port_is_measured_and_reported_in_turn(bench: Bench) -> None:
    bench.node.write_value("ib_write_bw/gbits", f"{bench.ports[2]} 97.25")

    reading = bench.loopback.run()

    results = [WELL, WELL, Measured(97.25 * 125, 65536)]
    assert reading.loopbacks == tuple(map(Loopback, bench.ports, results))
    assert tuple(bench.calls) == reading.loopbacks


def test_the_server_listens_on_loopback_alone_and_on_a_port_of_its_own(bench: Bench) -> None:
    bench.answers()

    options = [run[3:] for run in bench.runs]
    assert len(options) >= 6
    assert [words for words in options if words[words.index("--bind_source_ip") + 1] != "127.0.0.1"] == []
    assert [words for words in options if words[words.index("-p") + 1] == "18515"] == []


FAULTS = [
    (
        "completion",
        Broken(
            "ib_write_bw ended with exit code 1: Completion with error at client, "
            "Failed status 12: wr_id 0 syndrom 0x81"
        ),
    ),
    ("memory", Unobserved(NOT_RUN, "ib_write_bw ended with exit code 1: Couldn't allocate MR")),
]


@pytest.mark.parametrize(("fault", "answer"), FAULTS)
def test_a_fault_of_one_port_is_its_own_and_the_others_are_tested(
    bench: Bench, fault: str, answer: LoopbackResult
) -> None:
    bench.befall(bench.ports[1], fault)

    assert bench.answers() == [WELL, answer, WELL]
    assert bench.leftovers() == []


def test_a_port_from_which_nothing_comes_back_is_ended_with_both_sides(bench: Bench) -> None:
    bench.befall(bench.ports[0], "hang")
    bench.loopback.deadline_seconds = SHORT

    assert bench.answers()[0] == Broken("ib_write_bw: no end within 1 s")
    assert bench.leftovers() == []


def test_a_version_that_cannot_bind_its_listener_is_could_not_check(bench: Bench) -> None:
    bench.befall(bench.ports[0], "option")

    (answer, *_) = bench.answers()

    assert isinstance(answer, Unobserved)
    assert answer.detail.endswith("unrecognized option '--bind_source_ip'")


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED"])
def test_a_port_that_is_not_active_is_not_tested(bench: Bench, state: str) -> None:
    bench.set_state(bench.ports[1], state)

    assert [loopback.device for loopback in bench.loopback.run().loopbacks] == [bench.ports[0], bench.ports[2]]


def test_devices_of_another_vendor_or_another_link_layer_are_not_tested(bench: Bench) -> None:
    first, second, _ = bench.ports
    bench.node.write_value(f"sys/class/infiniband/{first}/ports/1/link_layer", "InfiniBand")
    assert [loopback.device for loopback in bench.loopback.run().loopbacks] == bench.ports[1:]

    bench.node.write_value(f"sys/bus/pci/devices/{bench.node.shape.mlx5[0].address}/vendor", "0x8086")
    bench.befall(second, "memory")
    assert [loopback.device for loopback in bench.loopback.run().loopbacks] == bench.ports[1:]
    assert first not in {run[1] for run in bench.runs}


def test_on_a_node_with_efa_the_mlx5_devices_are_no_fabric(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("p6-b200.48xlarge")
    programs = node.install_perftest()

    assert RdmaLoopback(node.root, LONG, path=f"{programs}:/usr/bin:/bin").run() == LoopbackReading(
        absent="the GPU fabric of this node is EFA"
    )


def test_without_the_program_a_port_or_the_shared_mode_nothing_is_run(bench: Bench, tmp_path: Path) -> None:
    absent = LoopbackReading(absent="ib_write_bw is not installed here")
    assert RdmaLoopback(bench.node.root, LONG, path=str(tmp_path)).run() == absent

    bench.node.write_value("sys/module/ib_core/parameters/netns_mode", "N")
    assert "network namespace" in bench.loopback.run().absent

    bench.node.write_value("sys/module/ib_core/parameters/netns_mode", "Y")
    for port in bench.ports:
        bench.set_state(port, "1: DOWN")
    absent = LoopbackReading(absent="no mlx5 device of the GPU fabric has an active port")
    assert bench.loopback.run() == absent
    assert bench.runs == []


def test_a_light_check_cycle_sends_nothing(bench: Bench) -> None:
    with pytest.raises(ProbeError, match="only a deep diagnostic"):
        read_rdma_loopback(Host(bench.node.root))
    reading = read_rdma_loopback(Host(bench.node.root, ask_rdma_loopback=bench.loopback.run))
    assert reading.loopbacks == tuple(bench.calls)


def test_profile_names_the_fabric_of_a_type(bench: Bench) -> None:
    bench.loopback.profile = InstanceProfile("p6-b200.48xlarge", 8, 8, nvlink=True, provider="efa")
    assert bench.loopback.run().absent == "the GPU fabric of this node is EFA"

    bench.loopback.profile = InstanceProfile("p6e-gb300r.36xlarge", 4, 0, nvlink=True, provider="-", roce=8)
    assert len(bench.answers()) == 3


TESTED = [
    ("hgx-h100", [f"mlx5_{number}" for number in range(8)]),
    ("hgx-h100-sriov", [f"mlx5_{number}" for number in range(8)]),
    ("hgx-h100-one-port-unused", [f"mlx5_{number}" for number in (0, 1, 2, 4, 5, 6, 7)]),
    ("dgx-h100", [f"mlx5_{number}" for number in range(8)]),
    ("vm-h100", [f"mlx5_ib{number}" for number in range(8)]),
    ("p6e-gb300r.36xlarge", [f"rocep{number}s0" for number in range(216, 224)]),
    ("p6-b200.48xlarge", []),
]


@pytest.mark.parametrize(("machine", "devices"), TESTED)
def test_the_active_ports_of_the_gpu_fabric_are_tested(
    make_node: Callable[[str], SimulatedNode], machine: str, devices: list[str]
) -> None:
    found = RdmaLoopback(make_node(machine).root, LONG).devices()

    assert (list(found) if isinstance(found, tuple) else []) == devices
