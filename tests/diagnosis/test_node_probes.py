"""`diagnose --probe-nodes` on the real API server: the pod runs, answers and is gone, whatever ends the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.kubelet_logs import KubeletLogs
from gpu_healthcheck.sim.loopback import LoopbackAnswers
from gpu_healthcheck.sim.node import SimulatedNode
from tests.cli.cluster import run
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
NODE, NAMESPACE = "probed", "gpu-healthcheck"
PROBES = "pods?labelSelector=app.kubernetes.io/component=probe"
PROBE = ("--probe-nodes", NODE, "--probe-image", "gpu-healthcheck:test")


@dataclass
class World:
    plane: ControlPlane
    stuck: set[str] = field(default_factory=set)
    """Nodes that start no pod."""
    logs: KubeletLogs | None = None

    def pods(self, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.plane.request("GET", f"/api/v1/namespaces/{namespace}/{PROBES}").body[
            "items"
        ]
        return found

    def make(self, path: str, name: str, **labels: str) -> None:
        answer = self.plane.request("POST", path, {"metadata": {"name": name, "labels": labels}})
        assert answer.status in (201, 409), answer.message


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a separate control plane, on which no agent is installed."""
    del control_plane  # it builds the programs
    with ControlPlane() as own:
        own.kubectl("create", "namespace", NAMESPACE)
        yield own


@pytest.fixture
def world(plane: ControlPlane, node: SimulatedNode, tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / "pods"
    folder.mkdir()
    # The instance metadata is not read: the port has no listener.
    own = {
        "PYTHONPATH": str(ROOT),
        "CONFIG_DIR": "/nowhere",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
    }
    with Kubelets(plane, folder, {NODE: node.root}, own) as kubelets:
        logs = KubeletLogs(plane, folder)
        with logs:
            world = World(plane, kubelets.stuck, logs)
            world.make(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", "default")
            plane.create_node(NODE, devices={"nvidia.com/gpu": "8"})
            logs.serve(NODE)
            yield world
            for pod in world.pods():
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
                plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
            plane.request("DELETE", f"/api/v1/nodes/{NODE}")


def test_probe_nodes_reads_a_node_and_removes_its_pod(world: World, node: SimulatedNode) -> None:
    node.lose_gpu(3)
    before = run(world.plane.kubeconfig, "diagnose", "node", NODE)
    assert "no agent has written one" in before.stdout

    done = run(world.plane.kubeconfig, "diagnose", "node", NODE, *PROBE)

    assert done.stderr == ""
    assert "GpuLost gpu/0000:86:00.0" in done.stdout
    assert "570.133.20" in done.stdout
    assert world.pods() == []


def test_probe_nodes_of_all_suspects_uses_the_agents_image(world: World) -> None:
    """The agent's DaemonSet exists, and the node has no record of an agent."""
    plane, manifest = world.plane, str(ROOT / "kubernetes/manifests/04-daemonset-agent.yaml")
    taint = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}
    plane.request("PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"taints": [taint]}})
    plane.kubectl("apply", "-f", manifest)
    try:
        done = run(plane.kubeconfig, "diagnose", "node", NODE, "--probe-nodes", "all-suspects")
    finally:
        plane.kubectl("delete", "-f", manifest)

    assert done.stderr == ""
    assert "pass, PASS: no finding" in done.stdout
    assert world.pods() == []


def test_probe_nodes_reports_an_admission_rejection(world: World) -> None:
    world.make("/api/v1/namespaces", "restricted", **{"pod-security.kubernetes.io/enforce": "restricted"})
    world.make("/api/v1/namespaces/restricted/serviceaccounts", "default")

    done = run(world.plane.kubeconfig, "diagnose", "node", NODE, *PROBE, "--probe-namespace", "restricted")

    assert f"node {NODE} was not checked: create pods: 403" in done.stderr
    assert "violates PodSecurity" in done.stderr
    assert (done.returncode, "no agent has written one" in done.stdout) == (0, True)
    assert world.pods("restricted") == []


def _started(plane: ControlPlane, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    command = [sys.executable, "-m", "cli", "diagnose", *PROBE, *options]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_probe_nodes_removes_its_pod_at_each_signal(world: World, number: signal.Signals) -> None:
    world.stuck.add(NODE)
    with _started(world.plane) as process:
        eventually(world.pods)
        process.send_signal(number)
        _, message = process.communicate()

    assert (process.returncode, world.pods()) == (130, [])
    assert message.splitlines()[-1] == "gpu-healthcheck diagnose: interrupted"


def test_probe_nodes_second_signal_ends_at_once(plane: ControlPlane) -> None:
    """For a missing node, the end of the pod would never be reported."""
    world = World(plane)
    world.make(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", "default")
    plane.create_node(NODE, devices={"nvidia.com/gpu": "8"})
    with _started(plane) as process:
        eventually(world.pods)
        process.send_signal(signal.SIGINT)
        eventually(lambda: any("deletionTimestamp" in pod["metadata"] for pod in world.pods()))
        process.send_signal(signal.SIGINT)
        process.communicate()
    plane.request("DELETE", f"/api/v1/nodes/{NODE}")

    assert (process.returncode, world.pods()) == (130, [])


def _drip(answers: LoopbackAnswers) -> None:
    """Send a little from time to time, for ever. The API server forwards no less than some KiB at once."""
    _begin(answers)
    _send_for_ever(answers, 8192, 0.05)


def _flood(answers: LoopbackAnswers) -> None:
    """Send for ever, regardless of the requested limit."""
    _begin(answers)
    _send_for_ever(answers, 65536, 0.0)


def _fall_silent(answers: LoopbackAnswers) -> None:
    """Send the headers and nothing else."""
    _begin(answers)
    answers.rfile.read(1)


def _send_for_ever(answers: LoopbackAnswers, size: int, every_seconds: float) -> None:
    with suppress(OSError):  # the reader is gone
        while True:
            answers.wfile.write(b"%x\r\n%s\n\r\n" % (size, b"." * (size - 1)))
            time.sleep(every_seconds)


def _begin(answers: LoopbackAnswers) -> None:
    answers.send_response(200)
    answers.send_header("Transfer-Encoding", "chunked")
    answers.end_headers()
    answers.wfile.flush()


@pytest.mark.parametrize(
    ("answer", "why"), [(_drip, "in 2 s, without an end"), (_flood, "it printed no record")], ids=["drip", "flood"]
)
def test_probe_nodes_limits_an_endless_log(world: World, answer: Callable[[LoopbackAnswers], None], why: str) -> None:
    assert world.logs is not None
    world.logs.hostile = answer

    done = run(world.plane.kubeconfig, "diagnose", "node", NODE, *PROBE, "--request-timeout", "2s")

    assert f"node {NODE} was not checked: " in done.stderr
    assert why in done.stderr, done.stderr
    assert world.pods() == []


@pytest.mark.parametrize("answer", [_drip, _fall_silent])
def test_probe_nodes_removes_its_pod_while_a_log_is_read(
    world: World, answer: Callable[[LoopbackAnswers], None]
) -> None:
    assert world.logs is not None
    asked = threading.Event()

    def hostile(answers: LoopbackAnswers) -> None:
        asked.set()
        answer(answers)

    world.logs.hostile = hostile
    with _started(world.plane, "--request-timeout", "2s") as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate()

    assert (process.returncode, world.pods()) == (130, [])
    assert message.splitlines()[-1] == "gpu-healthcheck diagnose: interrupted"


def test_probe_nodes_names_a_pod_that_can_not_be_removed(world: World) -> None:
    world.stuck.add(NODE)
    with _started(world.plane) as process:
        [pod] = eventually(world.pods)
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        world.plane.request("PATCH", path, {"metadata": {"finalizers": ["example.com/kept"]}})
        process.send_signal(signal.SIGINT)
        eventually(lambda: any("deletionTimestamp" in each["metadata"] for each in world.pods()))
        process.send_signal(signal.SIGINT)
        _, message = process.communicate()
    world.plane.request("PATCH", path, {"metadata": {"finalizers": None}})

    assert process.returncode == 130
    assert f"left: `kubectl -n {NAMESPACE} delete pod {pod['metadata']['name']}` removes it" in message


def test_missing_permissions_are_named(world: World, tmp_path: Path) -> None:
    plane, account = world.plane, "probe-reader"
    plane.kubectl("create", "serviceaccount", account, "--namespace=default")
    plane.kubectl("create", "clusterrole", account, "--verb=get,list", "--resource=nodes,pods")
    plane.kubectl(
        "create", "clusterrolebinding", account, f"--clusterrole={account}", f"--serviceaccount=default:{account}"
    )
    token = plane.kubectl("create", "token", account, "--namespace=default").strip()
    reader = write_kubeconfig(tmp_path / "reader", url=plane.url, ca_file=plane.ca_file, token=token)
    eventually(lambda: plane.request("GET", "/api/v1/pods", token=token).status == 200)
    try:
        done = run(reader, "diagnose", "node", NODE, *PROBE)
    finally:
        plane.kubectl("delete", "clusterrolebinding", account)
        plane.kubectl("delete", "clusterrole", account)
        plane.kubectl("delete", "serviceaccount", account, "--namespace=default")
    assert "your permissions are not enough, and no pod was created" in done.stderr
    for right in ("create pods", "delete pods", "get pods/log"):
        assert f"{right} in {NAMESPACE}" in done.stderr
    assert "get pods in" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--probe-nodes", NODE), 0, "set --probe-image"),
        (("--probe-nodes", "gone"), 3, "--probe-nodes: there is no node/gone"),
        (("--probe-nodes", "all-suspects"), 0, "every suspect node has an agent's record"),
    ],
)
def test_probe_nodes_names_what_it_can_not_probe(world: World, words: tuple[str, ...], code: int, message: str) -> None:
    done = run(world.plane.kubeconfig, "diagnose", "node", NODE, *words)

    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert world.pods() == []


def test_probe_nodes_is_refused_with_a_saved_state(tmp_path: Path) -> None:
    done = run(tmp_path / "none", "diagnose", "--from", str(tmp_path), *PROBE)

    assert (done.returncode, done.stderr) == (
        3,
        ("gpu-healthcheck diagnose: --probe-nodes checks nodes now and --from reads a saved state: use one of them\n"),
    )
