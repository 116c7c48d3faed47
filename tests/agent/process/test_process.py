"""The process itself: its environment, its answers, its exit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_healthcheck.agent.process.unused_modules import UNUSED, UnusedModule
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.sim.imds import SimulatedImds
from tests.agent.world import AgentProcess, World
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

STUCK = """
import ctypes, os, signal, threading
from gpu_healthcheck.healthcheck.host.program import stop_at_signals

stop = stop_at_signals()
threading.Thread(target=lambda: (stop.wait(), os._exit(7)), daemon=True).start()
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
"""
"""A process whose main thread waits for itself, in C; it ends with 7 once the stop was seen."""

LEAN = """
import sys
from gpu_healthcheck.agent.process.unused_modules import UNUSED, without_unused_parts
with without_unused_parts():
    import gpu_healthcheck.agent.process.agent_program
"""
LOADED = f"{LEAN}print(*sys.modules)"
WHOLE_AGAIN = (
    f"{LEAN}import asyncio, kubernetes.watch, pickle; print(asyncio.run, kubernetes.watch.Watch, pickle.dumps)"
)
PROXY = f"""{LEAN}
from kubernetes.client import Configuration
configuration = Configuration()
configuration.host = "https://10.0.0.1"
print(configuration.proxy, "urllib.request" in sys.modules)
"""


@pytest.fixture
def world(world: World) -> World:
    """Its agents are started as a container's is: none is forked."""
    world.imports = True
    return world


class TestLoading:
    def test_agent_imports_no_modules_of_consoles_logins_and_other_clients(self) -> None:
        loaded = subprocess.check_output([sys.executable, "-I", "-c", LOADED], text=True).split()

        assert {"structlog", "kubernetes.config.kube_config"} <= set(loaded)
        assert not {"rich", "requests", "websocket", *(part.__name__ for part in UNUSED)} & set(loaded)

    def test_module_imported_after_the_agents_start_is_complete(self) -> None:
        message = subprocess.check_output([sys.executable, "-I", "-c", WHOLE_AGAIN], text=True)

        assert "built-in function dumps" in message
        assert "kubernetes.watch.watch.Watch" in message

    @pytest.mark.parametrize(
        ("proxy", "message"), [("", "None False"), ("http://127.0.0.1:9", "http://127.0.0.1:9 True")]
    )
    def test_a_proxy_of_the_environment_is_used_all_the_same(self, proxy: str, message: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"https_proxy": proxy} if proxy else {}

        program = [sys.executable, "-c", PROXY]
        assert subprocess.check_output(program, text=True, env=environment).strip() == message

    def test_import_of_the_agents_modules_keeps_the_libraries_complete(self) -> None:
        names = "sys, gpu_healthcheck.agent.__main__, gpu_healthcheck.agent.process.agent_program, pickle"
        program = f"import {names}; print(pickle.dumps, *sys.modules)"
        loaded = subprocess.check_output([sys.executable, "-I", "-c", program], text=True).split()

        assert {part.__name__ for part in UNUSED} <= set(loaded)

    def test_left_out_module_reports_that_when_it_is_used(self) -> None:
        with pytest.raises(OSError, match=r"the agent does not load pickle\.dumps"):
            UnusedModule("pickle").dumps({})


class TestStarting:
    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("NODE_NAME", "", "NODE_NAME"),
            ("METRICS_PORT", "many", "METRICS_PORT = 'many': a whole number, 0 to 65535"),
            ("METRICS_PORT", "70000", "METRICS_PORT = '70000': a whole number, 0 to 65535"),
            ("LOG_LEVEL", "loud", "LOG_LEVEL = 'loud': allowed are debug, info, warning, error"),
        ],
    )
    def test_with_a_wrong_environment_names_it_and_ends_with_3(
        self, world: World, key: str, value: str, message: str
    ) -> None:
        agent = world.start(**{key: value})

        assert agent.exit_code() == 3
        assert message in agent.log.read_text()
        assert "Traceback" not in agent.log.read_text()

    def test_without_a_node_name_says_that_it_is_not_set(self, world: World) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "NODE_NAME"}
        command = [sys.executable, "-m", "agent"]
        agent = AgentProcess(environment, world.folder / "agent.log", command)

        assert agent.exit_code() == 3
        assert agent.log.read_text() == "gpu-healthcheck agent: NODE_NAME is not set\n"

    @pytest.mark.parametrize("text", [b"", b"\xff\xfe"], ids=["empty", "bytes"])
    def test_unusable_kubeconfig_is_named_and_ends_the_agent_with_2(self, world: World, text: bytes) -> None:
        """Other contents: tests/cluster/test_kubeconfig.py."""
        world.kubeconfig.write_bytes(text)
        agent = world.start()

        assert agent.exit_code() == 2
        assert "can't connect to a cluster" in agent.log.read_text()
        assert "Traceback" not in agent.log.read_text()

    def test_agent_with_a_used_port_checks_and_serves_once_it_is_free(self, world: World) -> None:
        with socket.create_server(("", 0)) as taken:
            agent = world.start(METRICS_PORT=str(taken.getsockname()[1]))
            world.wait_for_status("pass")
            agent.wait_for_log("the port is in use; /metrics, /healthz and /readyz wait for it")
        assert agent.get("/readyz")[0] == 200

    def test_without_a_disk_to_remember_on_goes_on(self, world: World) -> None:
        (world.folder / "file").write_text("no directory")
        world.start(STATE_DIR=str(world.folder / "file/state"))
        world.wait_for_status("pass")
        world.host.xid(3, 79, "GPU has fallen off the bus.")

        world.wait_for_taint()
        assert world.agent.metric("memory_file_errors_total") > 0
        # The Node itself remembers across a restart.
        world.agent.kill()
        before = len(world.stand_in.past())
        world.start(STATE_DIR=str(world.folder / "file/state"))
        eventually(lambda: world.agent.metric("node_severity") == 3)
        assert world.node().tainted
        assert {past.tainted for past in world.stand_in.past()[before:]} <= {True}


class TestTheInstanceType:
    def test_of_the_metadata_service_comes_before_the_label(self, world: World) -> None:
        with SimulatedImds("p5.4xlarge") as imds:
            world.hurry()
            world.start(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.endpoint)
            world.agent.wait_for_log("instance type")
            world.wait(lambda node: node.status)
            world.configure(CHECK_INTERVAL="11")  # an edit starts a check cycle at once

            assert world.wait(lambda node: node.record.get("instance_type") == "p5.4xlarge").status == "pass"

    def test_of_a_metadata_service_that_hangs_delays_nothing(self, world: World) -> None:
        with SimulatedImds("p5.4xlarge", delay_seconds=600) as imds:
            world.start(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.endpoint)

            assert world.wait_for_status("pass").record["instance_type"] == "p5.48xlarge"

    def test_in_hyperpods_spelling_is_the_same_type(self, world: World) -> None:
        world.cluster.edit({"metadata": {"labels": {"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}}})
        world.host.remove_efa(0)
        world.start()
        # Counts are judged against the profile: a missing GPU is observed again before it is reported.
        eventually(lambda: world.agent.metric("looks_total") >= 1)

        assert world.node().status == ""


class TestServing:
    def test_every_metric_of_the_list_is_there(self, watched: World) -> None:
        served = watched.agent.get("/metrics")[1]
        for family in Telemetry().registry.collect():
            assert f"# TYPE {family.name}" in served
            assert family.name.startswith(("gpu_healthcheck_", "process_"))

    def test_the_verdict_is_in_the_metrics(self, watched: World) -> None:
        metrics = watched.agent.metrics()
        assert (metrics["node_severity"], metrics["node_status{pass}"], metrics["node_status{fail}"]) == (0, 1, 0)
        eventually(lambda: watched.agent.metric("verdict_pending") == 0)  # 1 also while it checks that all is reported

        watched.host.xid(3, 79, "GPU has fallen off the bus.")
        watched.wait_for_taint()
        metrics = watched.agent.metrics()
        assert (metrics["node_severity"], metrics["node_status{pass}"], metrics["node_status{fail}"]) == (3, 0, 1)
        gpu = watched.host.gpus[3]
        assert (metrics["standing_findings{REBOOT}"], metrics[f"xids_total{{{gpu.uuid},79,3}}"]) == (1, 1)
        eventually(lambda: watched.agent.metric("tainted") == 1)
        metrics = watched.agent.metrics()
        assert (metrics["fault_to_taint_seconds_count"], metrics["fault_to_taint_seconds_bucket{+Inf}"]) == (1, 1)
        assert time.time() >= metrics[f"finding_first_seen_timestamp_seconds{{Xid79,gpu/{gpu.address}}}"] > 0

    def test_agent_is_healthy_at_once_and_ready_after_the_first_cycle(self, world: World) -> None:
        world.host.hang()
        agent = world.start()
        eventually(lambda: agent.children)
        assert agent.get("/readyz")[0] == 503
        assert agent.get("/healthz")[0] == 200

        world.host.unhang()
        os.kill(agent.children[0], signal.SIGKILL)  # the hanging check cycle ends without an answer
        eventually(lambda: agent.get("/readyz")[0] == 200)

    def test_anything_else_is_not_found(self, watched: World) -> None:
        assert watched.agent.get("/secrets")[0] == 404


class TestOnce:
    def test_it_looks_tells_everything_and_ends(self, world: World) -> None:
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.be_patient()
        agent = world.start("--once")

        assert agent.exit_code() == 0
        node = world.node()
        assert (node.status, node.tainted, node.condition["status"]) == ("fail", True, "False")
        assert {event["reason"] for event in world.cluster.events()} == {"Xid79", "GpuHealthFail"}
        assert world.cluster.lease() is not None

    def test_dry_run_prints_its_writes_and_writes_nothing(self, world: World) -> None:
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        before = world.node().object
        agent = world.start("--once", "--dry-run")

        assert agent.exit_code() == 0
        assert world.node().object == before
        assert (world.stand_in.writes(), world.cluster.events(), world.cluster.lease()) == ([], [], None)
        assert not (world.folder / "state").exists()
        planned = agent.logged("dry run")[-1]
        assert "Xid79" in planned["events"]
        assert [entry["status"] for entry in planned["conditions"]] == ["False"]
        assert [taint["key"] for taint in planned["patch"]["spec"]["taints"]] == [
            "gpu-healthcheck.aws-samples.io/unhealthy"
        ]

    def test_a_dry_run_goes_on_until_it_is_ended(self, world: World) -> None:
        agent = world.start("--dry-run")
        agent.wait_for_log("dry run")

        assert agent.terminate() == 0
        assert world.stand_in.writes() == []


class TestEnding:
    def test_sigterm_ends_the_agent_with_0_and_its_child(self, watched: World) -> None:
        children = watched.agent.children
        assert children
        before = watched.node().ours

        assert watched.agent.terminate() == 0
        eventually(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])
        assert watched.node().ours == before

    def test_sigint_does_the_same(self, watched: World) -> None:
        watched.agent.process.send_signal(signal.SIGINT)

        assert watched.agent.exit_code() == 0

    def test_it_ends_though_its_main_thread_never_comes_back_to_python(self) -> None:
        """A signal may come just before a wait in C, which then does not end for it."""
        stuck = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, timeout=GIVE_UP_SECONDS, check=False)

        assert (stuck.returncode, stuck.stderr) == (7, b"")

    def test_it_ends_while_its_child_hangs(self, world: World) -> None:
        world.host.hang()
        agent = world.start()
        children = eventually(lambda: agent.children)

        assert agent.terminate() == 0
        eventually(lambda: [pid for pid in children if Path(f"/proc/{pid}").exists()] == [])
        assert world.stand_in.writes("nodes") == []

    def test_it_ends_while_the_api_server_hangs(self, watched: World) -> None:
        watched.api.hang()
        watched.host.xid(3, 79, "GPU has fallen off the bus.")
        eventually(lambda: watched.agent.metric("verdict_pending") == 1)

        assert watched.agent.terminate() == 0

    def test_a_child_exits_after_its_agent_was_killed(self, watched: World) -> None:
        children = watched.agent.children
        watched.agent.kill()

        eventually(lambda: [pid for pid in children if Path(f"/proc/{pid}").exists()] == [])
