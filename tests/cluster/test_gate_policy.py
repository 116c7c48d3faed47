"""The policy of overlays/gate on a real API server: which pods get the gate, and as which container."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from sim.control_plane import ControlPlane
from tests.overlays import OVERLAYS
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
P = "gpu-healthcheck.aws-samples.io"
GATED, OTHER = "gate-on", "gate-off"
ENFORCE = "pod-security.kubernetes.io/enforce"
RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a control plane with the policy, and two "restricted" namespaces with a quota: one with our label."""
    with ControlPlane() as own:
        if not own.mutating_policies:
            pytest.skip("MutatingAdmissionPolicies")
        for name, labels in ((GATED, {f"{P}/gate": "enabled"}), (OTHER, {})):
            body = {"metadata": {"name": name, "labels": {ENFORCE: "restricted", **labels}}}
            assert own.request("POST", "/api/v1/namespaces", body).status == 201
            account = {"metadata": {"name": "default"}}  # no controller creates it here
            assert own.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account).status == 201
            quota = {"metadata": {"name": "team"}, "spec": {"hard": {"limits.cpu": "64", "limits.memory": "1Ti"}}}
            assert own.request("POST", f"/api/v1/namespaces/{name}/resourcequotas", quota).status == 201
        policy = (OVERLAYS / "gate" / "policy.yaml").read_text()
        served = f"apiVersion: admissionregistration.k8s.io/{own.mutating_policies}\n"
        own.kubectl("apply", "-f", "-", input=policy.replace("apiVersion: admissionregistration.k8s.io/v1\n", served))
        eventually(lambda: inits(own, pod(limits={"nvidia.com/gpu": "1"})))
        yield own


def pod(limits: Json | None = None, **spec: Any) -> Json:
    limits = {"cpu": "1", "memory": "1Gi", **(limits or {})}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}, "securityContext": RESTRICTED}
    annotations = spec.pop("annotations", {})
    spec = {"containers": [container], "automountServiceAccountToken": False, **spec}
    return {"metadata": {"generateName": "pod-", "annotations": annotations}, "spec": spec}


def created(plane: ControlPlane, body: Json, namespace: str = GATED) -> Json:
    """Return the pod as the API server would store it."""
    answer = plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    assert answer.status == 201, answer.message
    return dict(answer.body)


def inits(plane: ControlPlane, body: Json, namespace: str = GATED) -> list[str]:
    found = created(plane, body, namespace)["spec"].get("initContainers", [])
    return [container["name"] for container in found]


GPU = {"nvidia.com/gpu": "8"}
FIRST = {"name": "first", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (pod(GPU), ["gpu-gate"]),
        (pod({"nvidia.com/mig-1g.10gb": "1"}), ["gpu-gate"]),
        (pod({"volcano.sh/vgpu-number": "1"}), ["gpu-gate"]),
        (pod(resourceClaims=CLAIM), ["gpu-gate"]),
        (pod(GPU, initContainers=[FIRST | {"securityContext": RESTRICTED}]), ["gpu-gate", "first"]),
        (pod(GPU, annotations={f"{P}/gate": "off"}), []),
        (pod(GPU, annotations={f"{P}/gate": "on"}), ["gpu-gate"]),
        (pod({"example.com/gpu": "1"}), []),
        (pod(), []),
        (pod(GPU, initContainers=[FIRST | {"name": "gpu-gate", "securityContext": RESTRICTED}]), ["gpu-gate"]),
    ],
    ids=["gpu", "mig", "volcano", "claim", "first", "opted out", "annotated", "other vendor", "no gpu", "by hand"],
)
def test_pods_with_gpus_get_the_gate_as_their_first_init_container(
    plane: ControlPlane, body: Json, expected: list[str]
) -> None:
    assert inits(plane, body) == expected


def test_a_namespace_without_the_label_gets_none(plane: ControlPlane) -> None:
    assert inits(plane, pod(GPU), OTHER) == []


OURS = f"{P}/unhealthy"


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], "false"),
        ([{"operator": "Exists"}], "true"),
        ([{"operator": "Exists", "effect": "NoExecute"}], "false"),
        ([{"key": OURS, "operator": "Exists"}], "true"),
        ([{"key": OURS, "operator": "Exists", "effect": "NoSchedule"}], "true"),
        ([{"key": OURS, "value": "true"}], "true"),
        ([{"key": OURS, "operator": "Equal", "value": "false"}], "false"),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], "false"),
    ],
)
def test_the_gate_has_a_variable_for_the_pods_toleration_of_our_taint(
    plane: ControlPlane, tolerations: list[Json], expected: str
) -> None:
    (gate,) = created(plane, pod(GPU, tolerations=tolerations))["spec"]["initContainers"]
    variables = {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in gate["env"]
    }

    assert variables == {"NODE_IP": "status.hostIP", "POD_UID": "metadata.uid", "GATE_TOLERATES": expected}


def test_the_gate_has_a_read_only_root_limits_and_no_privileges(plane: ControlPlane) -> None:
    (gate,) = created(plane, pod(GPU))["spec"]["initContainers"]

    assert gate["command"] == ["gpu-healthcheck", "gate", "--port", "10633"]
    assert gate["securityContext"]["readOnlyRootFilesystem"] is True
    assert {*gate["resources"]["requests"], *gate["resources"]["limits"]} == {"cpu", "memory"}


def test_a_policy_that_cannot_be_evaluated_lets_the_pod_be_created_without_the_gate(plane: ControlPlane) -> None:
    path = (
        f"/apis/admissionregistration.k8s.io/{plane.mutating_policies}/mutatingadmissionpolicies/gpu-healthcheck-gate"
    )
    spec = plane.request("GET", path).body["spec"]
    broken = [{**spec["variables"][0], "expression": 'object.metadata.annotations["missing"]'}, *spec["variables"][1:]]
    assert plane.request("PATCH", path, {"spec": {"variables": broken}}).status == 200

    assert eventually(lambda: inits(plane, pod(GPU)) == [])
    assert plane.request("PATCH", path, {"spec": {"variables": spec["variables"]}}).status == 200
    assert eventually(lambda: inits(plane, pod(GPU)) == ["gpu-gate"])


JOB_PATH = "/apis/batch/v1/namespaces/default/jobs?dryRun=All&fieldValidation=Strict"


def documented_job() -> Json:
    page = (OVERLAYS.parents[1] / "docs" / "gate.md").read_text()
    (block,) = re.findall(r"^```yaml job\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return dict(yaml.safe_load(block))


def test_the_job_of_the_page_is_accepted_as_it_is(plane: ControlPlane) -> None:
    answer = plane.request("POST", JOB_PATH, documented_job())

    assert answer.status == 201, answer.message


@pytest.mark.parametrize(("is_named", "status"), [(True, 422), (False, 201)])
def test_a_rule_names_only_a_container_of_its_own_template(plane: ControlPlane, is_named: bool, status: int) -> None:
    """So it names none where the policy adds the container."""
    job = documented_job()
    del job["spec"]["template"]["spec"]["initContainers"]
    if not is_named:
        del job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"]

    assert plane.request("POST", JOB_PATH, job).status == status
