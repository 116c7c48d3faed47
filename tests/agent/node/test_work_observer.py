"""The observer of GPUs that wait: how often it reads pods and namespaces, and what it does without their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest

from gpu_healthcheck.agent.node.work_observer import WorkObserver
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.model import Evidence, Now, Unobserved
from gpu_healthcheck.healthcheck.probes.kubelet_pods import PODS_API, WAITING
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpus
from gpu_healthcheck.healthcheck.probes.pod_resources import SOCKETS
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord
from gpu_healthcheck.healthcheck.verdict.work import LONGEST
from gpu_healthcheck.healthcheck.verdict.work import Work as State
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.agent.parts import api_server
from tests.host.grpc_server import Server, answers_to, serving
from tests.verdict.gpu_series import CLOSED, PRODUCTS, START, WAITS, Form, Work, gpu_at

HOUR = 3600.0
Json = dict[str, Any]
STALLED, FREE, BUSY = ([(HOUR, form)] for form in (WAITS, CLOSED, PRODUCTS))


class Node:
    """A node with two GPUs, whose kubelet serves its Pods API, with a clock that a test moves."""

    def __init__(self, root: Path, api: ApiStandIn, undo: ExitStack) -> None:
        self.root = root
        self.api = api
        self.seconds = 0.0
        self.telemetry = Telemetry()
        self.state = AgentState("n", now=lambda: Now(START + timedelta(seconds=self.seconds), self.seconds))
        self.observer = WorkObserver(api_server(Cluster(connect), self.telemetry), self.state, self.telemetry, root)
        self.kubelet = undo.enter_context(serving(self.socket(PODS_API), answers_to("pods", {})))
        self.devices = undo.enter_context(serving(self.socket(SOCKETS[0]), answers_to("pod-resources", {})))

    def socket(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def run(
        self, pods: dict[str, Sequence[int]], annotations: dict[str, str] | None = None, started: float = 0
    ) -> None:
        """Let these pods of the namespace `ml` have these GPUs, from so many seconds after START on."""
        annotated = [{"key": key, "value": value} for key, value in (annotations or {}).items()]
        listed: list[Json] = []
        held: list[Json] = []
        for name, indices in pods.items():
            metadata = {"name": name, "namespace": "ml", "uid": f"{name}-uid", "annotations": annotated}
            listed.append(
                {"metadata": metadata, "status": {"startTime": {"seconds": int(START.timestamp() + started)}}}
            )
            ids = [gpu_at(Work(FREE), 0.0, index=index).uuid for index in indices]
            devices = [{"resource_name": "nvidia.com/gpu", "device_ids": ids}]
            held.append({"name": name, "namespace": "ml", "containers": [{"name": "c", "devices": devices}]})
            (self.root / f"var/log/pods/ml_{name}_{name}-uid").mkdir(parents=True, exist_ok=True)
        self.kubelet.answers = answers_to("pods", {"pods": listed})
        self.devices.answers = answers_to("pod-resources", {"pod_resources": held})

    def cycles(self, seconds: float, *phases: Sequence[tuple[float, Form]], interval: float = 30.0) -> None:
        """Run check cycles for this time, with GPUs that are in these phases since START."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds += interval
            gpus = tuple(gpu_at(Work(phase), self.seconds, index=index) for index, phase in enumerate(phases))
            self.judge(DriverReading(Gpus("580", "lib", gpus), read_at=self.seconds))

    def judge(self, reading: DriverReading) -> None:
        self.state.store_evidence(Evidence({NVML: reading}, self.seconds))
        self.observer.update()

    @property
    def rows(self) -> dict[str, tuple[State | None, str | None]]:
        return {uuid[-1]: (row.state, row.pod) for uuid, row in self.state.known.work.items()}

    @property
    def reads(self) -> tuple[int, int, int]:
        """Numbers of questions to the kubelet for pods and devices, and of requests for namespaces."""
        namespaces = [request for request in self.api.requests if "/namespaces/" in request.path]
        return len(self.kubelet.asked), len(self.devices.asked), len(namespaces)

    @property
    def metrics(self) -> dict[str, float]:
        lines = generate_latest(self.telemetry.registry).decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if "waiting_seconds{" in line)
        return {name.removeprefix("gpu_healthcheck_"): float(value) for name, value in pairs}


@pytest.fixture
def node(short_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with ApiStandIn() as api, ExitStack() as undo:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        yield Node(short_root, api, undo)


def test_node_whose_gpus_work_is_never_asked_for_its_pods(node: Node) -> None:
    node.run({"train": [0, 1]})
    node.cycles(2 * HOUR, BUSY, BUSY)

    assert (node.rows, node.reads, node.state.news.is_set()) == ({}, (0, 0, 0), False)


def test_free_node_is_asked_once_an_hour_and_for_new_pods(node: Node) -> None:
    node.run({"daemon": []})
    node.cycles(5 * HOUR, FREE, FREE)
    assert (node.rows, node.reads) == ({}, (5, 5, 0))

    node.run({"daemon": [], "next": []})
    node.cycles(60.0, FREE, FREE)
    assert node.reads == (6, 6, 0)
    assert node.metrics == {}


def test_pod_that_leaves_its_gpus_idle_is_named_ten_minutes_after_its_start(node: Node) -> None:
    node.cycles(HOUR, FREE, FREE)
    node.run({"train": [0]}, started=HOUR + 12)
    node.cycles(600.0, FREE, FREE)
    assert node.rows == {}

    node.cycles(30.0, FREE, FREE)
    assert node.rows == {"1": (State.IDLE, "train-ui")}
    assert node.state.known.work["GPU-00000000-51e0-4000-8000-000000000001"].since == START + timedelta(
        seconds=HOUR + 12
    )
    assert node.metrics == {}


def test_row_of_an_ended_pod_ends_within_ten_minutes(node: Node) -> None:
    """A pod that has ended gives its GPUs back; its folder stays until it is deleted."""
    node.run({"train": [0]})
    node.cycles(900.0, FREE, FREE)
    assert node.rows == {"1": (State.IDLE, "train-ui")}

    node.devices.answers = answers_to("pod-resources", {})
    node.cycles(600.0, FREE, FREE)
    assert node.rows == {}


def test_waiting_gpus_are_shown_until_they_work_and_the_node_is_written_at_both_ends(node: Node) -> None:
    node.run({"train": [0, 1]})
    phases = [(1800.0, WAITS), (HOUR, PRODUCTS)]
    node.cycles(570.0, phases, BUSY)
    assert (node.rows, node.metrics, node.state.news.is_set()) == ({}, {}, False)

    node.cycles(90.0, phases, BUSY)
    assert (node.rows, node.state.news.is_set()) == ({"1": (State.WAITING, "train-ui")}, True)
    node.state.news.clear()
    node.cycles(1110.0, phases, BUSY)
    gpu = 'gpu_waiting_seconds{UUID="GPU-00000000-51e0-4000-8000-000000000001",gpu="0",namespace="ml",pod="train"}'
    assert node.metrics == {gpu: 1740.0}
    assert (node.state.news.is_set(), node.reads[2]) == (False, 1)

    node.cycles(90.0, phases, BUSY)
    assert (node.rows, node.metrics, node.state.news.is_set()) == ({}, {}, True)


def test_pod_is_shown_if_all_its_gpus_wait(node: Node) -> None:
    node.run({"train": [0, 1]})
    node.cycles(900.0, STALLED, STALLED)

    assert node.metrics['pod_waiting_seconds{namespace="ml",pod="train"}'] == 870.0
    assert len(node.metrics) == 3


@pytest.mark.parametrize(("value", "named"), [("expected", set()), ("yes", {"1"}), (None, {"1"})])
def test_annotation_of_the_namespace_is_read_once_an_hour(node: Node, value: str | None, named: set[str]) -> None:
    node.api.add_namespace("ml", {WAITING: value} if value else {})
    node.run({"server": [0]})
    node.cycles(2 * HOUR, STALLED, FREE)

    assert set(node.rows) == named
    assert node.reads[2] == 2


@pytest.mark.parametrize(("value", "named"), [("expected", set()), ("yes", {"1"})])
def test_annotation_of_the_pod_needs_no_namespace(node: Node, value: str, named: set[str]) -> None:
    node.run({"server": [0]}, {WAITING: value})
    node.cycles(900.0, STALLED, FREE)

    assert set(node.rows) == named
    assert node.reads[2] == (0 if value == "expected" else 1)


@pytest.mark.parametrize("status", [403, 404])
def test_namespace_that_may_not_be_read_expects_nothing(node: Node, status: int) -> None:
    node.api.fail_with(status)
    node.run({"server": [0]})
    node.cycles(900.0, STALLED, FREE)

    assert node.rows == {"1": (State.WAITING, "server-u")}
    assert node.reads[2] == 1


def test_api_server_that_is_away_names_no_gpu_that_may_be_expected_to_wait(node: Node) -> None:
    node.api.add_namespace("ml", {WAITING: "expected"})
    node.api.fail_with(503)
    node.run({"server": [0]})
    node.cycles(900.0, STALLED, FREE)
    assert (node.rows, node.metrics) == ({}, {})

    node.api.recover()
    node.cycles(120.0, STALLED, FREE)
    assert (node.rows, node.metrics) == ({}, {})


def test_gpu_waits_without_a_kubelet_and_gets_its_pod_later(node: Node) -> None:
    answers: tuple[Server, ...] = (node.kubelet, node.devices)
    for server in answers:
        server.answers = {}
    node.cycles(900.0, STALLED, FREE, interval=300.0)
    assert node.rows == {"1": (State.WAITING, None)}

    node.run({"train": [0]})
    node.cycles(120.0, STALLED, FREE)
    assert node.rows == {"1": (State.WAITING, "train-ui")}

    for server in answers:
        server.answers = {}
    node.cycles(900.0, STALLED, FREE, interval=300.0)
    assert node.rows == {"1": (State.WAITING, "train-ui")}


def test_driver_that_is_not_read_ends_the_rows(node: Node) -> None:
    node.run({"train": [0]})
    node.cycles(900.0, STALLED, FREE)
    lost = DriverReading(Unobserved(error_causes.DRIVER_NOT_ANSWERING, "no answer"))
    node.seconds += 30
    node.judge(lost)
    assert node.rows == {"1": (State.WAITING, "train-ui")}

    node.seconds += 900
    node.judge(lost)
    assert (node.rows, node.metrics) == ({}, {})


def test_names_that_no_pod_has_are_left_out(node: Node) -> None:
    node.run({"..%2F": [0], "train": [1]})
    node.cycles(900.0, STALLED, STALLED)

    assert node.rows == {"1": (State.WAITING, None), "2": (State.WAITING, "train-ui")}
    assert [request.path for request in node.api.requests] == ["/api/v1/namespaces/ml"]


def test_gpus_of_two_pods_are_not_told_apart(node: Node) -> None:
    """MPS: devices of one GPU, which both pods share."""
    node.run({"one": [0], "other": [0]})
    node.cycles(900.0, STALLED, STALLED)

    assert node.rows == {"1": (State.WAITING, None), "2": (State.WAITING, None)}
    assert not any("pod_waiting" in name for name in node.metrics)


def test_record_names_as_many_gpus_as_fit_and_the_metrics_all(node: Node) -> None:
    """A node with 16 GPUs."""
    node.run({"train": list(range(16))})
    node.cycles(900.0, *[STALLED] * 16, interval=300.0)
    text = records.dump(AgentRecord(work=node.state.known.work))

    assert list(node.state.known.work) == [gpu_at(Work(FREE), 0.0, index=index).uuid for index in range(9)]
    assert len(text) - len('{"work":}') <= LONGEST < len(text) * 10 / 9
    assert len(node.metrics) == 17
    assert node.metrics['pod_waiting_seconds{namespace="ml",pod="train"}'] == 600.0


def test_gpu_on_another_board_is_another_gpu(node: Node) -> None:
    node.run({"train": [0]})
    node.cycles(900.0, STALLED)
    gpu = replace(gpu_at(Work(STALLED), 930.0), uuid="GPU-ffffffff-51e0-4000-8000-000000000001")
    node.seconds += 30
    node.judge(DriverReading(Gpus("580", "lib", (gpu,)), read_at=node.seconds))

    assert node.rows == {}
