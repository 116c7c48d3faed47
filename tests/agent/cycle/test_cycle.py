"""Consecutive check cycles of the agent: their stored results and measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.samples import Sample
from pytest_mock import MockerFixture

from gpu_healthcheck.agent import check_cycle
from gpu_healthcheck.agent.check_cycle import AGAIN_SECONDS, Cycle, Sources
from gpu_healthcheck.agent.events.record_judge import GpuWatch
from gpu_healthcheck.agent.process.settings import MountedConfiguration
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks.driver_messages import DRIVER_LOADED
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.model import Evidence, KernelEvent, Now, Outcome, Unobserved
from gpu_healthcheck.healthcheck.model.node_facts import PodRuntimeClass
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE, RUN, NodeState, SelectiveClass
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.cri import NOT_YET, RuntimeStatus
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import Live
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA
from gpu_healthcheck.healthcheck.probes.efa.libfabric import LIBFABRIC, Libfabric, LibfabricReading, Listing
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, Gpus
from gpu_healthcheck.healthcheck.probes.nvml.pause import end_pause, start_pause
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.inventory import DcgmRow
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode
from gpu_healthcheck.sim.pod_resources import serving_pod_resources
from tests.agent.parts import Reports, agent_settings
from tests.host.grpc_server import answers_to, serving
from tests.waiting import eventually

CHECKS = ["driver", "gpu-count", "recovery-action", "efa-count"]


class Light:
    """The light worker's part of an agent, on a simulated node."""

    def __init__(self, node: SimulatedNode, config: Path, mocker: MockerFixture) -> None:
        self.telemetry = Telemetry()
        self.state = AgentState("n")
        self.driver = Driver(node.root, use_loader=False)
        libfabric = Libfabric(node.root, path=f"{node.root}/{EFA_PROGRAMS}:/usr/bin:/bin")
        sources = Sources(node.root, self.driver, libfabric, RuntimeStatus(node.root), config)
        self.ledger = Ledger(self.state, None, self.telemetry)
        configuration = MountedConfiguration(
            agent_settings("n", config), self.state, self.ledger, Reports(self.state), self.telemetry
        )
        configuration.reload()  # as an agent begins
        self.cycle = Cycle(sources, self.state, self.ledger, configuration.reload, self.telemetry)
        self.judging = mocker.spy(check_cycle, "judge")

    def look(self) -> tuple[Evidence, Expectation]:
        """Run one more cycle: return the evidence and the expectation."""
        self.cycle.run()
        return self.evidence, self.judging.call_args.args[2]

    @property
    def evidence(self) -> Evidence:
        """Return the evidence of the last check cycle."""
        evidence: Evidence = self.judging.call_args.args[1]
        return evidence

    def seconds(self, of: str) -> dict[str, float]:
        return {sample.labels[of]: sample.value for sample in self.samples(f"{of}_seconds")}

    def samples(self, name: str) -> list[Sample]:
        samples = [sample for family in self.telemetry.registry.collect() for sample in family.samples]
        return [sample for sample in samples if sample.name == f"gpu_healthcheck_{name}"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


@pytest.fixture
def light(node: SimulatedNode, config: Path, mocker: MockerFixture) -> Iterator[Light]:
    (config / "CHECKS_LIGHTWEIGHT").write_text(" ".join(CHECKS))
    one = Light(node, config, mocker)
    yield one
    one.driver.end()


def test_cycle_is_judged_with_the_cycle_before(light: Light) -> None:
    first, _ = light.look()
    second, _ = light.look()

    assert first.earlier(NVML) is None
    assert second.earlier(NVML) == (first[NVML], second.at - first.at)
    assert second.before is not None
    assert second.before.before is None


def test_unread_value_stays_unknown(light: Light, config: Path) -> None:
    (config / "CHECKS_LIGHTWEIGHT").write_text("driver")
    light.look()
    (config / "CHECKS_LIGHTWEIGHT").write_text("driver efa-count")
    second, _ = light.look()

    assert (second.earlier(NVML) is not None, second.earlier(RDMA)) == (True, None)


def test_the_time_of_each_source_and_check_is_measured(light: Light, config: Path) -> None:
    (config / "METRICS_TIMINGS").write_text("true")
    light.look()
    assert set(light.seconds("probe")) == {"nvml", "pci", "infiniband", "dcgm-engine"}
    assert set(light.seconds("check")) == set(CHECKS)
    assert min(*light.seconds("probe").values(), *light.seconds("check").values()) > 0

    (config / "CHECKS_LIGHTWEIGHT").write_text("driver")
    light.look()
    assert (set(light.seconds("probe")), set(light.seconds("check"))) == (
        {"nvml", "dcgm-engine"},
        {"driver"},
    )


def test_timings_are_off_unless_requested(light: Light, config: Path) -> None:
    light.look()
    assert (light.seconds("probe"), light.seconds("check")) == ({}, {})

    (config / "METRICS_TIMINGS").write_text("true")
    light.look()
    (config / "METRICS_TIMINGS").write_text("false")
    light.look()
    assert (light.seconds("probe"), light.seconds("check")) == ({}, {})


LINK_DOWN = "pcieport 0000:00:10.0: pciehp: Slot(12): Link Down"


class KernelLine:
    """A line about the port above the first GPUs, on a simulated clock, and the cycles that follow it."""

    def __init__(self, light: Light) -> None:
        self.seconds = 0.0
        self._light = light
        began = clock.now()
        light.state.now = lambda: Now(began.wall + timedelta(seconds=self.seconds), began.monotonic + self.seconds)
        light.look()
        GpuWatch(light.state, lambda: None).read([Record(0, 0.0, 0, LINK_DOWN)])

    def cycles(self) -> Iterator[float]:
        """Yield the time of each cycle after the line, until the usual interval follows."""
        again: float | None = 0.0
        while again is not None:
            self.seconds += again
            again = self._light.cycle.run()
            yield self.seconds


@pytest.mark.parametrize(("noticed_after", "found_after"), [(0.0, 30.0), (5.0, 40.0)])
def test_a_gpu_lost_without_an_xid_is_a_finding_within_45_seconds_of_the_kernels_line(
    light: Light, node: SimulatedNode, noticed_after: float, found_after: float
) -> None:
    line = KernelLine(light)
    if noticed_after == 0.0:
        node.write_value("nvml/gpu0/error", 15)
    for seconds in line.cycles():
        if light.state.memory.active:
            break
        if seconds + AGAIN_SECONDS > noticed_after:  # before the next cycle
            node.write_value("nvml/gpu0/error", 15)

    assert seconds == found_after
    (found,) = light.state.memory.active
    assert (found.finding.reason, found.finding.subject) == ("GpuLost", f"gpu/{node.gpus[0].address}")


def test_a_gpu_that_answers_after_the_kernels_line_is_checked_three_times_more(light: Light) -> None:
    assert list(KernelLine(light).cycles()) == [0.0, 10.0, 20.0, 30.0]
    assert light.state.memory.active == ()


def test_throttled_time_is_shown_by_gpu_and_reason_without_zeros(light: Light, node: SimulatedNode) -> None:
    light.look()
    assert light.samples("throttled_seconds_total") == []

    node.write_value("nvml/driver_version", "580.95.05")
    for field, seconds in {74: 5, 269: 1.5, 270: 2, 271: 0}.items():
        node.write_value(f"nvml/gpu3/field/{field}", int(seconds * 10**9))
    light.look()

    uuid = node.gpus[3].uuid
    samples = {tuple(sample.labels.values()): sample.value for sample in light.samples("throttled_seconds_total")}
    assert samples == {("software_thermal", "3", uuid): 1.5, ("hardware_thermal", "3", uuid): 2.0}


def test_corrected_errors_are_shown_by_gpu_without_zeros(light: Light, node: SimulatedNode) -> None:
    light.look()
    assert light.samples("ecc_corrected_errors_total") == []

    node.write_value("nvml/gpu3/dram_corrected", 12)
    light.look()

    (sample,) = light.samples("ecc_corrected_errors_total")
    assert (sample.labels, sample.value) == ({"gpu": "3", "UUID": node.gpus[3].uuid}, 12)


def test_values_leave_with_the_source_that_is_no_longer_read(light: Light, config: Path, node: SimulatedNode) -> None:
    node.efa_counter(0, "rx_drops", 7)
    node.write_value("nvml/gpu0/field/75", 10**9)
    node.write_value("nvml/gpu0/dram_corrected", 1)
    light.look()
    names = (
        *("driver_info", "gpu_slowdown_celsius", "throttled_seconds_total", "ecc_corrected_errors_total"),
        "efa_errors_total",
    )
    assert [len(light.samples(name)) for name in names] == [1, 8, 1, 1, 1]

    (config / "CHECKS_LIGHTWEIGHT").write_text("container-runtime")
    light.look()
    assert [len(light.samples(name)) for name in names] == [0, 0, 0, 0, 0]


def test_the_instance_type_is_a_metric_while_it_is_known(light: Light) -> None:
    light.look()
    assert light.samples("node_info") == []

    light.state.set_metadata_type("p5.48xlarge")
    light.look()
    assert [(sample.labels, sample.value) for sample in light.samples("node_info")] == [
        ({"instance_type": "p5.48xlarge"}, 1)
    ]


def test_earlier_hardware_is_expected_in_the_next_cycle(light: Light, node: SimulatedNode) -> None:
    _, at_first = light.look()
    node.remove_efa(5)
    _, then = light.look()

    assert (at_first.first.efa, then.first.efa) == (None, 32)
    assert light.state.memory.first.efa == 32


def test_later_cycle_has_the_runtimes_answer(short_root: Path, config: Path, mocker: MockerFixture) -> None:
    (config / "CHECKS_LIGHTWEIGHT").write_text("container-runtime")
    ready = {"status": {"conditions": [{"type": "RuntimeReady", "status": True}]}}
    answers = answers_to("container-runtime", {}, ready)
    with (
        closing(SimulatedNode.create(short_root / "node", "p5.48xlarge")) as node,
        serving(node.root / "run/containerd/containerd.sock", answers),
    ):
        node.run_kubernetes("eks-al2023")
        light = Light(node, config, mocker)
        soon = light.cycle.run()
        assert (light.evidence[CONTAINER_RUNTIME].why_not_live, soon) == (NOT_YET, AGAIN_SECONDS)
        assert eventually(lambda: light.look()[0][CONTAINER_RUNTIME].live) == Live()
        assert light.cycle.run() is None


def test_a_gpu_slower_than_those_of_its_pod_is_found_while_they_work_and_kept_when_idle(
    short_root: Path, config: Path, mocker: MockerFixture
) -> None:
    (config / "CHECKS_LIGHTWEIGHT").write_text("gpu-siblings")
    seconds = 1000.0
    with SimulatedNode.create(short_root, "p5.48xlarge") as node:
        light = Light(node, config, mocker)
        light.driver.clock = lambda: seconds
        node.work([0, 1, 2, 3, 4, 6, 7], 1980, 650)
        node.work([5], 1410, 410)
        with serving_pod_resources(node.root, lambda: [("ml", "train", held)]):
            held = [gpu.uuid for gpu in node.gpus]
            active = []
            for _ in range(5):
                light.look()
                seconds += 300
                active.append([finding.finding.subject for finding in light.state.memory.active])
            for gpu in range(8):
                node.write_value(f"nvml/gpu{gpu}/samples/1", "120 166000 0")
            light.look()
        light.driver.end()

    slow = [f"gpu/{node.gpus[5].address}"]
    assert active == [[], [], [], slow, slow]
    assert [finding.finding.subject for finding in light.state.memory.active] == slow


def test_allocatable_count_of_the_node_is_expected(light: Light) -> None:
    assert light.look()[1].efa_allocatable is None

    node = NodeState("n", labels={INSTANCE_TYPE: "p5.48xlarge"}, efa_allocatable=31)
    light.state.set_node(node)
    _, expected = light.look()
    assert (expected.instance_type, expected.efa_allocatable) == ("p5.48xlarge", 31)

    light.state.set_node(replace(node, efa_allocatable=None))
    assert light.look()[1].efa_allocatable is None


def test_the_runtime_classes_are_those_of_the_nodes_own_labels(light: Light) -> None:
    light.state.set_runtime_classes([SelectiveClass("nvidia", "nvidia", {"pool": "gpu"})])
    assert light.look()[1].runtime_classes is None

    light.state.set_node(NodeState("n", labels={"pool": "gpu"}))
    assert light.look()[1].runtime_classes == (PodRuntimeClass("nvidia", "nvidia", for_this_node=True),)


def test_cycle_does_not_wait_for_libfabric(light: Light, node: SimulatedNode, config: Path) -> None:
    (config / "CHECKS_LIGHTWEIGHT").write_text("efa-provider")
    node.write_value("libfabric/unlisted", node.efa_names[7])

    assert light.look()[0][LIBFABRIC] == LibfabricReading()
    assert light.state.known.judgement.verdict.unobserved == ()
    struct = eventually(lambda: light.look()[0][LIBFABRIC].answer)
    assert isinstance(struct, Listing)
    assert struct.missing == (node.efa_names[7],)
    assert light.cycle.run() == AGAIN_SECONDS


def test_a_node_that_cannot_be_read_for_a_moment_is_still_of_its_type(light: Light, node: SimulatedNode) -> None:
    light.state.set_node(NodeState("n", labels={INSTANCE_TYPE: "p5.48xlarge"}))
    node.remove_gpu(3)
    for _ in range(4):
        light.look()
    assert [finding.finding.reason for finding in light.state.memory.active] == ["GpuCountLow"]

    light.state.set_node(None)
    assert light.look()[1].instance_type == "p5.48xlarge"
    assert [finding.finding.reason for finding in light.state.memory.active] == ["GpuCountLow"]

    light.state.set_node(NodeState("n"))
    assert light.look()[1].instance_type == ""


def test_starting_node_is_checked_again_soon(light: Light, node: SimulatedNode, config: Path) -> None:
    (config / "CHECKS_LIGHTWEIGHT").write_text("persistence-mode")
    assert light.cycle.run() is None

    node.write_value("nvml/gpu3/persistence_mode", 0)
    light.ledger.kernel_log_judged([Outcome("driver-messages", "0-nvidia-smi", events=(just_loaded(),))], 1)
    assert light.cycle.run() == AGAIN_SECONDS


def test_reloaded_driver_is_young_without_a_log_line(light: Light, node: SimulatedNode) -> None:
    at_first = light.look()[1].driver_age_seconds
    assert at_first > 0
    node.driver_unload()
    between = clock.now().monotonic
    light.look()
    node.driver_load()
    _, expected = light.look()

    assert expected.driver_age_seconds <= clock.now().monotonic - between
    assert expected.driver_age_seconds < at_first


@pytest.mark.parametrize("first", [15, 16])
def test_gpu_being_reset_is_no_fault_of_it_or_its_peers(
    light: Light, node: SimulatedNode, config: Path, first: int
) -> None:
    (config / "CHECKS_LIGHTWEIGHT").write_text("driver gpu-count ecc nvlink fabric p2p")
    light.state.set_node(NodeState("n", labels={INSTANCE_TYPE: "p5.48xlarge"}))
    light.look()
    links = [f"nvml/gpu{gpu}/nvlink/{link}/state" for gpu in range(8) for link in range(18)]
    for link in links:
        node.write_value(link, 0)
    for error in (first, 17, 999):
        node.write_value("nvml/gpu3/error", error)
        light.look()
    (node.root / "nvml/gpu3/error").unlink()
    for link in links:
        node.write_value(link, 1)
    for state in (2, 2, 3):
        node.write_value("nvml/gpu3/fabric_state", state)
        assert light.state.memory.active == ()
        light.look()

    assert (light.state.memory.active, light.state.memory.suspects) == ((), {})


def test_lost_gpu_is_a_finding_in_the_fourth_cycle(light: Light, node: SimulatedNode) -> None:
    light.look()
    node.lose_gpu(3)
    for _ in range(3):
        assert light.cycle.run() == AGAIN_SECONDS
        assert light.state.memory.active == ()
    light.look()

    assert [finding.finding.reason for finding in light.state.memory.active] == ["GpuLost"]


@pytest.mark.parametrize(("interval", "timeout"), [("10", "900"), ("300", "1"), ("10", "1")])
def test_setting_cannot_shorten_the_deadline_of_nvml(light: Light, config: Path, interval: str, timeout: str) -> None:
    (config / "CHECK_INTERVAL").write_text(interval)
    (config / "CHECK_TIMEOUT").write_text(timeout)
    light.look()

    assert light.evidence[NVML].deadline_seconds == 60


def test_a_narrow_pcie_link_counts_in_use_and_stays_when_the_gpu_goes_idle(
    light: Light, node: SimulatedNode, config: Path
) -> None:
    (config / "CHECKS_LIGHTWEIGHT").write_text("driver pcie-link")
    node.write_value("nvml/gpu3/pcie_width", 8)
    for _ in range(5):
        light.look()
        assert (light.state.memory.active, light.state.memory.suspects) == ((), {})

    node.write_value("nvml/gpu3/pcie_generation", 5)
    for _ in range(4):
        light.look()
    assert [finding.finding.reason for finding in light.state.memory.active] == ["PcieWidthLow"]

    node.write_value("nvml/gpu3/pcie_generation", 1)
    for _ in range(5):
        light.look()
    assert [finding.finding.reason for finding in light.state.memory.active] == ["PcieWidthLow"]

    node.write_value("nvml/gpu3/pcie_width", 16)
    light.look()
    assert light.state.memory.active == ()


def test_new_finding_is_checked_again_soon(light: Light, node: SimulatedNode) -> None:
    light.look()
    node.want_recovery(3, 1)

    assert [light.cycle.run(), light.cycle.run()] == [AGAIN_SECONDS, None]
    assert [finding.finding.reason for finding in light.state.memory.active] == ["GpuRecoveryAction"]


def just_loaded() -> KernelEvent:
    return KernelEvent(DRIVER_LOADED, "driver", 1, clock.now().monotonic, driver_loaded=True)


def test_the_nodes_dcgm_engine_is_recorded_for_sweeps(light: Light, node: SimulatedNode, config: Path) -> None:
    def engine() -> object:
        light.look()
        inventory = light.state.known.inventory
        return inventory.dcgm if inventory is not None else None

    assert engine() is None
    node.services.start("nv-hostengine", 60.0)
    assert engine() == DcgmRow(cause="DcgmEngineEmbedded")
    node.services.listen(node.services.pid_of("nv-hostengine"), "127.0.0.1", 5555)
    assert engine() == DcgmRow(host="127.0.0.1:5555")
    (config / "DCGM_HOST").write_text("dcgm.example.com")
    assert engine() is None


class TestPauseForAReset:
    """NVML stays closed only while both a request is in its file, and a reset has claimed the Node."""

    def look(self, light: Light, config: Path, kind: str, *, minutes: float = 5) -> object:
        start_pause(config, light.driver.root, 60)
        until = timestamp(light.state.now().wall + timedelta(minutes=minutes))
        claim = json.dumps({"kind": kind, "holder": "gpu-reset-n", "until": until})
        node = NodeState("n", annotations={RUN: claim} if kind else {})
        light.state.set_node(node)
        light.state.see_run(node)
        evidence, _ = light.look()
        return evidence[NVML].answer

    def test_nvml_is_not_opened_and_opened_again(self, light: Light, config: Path) -> None:
        answer = self.look(light, config, "reset")
        assert isinstance(answer, Unobserved)
        assert (answer.cause.name, answer.detail) == ("DriverBeingChanged", "a GPU is being reset")
        assert light.driver.child_pid is None

        end_pause(config)
        evidence, _ = light.look()
        assert isinstance(evidence[NVML].answer, Gpus)

    @pytest.mark.parametrize("kind", ["", "quarantine", "l2"])
    def test_the_file_alone_changes_nothing(self, light: Light, config: Path, kind: str) -> None:
        assert isinstance(self.look(light, config, kind), Gpus)

    def test_nor_with_an_expired_claim(self, light: Light, config: Path) -> None:
        assert isinstance(self.look(light, config, "reset", minutes=-1), Gpus)
