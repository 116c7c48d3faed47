"""Faults of a node with our image and manifests, on a real kubelet, containerd and runc, in this order."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpu_healthcheck.sim.real_node.agent_pod import DAEMONSET, GIVE_UP_SECONDS
from tests.agent.world import P

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

LOST, ERROR = 3, "GPU has fallen off the bus."
OUTAGE_SECONDS = 60
FAILED = ("fail", "REBOOT", True)


@pytest.fixture(autouse=True)
def go_on_only_while_it_holds(request: pytest.FixtureRequest, stage: Stage) -> Iterator[None]:
    """Each test begins where the one before it ended."""
    if stage.broke_off:
        pytest.skip("an earlier step failed")
    failed = request.session.testsfailed
    yield
    stage.broke_off = request.session.testsfailed > failed


def marks(stage: Stage) -> tuple[str, str, bool]:
    node = stage.view()
    return (node.status, node.severity, node.tainted)


def test_a_rollout_becomes_ready_and_the_node_passes(stage: Stage) -> None:
    printed = stage.node.kubectl("apply", "-f", stage.node.manifests)
    assert all(line.endswith(" created") for line in printed.splitlines()), printed

    stage.pod.ready()
    stage.wait_for_rollout()
    node = stage.wait_for_status("pass")

    print(f"\ncontainer start to the node's `pass`: {stage.pod.seconds_to_first_write():.2f} s")
    assert (node.severity, node.taints) == ("PASS", [])
    assert node.record["boot_id"] == stage.host.boot_id == node.object["status"]["nodeInfo"]["bootID"]
    assert node.record["machine"] == node.object["status"]["nodeInfo"]["systemUUID"]
    stage.wait_for_event("GpuHealthPass")


def test_a_lost_gpu_and_its_xid_put_the_node_out_of_service(stage: Stage) -> None:
    stage.host.lose_gpu(LOST)
    stage.host.xid(LOST, 79, ERROR)
    stage.configure(CHECK_INTERVAL="10")  # a check cycle finds faults without a log line

    node = stage.wait(lambda node: {"Xid79", "GpuLost"} <= set(node.findings))

    stage.wait_for_taint()
    assert marks(stage) == FAILED
    assert node.findings["Xid79"]["subject"] == f"gpu/{stage.host.gpus[LOST].address}"
    stage.wait_for_event("GpuHealthFail")
    assert stage.view().condition["reason"] in {"Xid79", "GpuLost"}


def test_command_in_the_pod_gives_the_same_output(stage: Stage) -> None:
    with stage.agent_stands_still():  # of the simulated log there is one reader only
        stage.host.kernel_log.replay()
        done = stage.in_pod("gpu-healthcheck", "check", "--json", check=False)
        stage.host.kernel_log.replay()

    record, ours = json.loads(done.stdout), stage.view()
    assert done.returncode == 1, done.stderr
    assert (record["status"], record["severity"]) == (ours.status, ours.severity)
    assert {entry["reason"] for entry in record["findings"]} == set(ours.findings)


def test_a_rollout_keeps_the_verdict_and_loses_no_line(stage: Stage, tmp_path: Path) -> None:
    before = stage.pod.ready()["metadata"]["uid"]

    with stage.watching(tmp_path / "versions") as watch:
        stage.host.xid(0, 119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!")
        stage.kubectl("rollout", "restart", DAEMONSET)
        stage.host.xid(1, 95, "Uncontained ECC error.")
        while any(pod["metadata"]["uid"] == before for pod in stage.pod.all()):
            time.sleep(0.1)
        stage.host.xid(2, 62, "0000(0000) 00000000 00000000")
        stage.pod.ready(other_than=before)
        stage.host.kernel_log.replay()  # as opening the real device does

        stage.wait(lambda node: {"Xid119", "Xid95", "Xid62", "Xid79", "GpuLost"} <= set(node.findings))

    assert {(node.status, node.severity, node.tainted) for node in watch.seen()} == {FAILED}


def test_a_forced_deletion_keeps_the_verdict_and_loses_no_line(stage: Stage, tmp_path: Path) -> None:
    pod = stage.pod.ready()["metadata"]

    with stage.watching(tmp_path / "versions") as watch:
        stage.kubectl("delete", "pod", pod["name"], "--force", "--grace-period=0")
        stage.host.xid(4, 140, "Unrecovered ECC error")
        stage.pod.ready(other_than=pod["uid"])
        stage.host.kernel_log.replay()

        stage.wait(lambda node: "Xid140" in node.findings)

    assert {(node.status, node.severity, node.tainted) for node in watch.seen()} == {FAILED}
    assert {"Xid119", "Xid95", "Xid62", "Xid79", "GpuLost"} <= set(stage.view().findings)


def test_an_edited_configmap_is_taken_over_without_a_restart(stage: Stage) -> None:
    before = stage.pod.ready()

    # Not by a higher TAINT_SEVERITY: an unobserved GPU lifts no taint.
    stage.configure(ENABLE_TAINT="false")
    stage.wait(lambda node: not node.tainted)
    stage.configure(ENABLE_TAINT="true")
    stage.wait(lambda node: node.tainted)

    assert _same_process(stage.pod.ready(), before)


@pytest.mark.parametrize("program", ["containerd", "kubelet"])
def test_the_agent_lives_through_a_restart_of(stage: Stage, program: str) -> None:
    before = stage.pod.ready()
    gpu, code = {"containerd": (5, 109), "kubelet": (6, 74)}[program]

    stage.node.stop(program)
    time.sleep(2)
    stage.host.xid(gpu, code, "told while it was away")
    stage.wait(lambda node: f"Xid{code}" in node.findings)
    stage.node.start(program)
    stage.node.wait_until(stage.node.is_ready, "the Node is Ready")

    assert _same_process(stage.pod.ready(), before)
    assert marks(stage) == FAILED


def test_events_during_an_api_server_outage_are_reported_afterwards(stage: Stage) -> None:
    before = stage.pod.ready()

    stage.node.stop("kube-apiserver")
    stage.host.xid(7, 120, "GSP task panic")
    time.sleep(OUTAGE_SECONDS)
    stage.node.start("kube-apiserver")
    stage.node.wait_until(stage.node.is_ready, "the Node is Ready")

    stage.wait(lambda node: "Xid120" in node.findings)
    print(f"\nthe pod's memory, minutes after its start: {stage.memory()}")
    assert _same_process(stage.pod.ready(), before)
    assert marks(stage) == FAILED


def test_fixed_and_released_node_passes_without_a_restart(stage: Stage) -> None:
    before = stage.pod.ready()

    stage.reset_gpu(LOST)
    stage.wait(lambda node: "GpuLost" not in node.findings)
    assert marks(stage) == FAILED  # the Xids stay active until a release
    process = stage.node.run(sys.executable, "-m", "cli", "release", stage.node.name, "--reason", "reseated")
    node = stage.wait_for_status("pass")

    assert f"{stage.node.name}: released by " in process.stdout
    assert (node.severity, node.tainted, node.findings) == ("PASS", False, {})
    assert _same_process(stage.pod.ready(), before)


def test_reboot_fixes_a_fault_after_a_release(stage: Stage) -> None:
    stage.host.xid(LOST, 79, ERROR)
    stage.wait_for_taint()
    boot = stage.host.boot_id

    stage.boot_again()
    node = stage.wait_for_status("pass")

    assert stage.host.boot_id != boot
    assert node.record["boot_id"] == stage.host.boot_id
    assert (node.severity, node.tainted, node.findings) == ("PASS", False, {})
    stage.wait(lambda node: node.object["status"]["nodeInfo"]["bootID"] == stage.host.boot_id)


def test_deleted_the_node_keeps_its_marks_and_the_cluster_nothing_else(stage: Stage) -> None:
    stage.pod.ready()
    stage.host.xid(LOST, 79, ERROR)
    stage.wait_for_taint()

    stage.node.kubectl("delete", "-f", stage.node.manifests, f"--timeout={GIVE_UP_SECONDS}s")

    node = stage.view()
    assert (node.status, node.severity, node.tainted) == FAILED
    assert node.condition["status"] == "False"
    assert f"{P}/results" in node.object["metadata"]["annotations"]
    kinds = "namespaces,leases,configmaps,pods,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings"
    policies = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    left = stage.node.kubectl("get", f"{kinds},{policies}", "--all-namespaces", "--output=name")
    assert [name for name in left.splitlines() if "gpu-healthcheck" in name] == []
    running = stage.node.run("ctr", "--namespace=k8s.io", "tasks", "list", "--quiet").stdout
    assert running.split() == []


def _same_process(now: dict[str, object], before: dict[str, object]) -> bool:
    return _container(now) == _container(before)


def _container(pod: dict[str, object]) -> object:
    status = pod["status"]
    assert isinstance(status, dict)
    return [(entry["containerID"], entry["restartCount"]) for entry in status["containerStatuses"]]
