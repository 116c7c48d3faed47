"""`gpu-healthcheck gate` against the real agent: pods with healthy and faulty GPUs, and agents that give no answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu_healthcheck.cli import gate as gate_command
from gpu_healthcheck.cli.gate import ask
from gpu_healthcheck.healthcheck.probes.kubelet_pods import PODS_API
from gpu_healthcheck.healthcheck.probes.pod_resources import SOCKETS
from tests.agent.cycle.test_container_runtime import SOCKET as RUNTIME
from tests.agent.cycle.test_container_runtime import dockers_status
from tests.agent.world import StandIn, World
from tests.host.grpc_server import Server, answers_to, serving
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
GRPC_CHILD = "gpu_healthcheck.healthcheck.host.grpc_child"
ERROR = "GPU has fallen off the bus."
THREE, FIVE, OTHER = "uid-of-gpu-3", "uid-of-gpu-5", "uid-without-devices"
REFUSED, UNAVAILABLE = 75, 69
ROOTS_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root asks for the verdict of its machine")
SILENCE = "the pod's GPUs could not be read from the kubelet in time, so all GPUs of the node count"
FLOODING = "127.0.0.9"
"""Address of a client that floods the agent."""


def sandboxes(*uids: str) -> dict[str, bytes]:
    items = [{"metadata": {"name": uid.removeprefix("uid-of-"), "namespace": "team", "uid": uid}} for uid in uids]
    return answers_to("pod-sandboxes", {"items": items})


def devices(**held: str) -> dict[str, bytes]:
    pods = [
        {
            "name": name.replace("_", "-"),
            "namespace": "team",
            "containers": [{"name": "c", "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": [uuid]}]}],
        }
        for name, uuid in held.items()
    ]
    return answers_to("pod-resources", {"pod_resources": pods})


def gpu_uuid(world: World, index: int) -> str:
    return world.host.gpus[index].uuid


@pytest.fixture
def kubelet(gated: World) -> Iterator[Server]:
    """Replace the kubelet's socket by another one, which a test can hold."""
    path = gated.host.root / SOCKETS[0].lstrip("/")
    path.unlink()
    with serving(path, devices(gpu_3=gpu_uuid(gated, 3))) as server:
        yield server


@pytest.fixture
def gated(short_root: Path) -> Iterator[World]:
    """Yield a node whose pods `gpu-3` and `gpu-5` have these GPUs, with an agent that reported `pass`."""
    with ExitStack() as undo:
        world = undo.enter_context(World(short_root / "world", StandIn("node", "p5.48xlarge")))
        world.host.run_kubernetes("docker")
        root = world.host.root
        answers = {**dockers_status(ready=True), **sandboxes(THREE, FIVE, OTHER)}
        undo.enter_context(serving(root / RUNTIME, answers))
        held = devices(gpu_3=gpu_uuid(world, 3), gpu_5=gpu_uuid(world, 5))
        undo.enter_context(serving(root / SOCKETS[0].lstrip("/"), held))
        admit(world, THREE, FIVE, OTHER)
        world.start()
        world.wait_for_status("pass")
        yield world


def admit(world: World, *uids: str) -> None:
    """Create the kubelet's folder of each pod."""
    for uid in uids:
        (world.host.root / "var/lib/kubelet/pods" / uid).mkdir(parents=True)


def gate(port: int, pod: str = THREE, *options: str, tolerates: str = "false") -> subprocess.CompletedProcess[str]:
    """Ask until the kubelet has answered in time: on a busy machine the processes that ask it need seconds."""

    def exact() -> subprocess.CompletedProcess[str] | None:
        done = gate_once(port, pod, *options, tolerates=tolerates)
        return None if SILENCE in done.stdout else done

    return eventually(exact)


def gate_once(port: int, pod: str = THREE, *options: str, tolerates: str = "false") -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/bin:/bin", "NODE_IP": "127.0.0.1", "POD_UID": pod, "GATE_TOLERATES": tolerates}
    return run(variables, f"--port={port}", *options)


def run(variables: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "cli", "gate", *options]
    return subprocess.run(
        words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=GIVE_UP_SECONDS
    )


def gate_of_slurm(world: World) -> subprocess.CompletedProcess[str]:
    """Ask as root of the machine. Without an answer it would check this one, which has no GPU."""
    return run({"PATH": "/usr/bin:/bin", "STATE_DIR": str(world.folder / "state")}, "--local")


def loses_gpu_3(world: World) -> None:
    world.host.xid(3, 79, ERROR)
    world.wait_for_taint()


def switch_taint_off(world: World) -> None:
    world.configure(ENABLE_TAINT="false")
    world.wait(lambda node: not node.tainted)


def test_any_pod_starts_on_a_healthy_node(gated: World) -> None:
    for pod in (THREE, FIVE, OTHER, "uid-of-no-pod"):
        done = gate(gated.agent.port, pod)

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("node: no finding of RESET or worse on ")


def test_malformed_requests_are_refused(gated: World) -> None:
    for query in ("pod=", "pod=../x", f"pod={'x' * 65}", "pod=a&tolerates=maybe", "&".join(["pod=a"] * 9), "node"):
        assert gated.agent.get(f"/gate/v1?{query}")[0] == 400, query


def test_pod_is_refused_for_its_own_gpus_or_if_they_are_unknown_for_all(gated: World) -> None:
    loses_gpu_3(gated)
    refused, other = gate(gated.agent.port, THREE), gate(gated.agent.port, FIVE)

    assert refused.returncode == REFUSED
    assert refused.stdout.startswith("node: Xid79 (REBOOT) on GPU 3 (gpu/0000:")
    assert "starts it elsewhere; unless its restartPolicy is Never, delete the pod" in refused.stdout
    assert other.returncode == 0
    assert "no finding of RESET or worse on the pod's 1 GPUs" in other.stdout
    assert [gate(gated.agent.port, pod).returncode for pod in (OTHER, "uid-of-no-pod")] == [REFUSED, REFUSED]

    answer = json.loads(gate(gated.agent.port, THREE, "--json").stdout)
    assert (answer["decision"], answer["reason"], answer["scope"]) == ("refuse", "Xid79", "pod")
    assert [finding["severity"] for finding in answer["findings"]] == ["REBOOT"]
    assert "team" not in json.dumps(answer)  # no names of pods


def test_a_pod_that_would_return_to_the_node_starts_with_a_warning(gated: World) -> None:
    loses_gpu_3(gated)
    tolerant, unknown = (gate(gated.agent.port, tolerates=word) for word in ("true", ""))

    assert (tolerant.returncode, unknown.returncode) == (0, 0)
    assert "the pod starts, because it tolerates the taint of gpu-healthcheck" in tolerant.stdout
    assert "its tolerations are unknown: set --tolerates" in unknown.stdout
    assert gated.agent.metric("gate_failed_open_total") == 1


def test_a_pod_starts_where_the_taint_is_switched_off(gated: World) -> None:
    loses_gpu_3(gated)
    switch_taint_off(gated)
    done = gate(gated.agent.port)

    assert done.returncode == 0
    assert "because the node has no taint" in done.stdout


def test_a_fault_between_binding_and_start_refuses_the_pod_although_the_taint_is_still_being_written(
    gated: World,
) -> None:
    gate(gated.agent.port)  # its GPUs are known from now on
    gated.host.xid(3, 79, ERROR)
    eventually(lambda: gated.agent.xids("79"))

    assert gate(gated.agent.port).returncode == REFUSED


def question(world: World, pod: str) -> Json:
    """Ask without the command, for many questions."""
    return ask("127.0.0.1", world.agent.port, f"pod={pod}&tolerates=false", GIVE_UP_SECONDS)


def test_a_refused_pod_counts_once_and_has_an_event_of_its_own(gated: World) -> None:
    loses_gpu_3(gated)
    for _ in range(300):
        question(gated, THREE)
    first = gated.wait_for_event("GateRefused")["message"]
    assert gated.agent.metric("gate_answers_total{refuse}") == 1

    question(gated, OTHER)
    eventually(lambda: len(gated.events("GateRefused")) == 2)
    assert gated.agent.metric("gate_answers_total{refuse}") == 2
    assert first.startswith("the gate refused 1 pod (Xid79): node: Xid79 (REBOOT) on GPU 3")


def test_forged_pods_get_an_answer_and_leave_no_trace(gated: World, kubelet: Server) -> None:
    loses_gpu_3(gated)
    for number in range(600):
        query = f"pod={uuid.uuid4()}&tolerates={('false', 'true', '')[number % 3]}"
        assert ask("127.0.0.1", gated.agent.port, query, GIVE_UP_SECONDS)["scope"] == "node"
    assert len(kubelet.asked) < 10  # by the agent, which warns the pods of the faulty GPU
    assert [gated.agent.metric(f"gate_answers_total{{{word}}}") for word in ("start", "open", "refuse")] == [0, 0, 0]
    assert not gated.events("GateRefused")

    assert gate(gated.agent.port, THREE).returncode == REFUSED
    assert "the gate refused 1 pod (Xid79)" in gated.wait_for_event("GateRefused")["message"]
    assert gated.agent.metric("gate_answers_total{refuse}") == 1


def test_the_kubelets_pods_api_gives_the_tolerations(gated: World) -> None:
    toleration = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "operator": "Exists"}
    pods = [
        {"metadata": {"name": "gpu-3", "namespace": "team", "uid": THREE}, "spec": {"tolerations": [toleration]}},
        {"metadata": {"name": "gpu-5", "namespace": "team", "uid": FIVE}, "spec": {}},
    ]
    with serving(gated.host.root / PODS_API.lstrip("/"), answers_to("pods", {"pods": pods})):
        loses_gpu_3(gated)
        tolerant = gate(gated.agent.port, THREE, tolerates="")

    assert (tolerant.returncode, "it tolerates the taint of gpu-healthcheck" in tolerant.stdout) == (0, True)


def test_ended_agents_and_agents_without_the_endpoint_let_pods_start(gated: World) -> None:
    loses_gpu_3(gated)
    port = gated.agent.port
    gated.agent.kill()
    opened, closed = gate(port), gate(port, THREE, "--fail-closed")

    assert (opened.returncode, opened.stdout) == (0, "")
    assert "Connection refused; the pod starts without a check" in opened.stderr
    assert closed.returncode == UNAVAILABLE


@ROOTS_ALONE
def test_slurm_is_answered_with_the_verdict_of_the_node_without_a_taint(gated: World) -> None:
    healthy = gate_of_slurm(gated)
    loses_gpu_3(gated)
    switch_taint_off(gated)
    faulty = gate_of_slurm(gated)

    assert (healthy.returncode, faulty.returncode) == (0, REFUSED)
    assert healthy.stdout.startswith("node: no finding of RESET or worse on the node")
    assert faulty.stdout.startswith("node: Xid79 (REBOOT) on GPU 3")
    assert faulty.stdout.endswith("; no job starts here\n")
    assert not gated.agent.metric("gate_answers_total{refuse}")


@ROOTS_ALONE
def test_the_socket_of_an_agent_is_roots_alone_and_another_agent_replaces_it(gated: World) -> None:
    file = gated.folder / "state/gate.sock"
    about = file.lstat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid, stat.S_ISSOCK(about.st_mode)) == (0o600, 0, True)

    gated.agent.kill()
    without_agent = gate_of_slurm(gated)
    gated.start()

    assert "node: " not in without_agent.stdout
    eventually(lambda: gate_of_slurm(gated).stdout.startswith("node: no finding of RESET or worse on the node"))


def answering(answer: bytes | None) -> tuple[socket.socket, int]:
    """Listen on a port of loopback: send this answer to each client, or nothing and keep the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        kept = []
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            kept.append(connection)
            if answer is not None:
                connection.recv(4096)
                connection.sendall(answer)
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


OK = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "answered with 404: an agent without /gate/v1, or another program"),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", "answered with 503"),
        (b"", "answered with nothing"),
        (OK + b"{", "invalid JSON"),
        (OK + b"[" * 60000, "invalid JSON"),
        (OK + b"[]", "without a decision"),
        (OK + b'{"decision": "maybe"}', "without a decision"),
        (OK + b"x" * 200_000, "invalid JSON"),
        (None, "timed out"),
    ],
    ids=["404", "503", "nothing", "no JSON", "deep JSON", "a list", "another word", "endless", "no answer"],
)
def test_an_answer_that_is_none_lets_the_pod_start(answer: bytes | None, why: str) -> None:
    listener, port = answering(answer)
    with listener:
        done = gate(port, THREE, "--timeout=1")

    assert (done.returncode, done.stdout) == (0, "")
    assert why in done.stderr


def test_packets_that_are_dropped_let_the_pod_start() -> None:
    """The kernel drops the packets of a connection to a listener with a full queue, as an egress policy does."""
    with ExitStack() as undo:
        listener = undo.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = undo.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        done = gate(listener.getsockname()[1], THREE, "--timeout=1")

    assert (done.returncode, done.stdout) == (0, "")
    assert "timed out; the pod starts without a check" in done.stderr


def test_a_flood_from_another_address_keeps_no_pod_from_its_answer(gated: World) -> None:
    loses_gpu_3(gated)
    port, ended = gated.agent.port, threading.Event()

    def ask_without_end(number: int) -> None:
        while not ended.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1, (FLOODING, 0)) as connection:
                connection.sendall(f"GET /gate/v1?pod=flood-{number} HTTP/1.0\r\n\r\n".encode())
                connection.recv(4096)

    flood = [threading.Thread(target=ask_without_end, args=(number,), daemon=True) for number in range(150)]
    for thread in flood:
        thread.start()
    codes = [gate(port, pod, "--timeout=60").returncode for pod in (THREE, FIVE, "uid-of-no-pod")]
    alive = gated.agent.get("/healthz")[0]
    ended.set()
    for thread in flood:
        thread.join()

    assert (codes, alive) == ([REFUSED, 0, REFUSED], 200)


def test_control_characters_of_another_program_are_escaped() -> None:
    listener, port = answering(OK + json.dumps({"decision": "start", "message": "\x1b[2J\n\r" + "x" * 9000}).encode())
    with listener:
        done = gate(port)

    assert done.stdout.startswith("\\x1b[2J\\n\\rxxx")
    assert len(done.stdout) < 2100


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--pod=a b"], "UID is missing or malformed"),
        (["--pod=x&tolerates=true"], "UID is missing or malformed"),
        (["--timeout=0"], "at most 60 seconds"),
        (["--tolerates=yes"], "invalid choice"),
        (["--agent="], "address is missing"),
    ],
)
def test_wrong_usage_is_an_error_of_its_own(options: list[str], why: str) -> None:
    done = gate(1, THREE, *options)

    assert (done.returncode, why in done.stderr) == (3, True)


Resume = Callable[[], object]


@contextmanager
def stopped_kubelet(world: World) -> Iterator[Resume]:
    """Serve the kubelet's sockets, with its Pods API, by a process that is stopped by SIGSTOP."""
    (world.host.root / SOCKETS[0].lstrip("/")).unlink()
    pods = (f"{uid}={gpu_uuid(world, index)}" for uid, index in ((THREE, 3), (FIVE, 5)))
    words = [sys.executable, "-m", "sim.local_pods", str(world.host.root), *pods]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGSTOP)
        threads = list(Path(f"/proc/{process.pid}/task").glob("*/stat"))
        eventually(lambda: all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in threads))
        try:
            yield lambda: process.send_signal(signal.SIGCONT)
        finally:
            process.kill()


@contextmanager
def silent_kubelet(world: World) -> Iterator[Resume]:
    """Accept connections without an answer, until a restart of the kubelet."""
    with _unanswered(world, backlog=128) as listener, ExitStack() as undo:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    undo.enter_context(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()

        def restart() -> None:
            listener.shutdown(socket.SHUT_RDWR)
            undo.close()
            _restart_kubelet(world, undo)

        yield restart


@contextmanager
def full_kubelet(world: World) -> Iterator[Resume]:
    """Listen with a full queue, so that no connection is established, until a restart of the kubelet."""
    with _unanswered(world, backlog=0) as listener, ExitStack() as undo:
        for _ in range(4):
            waiting = undo.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())

        def restart() -> None:
            listener.close()
            _restart_kubelet(world, undo)

        yield restart


@contextmanager
def deadlocked_kubelet(world: World) -> Iterator[Resume]:
    """Begin each connection, and hold each call."""
    path = world.host.root / SOCKETS[0].lstrip("/")
    path.unlink()
    with serving(path, devices(gpu_3=gpu_uuid(world, 3), gpu_5=gpu_uuid(world, 5))) as server:
        server.holds.clear()
        yield server.holds.set


@contextmanager
def _unanswered(world: World, backlog: int) -> Iterator[socket.socket]:
    path = world.host.root / SOCKETS[0].lstrip("/")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(backlog)
        yield listener


def _restart_kubelet(world: World, undo: ExitStack) -> None:
    path = world.host.root / SOCKETS[0].lstrip("/")
    path.unlink()
    undo.enter_context(serving(path, devices(gpu_3=gpu_uuid(world, 3), gpu_5=gpu_uuid(world, 5))))


@pytest.fixture(params=[stopped_kubelet, silent_kubelet, full_kubelet, deadlocked_kubelet])
def resume_kubelet(gated: World, request: pytest.FixtureRequest) -> Iterator[Resume]:
    with request.param(gated) as resume:
        yield resume


def test_the_verdict_of_the_node_counts_while_the_kubelet_hangs(gated: World, resume_kubelet: Resume) -> None:
    healthy = gate_once(gated.agent.port, FIVE)
    loses_gpu_3(gated)
    faulty = gate_once(gated.agent.port, FIVE, "--json")

    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert f"on the node; {SILENCE}; checked" in healthy.stdout
    answer = json.loads(faulty.stdout)
    assert (faulty.returncode, answer["scope"], answer["kubelet_answered"]) == (REFUSED, "node", False)
    assert f"; {SILENCE}; the pod ends" in answer["message"]
    assert gated.agent.metric("gate_answers_total{refuse}") == 1

    resume_kubelet()
    exact = gate(gated.agent.port, FIVE)
    assert exact.returncode == 0
    assert "on the pod's 1 GPUs" in exact.stdout
    assert question(gated, THREE)["scope"] == "pod"


def test_a_hung_kubelet_piles_up_nothing_in_the_agent(gated: World, resume_kubelet: Resume) -> None:
    pods = [f"uid-{number}" for number in range(60)]
    admit(gated, *pods)
    agent = psutil.Process(gated.agent.process.pid)
    threads, files = agent.num_threads(), agent.num_fds()
    for _ in range(3):
        with ThreadPoolExecutor(len(pods)) as pool:
            answers = list(pool.map(question, [gated] * len(pods), pods))
        assert {(answer["scope"], answer["kubelet_answered"]) for answer in answers} == {("node", False)}
    assert agent.num_threads() <= threads + 4  # a read of the pods has two; a check cycle or a report may be running
    assert agent.num_fds() <= files + 16
    assert len([child for child in agent.children() if GRPC_CHILD in child.cmdline()]) <= 2

    loses_gpu_3(gated)
    assert gated.agent.get("/healthz")[0] == 200


def test_a_slow_kubelet_gives_the_gpus_of_the_pod(gated: World, kubelet: Server) -> None:
    loses_gpu_3(gated)
    kubelet.holds.clear()

    def answers_after_a_moment() -> Json | None:
        threading.Timer(0.1, kubelet.holds.set).start()
        answer = question(gated, THREE)
        return answer if answer["scope"] == "pod" else None

    assert eventually(answers_after_a_moment)["decision"] == "refuse"


def test_a_pod_waits_for_a_taint_that_the_api_server_delays(gated: World) -> None:
    assert isinstance(gated.cluster, StandIn)
    api = gated.cluster.api
    gate(gated.agent.port)  # the GPUs of the pods are known from now on
    api.hang()
    gated.host.xid(3, 79, ERROR)
    eventually(lambda: gated.agent.xids("79"))
    with ThreadPoolExecutor(2) as pool:
        refused, other = (pool.submit(gate, gated.agent.port, pod) for pod in (THREE, FIVE))
        eventually(lambda: gated.agent.metric("gate_answers_total{open}") == 1)
        api.recover()

        assert other.result().returncode == 0
        assert "waits" not in other.result().stdout
        assert refused.result().returncode == REFUSED


def test_a_pod_starts_if_the_api_server_stays_away(
    gated: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate_command, "_TAINT_SECONDS", 1.5)
    assert isinstance(gated.cluster, StandIn)
    api = gated.cluster.api
    api.hang()
    gated.host.xid(3, 79, ERROR)
    eventually(lambda: gated.agent.xids("79"))
    words = ["--agent=127.0.0.1", f"--port={gated.agent.port}", f"--pod={THREE}", "--tolerates=false"]

    assert gate_command.main(words) == 0
    assert "the pod starts, because the node's taint still waits for the API server" in capsys.readouterr().out
    api.recover()
