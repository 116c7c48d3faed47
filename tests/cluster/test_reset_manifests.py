"""The template of reset Jobs, and the allowed writes of their pod tokens: those of a quarantine, on their own keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from sim.control_plane import MANIFESTS, ControlPlane, unbound_token
from tests.cluster import test_quarantine_manifests as quarantine
from tests.cluster.node_patches import annotated, labelled

P = "gpu-healthcheck.aws-samples.io"
ACCOUNT = "gpu-healthcheck-reset"
OWN, OTHER = "reset-own", "reset-other.example.internal"
POD_PATH = "/api/v1/namespaces/gpu-healthcheck/pods"


def of_a_reset(value: Any) -> Any:
    """Return a patch or message of a quarantine as a reset's."""
    return json.loads(json.dumps(value).replace("quarantine", "reset"))


def template() -> dict[str, Any]:
    cron_job = yaml.safe_load((MANIFESTS / "13-reset.yaml").read_text())
    assert (cron_job["metadata"]["name"], cron_job["spec"]["suspend"]) == ("gpu-healthcheck-reset-node", True)
    job: dict[str, Any] = cron_job["spec"]["jobTemplate"]
    return job


def test_a_job_asks_the_toolkit_for_no_gpu() -> None:
    (container,) = template()["spec"]["template"]["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert not [name for name in container["resources"]["requests"] if "nvidia" in name]


def test_a_job_ends_after_every_step_of_a_reset() -> None:
    spec = template()["spec"]
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 240


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    for name in (OWN, OTHER):
        labels = {**quarantine.MARKED["labels"], f"{P}/severity": "RESET"}
        installed.create_node(name, labels=labels, taints=[quarantine.SPOT, quarantine.UNHEALTHY])
        installed.request(
            "PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": quarantine.MARKED["annotations"]}}
        )
    yield installed
    for name in (OWN, OTHER):
        installed.request("DELETE", f"/api/v1/nodes/{name}")
    for pod in ("reset-pod", "quarantine-pod"):
        installed.request("DELETE", f"{POD_PATH}/{pod}?gracePeriodSeconds=0")


def token_of(plane: ControlPlane, kind: str) -> str:
    """Return the token of a Job's pod on its own node."""
    spec = {
        "nodeName": OWN,
        "serviceAccountName": f"gpu-healthcheck-{kind}",
        "containers": [{"name": kind, "image": "x"}],
    }
    metadata = {"name": f"{kind}-pod", "namespace": "gpu-healthcheck"}
    answer = plane.request("POST", POD_PATH, {"metadata": metadata, "spec": spec})
    assert answer.status == 201, answer.message
    return plane.pod_token(answer.body)


@pytest.fixture
def token(plane: ControlPlane) -> str:
    return token_of(plane, "reset")


def asked(plane: ControlPlane, token: str, patch: dict[str, Any], name: str = OWN) -> str:
    return quarantine.asked(plane, token, patch, name)


@pytest.mark.cluster
def test_a_reset_may_take_its_own_node_tell_and_give_it_back(plane: ControlPlane, token: str) -> None:
    take = of_a_reset(quarantine.TAKE)
    assert [asked(plane, token, patch) for patch in (take, of_a_reset(quarantine.GIVE_BACK))] == ["", ""]
    assert "its own Node only: the token belongs to 'reset-own'" in asked(plane, token, take, OTHER)
    assert "bound to no node" in asked(plane, unbound_token(plane, ACCOUNT), take)


@pytest.mark.cluster
def test_a_reset_begins_on_a_healthy_node_only_after_the_claim_of_a_command(plane: ControlPlane, token: str) -> None:
    path, take = f"/api/v1/nodes/{OWN}", of_a_reset(quarantine.TAKE)
    plane.request("PATCH", path, labelled(f"{P}/severity", "PASS"))
    assert "whose severity is RESET" in asked(plane, token, take)
    plane.request("PATCH", path, annotated(f"{P}/run", of_a_reset(quarantine.RUN)))
    assert asked(plane, token, take) == ""


MAY_NOT = {name: of_a_reset(entry) for name, entry in quarantine.MAY_NOT.items()} | {
    "write a quarantine's record": (annotated(f"{P}/quarantine-result", "{}"), "no annotation but"),
    "switch an operand off": (labelled("nvidia.com/gpu.deploy.dcgm", "false"), "no label but"),
    "take it for a quarantine": (annotated(f"{P}/run", quarantine.RUN), "only for a reset"),
}


@pytest.mark.cluster
@pytest.mark.parametrize(("patch", "refusal"), MAY_NOT.values(), ids=MAY_NOT)
def test_a_reset_may_not(plane: ControlPlane, token: str, patch: dict[str, Any], refusal: str) -> None:
    assert refusal in asked(plane, token, patch)


@pytest.mark.cluster
def test_a_reset_may_neither_evict_nor_change_another_object(plane: ControlPlane, token: str) -> None:
    pod = f"{POD_PATH}/reset-pod"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "reset-pod"}}
    assert plane.request("POST", f"{pod}/eviction", eviction, token=token).status == 403
    assert plane.request("DELETE", pod, token=token).status == 403
    assert plane.request("PATCH", f"/api/v1/nodes/{OWN}/status", {"status": {}}, token=token).status == 403
    assert plane.request("GET", "/api/v1/secrets", token=token).status == 403


@pytest.mark.cluster
def test_no_other_program_says_that_a_gpu_was_reset(plane: ControlPlane) -> None:
    forged = annotated(f"{P}/reset-result", "{}")
    assert "no annotation but" in asked(plane, token_of(plane, "quarantine"), forged)
    assert "an agent may change annotations" in asked(plane, plane.agent_token(OWN), forged)
