"""The agent's level 2 on a simulated node: when it runs, how it runs, and how it releases its claim.

The API server is the stand-in, the kubelet's socket a real gRPC server, and dcgmi a real process (sim/dcgmi.sh).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from msgspec.structs import replace

from gpu_healthcheck.agent.deep.deep_runs import DeepIntervals, DeepTests
from gpu_healthcheck.agent.deep.level_2 import Level2
from gpu_healthcheck.agent.deep.marks import HOLDER, DeepTestMarks, OwnNode
from gpu_healthcheck.agent.state.agent_state import AgentState, RunOnNode
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import Unavailable
from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.deep import claim as deep_runs
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory
from gpu_healthcheck.healthcheck.model import Evidence, Finding, Nature, Now, Severity, Unobserved
from gpu_healthcheck.healthcheck.model.node_facts import DeepDiagnostic
from gpu_healthcheck.healthcheck.node.state import NodeState, PatchFor
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm
from gpu_healthcheck.healthcheck.probes.nvml.error_causes import DRIVER_NOT_LOADED
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus
from gpu_healthcheck.healthcheck.probes.pod_resources import FILES, SOCKETS
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.record import RunRecord
from gpu_healthcheck.sim.host_services import Container
from tests.agent.world import P, StandIn, World
from tests.host.grpc_server import Server, answers_to, serving
from tests.probes.dcgm.documents import FAULTY, NOT_PERSISTENT, Said, Story, dcgm_4
from tests.probes.dcgm.test_engine import of_the_operator
from tests.waiting import GIVE_UP_SECONDS, eventually

Json = dict[str, Any]
INTERVAL = 21600
QUICK = DeepIntervals(settle=0.0, check_again=300.0, maintenance=0.0, watch=0.05, kubelet_silence=1.0, adoption=0.2)
SWEEP, QUARANTINE, RUN, MODE = (f"{P}/{key}" for key in ("sweep-result", "quarantine-result", "run", "mode"))
MAINTENANCE = {"key": f"{P}/maintenance", "value": "l2", "effect": "NoSchedule"}
WELL = {"labels": {f"{P}/status": "pass"}}
GPU_POD = {
    "name": "train-0",
    "namespace": "team",
    "containers": [{"name": "main", "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": ["GPU-1"]}]}],
}


def ago(hours: float) -> str:
    return timestamp(datetime.now(UTC) - timedelta(hours=hours))


def swept(hours: float, **more: Any) -> str:
    """The record of a sweep that passed so many hours ago."""
    return json.dumps(
        {"schema": 1, "timestamp": ago(hours), "status": "pass", "severity": "PASS", "by": "sweep", **more}
    )


def saw(*gpus: Gpu, at: float = math.inf) -> Evidence:
    return Evidence({NVML: DriverReading(Gpus("570", "lib", gpus))}, at)


class Watched(AgentState):
    """Its Node is as the world has it, as if a watch had just shown it."""

    def __init__(self, world: World, now: Callable[[], Now]) -> None:
        node = node_state(world.node().object)
        super().__init__(node.name, Memory(machine=node.machine, boot_id="boot-1"), now)
        self.world = world
        self.late: NodeState | None = None
        """What a watch that is late shows."""
        self.looks = 0
        """At the Node."""

    @property
    def node(self) -> NodeState:
        node = self.late or node_state(self.world.node().object)
        self.looks += 1
        return node


class Unkillable(Dcgm):
    """DCGM diagnostic whose last process seems to hang in the driver for good."""

    stuck_pid = 4711


class Stuck(Level2):
    def diagnostic(self) -> Dcgm:
        return Unkillable(path=self.path)


@dataclass
class Rig:
    """A node that was last tested a day ago, with an agent that reports `pass`."""

    world: World
    kubelet: Server
    cluster: Cluster
    state: Watched
    telemetry: Telemetry = field(default_factory=Telemetry)
    looks_later: Evidence | None = None
    """What the light look sees that is asked for before a test begins; None: what the last one saw."""
    waits: DeepIntervals = QUICK
    level_2: type[Level2] = Level2

    def start(self) -> DeepTests:
        """A new agent's."""
        root, keep = self.world.host.root, self.world.folder / "state"
        keep.mkdir(exist_ok=True)
        level_2 = self.level_2(root, self.state, f"{root}/usr/bin:/usr/bin:/bin")
        return DeepTests(self.state, self.cluster, level_2, self, self.telemetry, keep, self.waits)

    def start_cycle_soon(self) -> None:
        if self.looks_later is not None:
            self.state.store_evidence(self.looks_later)

    def test_every(self, seconds: int) -> None:
        self.configure(NodeSettings(dcgm_l2_interval_seconds=seconds))

    def configure(self, values: NodeSettings) -> None:
        self.state.configure(Settings(values), self.state.memory)

    @property
    def name(self) -> str:
        return self.world.cluster.name

    @property
    def writes(self) -> list[Json]:
        return [dict(write.body or {}) for write in self.world.api.writes]

    @property
    def marks(self) -> Json:
        """Return the marks of a deep run on the Node."""
        node = self.world.node()
        found: Json = {RUN: node.object["metadata"].get("annotations", {}).get(RUN), MODE: node.labels.get(MODE)}
        found["taints"] = [taint for taint in node.taints if taint["key"] == MAINTENANCE["key"]]
        return {key: value for key, value in found.items() if value}

    @property
    def result(self) -> Json:
        """The record of the last deep test."""
        record = json.loads(self.world.node().object["metadata"]["annotations"].get(SWEEP, "{}"))
        assert isinstance(record, dict)
        return record

    @property
    def asked(self) -> list[str]:
        """Return the runs of dcgmi, in sequence."""
        path = self.world.host.root / "dcgm/asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[0].removeprefix("what=") for line in lines if line.startswith("what=")]

    @property
    def runs(self) -> dict[str, float]:
        samples = [sample for family in self.telemetry.deep_runs.collect() for sample in family.samples]
        return {
            sample.labels["result"]: sample.value
            for sample in samples
            if sample.name.endswith("_total") and sample.value
        }

    def dcgm(self, **files: str) -> None:
        """Write the files that control the simulated dcgmi."""
        for name, text in files.items():
            self.world.host.write_value(f"dcgm/{name.replace('_', '-')}", text)

    def annotate(self, **annotations: str | None) -> None:
        names = {"sweep": SWEEP, "quarantine": QUARANTINE, "run": RUN}
        self.world.cluster.edit({"metadata": {"annotations": {names[key]: text for key, text in annotations.items()}}})

    def pods(self, *pods: Json) -> None:
        self.kubelet.answers = answers_to("pod-resources", {"pod_resources": list(pods)})


@pytest.fixture
def rig(short_root: Path) -> Iterator[Rig]:
    with ExitStack() as undo:
        world = undo.enter_context(World(short_root / "world", StandIn("gpu-node-1", "p5.48xlarge")))
        socket = world.host.root / SOCKETS[0].lstrip("/")
        kubelet = undo.enter_context(serving(socket, answers_to("pod-resources", {})))
        world.host.install_dcgmi()
        world.cluster.edit({"metadata": WELL, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
        rig = Rig(world, kubelet, Cluster(lambda: client(world.kubeconfig)), Watched(world, clock.now))
        rig.state.store_evidence(saw(Gpu(0, processes=0)))
        rig.annotate(sweep=swept(24))
        yield rig


class TestWhen:
    @pytest.mark.parametrize(
        ("annotations", "least", "most"),
        [
            ({"sweep": (5, {})}, 1800, 3600),
            ({"sweep": (5.5, {})}, 300, 1800 + 2160),
            ({"quarantine": (5.5, {"checks": [{"check": "4-dcgm-diag-l4", "status": "pass"}]})}, 300, 1800 + 2160),
            ({"sweep": (24, {"status": "unknown"}), "quarantine": (5, {"status": "fail"})}, 1, 3600),
            ({}, 1, 3600),
        ],
        ids=["an hour before", "half an hour before", "by a quarantine run", "by nobody who came to a result", "never"],
    )
    def test_node_is_not_due_within_the_interval_after_any_test(
        self, rig: Rig, annotations: dict[str, tuple[float, dict[str, Any]]], least: float, most: float
    ) -> None:
        rig.annotate(**{"sweep": None, **{name: swept(hours, **more) for name, (hours, more) in annotations.items()}})

        assert least <= rig.start().attempt() <= most
        assert (rig.writes, rig.asked) == ([], [])

    @pytest.mark.parametrize(
        ("hours", "by", "is_tested"),
        [
            (7, "sweep", False),
            (17, "sweep", False),
            (18.1, "sweep", True),
            (7, "agent", True),
        ],
    )
    def test_a_node_that_sweeps_come_to_is_left_to_them_until_it_is_overdue_by_two_intervals(
        self, rig: Rig, hours: float, by: str, is_tested: bool
    ) -> None:
        rig.annotate(sweep=swept(hours, by=by))
        rig.start().attempt()

        assert rig.asked == (["2"] if is_tested else [])

    def test_a_node_that_sweeps_came_to_in_vain_is_left_to_them_too(self, rig: Rig) -> None:
        before = {"timestamp": ago(8), "status": "pass", "by": "agent"}
        rig.annotate(sweep=swept(1, status="unknown", before=before))
        rig.start().attempt()

        assert rig.asked == []

    def test_a_node_with_an_engine_that_blocks_sweeps_is_left_to_its_agent(self, rig: Rig) -> None:
        record = json.dumps({"status": "pass", "inventory": {"dcgm": {"host": "127.0.0.1:5555"}}})
        rig.world.cluster.edit({"metadata": {"annotations": {f"{P}/results": record}}})
        rig.annotate(sweep=swept(7))
        rig.start().attempt()

        assert rig.asked == ["2"]

    def test_4_nothing_is_tested_right_at_a_start(self, rig: Rig) -> None:
        rig.waits = replace(QUICK, settle=600.0)

        assert 500 < rig.start().attempt() <= 600
        assert (rig.writes, rig.asked) == ([], [])

    def test_untested_nodes_are_spread_over_the_interval(self, rig: Rig) -> None:
        seconds = []
        for number in range(16):
            rig.world.api.add_node(f"other-{number}")
            tests = rig.start()
            node = node_state(rig.world.api.node(f"other-{number}"))
            seconds.append(tests._seconds_until_due(node, 3000, clock.now()))

        assert min(seconds) >= 0
        assert max(seconds) <= 3000
        assert len({int(second // 500) for second in seconds}) >= 4

    @pytest.mark.parametrize("interval", [0, INTERVAL], ids=["an interval of 0", "no dcgmi"])
    def test_never_where_it_is_switched_off_or_not_there(self, rig: Rig, interval: int) -> None:
        rig.test_every(interval)
        if interval:
            (rig.world.host.root / "usr/bin/dcgmi").unlink()

        assert rig.start().attempt() == 3600
        assert (rig.writes, rig.asked) == ([], [])


def cordoned(rig: Rig) -> None:
    rig.world.cluster.edit({"spec": {"unschedulable": True}})


def in_the_hands_of_hyperpod(rig: Rig) -> None:
    rig.world.cluster.edit({"metadata": {"labels": {"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"}}})


def being_upgraded(rig: Rig) -> None:
    rig.world.cluster.edit({"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}}})


def failed(rig: Rig) -> None:
    finding = Finding("Xid95", Severity.RESET, "gpu/0000:53:00.0", "x")
    now = clock.now()
    standing = ActiveFinding(finding, "xid", Nature.EVENT, now.wall, now.wall, 1, "boot-1", now.monotonic)
    rig.state.remember(rig.state.judgement.after(replace(rig.state.memory, active=(standing,))))


def unknown(rig: Rig) -> None:
    rig.world.cluster.edit({"metadata": {"labels": {f"{P}/status": "unknown"}}})


def held_by_a_sweep(rig: Rig) -> None:
    rig.annotate(run=run_text("sweep", "job-1", 0.2))


def busy_with_a_pod(rig: Rig) -> None:
    rig.pods(GPU_POD)


def busy_with_a_process(rig: Rig) -> None:
    rig.state.store_evidence(saw(Gpu(0, processes=0), Gpu(1, processes=2)))


def with_a_silent_driver(rig: Rig) -> None:
    rig.state.store_evidence(Evidence({NVML: DriverReading(Unobserved(DRIVER_NOT_LOADED, "x"))}))


def before_its_first_look(rig: Rig) -> None:
    rig.state = Watched(rig.world, clock.now)


def with_a_kubelet_that_answers_nothing(rig: Rig) -> None:
    rig.kubelet.answers = {}


def without_gpus_to_offer(rig: Rig) -> None:
    rig.world.cluster.edit({"status": {"allocatable": {"nvidia.com/gpu": None}}})


def given_out_by_claims(rig: Rig, *held: Json) -> None:
    """Allocate the GPUs through NVIDIA's DRA driver alone.

    The kubelet's socket lists no claims, as before Kubernetes 1.34.
    """
    without_gpus_to_offer(rig)
    kubelet = rig.world.host.root / FILES[0].lstrip("/")
    (kubelet.parent / "plugins/gpu.nvidia.com").mkdir(parents=True)
    kubelet.write_text(json.dumps({"Data": json.dumps({"ClaimInfoStateList": held}), "Checksum": 1}))


def held_by_a_claim(rig: Rig) -> None:
    claim = {"ClaimName": "train-gpu", "Namespace": "ml", "DriverState": {"gpu.nvidia.com": {"Devices": None}}}
    given_out_by_claims(rig, claim)


def run_text(kind: str, holder: str, hours: float) -> str:
    return json.dumps({"kind": kind, "holder": holder, "until": ago(-hours)})


@pytest.mark.parametrize(
    "state",
    [
        cordoned,
        in_the_hands_of_hyperpod,
        being_upgraded,
        failed,
        unknown,
        held_by_a_sweep,
        busy_with_a_pod,
        busy_with_a_process,
        with_a_silent_driver,
        before_its_first_look,
        with_a_kubelet_that_answers_nothing,
        without_gpus_to_offer,
        held_by_a_claim,
    ],
)
def test_a_node_is_left_alone(rig: Rig, state: Callable[[Rig], None]) -> None:
    state(rig)

    assert rig.start().attempt() == QUICK.check_again
    assert (rig.writes, rig.asked) == ([], [])


def run_exporter(rig: Rig) -> None:
    """dcgm-exporter as the GPU operator installs it by default: with an engine inside it, and without an address."""
    pod = "0::/kubepods.slice/kubepods-burstable.slice/pod0a1b2c3d_0000_4000_8000_000000000001.slice"
    rig.world.host.services.start_in_container(4242, "dcgm-exporter", Container(pod))


class TestTheNodesEngine:
    """NVIDIA supports one DCGM engine per host (docs/decisions/0056-one-dcgm-engine-per-node.md)."""

    def test_inside_an_exporter_keeps_a_second_one_away_and_the_record_has_the_cause(self, rig: Rig) -> None:
        run_exporter(rig)
        before = rig.result

        assert rig.start().attempt() == 600
        assert (rig.asked, rig.marks, rig.runs) == ([], {}, {"could-not-run": 1.0})
        assert (rig.result["by"], rig.result["status"]) == ("agent", "unknown")
        (row,) = rig.result["unobserved"]
        assert row["cause"] == "DcgmEngineEmbedded"
        assert row["detail"].startswith("dcgm-exporter (pid 4242) has an engine")
        assert rig.result["before"]["timestamp"] == before["timestamp"]

    def test_inside_an_exporter_is_accepted_by_a_setting(self, rig: Rig) -> None:
        run_exporter(rig)
        rig.configure(NodeSettings(dcgm_second_engine=True))
        rig.start().attempt()

        assert (rig.asked, rig.result["status"]) == (["2"], "pass")

    def test_of_the_host_is_found_and_used(self, rig: Rig) -> None:
        services = rig.world.host.services
        services.start("nv-hostengine", 60.0)
        services.listen(services.pid_of("nv-hostengine"), "127.0.0.1", 5555)
        rig.dcgm(hostengine="127.0.0.1:5555")
        rig.start().attempt()

        assert (rig.asked, rig.result["status"]) == (["2"], "pass")

    def test_of_the_operator_in_another_version_is_asked_by_its_own_dcgmi(self, rig: Rig) -> None:
        host, root = rig.world.host, "proc/4242/root"
        of_the_operator(host)
        rig.dcgm(version="4.6.1", engine_version="4.7.1")
        host.install_dcgmi(root)
        for name in ("version", "engine-version"):
            host.write_value(f"{root}/dcgm/{name}", "4.7.1")
        rig.start().attempt()

        assert (rig.asked, rig.result["status"]) == ([], "pass")
        assert "what=2 host=10.0.3.17:5555" in (host.root / root / "dcgm/asked").read_text()

    def test_of_the_operator_in_another_version_without_dcgmi_is_no_fault(self, rig: Rig) -> None:
        of_the_operator(rig.world.host)
        rig.dcgm(version="4.6.1", engine_version="4.7.1")
        rig.start().attempt()

        assert (rig.asked, rig.runs) == (["2"], {"could-not-run": 1.0})

    def test_that_another_program_replaces_during_a_run_proves_nothing(self, rig: Rig) -> None:
        services = rig.world.host.services
        services.start("nv-hostengine", 60.0)
        services.listen(services.pid_of("nv-hostengine"), "127.0.0.1", 5555)
        rig.dcgm(hostengine="127.0.0.1:5555", seconds="1")
        before, worker = rig.result, in_thread(rig.start())
        eventually(lambda: rig.asked)
        services.stop("nv-hostengine")
        worker.join()

        assert (rig.result, rig.runs) == (before, {"could-not-run": 1.0})

    def test_is_not_what_a_pod_on_the_hosts_network_pretends(self, rig: Rig) -> None:
        run_exporter(rig)
        services = rig.world.host.services
        services.start_in_container(4243, "nv-hostengine", Container("0::/kubepods.slice/pod1"))
        services.listen(4243, "127.0.0.1", 5555)
        for text_it in (False, True):
            rig.configure(NodeSettings(dcgm_second_engine=text_it))
            rig.start().attempt()

            assert rig.asked == []
            assert [entry["cause"] for entry in rig.result["unobserved"]] == ["DcgmEngineUnproven"]


class TestARun:
    def test_is_made_where_dra_alone_gives_the_gpus_out(self, rig: Rig) -> None:
        given_out_by_claims(rig)

        assert rig.start().attempt() == 3600
        assert (rig.result["by"], rig.result["status"], rig.marks) == ("agent", "pass", {})

    def test_test_acquires_the_node_and_releases_it_with_its_result(self, rig: Rig) -> None:
        assert rig.start().attempt() == 3600

        taken, given_back = rig.writes
        assert json.loads(taken["metadata"]["annotations"][RUN])["kind"] == "l2"
        assert (taken["metadata"]["labels"], taken["spec"]["taints"][-1]) == ({MODE: "l2"}, MAINTENANCE)
        assert given_back["metadata"]["annotations"][RUN] is None
        assert (given_back["metadata"]["labels"], given_back["spec"]["taints"]) == ({MODE: None}, [])
        assert set(given_back["metadata"]["annotations"]) == {RUN, SWEEP}
        assert rig.marks == {}
        result = rig.result
        assert (result["by"], result["status"], result["severity"], result["node"]) == (
            "agent",
            "pass",
            "PASS",
            rig.name,
        )
        assert result["checks"] == [{"check": "1-dcgm-diag-l2", "status": "pass", "severity": "PASS"}]
        assert set(result["passed"]) == {"DcgmDiagSoftware", "DcgmDiagMemory", "DcgmDiagPcie"}
        assert result["started"] <= result["timestamp"]
        assert (rig.asked, rig.runs) == (["2"], {"pass": 1.0})

    def test_that_finds_a_fault_tells_it_before_the_node_is_given_back(self, rig: Rig) -> None:
        rig.dcgm(answer=answer(("memory", 1), FAULTY), code="205")
        rig.start().attempt()

        _, fields_it, given_back = rig.writes
        assert set(fields_it["metadata"]["annotations"]) == {SWEEP}
        assert given_back["metadata"]["annotations"] == {RUN: None}
        assert (rig.result["status"], rig.result["severity"]) == ("fail", "ISOLATE")
        (row,) = rig.result["findings"]
        assert (row["reason"], row["subject"], row["nature"]) == ("DcgmDiagMemory", "gpu/1", "event")
        assert (rig.marks, rig.runs) == ({}, {"fail": 1.0})

    def test_failure_that_healthy_gpus_show_too_is_tried_once_more(self, rig: Rig) -> None:
        slow = Said("Bandwidth of GPU 1 is 3.0 GB/s, below 10.0", 30, 2, 2)
        rig.dcgm(answer_2=answer(("pcie", 1), slow), answer_pcie=answer(tests=("pcie",)))
        rig.start().attempt()

        assert (rig.asked, rig.result["status"]) == (["2", "pcie"], "pass")

    def test_that_could_not_run_is_neither_a_pass_nor_a_fault_and_comes_again_later_each_time(self, rig: Rig) -> None:
        rig.dcgm(
            error="A diag instance is already running, cannot run a new diag until the current one finishes",
            answer="",
            code="217",
        )
        before, moment = rig.result, clock.now()
        rig.state = Watched(rig.world, lambda: moment)
        rig.state.store_evidence(saw(Gpu(0, processes=0)))
        tests = rig.start()
        seconds = []
        for _ in range(7):
            seconds.append(tests.attempt())
            moment = Now(moment.wall + timedelta(seconds=seconds[-1]), moment.monotonic + seconds[-1])

        assert seconds == [600, 1200, 2400, 4800, 9600, 19200, 21600]
        assert (rig.result, rig.marks, rig.runs) == (before, {}, {"could-not-run": 7.0})

    def test_that_leaves_a_gpu_out_is_no_pass(self, rig: Rig) -> None:
        """As with a sweep: NVML lists nine GPUs, and DCGM has tested eight of them."""
        gpus = [Gpu(index, address=f"0000:{index + 16:02x}:00.0") for index in range(9)]
        rig.state.store_evidence(saw(*gpus))

        assert rig.start().attempt() == 600
        assert rig.runs == {"could-not-run": 1.0}

    def test_of_which_a_part_could_not_run_tells_what_it_found_and_comes_again(self, rig: Rig) -> None:
        rig.dcgm(answer=answer(("software", 0), NOT_PERSISTENT, tests=("software", "memory")))
        before = rig.result

        assert rig.start().attempt() == 600
        assert (rig.result["status"], [entry["reason"] for entry in rig.result["findings"]]) == (
            "unknown",
            ["DcgmDiagSoftware"],
        )
        assert rig.result["before"] == {key: before[key] for key in ("timestamp", "status", "by")}
        assert (rig.marks, rig.runs) == ({}, {"unknown": 1.0, "could-not-run": 1.0})

    def test_is_not_begun_when_a_pod_came_with_the_taint(self, rig: Rig) -> None:
        rig.waits = replace(QUICK, maintenance=0.5)
        worker = in_thread(rig.start())
        eventually(lambda: rig.marks)
        rig.pods(GPU_POD)
        worker.join()

        assert (rig.asked, rig.marks) == ([], {})

    def test_test_does_not_begin_with_a_process_newer_than_the_last_cycle(self, rig: Rig) -> None:
        rig.looks_later = saw(Gpu(0, processes=1))

        assert rig.start().attempt() == QUICK.check_again
        assert (rig.asked, rig.marks) == ([], {})

    def test_test_does_not_begin_without_a_later_cycle(self, rig: Rig) -> None:
        rig.state.store_evidence(saw(Gpu(0, processes=0), at=0.0))
        rig.waits = replace(QUICK, cycle=0.2)

        assert rig.start().attempt() == QUICK.check_again
        assert (rig.asked, rig.marks) == ([], {})

    def test_is_stopped_for_a_pod_that_comes_and_comes_again(self, rig: Rig) -> None:
        rig.dcgm(hang="")
        tests = rig.start()
        before, worker = rig.result, in_thread(tests)
        eventually(lambda: rig.asked)
        rig.pods(GPU_POD)
        worker.join()

        assert (rig.result, rig.marks, rig.runs) == (before, {}, {"stopped": 1.0})
        rig.pods()
        (rig.world.host.root / "dcgm/hang").unlink()
        tests.attempt()
        assert rig.result["status"] == "pass"

    def test_test_stops_when_the_kubelet_is_silent(self, rig: Rig) -> None:
        rig.dcgm(hang="")
        worker = in_thread(rig.start())
        eventually(lambda: rig.asked)
        rig.kubelet.answers = {}
        worker.join()

        assert (rig.marks, rig.runs) == ({}, {"stopped": 1.0})

    def test_test_stops_when_another_run_acquires_the_node(self, rig: Rig) -> None:
        rig.dcgm(hang="")
        worker = in_thread(rig.start())
        eventually(lambda: rig.asked)
        other = run_text("quarantine", "job-7", 3)
        rig.annotate(run=other)
        worker.join()

        assert json.loads(rig.marks[RUN])["holder"] == "job-7"
        assert rig.runs == {"stopped": 1.0}

    def test_goes_on_while_the_watch_has_not_come_to_its_mark(self, rig: Rig) -> None:
        rig.dcgm(seconds="1")
        rig.state.late = node_state(rig.world.node().object)

        rig.start().attempt()

        assert (rig.result["status"], rig.runs) == ("pass", {"pass": 1.0})

    def test_is_stopped_when_its_mark_goes(self, rig: Rig) -> None:
        rig.dcgm(hang="")
        worker = in_thread(rig.start())
        eventually(lambda: rig.asked)
        looks = rig.state.looks
        eventually(lambda: rig.state.looks > looks + 1)  # one at least that saw the mark
        rig.annotate(run=None)
        worker.join()

        assert rig.runs == {"stopped": 1.0}

    def test_ends_with_its_agent_and_gives_the_node_back(self, rig: Rig) -> None:
        rig.dcgm(hang="")
        tests, before = rig.start(), rig.result
        worker = in_thread(tests)
        eventually((rig.world.host.root / "dcgm/sleeper").exists)
        tests.end()
        worker.join()

        sleeper = int((rig.world.host.root / "dcgm/sleeper").read_text())
        eventually(lambda: not psutil.pid_exists(sleeper) or psutil.Process(sleeper).status() == psutil.STATUS_ZOMBIE)
        assert (rig.result, rig.marks) == (before, {})

    def test_node_is_acquired_by_one_of_two_runs(self, rig: Rig) -> None:
        sweep = deep_runs.Claim(deep_runs.RunKind.SWEEP, "job-1", datetime.now(UTC) + timedelta(hours=1))
        reached = rig.world.api.stop_at("PATCH", f"/nodes/{rig.name}")
        worker = in_thread(rig.start())
        assert reached.wait(GIVE_UP_SECONDS)
        patch = deep_runs.acquire(node_state(rig.world.node().object), sweep, datetime.now(UTC))
        assert patch is not None
        patch["metadata"].pop("resourceVersion")
        rig.world.cluster.edit(patch)
        rig.world.api.recover()
        worker.join()

        assert (json.loads(rig.marks[RUN])["holder"], rig.asked) == ("job-1", [])


def test_no_run_starts_while_an_unkillable_run_exists(rig: Rig) -> None:
    rig.dcgm(code="217", answer="", error="A diag instance is already running")
    rig.level_2 = Stuck
    tests = rig.start()
    assert tests.attempt() == 600

    assert tests._hindrance(rig.cluster.nodes.read(rig.name)) == "process 4711 of an earlier test can't be killed"


class TestAResultThatNobodyCouldTake:
    def test_is_kept_and_reported_by_the_next_agent(self, rig: Rig) -> None:
        path = rig.world.host.root / "dcgm/answer"
        os.mkfifo(path)
        tests = rig.start()
        worker = in_thread(tests)
        eventually(lambda: rig.asked)
        rig.world.api.refuse()
        path.write_text(answer())
        kept = rig.world.folder / "state/sweep-result.json"
        eventually(kept.exists)
        tests.end()
        worker.join()
        assert rig.marks[RUN]

        rig.world.api.accept()
        path.unlink()
        rig.start().attempt()
        assert (rig.result["by"], rig.result["status"], rig.marks, kept.exists()) == ("agent", "pass", {}, False)
        assert rig.asked == ["2"]

    def test_is_reported_although_the_record_is_from_the_future(self, rig: Rig) -> None:
        rig.annotate(sweep=swept(-24))
        tests = rig.start()
        (rig.world.folder / "state/sweep-result.json").write_text(swept(1, status="fail", severity="ISOLATE"))
        tests.attempt()

        assert rig.result["severity"] == "ISOLATE"

    def test_keeps_the_node_until_the_result_is_written(self, rig: Rig) -> None:
        kept = rig.world.folder / "state/sweep-result.json"
        rig.annotate(run=run_text("l2", HOLDER, 0.5))
        tests = rig.start()
        kept.write_text(swept(1, status="fail", severity="ISOLATE"))
        before = rig.marks
        tests.tidy()
        rig.world.api.refuse()
        assert tests.attempt() == 10
        rig.world.api.accept()
        assert rig.marks == before

        tests.attempt()
        assert (rig.result["severity"], rig.marks, kept.exists()) == ("ISOLATE", {}, False)

    def test_waits_for_a_minute_at_most_whatever_a_busy_server_asks_for(self) -> None:
        """The taint of the finding waits for it."""
        waits = _Waits()
        answers: list[NodeState | Unavailable] = [Unavailable("busy", 600.0), NodeState("gpu-node-1", "1")]

        def write(_: PatchFor) -> NodeState:
            match answers.pop(0):
                case Unavailable() as error:
                    raise error
                case node:
                    return node

        node = OwnNode(lambda: NodeState("gpu-node-1", "1"), write, lambda: None, lambda: False)
        marks = DeepTestMarks(node, clock.now, None, waits)
        marks.tell(RunRecord(timestamp=ago(1), status="fail", severity="RESET"), give_back=False)
        assert waits.seconds == [60.0]

    @pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"timestamp":"x"}', '{"timestamp":7,"severity":"?"}'])
    def test_is_dropped_when_it_is_damaged(self, rig: Rig, text: str) -> None:
        tests = rig.start()
        kept = rig.world.folder / "state/sweep-result.json"
        kept.write_text(text)
        tests.attempt()

        assert (rig.result["status"], rig.asked, kept.exists()) == ("pass", ["2"], False)

    def test_kept_result_is_dropped_when_the_node_has_a_newer_test(self, rig: Rig) -> None:
        rig.annotate(sweep=swept(5))
        tests, before = rig.start(), rig.result
        kept = rig.world.folder / "state/sweep-result.json"
        kept.write_text(swept(7, status="fail", severity="ISOLATE"))
        tests.attempt()

        assert (rig.result, kept.exists()) == (before, False)


class TestWhatADeadRunLeft:
    @pytest.mark.parametrize(
        ("run", "mode", "taint", "stays"),
        [
            (("l2", HOLDER, 0.5), "l2", "l2", False),
            (("l2", HOLDER, -0.5), "l2", "l2", False),
            (("sweep", "job-1", -0.1), "sweep", None, False),
            (("quarantine", "job-1", -0.1), "quarantine", "quarantine", False),
            (("sweep", "job-1", 0.5), "sweep", None, True),
            (("quarantine", "job-1", 0.5), "quarantine", "quarantine", True),
            (None, "sweep", None, False),
            (None, None, "sweep", False),
        ],
        ids=str,
    )
    def test_mark_without_an_owner_is_removed(
        self, rig: Rig, run: tuple[str, str, float] | None, mode: str | None, taint: str | None, stays: bool
    ) -> None:
        foreign = {"key": "team", "value": "a", "effect": "NoSchedule"}
        taints = [foreign, *([MAINTENANCE | {"value": taint}] if taint else [])]
        annotations = {RUN: run_text(*run)} if run else {}
        rig.world.cluster.edit(
            {
                "metadata": {"annotations": annotations, "labels": {MODE: mode}},
                "spec": {"taints": taints, "unschedulable": True},
            }
        )
        tests = rig.start()
        before = rig.marks
        tests.tidy()
        tests.tidy()

        assert rig.marks == (before if stays else {})
        assert len(rig.writes) == (0 if stays else 1)
        assert rig.world.node().taints[0] == foreign
        assert rig.world.node().object["spec"]["unschedulable"] is True

    def test_is_not_the_run_that_goes_on(self, rig: Rig) -> None:
        rig.dcgm(hang="")
        tests = rig.start()
        worker = in_thread(tests)
        eventually(lambda: rig.asked)
        before = rig.marks
        tests.tidy()
        assert rig.marks == before
        tests.end()
        worker.join()

    def test_waits_for_an_api_server_that_is_away(self, rig: Rig) -> None:
        rig.annotate(run=run_text("l2", HOLDER, 0.5))
        tests = rig.start()
        rig.world.api.fail_with(503, path_part=f"/nodes/{rig.name}")
        tests.tidy()
        assert rig.marks
        rig.world.api.recover()
        tests.tidy()
        assert rig.marks == {}


class TestAKill:
    """A kill at each of the three writes of a run with a fault.

    It occurs before the write is done, or after it is done but before the answer.
    """

    @pytest.mark.cluster
    @pytest.mark.parametrize("done", [False, True], ids=["not done", "not answered"])
    @pytest.mark.parametrize("step", ["taking the node", "telling the result", "giving the node back"])
    def test_loses_no_verdict_and_leaves_no_mark(self, rig: Rig, step: str, done: bool) -> None:
        path = rig.world.host.root / "dcgm/answer"
        os.mkfifo(path)
        foreign = {"key": "team", "value": "a", "effect": "NoSchedule"}
        rig.world.cluster.edit({"spec": {"taints": [foreign]}})
        reached = rig.world.api.stop_at("PATCH", rig.name, done=done) if step == "taking the node" else None
        process = in_a_process_of_its_own(rig)
        if reached is None:
            eventually(lambda: rig.asked)
            if step == "telling the result":
                reached = rig.world.api.stop_at("PATCH", rig.name, done=done)
            path.write_text(answer(("memory", 1), FAULTY))
        if reached is None:
            eventually(lambda: rig.result["by"] == "agent")
            reached = rig.world.api.stop_at("PATCH", rig.name, done=done)
        assert reached.wait(GIVE_UP_SECONDS)
        process.kill()
        process.wait()
        rig.world.api.recover()
        path.unlink()
        rig.dcgm(answer=answer(("memory", 1), FAULTY))

        tests = rig.start()
        tests.tidy()
        tests.attempt()
        assert (rig.result["by"], rig.result["severity"], rig.marks) == ("agent", "ISOLATE", {})
        assert rig.world.node().taints == [foreign]
        assert len(rig.asked) == 1


def in_a_process_of_its_own(rig: Rig) -> subprocess.Popen[bytes]:
    """Start one attempt at a level 2 in a separate process, by `tests.agent.level_2`."""
    root, folder = rig.world.host.root, rig.world.folder / "state"
    folder.mkdir(exist_ok=True)
    words = [str(root), str(rig.world.kubeconfig), rig.name, str(folder)]
    environment = {**os.environ, "PATH": f"{root}/usr/bin:/usr/bin:/bin"}
    return subprocess.Popen([sys.executable, "-m", "tests.agent.level_2", *words], env=environment)


class TestTheMetrics:
    def test_tell_when_how_and_whether_it_is_overdue(self, rig: Rig) -> None:
        tests = rig.start()
        tests.tidy()
        registry = rig.telemetry.registry

        def metric(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"gpu_healthcheck_deep_{name}", labels)

        assert (metric("overdue"), metric("running"), metric("last_test_status", status="pass")) == (1.0, 0.0, 1.0)
        tests.attempt()
        tests.tidy()
        at = datetime.fromisoformat(rig.result["timestamp"]).timestamp()
        assert (metric("overdue"), metric("last_test_timestamp_seconds")) == (0.0, at)


class TestSinceWhenARunHasTheNode:
    def test_from_its_first_sight_to_its_end_or_its_time(self) -> None:
        moment = Now(datetime(2026, 11, 21, tzinfo=UTC), 1000.0)
        text = json.dumps({"kind": "sweep", "holder": "job-1", "until": "2026-11-21T00:10:00Z"})
        held = NodeState("n", annotations={RUN: text})
        run = RunOnNode().seen(NodeState("n"), moment)
        assert run.at(moment) is None

        moment = _later(moment, 60)
        run = run.seen(held, moment).seen(held, moment)
        assert run.at(moment) == DeepDiagnostic("sweep", 1060.0)
        moment = _later(moment, 60)
        run = run.seen(NodeState("n"), moment)
        assert run.at(moment) == DeepDiagnostic("sweep", 1060.0, 1120.0)

        run = run.seen(held, moment)
        assert run.at(moment) == DeepDiagnostic("sweep", 1120.0)
        assert run.at(_later(moment, 3600)) == DeepDiagnostic("sweep", 1120.0, 1600.0)

    def test_a_run_that_is_held_for_longer_began_when_it_began(self) -> None:
        moment = Now(datetime(2026, 11, 21, tzinfo=UTC), 1000.0)
        run = RunOnNode().seen(NodeState("n"), moment)
        for minutes in (10, 13, 16):
            until = f"2026-11-21T00:{minutes}:00Z"
            text = json.dumps({"kind": "quarantine", "holder": "pod-1", "until": until})
            run = run.seen(NodeState("n", annotations={RUN: text}), moment)
            moment = _later(moment, 180)

        assert run.at(moment) == DeepDiagnostic("quarantine", 1000.0)

    def test_start_before_the_agent_is_unknown(self) -> None:
        moment = Now(datetime(2026, 11, 21, tzinfo=UTC), 1000.0)
        text = json.dumps({"kind": "l2", "holder": HOLDER, "until": "2026-11-21T00:10:00Z"})

        run = RunOnNode().seen(NodeState("n", annotations={RUN: text}), moment)

        assert run.at(moment) == DeepDiagnostic("l2", 0.0)


class _Waits(threading.Event):
    """Takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


def client(kubeconfig: Path) -> ApiClient:
    settings = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    settings.retries = False
    return ApiClient(settings)


def _later(moment: Now, seconds: float) -> Now:
    return Now(moment.wall + timedelta(seconds=seconds), moment.monotonic + seconds)


def answer(place: tuple[str, int] | None = None, *errors: Said, tests: Sequence[str] = Story().tests) -> str:
    """Return dcgmi's output for 8 GPUs, with these errors of one test on one of them, without serial numbers."""
    document = dcgm_4(Story(gpus=8, tests=tests, errors={place: errors} if place else {}))
    return json.dumps({**document, "entity_groups": []})


def in_thread(tests: DeepTests) -> threading.Thread:
    """An attempt on a thread of its own."""
    worker = threading.Thread(target=tests.attempt, daemon=True)
    worker.start()
    return worker
