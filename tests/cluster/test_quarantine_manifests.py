"""The manual quarantine Job, the template in the cluster, and the allowed writes of such a Job's pod token."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck.deep.job import TESTED_NODE
from gpu_healthcheck.healthcheck.operations.quarantine_job import TARGET
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane, unbound_token
from gpu_healthcheck.sim.control_plane.build import binaries
from tests.cluster.node_patches import annotated, labelled, tainted

P = "gpu-healthcheck.aws-samples.io"
JOB_FILE = MANIFESTS / "quarantine/05-job-quarantine.yaml"
ACCOUNT = "gpu-healthcheck-quarantine"
OWN, OTHER = "quarantine-own", "quarantine-other.example.internal"
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
MAINTENANCE = {"key": f"{P}/maintenance", "value": "quarantine", "effect": "NoSchedule"}
RUN = json.dumps({"kind": "quarantine", "holder": "x", "until": "2026-11-21T12:00:00Z"}, separators=(",", ":"))
MARKED = {"labels": {"example.com/team": "vision", f"{P}/status": "fail"}, "annotations": {f"{P}/results": "{}"}}
POD = {"metadata": {"name": "quarantine-pod", "namespace": "gpu-healthcheck"}}


def job_for(node: str) -> dict[str, Any]:
    """Return the Job as `sed` creates it for this node."""
    job: dict[str, Any] = yaml.safe_load(JOB_FILE.read_text().replace("TARGET_NODE_NAME", node))
    return job


def template() -> dict[str, Any]:
    cron_job = yaml.safe_load((MANIFESTS / "10-quarantine.yaml").read_text())
    assert (cron_job["metadata"]["name"], cron_job["spec"]["suspend"]) == ("gpu-healthcheck-quarantine-node", True)
    job: dict[str, Any] = cron_job["spec"]["jobTemplate"]
    return job


def test_the_job_by_hand_is_the_template_with_a_name_and_a_place() -> None:
    job = job_for("gpu-1.example.internal")
    affinity = job["spec"]["template"]["spec"].pop("affinity")

    assert job["spec"] == template()["spec"]
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == (
        "gpu-quarantine-gpu-1.example.internal",
        "gpu-healthcheck",
    )
    assert job["metadata"]["annotations"] == {TESTED_NODE: "gpu-1.example.internal"}
    assert job["metadata"]["labels"].pop(TARGET) == "gpu-1.example.internal"
    assert job["metadata"]["labels"] == template()["metadata"]["labels"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1.example.internal"]}]}


def test_a_job_asks_for_no_gpu_and_for_cpus_that_nothing_throttles() -> None:
    (container,) = template()["spec"]["template"]["spec"]["containers"]
    assert int(container["resources"]["requests"]["cpu"]) >= 2
    assert "limits" not in container["resources"]
    assert not [name for name in container["resources"]["requests"] if "nvidia" in name]


def test_a_job_reaches_a_node_that_hyperpod_keeps_work_from() -> None:
    tolerated = {entry["key"] for entry in template()["spec"]["template"]["spec"]["tolerations"]}
    assert {"sagemaker.amazonaws.com/node-health-status", "node.kubernetes.io/unschedulable"} < tolerated


def test_no_other_program_follows_a_run_that_failed() -> None:
    spec = template()["spec"]
    assert (spec["backoffLimit"], spec["ttlSecondsAfterFinished"]) == (0, 86400)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    for name in (OWN, OTHER):
        installed.create_node(name, labels=MARKED["labels"], taints=[SPOT, UNHEALTHY])
        installed.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": MARKED["annotations"]}})
    yield installed
    for name in (OWN, OTHER):
        installed.request("DELETE", f"/api/v1/nodes/{name}")
    installed.request("DELETE", "/api/v1/namespaces/gpu-healthcheck/pods/quarantine-pod?gracePeriodSeconds=0")


@pytest.mark.cluster
def test_the_api_server_takes_the_job_by_hand(installed: ControlPlane) -> None:
    job = job_for("gpu-1.example.internal")
    path = "/apis/batch/v1/namespaces/gpu-healthcheck/jobs?dryRun=All&fieldValidation=Strict"
    answer = installed.request("POST", path, job)
    assert answer.status == 201, answer.message


PAGE = MANIFESTS.parents[1] / "docs/quarantine.md"
CRON_JOB = "cronjob/gpu-healthcheck-quarantine-node"
ELSEWHERE = "registry.example.com:5000/a/gpu-healthcheck@sha256:" + "0" * 64


@pytest.fixture
def from_a_registry(installed: ControlPlane) -> Iterator[ControlPlane]:
    """A cluster with another image in its CronJob, as an overlay sets it, and another container behind it."""
    containers = [{"name": "quarantine", "image": ELSEWHERE}, {"name": "sidecar", "image": "y"}]
    patch = {"spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": containers}}}}}}
    installed.kubectl("patch", CRON_JOB, "-n", "gpu-healthcheck", "--type=strategic", "-p", json.dumps(patch))
    yield installed
    installed.kubectl("delete", CRON_JOB, "-n", "gpu-healthcheck")
    installed.kubectl("apply", "-f", str(MANIFESTS / "10-quarantine.yaml"))


def typed(path: Path, first: str, last: str, node: str) -> str:
    """Return a command of several lines from the file, for this node."""
    text = path.read_text()
    begun = text[text.index(first) :]
    command = begun[: begun.index(last) + len(last)].replace("\n#", "\n")
    return re.sub(r"(?<!_)NODE(?!_)", node, command)


@pytest.mark.cluster
@pytest.mark.parametrize("where", [PAGE, JOB_FILE], ids=lambda path: path.name)
def test_typed_by_hand_the_job_has_the_image_that_the_cluster_has(from_a_registry: ControlPlane, where: Path) -> None:
    command = typed(where, 'sed "s/TARGET_NODE_NAME/', "| kubectl apply -f -", "gpu-1.example.internal")
    environment = {
        "PATH": f"{binaries()}:{os.environ['PATH']}",
        "KUBECONFIG": str(from_a_registry.kubeconfig),
        "KUBECACHEDIR": str(from_a_registry.folder / "kubectl-cache"),
    }
    done = subprocess.run(
        ["sh", "-ec", command], cwd=PAGE.parents[1], env=environment, capture_output=True, text=True, check=False
    )

    assert done.stdout == "job.batch/gpu-quarantine-gpu-1.example.internal created\n", done.stderr
    path = "/apis/batch/v1/namespaces/gpu-healthcheck/jobs/gpu-quarantine-gpu-1.example.internal"
    job = from_a_registry.request("GET", path).body
    from_a_registry.request("DELETE", f"{path}?propagationPolicy=Background")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == (ELSEWHERE, "IfNotPresent")


@pytest.fixture(scope="module")
def token(plane: ControlPlane) -> str:
    """Return the token of a Job's pod on its own node."""
    spec = {
        "nodeName": OWN,
        "serviceAccountName": ACCOUNT,
        "containers": [{"name": "quarantine", "image": "x"}],
    }
    answer = plane.request("POST", "/api/v1/namespaces/gpu-healthcheck/pods", {**POD, "spec": spec})
    assert answer.status == 201, answer.message
    return plane.pod_token(answer.body)


def asked(plane: ControlPlane, token: str, patch: dict[str, Any], name: str = OWN, *, dry_run: bool = False) -> str:
    """Return '' for an accepted patch, else the error."""
    query = "?dryRun=All" if dry_run else ""
    answer = plane.request("PATCH", f"/api/v1/nodes/{name}{query}", patch, token=token)
    return "" if answer.status == 200 else answer.message


TAKE = {
    "metadata": {
        "annotations": {f"{P}/run": RUN, f"{P}/quarantine-result": "{}"},
        "labels": {f"{P}/mode": "quarantine"},
    },
    **tainted(SPOT, UNHEALTHY, MAINTENANCE),
}
GIVE_BACK = {
    "metadata": {
        "annotations": {f"{P}/run": None, f"{P}/quarantine-result": '{"status":"pass"}'},
        "labels": {f"{P}/mode": None},
    },
    **tainted(SPOT, UNHEALTHY),
}


@pytest.mark.cluster
def test_run_acquires_and_releases_its_own_node_only(plane: ControlPlane, token: str) -> None:
    assert [asked(plane, token, patch) for patch in (TAKE, GIVE_BACK)] == ["", ""]
    assert "its own Node only: the token belongs to 'quarantine-own'" in asked(plane, token, TAKE, OTHER)
    assert "bound to no node" in asked(plane, unbound_token(plane, ACCOUNT), TAKE)


MAY_NOT: dict[str, tuple[dict[str, Any], str]] = {
    "judge": (labelled(f"{P}/status", "pass"), "no label but"),
    "touch a foreign label": (labelled("example.com/team", None), "no label but"),
    "write the agent's record": (annotated(f"{P}/results", "{}x"), "no annotation but"),
    "write a sweep's record": (annotated(f"{P}/sweep-result", "{}"), "no annotation but"),
    "release": (annotated(f"{P}/release", "{}"), "no annotation but"),
    "say who cordoned": (annotated(f"{P}/cordoned-by", "x"), "no annotation but"),
    "call it something else": (labelled(f"{P}/mode", "sweep"), "sets the mode only to quarantine"),
    "take it for another": (annotated(f"{P}/run", RUN.replace("quarantine", "l2")), "only for a quarantine"),
    "say two kinds": (annotated(f"{P}/run", RUN.replace("{", '{"kind":"l2",')), "only for a quarantine"),
    "say another kind after it": (
        annotated(f"{P}/run", RUN.replace("}", ',"kind":"sweep"}')),
        "only for a quarantine",
    ),
    "pad its mark": (annotated(f"{P}/run", RUN.replace("}", " " * 250_000 + "}")), "only for a quarantine"),
    "pad its holder": (annotated(f"{P}/run", RUN.replace('"x"', f'"{"x" * 254}"')), "only for a quarantine"),
    "fill the Node": (annotated(f"{P}/quarantine-result", "x" * 20_481), "at most 20 KiB"),
    "fill the Node with fewer characters": (annotated(f"{P}/quarantine-result", "ß" * 10_241), "at most 20 KiB"),
    "lift a foreign taint": (tainted(UNHEALTHY), "touch no other"),
    "lift the verdict's taint": (tainted(SPOT), "touch no other"),
    "set the taint of another kind": (tainted(SPOT, UNHEALTHY, MAINTENANCE | {"value": "l2"}), "touch no other"),
    "cordon": ({"spec": {"unschedulable": True}}, "nothing in a Node's spec"),
    "hold a node": ({"metadata": {"finalizers": ["example.com/hold"]}}, "finalizers"),
}


@pytest.mark.cluster
@pytest.mark.parametrize(("patch", "refusal"), MAY_NOT.values(), ids=MAY_NOT)
def test_other_write_of_a_run_is_rejected(plane: ControlPlane, token: str, patch: dict[str, Any], refusal: str) -> None:
    assert refusal in asked(plane, token, patch)
