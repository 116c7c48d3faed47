"""A proxy before the API server that answers with JSON of any shape: each request raises a ClusterError or succeeds."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import Connection, Requests, connect
from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, Refused, Unavailable
from gpu_healthcheck.healthcheck.cluster.installation import Right
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.deep.job import JobState
from gpu_healthcheck.healthcheck.node.device_rules import DeviceRule, RuleTaint
from gpu_healthcheck.healthcheck.node.pods import PodState
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.verdict.budget import Slot
from gpu_healthcheck.healthcheck.verdict.device_taints import MissingRule
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent
from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer
from tests.cli.cluster import run_here

NOW = datetime(2026, 11, 23, tzinfo=UTC)
NODE, JOB = NodeState("n"), JobState("j", "ns", "u", "n", NOW)
CALLS: dict[str, Callable[[Any], Any]] = {
    "leases.renew_heartbeat": lambda c: c.leases.renew_heartbeat(NODE, NOW, 900),
    "leases.count_heartbeats": lambda c: c.leases.count_heartbeats(),
    "leases.count_group": lambda c: c.leases.count_group("g", 1),
    "leases.count_slots": lambda c: c.leases.count_slots(),
    "events.create": lambda c: c.events.create(NODE, NodeEvent("e", "Warning", "Xid79", "x"), NOW),
    "jobs.create": lambda c: c.jobs.create({"metadata": {"namespace": "ns"}}),
    "pods.create": lambda c: c.pods.create({"metadata": {"namespace": "ns"}}),
    "leases.create_slot": lambda c: c.leases.create_slot("slot-0", NODE),
    "jobs.delete": lambda c: c.jobs.delete(JOB),
    "pods.delete": lambda c: c.pods.delete("ns", "p"),
    "leases.delete_slot": lambda c: c.leases.delete_slot(Slot("slot-0", "n")),
    "pods.evict": lambda c: c.pods.evict("ns", "p", "u"),
    "rights.is_allowed": lambda c: c.rights.is_allowed(Right("get", "nodes")),
    "pods.list_labelled": lambda c: c.pods.list_labelled("ns", "a=b"),
    "dra.list_gpu_claims": lambda c: c.dra.list_gpu_claims(),
    "pods.list_with_gpus": lambda c: c.pods.list_with_gpus(),
    "leases.heartbeats": lambda c: c.leases.heartbeats(NOW),
    "jobs.select": lambda c: c.jobs.select("ns", "a=b"),
    "nodes.select": lambda c: c.nodes.select(),
    "pods.list_of": lambda c: c.pods.list_of(JOB),
    "pods.list_on": lambda c: c.pods.list_on("n"),
    "policies.list_gate": lambda c: c.policies.list_gate(),
    "policies.list_in_force": lambda c: c.policies.list_in_force(),
    "workloads.is_known": lambda c: c.workloads.is_known("batch", "Job"),
    "workloads.read": lambda c: c.workloads.read("batch", "Job", "ns", "j"),
    "pods.list_refused": lambda c: c.pods.list_refused("ns", "a=b"),
    "settings.list_runtime_classes": lambda c: c.settings.list_runtime_classes(),
    "leases.slots": lambda c: c.leases.slots(),
    "pods.list_unplaced": lambda c: c.pods.list_unplaced("ns", "a=b"),
    "pods.list_unplaced_since": lambda c: c.pods.list_unplaced_since(),
    "events.list_of_nodes": lambda c: c.events.list_of_nodes("GateRefused"),
    "events.last_of_pods": lambda c: c.events.last_of_pods("ns"),
    "events.list_warnings": lambda c: c.events.list_warnings("ns", "u"),
    "jobs.list_workloads": lambda c: c.jobs.list_workloads("a=b"),
    "nodes.names_of_namespaces": lambda c: c.nodes.names_of_namespaces(),
    "nodes.names": lambda c: c.nodes.names("a=b"),
    "jobs.note_shown": lambda c: c.jobs.note_shown(JOB, NOW),
    "nodes.patch_conditions": lambda c: c.nodes.patch_conditions("n", []),
    "nodes.patch": lambda c: c.nodes.patch("n", {}),
    "pods.execute": lambda c: c.pods.execute("ns", "p", "c", ("true",), 5.0, 100),
    "pods.read_namespace_annotations": lambda c: c.pods.read_namespace_annotations("ns"),
    "pods.has_evict": lambda c: c.pods.has_evict(),
    "pods.read_agent_daemon_set": lambda c: c.pods.read_agent_daemon_set(),
    "pods.list_agents": lambda c: c.pods.list_agents(),
    "settings.read_config": lambda c: c.settings.read_config(),
    "dra.read_given_out": lambda c: c.dra.read_given_out("ns"),
    "jobs.read": lambda c: c.jobs.read("ns", "j"),
    "jobs.read_template": lambda c: c.jobs.read_template("j"),
    "nodes.read": lambda c: c.nodes.read("n"),
    "pods.read": lambda c: c.pods.read("ns", "p"),
    "pods.read_log_of": lambda c: c.pods.read_log_of(PodState("ns", "p", "u"), None),
    "leases.read_slot": lambda c: c.leases.read_slot("slot-0"),
    "nodes.remove_conditions": lambda c: c.nodes.remove_conditions("n", ["GpuHealthy"]),
    "nodes.update": lambda c: c.nodes.update("n", lambda _: {}),
    "jobs.watch": lambda c: c.jobs.watch("ns", "a=b", "1", 1),
    "nodes.watch": lambda c: c.nodes.watch("n", 1),
    "nodes.watch_selected": lambda c: c.nodes.watch_selected("a=b"),
}
DEVICE_CALLS: dict[str, Callable[[Any], Any]] = {
    "are_served": lambda c: c.are_served(),
    "ask_again": lambda c: c.ask_again(DeviceRule("r", "u", "1")),
    "change_taint": lambda c: c.change_taint(DeviceRule("r", "u", "1"), RuleTaint("REBOOT")),
    "create_rule": lambda c: c.create_rule(MissingRule("r", "gpu-0", RuleTaint("REBOOT")), NODE),
    "delete_rule": lambda c: c.delete_rule(DeviceRule("r", "u", "1")),
    "list_all_rules": lambda c: c.list_all_rules(),
    "list_devices": lambda c: c.list_devices("n"),
    "list_rules": lambda c: c.list_rules("n"),
}
BROKEN: list[Any] = [[1], "x", {}, {"conditions": [7]}, {"taints": [{"key": []}]}, 7]
NAMED = {"name": "n", "namespace": "n", "uid": "u"}
SHAPES: list[Any] = [
    *([], {}, 1, "x", None, [[]], {"items": {}}, {"items": [1]}, {"items": [None]}, {"items": [[]]}, {"items": [{}]}),
    *[{"metadata": one} for one in [*BROKEN, None, {"name": []}, {"name": "n", "labels": [], "annotations": 7}]],
    *[
        {"items": [{"metadata": NAMED, key: one}]}
        for key in ("spec", "status", "involvedObject", "handler", "series")
        for one in BROKEN
    ],
    *[{"metadata": NAMED, "spec": {"taints": one}} for one in BROKEN],
    *[{"metadata": NAMED, "status": {"conditions": one}} for one in BROKEN],
    *[{"spec": one, "status": one, "data": one} for one in BROKEN],
    *[{"type": "ADDED", "object": one} for one in BROKEN],
    *[{"metadata": {"continue": one}, "items": []} for one in (*BROKEN, "without end")],
]
CAUSES: list[Any] = [[1], ["x"], [None], 7, [{"reason": []}]]
REFUSALS: list[Any] = [{"kind": "Status", "message": "no", "details": {"causes": one}} for one in CAUSES]
ANSWERS = [*((200, shape) for shape in SHAPES), *((422, shape) for shape in REFUSALS), (429, 1), (301, {}), (404, [])]


class LyingProxy(LoopbackServer):
    """Answers every request with `status` and `body`."""

    status, body = 200, b"{}"

    def __init__(self) -> None:
        proxy = self

        class Answers(LoopbackAnswers):
            def __getattr__(self, name: str) -> Callable[[], None]:
                if name.startswith("do_"):
                    return self._lie
                raise AttributeError(name)

            def _lie(self) -> None:
                self.read_body()
                self.answer(proxy.status, proxy.body, {"Content-Type": "application/json"})

        super().__init__(Answers)

    def kubeconfig(self, path: Path) -> Path:
        name = "proxy"
        config = {
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": self.endpoint}}],
            "users": [{"name": name, "user": {"token": name}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
        path.write_text(json.dumps(config))
        return path


@pytest.fixture
def proxy() -> Iterator[LyingProxy]:
    with LyingProxy() as proxy:
        yield proxy


@pytest.fixture
def kubeconfig(proxy: LyingProxy, tmp_path: Path) -> Path:
    return proxy.kubeconfig(tmp_path / "kubeconfig")


def _devices(*access: Any) -> DeviceTaints:
    return DeviceTaints(Connection(*access))


@pytest.mark.parametrize(
    ("kind", "call"),
    [*((Cluster, report) for report in CALLS.values()), *((_devices, report) for report in DEVICE_CALLS.values())],
    ids=[*CALLS, *DEVICE_CALLS],
)
def test_any_shape_is_a_cluster_error_or_an_answer(
    proxy: LyingProxy, kubeconfig: Path, kind: Callable[..., Any], call: Callable[[Any], Any]
) -> None:
    cluster = kind(lambda: connect(Access(str(kubeconfig))), lambda _: None)
    for status, shape in ANSWERS:
        proxy.status, proxy.body = status, json.dumps(shape).encode()
        with suppress(ClusterError):
            answer = call(cluster)
            if inspect.isgenerator(answer):
                list(answer)


def test_every_request_that_we_make_is_tried(kubeconfig: Path) -> None:
    cluster = Cluster(lambda: connect(Access(str(kubeconfig))))

    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    parts = {name: type(part) for name, part in vars(cluster).items() if isinstance(part, Requests)}
    assert {f"{name}.{method}" for name, part in parts.items() for method in public(part)} == set(CALLS)
    assert public(DeviceTaints) == set(DEVICE_CALLS)


@pytest.mark.parametrize(("status", "kind"), [(403, Forbidden), (422, Refused), (429, Unavailable)])
def test_a_status_with_readable_causes_names_the_disruption_budgets(
    proxy: LyingProxy, kubeconfig: Path, status: int, kind: type[ClusterError]
) -> None:
    cause = {"reason": "DisruptionBudget", "message": "the budget x needs 1"}
    proxy.status = status
    proxy.body = json.dumps({"message": "no", "details": {"causes": [cause, {"reason": "Other"}]}}).encode()
    with pytest.raises(kind, match=r": no the budget x needs 1$"):
        Cluster(lambda: connect(Access(str(kubeconfig)))).nodes.read("n")


COMMANDS = {
    "status": ("status",),
    "status --allocation": ("status", "--allocation"),
    "verify": ("verify",),
    "uninstall": ("uninstall", "--yes"),
    "release": ("release", "n", "--reason", "x", "--no-wait"),
    "quarantine": ("quarantine", "n"),
}
LIES = {
    "causes that are no objects": (422, {"kind": "Status", "message": "no", "details": {"causes": ["x", 1]}}),
    "a list that is none": (200, {"items": {}}),
    "a Node that is none": (200, {"metadata": {"name": "n"}, "spec": {"taints": ["x"]}}),
    "no list at all": (200, {}),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_could_not_check_and_prints_no_traceback(
    proxy: LyingProxy, kubeconfig: Path, words: tuple[str, ...], lie: tuple[int, Any]
) -> None:
    proxy.status, proxy.body = lie[0], json.dumps(lie[1]).encode()
    done = run_here(kubeconfig, *words)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stdout + done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("lie", [LIES["causes that are no objects"], (200, {"spec": 7})], ids=["causes", "a template"])
def test_a_sweep_could_not_check(proxy: LyingProxy, kubeconfig: Path, lie: tuple[int, Any]) -> None:
    """Its exit code 1 is a fault found."""
    proxy.status, proxy.body = lie[0], json.dumps(lie[1]).encode()
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATIENCE_SECONDS": "0.1", "CONFIG_DIR": "/nowhere"}
    command = [sys.executable, "-m", "tests.sweeper.impatient"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stdout + done.stderr
