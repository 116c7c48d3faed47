"""Pods whose claims the kubelet does not prepare: API versions, registration of drivers, and the driver itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.model import Certainty
from tests.diagnosis.component_states import daemon
from tests.diagnosis.states import Object, container, event, judged, node, obj, pod, results, waiting

UNKNOWN_PATH = "the server could not find the requested resource"
OLD = f"failed to fetch ResourceClaim c1 referenced by pod t: {UNKNOWN_PATH} (get resourceclaims.resource.k8s.io c1)"
NEW = f"fetch ResourceClaim c1: {UNKNOWN_PATH}"
FAILED = "Failed to prepare dynamic resources: prepare dynamic resources: "
DRIVER = "nvidia-dra-driver-gpu-kubelet-plugin"
PLUGIN = "pod/dra/plugin-a"


def claim(version: str, **status: Any) -> Object:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
    given = {"driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}
    allocated = {"allocation": {"devices": {"results": [given]}}, "reservedFor": [{"resource": "pods", "name": "t"}]}
    one = obj("ResourceClaim", "c1", "team", spec={"devices": devices}, status=status or allocated)
    return one | {"apiVersion": f"resource.k8s.io/{version}"}


def stuck(text: str, claim_name: str = "c1", **changes: Any) -> tuple[Object, Object]:
    """A pod on node a that waits for its claim, and the kubelet's event about that."""
    spec = {"resourceClaims": [{"name": "g", "resourceClaimName": claim_name}]}
    waits = pod(
        "t",
        on="a",
        phase="Pending",
        containers=[container(claims=[{"name": "g"}])],
        spec=spec,
        states=[waiting("ContainerCreating")],
        **changes,
    )
    return waits, event(waits, "FailedPrepareDynamicResources", FAILED + text, count=40)


def plugin(**changes: Any) -> tuple[Object, Object]:
    """The kubelet plugin of NVIDIA's DRA driver and its pod on node a."""
    labels = {"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}
    there = pod("plugin-a", 0, on="a", namespace="dra", labels=labels, owner=("DaemonSet", DRIVER), **changes)
    return daemon(DRIVER, namespace="dra", labels=labels), there


@pytest.mark.parametrize("text", [OLD, NEW])
def test_kubelet_newer_than_the_api_server_is_version_skew(text: str) -> None:
    (problem,) = judged(node("a", kubelet="v1.34.2"), claim("v1beta1"), *stuck(text), *plugin()).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ClaimApiVersionMismatched", "node/a")
    assert problem.found.certainty is Certainty.PROVEN
    assert problem.found.evidence[-1] == (
        "node/a: kubelet v1.34.2 requests claims of resource.k8s.io/v1; the API server lists them in "
        "resource.k8s.io/v1beta1"
    )
    steps = " ".join(problem.found.steps)
    assert "Upgrade the control plane to 1.34 or newer" in steps
    assert "runtime-config" not in steps
    assert "logs" not in steps


@pytest.mark.parametrize("kubelet", ["v1.33.5+k3s1", "v1.32.9-eks-113cf36"])
def test_kubelet_of_a_beta_version_that_is_no_longer_served_is_version_skew(kubelet: str) -> None:
    (problem,) = judged(node("a", kubelet=kubelet), claim("v1"), *stuck(OLD)).problems

    assert (problem.found.cause.name, problem.found.certainty) == ("ClaimApiVersionMismatched", Certainty.PROVEN)
    steps = " ".join(problem.found.steps)
    assert "Upgrade the kubelet of a to 1.34 or newer" in steps
    assert "`--runtime-config=resource.k8s.io/v1beta1=true`" in steps


def test_version_skew_without_the_versions_is_likely() -> None:
    (hidden,) = judged(node("a", kubelet="v1.34.2"), *stuck(OLD, "gpu-claim"), missing=["ResourceClaim"]).problems
    (fits,) = judged(node("a", kubelet="v1.34.2"), claim("v1"), *stuck(NEW)).problems

    for problem in (hidden, fits):
        assert (problem.found.cause.name, problem.found.certainty) == ("ClaimApiVersionMismatched", Certainty.LIKELY)
        assert "`kubectl get --raw /apis/resource.k8s.io`" in problem.found.steps[0]


def test_kubelet_of_the_served_version_has_no_version_skew() -> None:
    runs = pod("t", on="a", spec={"resourceClaims": [{"name": "g", "resourceClaimName": "c1"}]})

    assert not results(judged(node("a", kubelet="v1.33.5"), claim("v1beta1"), runs))


@pytest.mark.parametrize(
    "text",
    [
        'failed to fetch ResourceClaim c1 referenced by pod t: resourceclaims.resource.k8s.io "c1" not found',
        'fetch ResourceClaim c1: resourceclaims.resource.k8s.io "c1" not found',
        "pod t(u-1) is not allowed to use resource claim c1(u-2)",
        "ResourceClaim c1: not allocated",
    ],
)
def test_claim_that_is_gone_or_not_the_pods_is_no_fault_of_the_driver(text: str) -> None:
    (problem,) = judged(node("a", kubelet="v1.34.2"), *stuck(text, "gpu-claim"), *plugin()).problems

    assert problem.found.cause.name == "ClaimNotPrepared"
    assert "create the pod again" in problem.found.steps[0]
    assert "logs" not in " ".join(problem.found.steps)


def test_fault_of_the_driver_names_its_pod_on_the_node() -> None:
    text = "NodePrepareResources failed for claim team/c1: error preparing devices for claim: no such device"
    with_plugin = judged(node("a", kubelet="v1.34.2"), claim("v1"), *stuck(text), *plugin())
    without = judged(node("a", kubelet="v1.34.2"), claim("v1"), *stuck(text))

    assert results(with_plugin) == results(without) == [("ClaimNotPrepared", "node/a")]
    log = "`kubectl -n dra logs plugin-a --all-containers --tail=100`"
    assert with_plugin.problems[0].found.steps[0] == f"Read the log of the driver's pod there: {log}"
    assert "--field-selector=spec.nodeName=a" in without.problems[0].found.steps[0]


@pytest.mark.parametrize(
    ("kubelet", "step"),
    [
        ("v1.34.1", "upgrade it to 1.34.2 or newer. Until then, restart it on the node: `systemctl restart kubelet`"),
        ("v1.34.10", "so that it registers: `kubectl -n dra delete pod plugin-a`"),
        ("v1.33.4", "so that it registers: `kubectl -n dra delete pod plugin-a`"),
    ],
)
def test_driver_that_the_kubelet_has_forgotten_is_registered_again(kubelet: str, step: str) -> None:
    state = [node("a", kubelet=kubelet), claim("v1"), *stuck("DRA driver gpu.nvidia.com is not registered")]

    (problem,) = judged(*state, *plugin()).problems

    assert problem.found.cause.name == "ClaimNotPrepared"
    assert f"{PLUGIN} runs there" in problem.found.steps[0]
    assert step in problem.found.steps[0]


@pytest.mark.parametrize("objects", [[], [node("a", None)]])
def test_event_that_names_nvidias_driver_is_about_a_gpu_pod(objects: list[Object]) -> None:
    """The claim is not visible, and its name says nothing."""
    ours = judged(*objects, *stuck("DRA driver compute-domain.nvidia.com is not registered", "chan"))
    other = judged(*objects, *stuck("DRA driver dra.net is not registered", "chan"))

    assert results(ours) == [("ClaimNotPrepared", "node/a")]
    assert "No DRA driver is visible: install it if it is missing" in ours.problems[0].found.steps[0]
    assert not results(other)


def test_described_pod_shows_its_claims_by_events_alone() -> None:
    """The text of `kubectl describe` has no claims of the pod."""
    waits = pod("imex-0", 0, on="a", phase="Pending", states=[waiting("ContainerCreating")])
    skew = f"failed to fetch ResourceClaim imex-0-imex-channel-0-x referenced by pod imex-0: {UNKNOWN_PATH}"
    failed = event(waits, "FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {skew}", count=26)
    other = event(waits, "FailedPrepareDynamicResources", "DRA driver dra.net is not registered", count=26)

    (problem,) = judged(waits, failed).problems

    assert problem.found.cause.name == "ClaimApiVersionMismatched"
    assert "`kubectl get node a`" in problem.found.steps[1]
    assert not results(judged(waits, other))


@pytest.mark.parametrize(
    "text",
    [
        "CDI device injection failed: unresolvable CDI devices k8s.gpu.nvidia.com/claim=6fa86616-gpu-0",
        "internal error: unable to get claim info for ResourceClaim c1",
    ],
)
def test_pod_whose_devices_are_those_of_an_earlier_preparation_is_created_again(text: str) -> None:
    waits = stuck("")[0]
    waits["status"] |= {"containerStatuses": [waiting("CreateContainerError", text)]}

    (problem,) = judged(node("a"), claim("v1"), waits, *plugin()).problems

    steps = problem.found.steps
    assert "reate the pod again" in steps[0]
    assert "`kubectl -n team delete pod t &&" in steps[2]
    assert "nvidia-ctk" not in " ".join(steps)
    assert "restart the device plugin" not in " ".join(steps)


def test_driver_with_outdated_files_of_the_toolkit_gets_a_new_pod() -> None:
    text = 'NodePrepareResources failed for claim c1: failed add device "gpu-0": invalid device, empty device edits'

    (problem,) = judged(node("a"), claim("v1"), *stuck(text), *plugin()).problems

    assert "`kubectl -n dra delete pod plugin-a`" in problem.found.steps[0]


def test_driver_without_a_pod_on_the_node_is_named() -> None:
    text = "plugin name gpu.nvidia.com not found in the list of registered DRA plugins"
    state = [node("a"), claim("v1beta1"), *stuck(text)]

    (problem,) = judged(*state, plugin()[0]).problems

    wanted = "Find out why the driver has no ready pod on a: "
    assert problem.found.steps[0] == f"{wanted}`kubectl -n dra describe daemonset {DRIVER}`"


def test_driver_that_requests_another_api_version_is_no_skew_of_the_kubelet() -> None:
    text = f"NodePrepareResources failed for claim team/c1: retrieve claim team/c1: {UNKNOWN_PATH}"

    (problem,) = judged(node("a", kubelet="v1.34.2"), claim("v1"), *stuck(text), *plugin()).problems

    assert problem.found.cause.name == "ClaimNotPrepared"
    assert "use a release of the driver for this version of Kubernetes" in problem.found.steps[0]


@pytest.mark.parametrize(
    ("error", "step"),
    [
        ("error adding Node label: label already exists for a different ComputeDomain", "one ComputeDomain at a time"),
        (
            "error asserting ComputeDomain Ready: ComputeDomain not found: 0846944b",
            "was deleted: create the domain again",
        ),
        ("requested device channel-0 is already allocated to different claim 4914da61", "has one IMEX channel"),
        ("error asserting ComputeDomain Ready: ComputeDomain not Ready", "`kubectl get pods -A -o wide -l"),
    ],
)
def test_error_of_the_driver_about_a_domain_has_its_step(error: str, step: str) -> None:
    text = f"NodePrepareResources failed for ResourceClaim c1: error preparing devices for claim c1: {error}"

    (problem,) = judged(node("a"), *stuck(text, "imex-channel-0"), *plugin()).problems

    assert problem.found.cause.name == "ClaimNotPrepared"
    assert step in problem.found.steps[0]


def test_host_managed_imex_service_is_started_on_the_host() -> None:
    text = "NodePrepareResources failed for ResourceClaim c1: host nvidia-imex daemon readiness check failed: refused"

    (problem,) = judged(node("a"), *stuck(text, "imex-channel-0")).problems

    assert problem.found.cause.name == "ClaimNotPrepared"
    assert "`systemctl enable --now nvidia-imex`" in problem.found.steps[0]


def test_pod_without_gpus_that_claims_an_imex_channel_is_diagnosed() -> None:
    channel = judged(node("a", kubelet="v1.34.2"), *stuck(NEW, "imex-channel-0"))
    other = judged(node("a", kubelet="v1.34.2"), *stuck(NEW, "dranet-nic"))

    assert results(channel) == [("ClaimApiVersionMismatched", "node/a")]
    assert not results(other)
