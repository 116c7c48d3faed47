"""The program as a person or the Deployment starts it: usage, settings, metrics, and the dry run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.evict.metrics import METRICS
from gpu_healthcheck.healthcheck.node.state import EVICT, RESULTS, SEVERITY, STATUS, TAINT
from gpu_healthcheck.sim.control_plane import ControlPlane, install
from tests.evicting import annotation, eviction

UUID = "GPU-11111111-0000-0000-0000-000000000000"
NODE, PODS = "/api/v1/nodes/{}", "/api/v1/namespaces/evicting/pods"
CONFIG = "/api/v1/namespaces/gpu-healthcheck/configmaps/gpu-healthcheck-config"


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": "/nowhere", "CONFIG_DIR": "/nowhere", **variables}
    command = [sys.executable, "-m", "cli", "evict", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_command_is_the_program_itself() -> None:
    done = run("--help")
    assert (done.returncode, "--dry-run" in done.stdout) == (0, True)


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_missing_cluster_is_reported(words: list[str]) -> None:
    done = run(*words, METRICS_PORT="0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpu-healthcheck evict: can't connect to a cluster" in done.stderr


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["--now"], {}, "--now"),
        ([], {"LOG_LEVEL": "loud"}, "LOG_LEVEL"),
        ([], {"METRICS_PORT": "70000"}, "METRICS_PORT"),
    ],
)
def test_wrong_usage_is_no_failure_of_the_cluster(words: list[str], variables: dict[str, str], said: str) -> None:
    done = run(*words, **variables)
    assert done.returncode == 3
    assert said in done.stderr


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes, each with a GPU pod and the same fault; the second is of the team research."""
    install(control_plane)
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "evicting"}})
    account = {"metadata": {"name": "default"}}
    control_plane.request("POST", "/api/v1/namespaces/evicting/serviceaccounts", account)
    row = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "about": {"uuid": UUID}}
    for name, team in (("evict-1", "vision"), ("evict-2", "research")):
        labels = {SEVERITY: "REBOOT", STATUS: "fail", "team": team}
        control_plane.create_node(name, labels=labels, taints=[dict(TAINT)])
        record = {"schema": 1, "status": "fail", "findings": [row]}
        change = {"metadata": {"annotations": {RESULTS: json.dumps(record)}}}
        assert control_plane.request("PATCH", NODE.format(name), change).status == 200
        gpu = {"name": "x", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        spec = {"nodeName": name, "automountServiceAccountToken": False, "containers": [gpu]}
        answer = control_plane.request("POST", PODS, {"metadata": {"name": f"on-{name}"}, "spec": spec})
        assert answer.status == 201, answer.message
    yield control_plane
    for name in ("evict-1", "evict-2"):
        control_plane.request("DELETE", f"{PODS}/on-{name}?gracePeriodSeconds=0")
        control_plane.request("DELETE", NODE.format(name))
    configure(control_plane, **{"EVICT_SEVERITY": None, "node-overrides": None})


def configure(plane: ControlPlane, **values: str | None) -> None:
    assert plane.request("PATCH", CONFIG, {"data": values}).status == 200


def dry_run(plane: ControlPlane, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("--dry-run", KUBECONFIG=str(plane.kubeconfig), **variables)


@pytest.mark.cluster
def test_the_dry_run_shows_the_pods_by_the_settings_of_the_cluster(plane: ControlPlane) -> None:
    done = dry_run(plane)
    assert (done.returncode, done.stdout) == (0, "EVICT_SEVERITY is empty: no pod is evicted.\n")

    configure(plane, EVICT_SEVERITY="ISOLATE")
    done = dry_run(plane)
    assert done.returncode == 0
    assert "No pod of a tainted node uses a GPU with a finding at or above EVICT_SEVERITY." in done.stdout

    configure(plane, **{"EVICT_SEVERITY": "REBOOT", "node-overrides": "team=research: EVICT_SEVERITY="})
    done = dry_run(plane)
    assert (done.returncode, done.stderr) == (1, "")
    header, row = (line.split() for line in done.stdout.splitlines())
    assert header == ["node", "pod", "fault", "evicted"]
    assert row[:2] == ["evict-1", "evicting/on-evict-1"]
    assert "Xid79 (REBOOT) on gpu/0000:18:00.0" in " ".join(row)
    assert " ".join(row).endswith("60 s after its announcement")

    configure(plane, **{"node-overrides": "team=research: EVICT_DELAY=5"})
    assert "5 s after its announcement" in dry_run(plane).stdout.splitlines()[2]


@pytest.mark.cluster
def test_the_dry_run_uses_the_mounted_settings(plane: ControlPlane, tmp_path: Path) -> None:
    configure(plane, **{"EVICT_SEVERITY": "", "node-overrides": None})
    (tmp_path / "EVICT_SEVERITY").write_text("REBOOT")
    assert dry_run(plane, CONFIG_DIR=str(tmp_path)).returncode == 1
    assert dry_run(plane).returncode == 0


@pytest.mark.cluster
def test_the_dry_run_names_an_invalid_setting(plane: ControlPlane) -> None:
    configure(plane, EVICT_SEVERITY="RESET")
    done = dry_run(plane)
    configure(plane, EVICT_SEVERITY="")

    assert done.returncode == 0
    assert "EVICT_SEVERITY = 'RESET': allowed are REBOOT or ISOLATE" in done.stderr


@pytest.mark.cluster
def test_the_dry_run_shows_what_an_eviction_waits_for(plane: ControlPlane) -> None:
    configure(plane, **{"EVICT_SEVERITY": "REBOOT", "node-overrides": "team=research: EVICT_SEVERITY="})
    pod = plane.request("GET", f"{PODS}/on-evict-1").body["metadata"]
    why = "Cannot evict pod. The disruption budget train needs 1 healthy pods and has 1 currently"
    known = eviction("on-evict-1", "refused", namespace="evicting", uid=pod["uid"], why=why)
    plane.request("PATCH", NODE.format("evict-1"), {"metadata": {"annotations": annotation(known)}})
    done = dry_run(plane)
    plane.request("PATCH", NODE.format("evict-1"), {"metadata": {"annotations": {EVICT: None}}})

    assert "refused by PodDisruptionBudget evicting/train" in done.stdout
    assert plane.request("GET", f"{PODS}/on-evict-1").body["metadata"].get("deletionTimestamp") is None


@pytest.mark.cluster
def test_the_metrics_begin_at_zero_and_a_port_in_use_is_an_error(plane: ControlPlane, tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(plane.kubeconfig),
        "CONFIG_DIR": str(tmp_path),
        "METRICS_PORT": "0",
    }
    with subprocess.Popen([sys.executable, "-m", "evict"], env=environment, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        entry = json.loads(process.stderr.readline())
        with urllib.request.urlopen(f"http://127.0.0.1:{entry['port']}/metrics") as answer:
            page = answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{entry['port']}/healthz") as answer:
            assert answer.status == 200
        process.terminate()
        assert process.wait() == 0
    assert all(f"# HELP {metric.name} " in page for metric in METRICS)
    assert 'gpu_healthcheck_evictions_total{result="requested"} 0.0' in page

    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(METRICS_PORT=port, KUBECONFIG=str(plane.kubeconfig))
    assert done.returncode == 3
    assert f"METRICS_PORT {port}" in done.stderr
