"""A node's advertised resources, and a pod's requests, by the scheduler's arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.gpu_resources import gpu_pod, offered, unplaced_since


def container(asked: dict[str, str] | None = None, *, sidecar: bool = False, limits: bool = False) -> dict[str, Any]:
    always = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "x", "resources": {"limits" if limits else "requests": asked or {}}, **always}


def held(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> dict[str, int] | None:
    whole = {"nodeName": "n", "containers": list(containers), "initContainers": list(init), **spec}
    found = gpu_pod({"metadata": {"name": "p", "namespace": "ns"}, "spec": whole})
    return None if found is None else dict(found.holds)


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("allocatable", "gpus"),
    [
        ({"cpu": "191", GPU: "8", "vpc.amazonaws.com/efa": "32"}, {GPU: 8}),
        ({GPU: "0", "nvidia.com/mig-1g.10gb": "14"}, {"nvidia.com/mig-1g.10gb": 14}),
        ({"nvidia.com/gpu.shared": "32"}, {"nvidia.com/gpu.shared": 32}),
        ({"nvidia.com/gpumem": "80000", "nvidia.com/hostdev": "4"}, {}),
        ({GPU: "8k"}, {}),
        (None, {}),
        ("nonsense", {}),
    ],
)
def test_node_offers_these_gpus(allocatable: object, gpus: dict[str, int]) -> None:
    assert offered(allocatable) == gpus


def test_containers_run_in_parallel() -> None:
    assert held(container({GPU: "2"}), container({GPU: "1", "cpu": "4"})) == {GPU: 3}


def test_an_init_container_runs_alone_and_its_share_stays_held() -> None:
    assert held(container({GPU: "2"}), init=(container({GPU: "4"}), container({GPU: "1"}))) == {GPU: 4}
    assert held(container(), init=(container({GPU: "1"}),)) == {GPU: 1}


def test_a_sidecar_runs_in_parallel_with_containers_and_later_init_containers() -> None:
    before, after = container({GPU: "3"}), container({GPU: "3"})
    assert held(container({GPU: "1"}), init=(before, container({GPU: "1"}, sidecar=True), after)) == {GPU: 4}
    assert held(container({GPU: "3"}), init=(container({GPU: "2"}, sidecar=True), container({GPU: "1"}))) == {GPU: 5}


def test_limits_without_requests_are_requests() -> None:
    assert held(container({GPU: "1"}, limits=True)) == {GPU: 1}


@pytest.mark.parametrize(
    "asked",
    [
        {"nvidia.com/mig-3g.40gb": "1"},
        {"nvidia.com/gpu.shared": "1"},
        {"nvidia.com/gpumem": "16k"},
        {"nvidia.com/gpucores": "30"},
        {"volcano.sh/vgpu-number": "1"},
    ],
)
def test_every_way_of_asking_for_a_gpu_holds_one(asked: dict[str, str]) -> None:
    assert held(container(asked)) is not None


def test_a_dra_claim_counts_as_a_gpu() -> None:
    assert held(container(), resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}]) == {"DRA claim": 1}


@pytest.mark.parametrize("asked", [{}, {"cpu": "8"}, {GPU: "0"}, {"vpc.amazonaws.com/efa": "4"}])
def test_a_pod_without_gpus_holds_none(asked: dict[str, str]) -> None:
    assert held(container(asked)) is None


def test_a_pod_of_nothing_holds_nothing() -> None:
    assert gpu_pod({"metadata": {"name": "p"}}) is None


def test_a_pod_says_what_it_holds() -> None:
    found = gpu_pod({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [container({GPU: "8"})]}})
    assert str(found) == "ns/p holds 8 nvidia.com/gpu"


AT = "2026-11-21T12:00:00Z"
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": AT}
CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}


@pytest.mark.parametrize(
    ("spec", "condition", "waits"),
    [
        (CLAIMS, REFUSED, True),
        ({"containers": [container({GPU: "1"})]}, REFUSED, True),
        ({"containers": [container({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"})]}, REFUSED, True),
        ({"containers": [container({"cpu": "1"})]}, REFUSED, False),
        (CLAIMS, REFUSED | {"reason": "SchedulingGated"}, False),
        (CLAIMS, REFUSED | {"lastTransitionTime": "soon"}, False),
        (CLAIMS | {"preemptionPolicy": "Never"}, REFUSED, False),
    ],
)
def test_which_pods_wait_for_gpus_that_another_could_leave_to_them(
    spec: dict[str, Any], condition: dict[str, str], waits: bool
) -> None:
    pod = {"metadata": {"name": "p"}, "spec": spec, "status": {"conditions": [condition]}}
    assert (unplaced_since(pod) is not None) is waits
