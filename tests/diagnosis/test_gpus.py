"""Which pods ask for GPUs."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods
from tests.diagnosis.states import condition, container, judged, node, obj, pod, results, snapshot


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "nvidia.com/gpumem"],
)
def test_gpu_pods_request_a_gpu_resource(resource: str) -> None:
    asking = pod("a", containers=[container(resources={resource: "1"})])

    assert [one.meta.name for one in gpu_pods(snapshot(asking))] == ["a"]


def test_gpu_pods_leave_out_other_resources() -> None:
    plain = pod("a", 0, containers=[container(resources={"cpu": "1", "vpc.amazonaws.com/efa": "1"})])

    assert not list(gpu_pods(snapshot(plain, pod("b", containers=[container("main", 0)]))))


def test_gpu_pods_claim_a_gpu_class() -> None:
    asks = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    template = obj("ResourceClaimTemplate", "one-gpu", "team", spec={"spec": asks})
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}

    assert list(gpu_pods(snapshot(template, pod("a", 0, spec=claims))))
    assert list(gpu_pods(snapshot(pod("a", 0, spec=claims)))), "a missing template counts by its name"
    other = {"resourceClaims": [{"name": "net", "resourceClaimTemplateName": "one-nic"}]}
    assert not list(gpu_pods(snapshot(template, pod("a", 0, spec=other))))


@pytest.mark.parametrize(("classes", "gpu"), [(["gpu.nvidia.com"], True), (["gpu.nvidia.com", "nic.example"], False)])
def test_invisible_claim_is_of_gpus_if_all_classes_are(classes: list[str], *, gpu: bool) -> None:
    text = '0/1 nodes are available: resourceclaim "nowhere" not found. preemption: not helpful.'
    waits = condition("PodScheduled", "False", "Unschedulable", text)
    claims = {"resourceClaims": [{"name": "it", "resourceClaimName": "nowhere"}]}
    state = [obj("DeviceClass", name) for name in classes]
    diagnosis = judged(node("a"), *state, pod("a", 0, spec=claims, conditions=[waits]), missing=["ResourceClaim"])

    assert results(diagnosis) == ([("ResourceClaimMissing", "resourceclaim/team/nowhere")] if gpu else [])
