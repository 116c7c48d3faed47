"""`gpu-healthcheck verify` on a real control plane: agents that cannot start are reported at once, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sim.control_plane import MANIFESTS, ControlPlane
from tests.cli.cluster import run_here
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


def lines(plane: ControlPlane) -> str:
    """Return the output of `verify`, on one line."""
    printed = run_here(plane.kubeconfig, "verify")
    assert printed.returncode == 1, printed
    return " ".join(printed.stdout.replace("│", " ").split())


def agents(plane: ControlPlane) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.request("GET", PODS).body["items"]
    return found


def test_the_daemon_set_that_is_missing_is_named(plane: ControlPlane) -> None:
    assert "there is no DaemonSet gpu-healthcheck-agent in gpu-healthcheck" in lines(plane)


def test_a_quota_that_refuses_the_pods_is_named_with_its_fix(plane: ControlPlane) -> None:
    plane.kubectl("create", "namespace", "gpu-healthcheck")
    plane.kubectl("create", "quota", "team", "--hard=pods=0", "-n", "gpu-healthcheck")
    assert eventually(lambda: "status" in plane.request("GET", f"{PODS[:-4]}resourcequotas/team").body)
    plane.kubectl("apply", "-f", str(MANIFESTS))

    assert eventually(lambda: "exceeded quota: team" in lines(plane))
    assert "Raise or remove the ResourceQuota" in lines(plane)


def test_an_image_that_cannot_be_pulled_is_named_and_a_started_pod_is_not(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(MANIFESTS))
    assert eventually(lambda: agents(plane))
    name = agents(plane)[0]["metadata"]["name"]
    assert "agent pods" not in lines(plane)

    state = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "gpu-healthcheck:0.3.0"'}}
    container = {"name": "agent", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    body = {"status": {"phase": "Pending", "containerStatuses": [container]}}
    assert plane.request("PATCH", f"{PODS}/{name}/status", body, content_type=STRATEGIC).status == 200

    found = lines(plane)
    assert 'ImagePullBackOff on gpu-1: Back-off pulling image "gpu-healthcheck:0.3.0"' in found
    assert "image.repository" in found


def test_invalid_and_unknown_settings_are_named(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(MANIFESTS))
    assert "settings ok every setting has its default" in lines(plane)

    data = {"CHECK_INTERVAL": "5", "CHECK_INTERVALL": "60", "ENABLE_TAINT": "false"}
    assert plane.request("PATCH", CONFIG, {"data": data}).status == 200

    found = lines(plane)
    assert "settings lacking CHECK_INTERVAL = '5': " in found
    assert "unknown settings, which have no effect: CHECK_INTERVALL (did you mean CHECK_INTERVAL?); " in found
    assert "agents keep the last valid values of these keys, other programs use their defaults; all other keys" in found
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
        "device taints lacking the API server serves no DeviceTaintRules of resource.k8s.io/v1, as Kubernetes 1.37 and"
        " newer do by default; with DEVICE_TAINTS, each faulty GPU taints its node"
    ) in lines(plane)
