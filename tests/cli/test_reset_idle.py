"""Automatic resets with the account of overlays/reset-automation: program, permissions and policies on a real API."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from sim.control_plane import MANIFESTS, unbound_token
from sim.device_plugin import DEPLOY
from tests.cli.reset_world import JOBS, ROOT, P, Workshop
from tests.overlays import OVERLAYS
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

ACCOUNT = "gpu-healthcheck-reset-automation"
CRON_JOB = f"/apis/batch/v1/namespaces/gpu-healthcheck/cronjobs/{ACCOUNT}"
Json = dict[str, Any]


@pytest.fixture
def automation(workshop: Workshop) -> Workshop:
    workshop.plane.kubectl("apply", "-k", str(OVERLAYS / "reset-automation"))
    workshop.plane.request("PATCH", CRON_JOB, {"spec": {"suspend": True}})
    token = unbound_token(workshop.plane, ACCOUNT)
    eventually(lambda: "may change no labels but" in patched(workshop, token, {"metadata": {"labels": {"a": "b"}}}))
    return workshop


def patched(workshop: Workshop, token: str, patch: Json, name: str = "") -> str:
    """Return the refusal of a dry run; '' if it is allowed."""
    path = f"/api/v1/nodes/{name or workshop.name}?dryRun=All&fieldManager=gpu-healthcheck"
    answer = workshop.plane.request("PATCH", path, patch, token=token)
    return "" if answer.status == 200 else answer.message


def run(workshop: Workshop) -> tuple[int, str]:
    """Run the program of the CronJob with its account."""
    process = subprocess.run(
        [sys.executable, "-m", "cli", "reset-idle"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(workshop.plane.account_kubeconfig(ACCOUNT))},
        capture_output=True,
        text=True,
        timeout=GIVE_UP_SECONDS,
        check=False,
    )
    return process.returncode, process.stdout + process.stderr


def test_an_idle_node_is_reset_once_a_day(automation: Workshop) -> None:
    automation.run_plugin(operator=True)
    automation.break_gpu(2)

    code, out = run(automation)

    assert code == 0, out
    assert (automation.findings, automation.allocatable, automation.is_untouched) == ([], 8, True), out
    assert not automation.is_tainted("unhealthy")

    automation.break_gpu(2)
    code, out = run(automation)
    assert (code, automation.findings, automation.is_untouched) == (0, ["Xid62"], True), out
    assert "less than 24 h ago" in out


def test_operands_that_a_dead_reset_left_off_are_restored(automation: Workshop) -> None:
    automation.run_plugin(operator=True)
    automation.break_gpu(2)
    assert run(automation)[0] == 0
    record = json.dumps(automation.record | {"operands": {DEPLOY: "true"}})
    automation.patch({"metadata": {"labels": {DEPLOY: "false"}, "annotations": {f"{P}/reset-result": record}}})
    eventually(lambda: automation.allocatable == 0)

    code, out = run(automation)

    assert (code, automation.labels[DEPLOY], automation.allocatable) == (0, "true", 8), out


def test_a_node_in_use_or_without_the_operator_is_left_as_it_is(automation: Workshop) -> None:
    automation.run_plugin(operator=True)
    automation.add_pod("train-5", gpu=5)
    automation.break_gpu(2)
    code, out = run(automation)
    assert (code, automation.pods(), automation.has_job()) == (0, {"train-5"}, False), out
    assert "in use: default/train-5 holds 1 nvidia.com/gpu" in out

    automation.plane.request("DELETE", "/api/v1/namespaces/default/pods/train-5?gracePeriodSeconds=0")
    automation.patch({"metadata": {"labels": {DEPLOY: None}}})
    code, out = run(automation)
    assert (code, automation.has_job()) == (0, False), out
    assert "the GPU operator does not run its device plugin" in out


def test_a_stolen_token_is_bounded(automation: Workshop) -> None:
    plane, token = automation.plane, unbound_token(automation.plane, ACCOUNT)
    automation.run_plugin(operator=True)
    run_annotation = '{"kind":"reset","holder":"x","until":"2026-11-26T00:00:00Z"}'
    claim = {"metadata": {"annotations": {f"{P}/run": run_annotation}}}
    off = {"metadata": {"labels": {DEPLOY: "false"}}}
    record = {"metadata": {"annotations": {f"{P}/reset-result": "{}"}}}
    healthy = [patched(automation, token, patch) for patch in (claim, off, record)]
    assert "only a Node whose severity is RESET" in healthy[0]
    assert "off only where the severity is RESET" in healthy[1]
    assert "write the record only on a Node whose severity is RESET" in healthy[2]
    automation.break_gpu(2)
    assert [patched(automation, token, patch) for patch in (claim, off, record)] == ["", "", ""]
    taint = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
    refused: dict[str, Json] = {
        "no labels but": {"metadata": {"labels": {f"{P}/severity": "PASS"}}},
        "Nodes that have them": {"metadata": {"labels": {"nvidia.com/gpu.deploy.dcgm": "true"}}},
        "no annotation but": {"metadata": {"annotations": {f"{P}/results": "{}"}}},
        "touch no other": {"spec": {"taints": [taint | {"key": "a"}, taint]}},
        "nothing in a Node's spec": {"spec": {"unschedulable": True}},
    }
    for refusal, patch in refused.items():
        assert refusal in patched(automation, token, patch)

    assert created(automation, token, allowed_job(automation)) == ""
    for change, refusal in CHANGES:
        job = allowed_job(automation)
        change(job)
        assert refusal in created(automation, token, job), refusal
    automation.add_pod("train-5", gpu=5)
    pod = "/api/v1/namespaces/default/pods/train-5"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "train-5"}}
    assert plane.request("POST", f"{pod}/eviction", eviction, token=token).status == 403
    assert plane.request("DELETE", pod, token=token).status == 403
    assert plane.request("GET", "/api/v1/secrets", token=token).status == 403
    assert plane.request("PATCH", CRON_JOB, {"spec": {"suspend": True}}, token=token).status == 403


def allowed_job(workshop: Workshop) -> Json:
    template = yaml.safe_load((MANIFESTS / "13-reset.yaml").read_text())["spec"]["jobTemplate"]
    job: Json = copy.deepcopy(template) | {"apiVersion": "batch/v1", "kind": "Job"}
    uid = workshop.object["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": workshop.name, "uid": uid}
    labels = job["metadata"]["labels"]
    job["metadata"] = {"name": "gpu-reset-x", "labels": labels, "ownerReferences": [owner]}
    fields = [{"key": "metadata.name", "operator": "In", "values": [workshop.name]}]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    job["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    }
    container(job)["args"] = ["--gpu=3", "--wait=60"]
    return job


def container(job: Json) -> Json:
    found: Json = job["spec"]["template"]["spec"]["containers"][0]
    return found


def created(workshop: Workshop, token: str, job: Json) -> str:
    answer = workshop.plane.request("POST", f"{JOBS}?dryRun=All", job, token=token)
    return "" if answer.status == 201 else answer.message


CHANGES: list[tuple[Any, str]] = [
    (lambda job: container(job).update(image="evil"), "the container of an automatic reset"),
    (lambda job: container(job).update(command=["sh"]), "the container of an automatic reset"),
    (lambda job: container(job)["env"].append({"name": "PATH", "value": "/tmp"}), "the container of"),
    (lambda job: container(job).update(lifecycle={"preStop": {"exec": {"command": ["x"]}}}), "the container of"),
    (lambda job: container(job).update(args=["--gpu=3", "--reboot"]), "may only name GPUs and the wait"),
    (lambda job: job["spec"]["template"]["spec"].update(hostNetwork=True), "the pod of an automatic reset"),
    (lambda job: job["spec"]["template"]["spec"].update(nodeName="x"), "the pod of an automatic reset"),
    (
        lambda job: job["spec"]["template"]["spec"].update(initContainers=[{"name": "a", "image": "b"}]),
        "the pod of an automatic reset",
    ),
    (lambda job: job["spec"]["template"]["spec"]["containers"].append({"name": "a", "image": "b"}), "the container of"),
    (lambda job: job["spec"]["template"]["metadata"]["labels"].update(inject="true"), "labels and annotations of"),
    (lambda job: job["spec"].update(backoffLimit=6), "the Job of an automatic reset"),
    (lambda job: job["spec"].update(completions=5, parallelism=5), "the Job of an automatic reset"),
    (lambda job: job["metadata"].update(name="x"), "only Jobs of resets"),
    (lambda job: job["metadata"].update(ownerReferences=[]), "belongs to its Node"),
]
