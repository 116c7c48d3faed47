"""`gpu-healthcheck verify` on a real control plane: agents that cannot start are reported at once, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.text.moments import exact
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from tests.cli.cluster import run, run_here
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/gpu-healthcheck/pods"
CONFIG = "/api/v1/namespaces/gpu-healthcheck/configmaps/gpu-healthcheck-config"
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def plane(controllers: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a control plane with one GPU node. No kubelet runs."""
    with ControlPlane(controllers=True) as own:
        own.create_node("gpu-1", labels={"nvidia.com/gpu.present": "true"})
        yield own


@pytest.fixture(scope="module")
def with_manifests(controllers: ControlPlane) -> Iterator[ControlPlane]:
    """Yield the same with our manifests, for several tests."""
    with ControlPlane(controllers=True) as own:
        own.create_node("gpu-1", labels={"nvidia.com/gpu.present": "true"})
        own.kubectl("apply", "-f", str(MANIFESTS))
        assert eventually(lambda: agents(own))
        yield own


def lines(plane: ControlPlane, *words: str, code: int = 1) -> str:
    """Return the output of `verify`, on one line."""
    printed = run_here(plane.kubeconfig, "verify", *words)
    assert printed.returncode == code, printed
    return " ".join(printed.stdout.replace("│", " ").split())


def agents(plane: ControlPlane) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.request("GET", PODS).body["items"]
    return found


def beat(plane: ControlPlane, node: str) -> None:
    """Renew the heartbeat of the node's agent."""
    body = {
        "metadata": {"name": node, "namespace": "gpu-healthcheck"},
        "spec": {"renewTime": exact(datetime.now(UTC)), "leaseDurationSeconds": 900},
    }
    answer = plane.request("POST", "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases", body)
    assert answer.status == 201, answer.message


def set_status(plane: ControlPlane, pod: dict[str, Any], state: dict[str, Any], phase: str) -> None:
    container = {"name": "agent", "image": "x", "imageID": "", "ready": False, "restartCount": 0, **state}
    body = {"status": {"phase": phase, "containerStatuses": [container]}}
    path = f"{PODS}/{pod['metadata']['name']}/status"
    assert plane.request("PATCH", path, body, content_type=STRATEGIC).status == 200


def test_all_selected_nodes_need_a_live_agent_unless_some_are_allowed_to_lack_one(plane: ControlPlane) -> None:
    names = ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    for name in names[1:]:
        plane.create_node(name, labels={"nvidia.com/gpu.present": "true"})
    plane.kubectl("apply", "-f", str(MANIFESTS))
    pods = {}
    assert eventually(lambda: len(agents(plane)) == len(names))
    for pod in agents(plane):
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        pods[terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]] = pod
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": "CONFIG_DIR: not a directory"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    set_status(plane, pods["gpu-3"], {"state": waiting, "lastState": ended}, "Running")
    set_status(plane, pods["gpu-4"], {"state": {"running": {}}}, "Running")
    for name in names[:2]:
        beat(plane, name)

    found = lines(plane, "--allow", "1")
    assert "agents not ok 2 of 4 nodes have a live agent; without one: gpu-3, gpu-4" in found
    assert "agent pods not ok CrashLoopBackOff on gpu-3: exit code 2 (Error): CONFIG_DIR: not a directory" in found
    assert "agent pods not ok NoHeartbeat on gpu-4: the agent runs and sends no heartbeat" in found

    found = lines(plane, "--allow", "2", code=0)
    assert "agents allowed 2 of 4 nodes have a live agent" in found
    assert "agent pods allowed CrashLoopBackOff on gpu-3" in found

    # `--timeout` waits until the last one is there.
    with ThreadPoolExecutor(1) as threads:
        waiting_for_all = threads.submit(run, plane.kubeconfig, "verify", "--timeout", "2m")
        beat(plane, "gpu-3")
        assert not waiting_for_all.done()
        beat(plane, "gpu-4")
        done = waiting_for_all.result()
    assert done.returncode == 0, done
    assert "4 of 4 nodes have a live agent" in done.stdout
    assert "agent pods" not in done.stdout


def test_missing_daemon_set_and_a_quota_that_rejects_its_pods_are_named(plane: ControlPlane) -> None:
    assert "there is no DaemonSet gpu-healthcheck-agent in gpu-healthcheck" in lines(plane)
    plane.kubectl("create", "namespace", "gpu-healthcheck")
    plane.kubectl("create", "quota", "team", "--hard=pods=0", "-n", "gpu-healthcheck")
    assert eventually(lambda: "status" in plane.request("GET", f"{PODS[:-4]}resourcequotas/team").body)
    plane.kubectl("apply", "-f", str(MANIFESTS))

    assert eventually(lambda: "exceeded quota: team" in lines(plane))
    assert "Raise or remove the ResourceQuota" in lines(plane)


def test_an_image_that_cannot_be_pulled_is_named_and_a_started_pod_is_not(with_manifests: ControlPlane) -> None:
    plane = with_manifests
    assert "agent pods not ok Pending on gpu-1: the pod has not started yet" in lines(plane)

    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "gpu-healthcheck:0.3.0"'}
    set_status(plane, agents(plane)[0], {"state": {"waiting": waiting}}, "Pending")

    found = lines(plane)
    assert 'ImagePullBackOff on gpu-1: Back-off pulling image "gpu-healthcheck:0.3.0"' in found
    assert "image.repository" in found


def test_invalid_and_unknown_settings_are_named(with_manifests: ControlPlane) -> None:
    plane = with_manifests
    assert "settings ok every setting has its default" in lines(plane)

    data = {"CHECK_INTERVAL": "5", "CHECK_INTERVALL": "60", "ENABLE_TAINT": "false"}
    assert plane.request("PATCH", CONFIG, {"data": data}).status == 200

    found = lines(plane)
    assert "settings not ok CHECK_INTERVAL = '5': " in found
    assert "unknown settings, which have no effect: CHECK_INTERVALL (did you mean CHECK_INTERVAL?); " in found
    assert (
        "for these keys, agents keep the last valid value and other programs use the default; all other keys" in found
    )
    status = run_here(plane.kubeconfig, "status").stdout
    assert "settings that are not used: CHECK_INTERVAL, CHECK_INTERVALL; `gpu-healthcheck verify`" in status

    assert plane.request("PATCH", CONFIG, {"data": {"CHECK_INTERVAL": "60", "CHECK_INTERVALL": None}}).status == 200
    assert "settings ok 2 keys set, all valid" in lines(plane)
    assert "settings that are not used" not in run_here(plane.kubeconfig, "status").stdout


def test_device_taints_that_the_cluster_does_not_serve_are_named(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(MANIFESTS))
    assert "device taints" not in lines(plane)

    assert plane.request("PATCH", CONFIG, {"data": {"DEVICE_TAINTS": "true"}}).status == 200
    if plane.has_device_taints:
        assert "device taints ok are served" in lines(plane)
        plane.serve_device_taints(served=False)

    assert (
        "device taints not ok the API server serves no DeviceTaintRules of resource.k8s.io/v1, as Kubernetes 1.37 and"
        " newer do by default; DEVICE_TAINTS has no effect: a faulty GPU taints its whole node"
    ) in lines(plane)
