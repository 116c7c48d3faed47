"""Sweeps of nodes with GPUs allocated by DRA alone, with the real scheduler that allocates the devices."""

from __future__ import annotations

import pytest

from gpu_healthcheck.sim.control_plane import MANIFESTS
from gpu_healthcheck.sim.kubelet import Kubelets
from tests.device_taints import WORK, install_driver
from tests.sweeper.world import Fleet
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

OVERLAY = MANIFESTS.parent / "overlays" / "dra"


@pytest.fixture
def claims(fleet: Fleet) -> Fleet:
    """A fleet on a cluster with NVIDIA's classes and our overlay."""
    plane = fleet.plane
    if not plane.has_dra:
        pytest.skip("NOT TESTED with DRA: this Kubernetes does not serve resource.k8s.io/v1")
    install_driver(plane)
    plane.kubectl("apply", "-k", str(OVERLAY))
    return fleet


def test_a_node_with_claimed_gpus_is_swept(claims: Fleet, kubelets: Kubelets) -> None:
    name = claims.add("dra", gpus=0)
    claims.give_out(name, 4)

    code, _, message = claims.sweep()

    assert (code, claims.tested(), claims.residue()) == (0, {name: "pass"}, {}), message
    (job,) = claims.jobs()
    pod = job["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "gpu-healthcheck-sweep"}]


def test_a_sweep_steps_aside_for_work_that_waits_for_a_device(claims: Fleet, kubelets: Kubelets) -> None:
    """Of claimed devices the scheduler takes none away for work of a higher priority."""
    name = claims.add("dra-wanted", gpus=0)
    claims.give_out(name, 2)
    claims.hold(name)
    sweeper = claims.sweeper()
    pools = "jsonpath={..results[*].pool}"
    eventually(lambda: name in claims.plane.kubectl("get", "resourceclaims", "-n=gpu-healthcheck", f"-o={pools}"))

    made = claims.plane.request("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "work"}, "spec": WORK})

    assert made.status == 201, made.message
    eventually(lambda: claims.work() == {"Running"})
    _, message = sweeper.communicate()
    assert (sweeper.returncode, claims.tested(), claims.residue()) == (0, {}, {}), message
    assert "waiting work may need its devices" in message
    _, printed, _ = claims.sweep("--dry-run")
    assert "in use: default/work holds 1 gpu.nvidia.com" in printed
