"""GKE nodes whose device plugin waits in its init container for a driver."""

from __future__ import annotations

import pytest

from tests.diagnosis.states import Object, ago, container, event, judged, node, pod, results, waiting

PLUGIN, INSTALLER = "nvidia-gpu-device-plugin-small-cos", "nvidia-driver-installer"
POOL = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-nodepool": "gpus"}
COS, UBUNTU = "Container-Optimized OS from Google", "Ubuntu 24.04.3 LTS"
VERSION = "cloud.google.com/gke-gpu-driver-version"
RUNS: Object = {"name": INSTALLER, "ready": False, "restartCount": 0, "state": {"running": {"startedAt": ago(290)}}}


def steps(system: str = COS, **labels: str) -> str:
    init = [{"name": INSTALLER, "image": "gke-nvidia-installer:fixed"}]
    plugin = pod(
        f"{PLUGIN}-x",
        *(0,),
        on="a",
        namespace="kube-system",
        labels={"k8s-app": "nvidia-gpu-device-plugin"},
        owner=("DaemonSet", PLUGIN),
        phase="Pending",
        age=300,
        containers=[container("nvidia-gpu-device-plugin")],
        spec={"initContainers": init},
        states=[waiting("PodInitializing", name="nvidia-gpu-device-plugin")],
        status={"initContainerStatuses": [RUNS]},
    )
    its = node("a", None, labels=POOL | labels, kubelet="v1.33.4-gke.100", system=system, handlers=("", "runc"))
    diagnosis = judged(its, plugin)
    assert results(diagnosis) == [("DevicePluginNotReady", "node/a")]
    return " ".join(diagnosis.problems[0].found.steps)


@pytest.mark.parametrize(("system", "manifest"), [(COS, "cos"), (UBUNTU, "ubuntu")])
def test_pool_without_automatic_installation_gets_a_driver(system: str, manifest: str) -> None:
    found = steps(system)

    assert f"-c {INSTALLER} --tail=20`" in found
    assert f"/{INSTALLER}/{manifest}/daemonset-preloaded.yaml`" in found
    assert "node-pools update gpus " in found
    assert "type=nvidia-l4,count=COUNT,gpu-driver-version=default" in found
    assert "describe" not in found


def test_missing_folder_of_the_driver_is_a_driver_that_is_not_installed() -> None:
    waits = pod(
        f"{PLUGIN}-x",
        *(0,),
        on="a",
        namespace="kube-system",
        labels={"k8s-app": "nvidia-gpu-device-plugin"},
        owner=("DaemonSet", PLUGIN),
        phase="Pending",
        states=[waiting("ContainerCreating")],
    )
    text = 'MountVolume.SetUp failed for volume "nvidia" : hostPath type check failed: '
    failed = event(waits, "FailedMount", f"{text}/home/kubernetes/bin/nvidia is not a directory", count=9)
    (problem,) = judged(node("a", None, labels=POOL, kubelet="v1.33.4-gke.100", system=COS), waits, failed).problems
    (hidden,) = judged(waits, failed, missing=["Node"]).problems

    assert (problem.found.cause.name, problem.found.subject) == ("DriverNotLoaded", "node/a")
    assert "daemonset-preloaded.yaml`" in problem.found.steps[0]
    assert hidden.found.steps[0].startswith("GKE has installed no driver on the node.")
    assert "modprobe" not in " ".join((*problem.found.steps, *hidden.found.steps))


def test_pool_with_automatic_installation_has_only_its_log() -> None:
    assert "gcloud" not in steps(**{VERSION: "default"})
    assert "gcloud" in steps(**{VERSION: "disabled"})
