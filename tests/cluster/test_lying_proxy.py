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

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.connection import Connection, connect
from healthcheck.cluster.device_taint_rules import DeviceTaints
from healthcheck.cluster.errors import ClusterError, Forbidden, Refused, Unavailable
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.rights import Right
from healthcheck.deep.job import JobState
from healthcheck.node.device_rules import DeviceRule
from healthcheck.node.pods import PodState
from healthcheck.node.state import NodeState
from healthcheck.verdict.budget import Slot
from healthcheck.verdict.device_taints import MissingRule
from healthcheck.verdict.node_events import NodeEvent
from sim.loopback import LoopbackAnswers, LoopbackServer
from tests.cli.cluster import run_here

NOW = datetime(2026, 11, 23, tzinfo=UTC)
NODE, JOB = NodeState("n"), JobState("j", "ns", "u", "n", NOW)
CALLS: dict[str, Callable[[Any], Any]] = {
    "beat": lambda c: c.beat(NODE, NOW, 900),
    "count_heartbeats": lambda c: c.count_heartbeats(),
    "count_slots": lambda c: c.count_slots(),
    "create_event": lambda c: c.create_event(NODE, NodeEvent("e", "Warning", "Xid79", "x"), NOW),
    "create_job": lambda c: c.create_job({"metadata": {"namespace": "ns"}}),
    "create_pod": lambda c: c.create_pod({"metadata": {"namespace": "ns"}}),
    "create_slot": lambda c: c.create_slot("slot-0", NODE),
    "delete_job": lambda c: c.delete_job(JOB),
    "delete_pod": lambda c: c.delete_pod("ns", "p"),
    "delete_slot": lambda c: c.delete_slot(Slot("slot-0", "n")),
    "evict": lambda c: c.evict("ns", "p", "u"),
    "is_allowed": lambda c: c.is_allowed(Right("get", "nodes")),
    "list_budgets": lambda c: c.list_budgets("ns"),
    "list_ended_pods": lambda c: c.list_ended_pods("ns", "a=b"),
    "list_gpu_claims": lambda c: c.list_gpu_claims(),
    "list_gpu_pods": lambda c: c.list_gpu_pods(),
    "list_heartbeats": lambda c: c.list_heartbeats(NOW),
    "list_jobs": lambda c: c.list_jobs("ns", "a=b"),
    "list_nodes": lambda c: c.list_nodes(),
    "list_pods_of": lambda c: c.list_pods_of(JOB),
    "list_pods_on": lambda c: c.list_pods_on("n"),
    "list_policies_in_force": lambda c: c.list_policies_in_force(),
    "list_refused": lambda c: c.list_refused("ns", "a=b"),
    "list_runtime_classes": lambda c: c.list_runtime_classes(),
    "list_slots": lambda c: c.list_slots(),
    "list_unplaced": lambda c: c.list_unplaced("ns", "a=b"),
    "list_unplaced_since": lambda c: c.list_unplaced_since(),
    "list_warnings": lambda c: c.list_warnings("ns", "u"),
    "list_workloads": lambda c: c.list_workloads("a=b"),
    "names_of_namespaces": lambda c: c.names_of_namespaces(),
    "names_of_nodes": lambda c: c.names_of_nodes("a=b"),
    "note_job_shown": lambda c: c.note_job_shown(JOB, NOW),
    "patch_conditions": lambda c: c.patch_conditions("n", []),
    "patch_node": lambda c: c.patch_node("n", {}),
    "read_agent_template": lambda c: c.read_agent_template(),
    "read_config": lambda c: c.read_config(),
    "read_given_out": lambda c: c.read_given_out("ns"),
    "read_job": lambda c: c.read_job("ns", "j"),
    "read_job_template": lambda c: c.read_job_template("j"),
    "read_node": lambda c: c.read_node("n"),
    "read_pod": lambda c: c.read_pod("ns", "p"),
    "read_pod_log": lambda c: c.read_pod_log(PodState("ns", "p", "u"), None),
    "read_slot": lambda c: c.read_slot("slot-0"),
    "remove_conditions": lambda c: c.remove_conditions("n", ["GpuHealthy"]),
    "update_node": lambda c: c.update_node("n", lambda _: {}),
    "watch_jobs": lambda c: c.watch_jobs("ns", "a=b", "1", 1),
    "watch_node": lambda c: c.watch_node("n", 1),
}
DEVICE_CALLS: dict[str, Callable[[Any], Any]] = {
    "ask_again": lambda c: c.ask_again(DeviceRule("r", "u", "1"), NOW),
    "change_tier": lambda c: c.change_tier(DeviceRule("r", "u", "1"), "REBOOT"),
    "create_rule": lambda c: c.create_rule(MissingRule("r", "gpu-0", "REBOOT"), NODE),
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


@pytest.mark.parametrize(
    ("kind", "call"),
    [*((Cluster, report) for report in CALLS.values()), *((DeviceTaints, report) for report in DEVICE_CALLS.values())],
    ids=[*CALLS, *DEVICE_CALLS],
)
def test_any_shape_is_a_cluster_error_or_an_answer(
    proxy: LyingProxy, kubeconfig: Path, kind: type[Connection], call: Callable[[Any], Any]
) -> None:
    cluster = kind(lambda: connect(Access(str(kubeconfig))), lambda _: None)
    for status, shape in ANSWERS:
        proxy.status, proxy.body = status, json.dumps(shape).encode()
        with suppress(ClusterError):
            answer = call(cluster)
            if inspect.isgenerator(answer):
                list(answer)


def test_every_request_that_we_make_is_tried() -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    assert public(Cluster) - {"alike"} == set(CALLS)
    assert public(DeviceTaints) - {"alike"} == set(DEVICE_CALLS)


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
