"""Pods of a faulty node that are never evicted, beside one that is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.world import UNHEALTHY
from tests.evict.world import DAEMON_SETS, FAULTY_GPU, OTHER_GPU, PODS, EvictWorld
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

MIRROR = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x", "kubernetes.io/config.source": "file"}
TOLERATION = {"key": UNHEALTHY["key"], "operator": "Exists"}
KEPT: dict[str, dict[str, Any]] = {
    "mirror": {"metadata": {"annotations": MIRROR}},
    "system": {"namespace": "kube-system"},
    "ours": {"namespace": "gpu-healthcheck"},
    "tolerating": {"tolerations": [TOLERATION]},
    "tolerating-all": {"tolerations": [{"operator": "Exists"}]},
    "without-gpu": {"gpus": 0},
}
EVICTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "tolerating-another-effect": {"tolerations": [{**TOLERATION, "effect": "NoExecute"}]},
}


def test_pods_that_a_node_needs_and_pods_that_tolerate_the_taint_stay(world: EvictWorld) -> None:
    world.add_node("node", role="node")
    spec = {"containers": [{"name": "work", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    template = {"metadata": {"labels": {"app": "daemon"}}, "spec": {**spec, "nodeSelector": {"role": "node"}}}
    world.make(DAEMON_SETS, "daemon", spec={"selector": {"matchLabels": {"app": "daemon"}}, "template": template})
    for name, fields in (KEPT | EVICTED).items():
        world.start_pod(name, "node", **fields)
    world.start_pod("slurm", "node", metadata={"labels": {"app.kubernetes.io/name": "slurmd"}})
    eventually(lambda: any(name.startswith("daemon-") for name in world.on("node")))
    world.start()

    world.fail("node")

    world.wait_for_evicted(*EVICTED)
    world.wait_for_states("node", slurm="slurm")
    assert "Slurm must drain" in world.wait_for_event("slurm", "SlurmMustDrain")
    left = {name.partition("-" if name.startswith("daemon-") else "\n")[0] for name in world.on("node")}
    assert left == {*KEPT, "slurm", "daemon"}


def test_only_pods_with_the_faulty_gpu_are_evicted_where_the_kubelet_names_devices(world: EvictWorld) -> None:
    devices = {
        "healthy": [OTHER_GPU],
        "faulty": [FAULTY_GPU],
        "both": [OTHER_GPU, FAULTY_GPU],
        "shared": [f"{OTHER_GPU}::1"],
        "shared-faulty": [f"{FAULTY_GPU}::2"],
        "unreported": [],
    }
    world.add_node("node")
    for name, ids in devices.items():
        world.start_pod(name, "node", gpus=len(ids) or 1)
        resources = [{"resourceID": device, "health": "Healthy"} for device in ids]
        allocated = [{"name": "nvidia.com/gpu", "resources": resources}] if ids else []
        (container,) = world.pod(name)["status"]["containerStatuses"]
        status = {"containerStatuses": [{**container, "allocatedResourcesStatus": allocated}]}
        answer = world.plane.request("PATCH", f"{PODS.format('default')}/{name}/status", {"status": status})
        assert bool(answer.body["status"]["containerStatuses"][0].get("allocatedResourcesStatus")) == bool(ids)
    world.start()

    world.fail("node")

    world.wait_for_evicted("faulty", "both", "shared-faulty", "unreported")
    assert set(world.on("node")) == {"healthy", "shared"}
