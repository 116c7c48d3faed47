"""`gpu-healthcheck uninstall` on the stand-in of the API: output, effects, and cases without effect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.cli.uninstall import take_off
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.nodes import Nodes
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.operations.uninstall import DELETE_FILES, DELETE_REST, SHOW_RULES, STOP, STOP_GATE
from gpu_healthcheck.sim.api_objects import CRON_JOBS, DAEMON_SETS, JOBS, PODS, Resource
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.cli.cluster import SPOT, Json, P, client, cordon, run_here

OURS = {"app.kubernetes.io/name": "gpu-healthcheck"}
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
REMOVED = "labels last-check, severity, status; annotation results"
CONDITION = {"type": "GpuHealthy", "status": "False", "reason": "Xid79", "message": "x"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiStandIn]:
    """`failed` and `well` are marked by us, `plain` is not."""
    with ApiStandIn("failed", "plain", "well") as api:
        ready = api.node("failed")["status"]["conditions"]
        for name, severity, taints in (("failed", "REBOOT", [SPOT, UNHEALTHY]), ("well", "PASS", [SPOT])):
            labels = {f"{P}/status": "x", f"{P}/severity": severity, f"{P}/last-check": "x", "team": "vision"}
            marks: Json = {"labels": labels, "annotations": {f"{P}/results": "{}", "note": "x"}}
            conditions = {"conditions": [*ready, CONDITION]}
            api.edit_node(name, {"metadata": marks, "spec": {"taints": taints}, "status": conditions})
        api.kubeconfig(tmp_path / "kubeconfig")
        yield api


@pytest.fixture
def kubeconfig(api: ApiStandIn, tmp_path: Path) -> Path:
    return tmp_path / "kubeconfig"


def ours_on(node: Json) -> list[str]:
    """Return the names of all labels, annotations, taints and conditions of ours on a Node."""
    metadata, spec = node["metadata"], node["spec"]
    keys = [*metadata.get("labels", {}), *metadata["annotations"], *(entry["key"] for entry in spec.get("taints", []))]
    conditions = [entry["type"] for entry in node["status"]["conditions"] if entry["type"] == "GpuHealthy"]
    return [key for key in keys if key.startswith(P)] + conditions


def start(api: ApiStandIn, resource: Resource, name: str, **about: Any) -> None:
    api.store.create(resource, "gpu-healthcheck", {"metadata": {"name": name, "labels": OURS}, **about})


def test_uninstall_dry_run_writes_nothing(api: ApiStandIn, kubeconfig: Path) -> None:
    done = run_here(kubeconfig, "uninstall", "--dry-run")

    assert (done.returncode, done.stderr, api.writes) == (0, "", [])
    assert done.stdout.splitlines() == [
        f"failed: {REMOVED}; taint unhealthy=true:NoSchedule; condition GpuHealthy",
        "  accepts work again, although its verdict is REBOOT",
        f"well: {REMOVED}; condition GpuHealthy",
        "2 nodes carry labels, taints or other data of gpu-healthcheck",
    ]


def test_uninstall_removes_only_our_data(api: ApiStandIn, kubeconfig: Path) -> None:
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    for name in ("failed", "well"):
        node = api.node(name)
        assert (ours_on(node), node["spec"]["taints"]) == ([], [SPOT])
        assert (node["metadata"]["labels"]["team"], node["metadata"]["annotations"]) == ("vision", {"note": "x"})
        assert [entry["type"] for entry in node["status"]["conditions"]] == ["Ready"]
    assert [(write.method, write.path.partition("?")[0]) for write in api.writes] == [
        ("PATCH", f"/api/v1/nodes/{part}") for part in ("failed", "failed/status", "well", "well/status")
    ]
    assert done.stdout.splitlines()[-4:] == [
        "No node has anything of gpu-healthcheck any more. This deletes the rest:",
        f"  {DELETE_REST}",
        "The nodes' disks keep the agents' files and NVIDIA's reports. Delete them on each node:",
        f"  {DELETE_FILES}",
    ]


def test_uninstall_removes_evictions_that_were_announced(api: ApiStandIn, kubeconfig: Path) -> None:
    api.edit_node("plain", {"metadata": {"annotations": {f"{P}/evict": "{}", "note": "x"}}})
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, ours_on(api.node("plain"))) == (0, [])
    assert "plain: annotation evict\n" in done.stdout


@pytest.mark.parametrize(("taint", "code", "left"), [("set", 0, []), ("devices", 2, ["failed", "well"])])
def test_uninstall_needs_to_list_device_taint_rules_that_a_record_has(
    api: ApiStandIn, kubeconfig: Path, taint: str, code: int, left: list[str]
) -> None:
    api.edit_node("failed", {"metadata": {"annotations": {f"{P}/results": json.dumps({"schema": 1, "taint": taint})}}})
    api.fail_with(403, path_part="/devicetaintrules")
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, [name for name in ("failed", "well") if ours_on(api.node(name))]) == (code, left)
    if code:
        assert "you need permission to list devicetaintrules" in done.stderr
    else:
        assert done.stdout.startswith("DeviceTaintRules can't be listed, and no node's record has one of ours: ")
        assert f"  {SHOW_RULES}\n" in done.stdout


def test_uninstall_again_writes_nothing(api: ApiStandIn, kubeconfig: Path) -> None:
    run_here(kubeconfig, "uninstall", "--yes")
    before = len(api.writes)
    done = run_here(kubeconfig, "uninstall")

    assert (done.returncode, len(api.writes)) == (0, before)
    assert done.stdout.startswith("no node carries anything of gpu-healthcheck\n")


@pytest.mark.parametrize(("answers", "code", "left"), [("y\n", 0, False), ("n\n", 1, True), ("", 130, True)])
def test_uninstall_asks_for_confirmation(
    api: ApiStandIn, kubeconfig: Path, answers: str, code: int, left: bool
) -> None:
    done = run_here(kubeconfig, "uninstall", answers=answers)

    assert (done.returncode, bool(ours_on(api.node("failed")))) == (code, left)
    assert "Remove all this? [y/N]: " in done.stdout
    assert ("no answer on standard input" in done.stderr) is (not answers)


@pytest.mark.parametrize(
    ("resource", "about"),
    [
        (DAEMON_SETS, {}),
        (CRON_JOBS, {"spec": {"suspend": False}}),
        (JOBS, {"status": {}}),
        (PODS, {"status": {"phase": "Running"}}),
        (PODS, {"status": {"phase": "Pending"}}),
    ],
    ids=["a DaemonSet", "a CronJob", "a Job", "a pod", "a pod that waits"],
)
def test_uninstall_refuses_while_our_programs_run(
    api: ApiStandIn, kubeconfig: Path, resource: Resource, about: Json
) -> None:
    start(api, resource, "ours", **about)
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, api.writes) == (1, [])
    assert f"would write again: {resource.name} gpu-healthcheck/ours\n" in done.stderr
    assert f"  {STOP}\n" in done.stderr


def test_uninstall_ignores_ended_suspended_and_foreign_workloads(api: ApiStandIn, kubeconfig: Path) -> None:
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    created = {"creationTimestamp": "2026-11-21T01:02:03Z"}
    start(api, CRON_JOBS, "template", spec={"suspend": True})
    start(api, JOBS, "sweep", status=complete, **created)
    start(api, PODS, "sweep", status={"phase": "Succeeded"})
    api.store.create(DAEMON_SETS, "default", {"metadata": {"name": "theirs", "labels": {"app": "x"}}})

    assert run_here(kubeconfig, "uninstall", "--yes").returncode == 0


def test_uninstall_restores_operands_of_a_killed_reset(api: ApiStandIn, kubeconfig: Path) -> None:
    plugin, dcgm = (f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "dcgm"))
    command = {"holder": "gpu-reset-failed", "operands": {plugin: "true"}, "renewed": "2026-11-21T01:02:03Z"}
    marks: Json = {
        "labels": {plugin: "false", dcgm: "false"},
        "annotations": {f"{P}/reset-command": json.dumps(command)},
    }
    api.edit_node("failed", {"metadata": marks})
    done = run_here(kubeconfig, "uninstall", "--yes")

    labels = api.node("failed")["metadata"]["labels"]
    assert (done.returncode, labels[plugin], labels[dcgm]) == (0, "true", "false")
    assert f"  switches on again what a reset has switched off: {plugin}\n" in done.stdout


def test_uninstall_notes_a_gate_that_can_not_be_listed(api: ApiStandIn, kubeconfig: Path) -> None:
    api.fail_with(403, path_part="/mutatingadmissionpolicies")
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, ours_on(api.node("failed"))) == (0, [])
    assert f"a user with permission to delete them must run:\n  {STOP_GATE}\n" in done.stdout


def test_uninstall_dry_run_names_running_programs(api: ApiStandIn, kubeconfig: Path) -> None:
    for number in range(7):
        start(api, PODS, f"agent-{number}", status={"phase": "Running"})
    done = run_here(kubeconfig, "uninstall", "--dry-run")

    assert (done.returncode, "2 nodes carry labels, taints or other data of gpu-healthcheck" in done.stdout) == (
        0,
        True,
    )
    assert "pods gpu-healthcheck/agent-4 and 2 more\n" in done.stderr


def test_uninstall_lifts_only_our_cordon(api: ApiStandIn, kubeconfig: Path) -> None:
    cordon(api, "failed", by="gpu-quarantine-failed")
    cordon(api, "well", by="gpu-quarantine-well", manager="kubectl")
    cordon(api, "plain", manager="kubectl")
    done = run_here(kubeconfig, "uninstall", "--yes")

    cordoned = [name for name in ("failed", "plain", "well") if api.node(name)["spec"].get("unschedulable")]
    assert (done.returncode, cordoned) == (0, ["plain", "well"])
    assert done.stdout.count("is uncordoned: ") == 1
    assert "  is uncordoned: gpu-quarantine-failed had cordoned it\n" in done.stdout


def test_uninstall_keeps_a_persons_label(api: ApiStandIn, kubeconfig: Path) -> None:
    startup = {"key": f"{P}/startup", "effect": "NoSchedule"}
    labels = {f"{P}/enabled": "true"}
    api.edit_node("well", {"metadata": {"labels": labels}, "spec": {"taints": [SPOT, startup]}})
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, ours_on(api.node("well"))) == (0, [f"{P}/enabled"])
    assert f"Remove {P}/startup from the configuration that creates nodes" in done.stdout
    assert f"  kubectl label nodes -l {P}/enabled {P}/enabled-\n" in done.stdout


def test_uninstall_computes_its_patch_again_after_a_conflict(api: ApiStandIn, kubeconfig: Path) -> None:
    new = {"key": "example.com/new", "effect": "NoSchedule"}

    class Raced(Nodes):
        """The Node is tainted by another client after it was first read."""

        def read(self, name: str) -> NodeState:
            node = super().read(name)
            if new not in api.node(name)["spec"]["taints"]:
                api.edit_node(name, {"spec": {"taints": [SPOT, UNHEALTHY, new]}})
            return node

    cluster = Cluster(partial(client, kubeconfig))
    cluster.nodes = Raced(cluster.connection)
    assert take_off(cluster, "failed", Screen(quiet=True))

    assert (ours_on(api.node("failed")), api.node("failed")["spec"]["taints"]) == ([], [SPOT, new])
    assert [write.status for write in api.writes] == [409, 200, 200]


def test_uninstall_skips_a_deleted_node(api: ApiStandIn, kubeconfig: Path) -> None:
    assert take_off(Cluster(partial(client, kubeconfig)), "gone", Screen(quiet=True))


def test_uninstall_ends_at_a_missing_permission(api: ApiStandIn, kubeconfig: Path) -> None:
    api.fail_with(403, path_part="/daemonsets")
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, api.writes) == (2, [])
    assert "you need permission to list daemonsets" in done.stderr


def test_uninstall_continues_after_a_node_that_fails(api: ApiStandIn, kubeconfig: Path) -> None:
    api.fail_with(503, path_part="/nodes/failed")
    done = run_here(kubeconfig, "uninstall", "--yes")

    assert (done.returncode, ours_on(api.node("well"))) == (2, [])
    assert "gpu-healthcheck uninstall: still there on failed\n" in done.stderr
    assert DELETE_REST not in done.stdout


def test_uninstall_without_a_cluster_exits_with_2(api: ApiStandIn, kubeconfig: Path) -> None:
    api.refuse()
    done = run_here(kubeconfig, "uninstall", "--yes")
    api.accept()

    assert (done.returncode, done.stdout) == (2, "")
