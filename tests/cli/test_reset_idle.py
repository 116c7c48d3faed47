"""Automatic resets with the account of overlays/reset-automation: the program of its CronJob on a real API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.deep.reset_command import ResetCommand, render
from gpu_healthcheck.healthcheck.operations.reset_job import job_name
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.control_plane import ControlPlane, unbound_token
from gpu_healthcheck.sim.device_plugin import DEPLOY
from tests.cli.cluster import ROOT, P
from tests.cli.reset_world import JOBS, PODS, Workshop
from tests.evicting import BUDGET_ANSWER, annotation, eviction
from tests.overlays import OVERLAYS
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

ACCOUNT = "gpu-healthcheck-reset-automation"
OVERLAY = str(OVERLAYS / "reset-automation")
CRON_JOB = f"/apis/batch/v1/namespaces/gpu-healthcheck/cronjobs/{ACCOUNT}"
NODES = "/api/v1/nodes"
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}


@pytest.fixture(autouse=True)
def automation(scheduled: ControlPlane) -> Iterator[None]:
    """Install the overlay as a user does; the tests run the program of its CronJob."""
    scheduled.kubectl("apply", "-k", OVERLAY)
    scheduled.request("PATCH", CRON_JOB, {"spec": {"suspend": True}})
    token = unbound_token(scheduled, ACCOUNT)
    eventually(lambda: scheduled.request("GET", NODES, token=token).status == 200)
    yield
    scheduled.kubectl("delete", "-k", OVERLAY)


def run(plane: ControlPlane) -> tuple[int, str]:
    """Run the program with its account. Return its exit code and its log."""
    process = subprocess.run(
        [sys.executable, "-m", "cli", "reset-idle"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(plane.account_kubeconfig(ACCOUNT))},
        capture_output=True,
        text=True,
        timeout=GIVE_UP_SECONDS,
        check=False,
    )
    return process.returncode, process.stdout + process.stderr


def reasons(log: str) -> dict[str, str]:
    """Return the reason against a reset of each node in the log."""
    rows = [json.loads(line) for line in log.splitlines()]
    return {row["node"]: row["why"] for row in rows if row["event"] == "skipped"}


def test_reset_idle_resets_a_node_once_a_day(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)

    code, log = run(workshop.plane)

    assert code == 0, log
    assert (workshop.findings, workshop.allocatable, workshop.is_untouched) == ([], 8, True), log
    assert not workshop.is_tainted("unhealthy")
    eventually(lambda: workshop.reported == [*workshop.steps, "GpuResetDone"])

    workshop.break_gpu(2)
    code, log = run(workshop.plane)
    assert (code, workshop.findings, workshop.is_untouched) == (0, ["Xid62"], True), log
    assert "less than 24 h ago" in reasons(log)[workshop.name]


def test_reset_idle_restores_operands_of_a_dead_reset(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    assert run(workshop.plane)[0] == 0
    command = render(ResetCommand(job_name(workshop.name), {DEPLOY: "true"}, "x"))
    workshop.patch({"metadata": {"labels": {DEPLOY: "false"}, "annotations": {f"{P}/reset-command": command}}})
    eventually(lambda: workshop.allocatable == 0)

    code, log = run(workshop.plane)

    assert (code, workshop.labels[DEPLOY], workshop.allocatable) == (0, "true", 8), log


def test_reset_idle_skips_nodes_in_use_or_without_the_operator(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-5", gpu=5)
    workshop.break_gpu(2)
    code, log = run(workshop.plane)
    assert (code, workshop.pods(), workshop.has_job()) == (0, {"train-5"}, False), log
    assert reasons(log) == {workshop.name: "in use: default/train-5 holds 1 nvidia.com/gpu"}

    uid = workshop.plane.request("GET", f"{PODS}/train-5").body["metadata"]["uid"]
    refused = annotation(
        eviction("train-5", "refused", namespace="default", uid=uid, why=BUDGET_ANSWER.format("train"))
    )
    workshop.patch({"metadata": {"annotations": refused}})
    code, log = run(workshop.plane)
    assert (code, workshop.pods(), workshop.has_job()) == (0, {"train-5"}, False), log
    assert "refused by PodDisruptionBudget default/train" in reasons(log)[workshop.name]

    workshop.plane.request("DELETE", "/api/v1/namespaces/default/pods/train-5?gracePeriodSeconds=0")
    workshop.patch({"metadata": {"labels": {DEPLOY: None}}})
    code, log = run(workshop.plane)
    assert (code, workshop.has_job()) == (0, False), log
    assert "the GPU operator does not run its device plugin" in reasons(log)[workshop.name]


@pytest.mark.parametrize("has_ended", [False, True])
def test_reset_idle_leaves_a_persons_job(workshop: Workshop, has_ended: bool) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    job = workshop.job(suspend=True)
    if has_ended:
        at = timestamp(datetime.now(UTC))
        ended = [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("FailureTarget", "Failed")]
        workshop.plane.request("PATCH", f"{JOBS}/{job_name(workshop.name)}/status", {"status": {"conditions": ended}})

    code, log = run(workshop.plane)

    assert (code, workshop.is_untouched, workshop.has_job()) == (0, True, True), log
    assert f"Job gpu-healthcheck/{job} of a person's reset is there" in reasons(log)[workshop.name]


def row(severity: str, subject: str = "gpu/0000:18:00.0", **more: Any) -> dict[str, Any]:
    return {"reason": "Xid62", "severity": severity, "subject": subject, "nature": "event", **more}


def before(hours: float) -> dict[str, Any]:
    return {"schema": 1, "timestamp": timestamp(datetime.now(UTC) - timedelta(hours=hours)), "gpus": []}


ON_THE_GPU = "Xid62 on gpu/0000:18:00.0"
LEFT: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "escalated": ("ISOLATE", row("ISOLATE", rule="ESCALATE_AFTER"), {}, f"{ON_THE_GPU} needs more than a reset"),
    "isolate": ("ISOLATE", row("ISOLATE"), {}, f"{ON_THE_GPU} needs more than a reset"),
    "reboot": ("REBOOT", row("REBOOT"), {}, f"{ON_THE_GPU} needs more than a reset"),
    "of-no-gpu": ("RESET", row("RESET", "node"), {}, "no reset of a GPU ends Xid62 on node"),
    "again": ("RESET", row("RESET"), {"reset-result": before(23)}, "less than 24 h ago"),
    "budget": ("RESET", row("RESET"), {"taints": []}, "the limit of tainted nodes is reached"),
    "cordoned": ("RESET", row("RESET"), {"unschedulable": True}, "it is cordoned"),
    "silent": ("RESET", row("RESET"), {"reset-result": before(25)}, "its agent is silent"),
}
"""Nodes without an agent: severity, finding, differences, and the reason. Only the last one lacks nothing but that."""


@pytest.fixture
def left(scheduled: ControlPlane) -> Iterator[ControlPlane]:
    nodes = {**LEFT, "monitor": ("MONITOR", row("MONITOR"), {}, "")}
    for name, (severity, finding, differences, _) in nodes.items():
        scheduled.create_node(name, labels={f"{P}/severity": severity}, taints=[UNHEALTHY], provider_id="metal://a")
        records = {"results": {"schema": 1, "findings": [finding]}, **differences}
        texts = {f"{P}/{key}": json.dumps(value) for key, value in records.items() if isinstance(value, dict)}
        spec = {key: value for key, value in differences.items() if not isinstance(value, dict)}
        scheduled.request("PATCH", f"{NODES}/{name}", {"metadata": {"annotations": texts}, "spec": spec})
    yield scheduled
    for name in nodes:
        scheduled.request("DELETE", f"{NODES}/{name}")


def test_reset_idle_reports_why_it_skips_nodes(left: ControlPlane) -> None:
    code, log = run(left)

    found = reasons(log)
    assert (code, sorted(found)) == (0, sorted(LEFT)), log
    assert {name: why for name, (*_, why) in LEFT.items() if why not in found[name]} == {}
    for name in LEFT:
        node = left.request("GET", f"{NODES}/{name}").body["metadata"]
        assert (f"{P}/run" in node["annotations"], f"{P}/mode" in node["labels"]) == (False, False)
    assert left.request("GET", JOBS).body["items"] == []


def test_reset_idle_resets_one_node_at_a_time(left: ControlPlane) -> None:
    for minutes, is_active in ((5, True), (-5, False), (3 * 24 * 60 - 5, False)):
        until = timestamp(datetime.now(UTC) + timedelta(minutes=minutes))
        claim = json.dumps({"kind": "reset", "holder": "gpu-reset-monitor", "until": until})
        marks = {"labels": {f"{P}/mode": "reset"}, "annotations": {f"{P}/run": claim}}
        left.request("PATCH", f"{NODES}/monitor", {"metadata": marks})

        code, log = run(left)

        assert (code, '"another reset is active"' in log, reasons(log) == {}) == (0, is_active, is_active), log
