"""The stand-in for the kubelets: it starts, ends and tells as they do."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.sim.control_plane import Answer
from gpu_healthcheck.sim.kubelet import Kubelets
from tests.sweeper.world import JOBS, PODS, Fleet
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
PRINT_ENVIRONMENT = (
    "import json, os; print(json.dumps({k: os.environ.get(k) for k in ('NODE_NAME', 'HOST_ROOT', 'LIMIT')}))"
)
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print('asked'))
print('listens')
time.sleep(3600)
"""


@pytest.fixture
def run(fleet: Fleet) -> Callable[..., str]:
    def create(name: str, *command: str, grace: int = 30) -> str:
        env = [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LIMIT", "value": "7"},
        ]
        container = {"name": "x", "image": "x", "command": ["python", "-uc", *command], "env": env}
        spec = {
            "nodeName": fleet.add(f"kubelet-{name}"),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace,
            "serviceAccountName": "gpu-healthcheck-sweep",
            "containers": [container],
        }
        made = fleet.plane.request("POST", PODS, {"metadata": {"name": name}, "spec": spec})
        assert made.status == 201, made.message
        return f"{PODS}/{name}"

    return create


def status(fleet: Fleet, path: str) -> dict[str, Any]:
    found: dict[str, Any] = fleet.plane.request("GET", path).body["status"]
    return found


def test_a_command_runs_with_its_variables_and_reports_its_exit(
    fleet: Fleet, tmp_path: Path, run: Callable[..., str]
) -> None:
    roots = {"kubelet-told": tmp_path / "root"}
    with Kubelets(fleet.plane, tmp_path, roots) as kubelets:
        message, failed = run("told", PRINT_ENVIRONMENT), run("failed", "raise SystemExit(3)")

        eventually(lambda: status(fleet, message)["phase"] == "Succeeded")
        eventually(lambda: status(fleet, failed)["phase"] == "Failed")
        assert json.loads(kubelets.log("told")) == {
            "NODE_NAME": "kubelet-told",
            "HOST_ROOT": str(tmp_path / "root"),
            "LIMIT": "7",
        }
        assert status(fleet, failed)["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    for path in (message, failed):
        fleet.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")


def test_deleted_pod_is_terminated_and_killed_after_its_grace(
    fleet: Fleet, kubelets: Kubelets, run: Callable[..., str]
) -> None:
    path = run("stubborn", STUBBORN, grace=1)
    eventually(lambda: status(fleet, path)["phase"] == "Running" and kubelets.log("stubborn"))

    fleet.plane.request("DELETE", path)

    eventually(lambda: fleet.plane.request("GET", path).status == 404)
    assert kubelets.log("stubborn") == "listens\nasked\n"


def test_a_lost_status_is_reported_again(
    fleet: Fleet, kubelets: Kubelets, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, lost = fleet.plane.request, Counter[str]()

    def flaky(method: str, path: str, *words: Any, **named: Any) -> Answer:
        if method == "PATCH" and path.endswith("/again/status"):
            phase = words[0]["status"]["phase"]
            lost[phase] += 1
            if lost[phase] == 1:
                raise TimeoutError("timed out")
            if lost[phase] == 2:
                return Answer(500, {"message": "etcdserver: request timed out"})
        return request(method, path, *words, **named)

    monkeypatch.setattr(fleet.plane, "request", flaky)
    path = run("again", "print('once')")

    eventually(lambda: status(fleet, path)["phase"] == "Succeeded")
    assert kubelets.log("again") == "once\n"
    assert max(lost.values()) == 3
    request("DELETE", f"{path}?gracePeriodSeconds=0")


def test_an_indexed_job_runs_with_its_indexes_and_ends(fleet: Fleet, kubelets: Kubelets) -> None:
    program = "import os; print(os.environ['JOB_COMPLETION_INDEX'], os.environ['NAME'])"
    named = {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['name']"}}}
    container = {"name": "x", "image": "x", "command": ["python", "-uc", program], "env": [named]}
    spec = {"nodeName": fleet.add("kubelet-ranks"), "restartPolicy": "Never", "containers": [container]}
    job = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0}
    job["template"] = {"metadata": {"labels": {"name": "ranks"}}, "spec": spec}
    assert fleet.plane.request("POST", JOBS, {"metadata": {"name": "ranks"}, "spec": job}).status == 201

    eventually(lambda: status(fleet, f"{JOBS}/ranks").get("completedIndexes") == "0,1")
    logs = [path.read_text() for path in kubelets.folder.glob("ranks-*.log")]
    assert sorted(logs) == ["0 ranks\n", "1 ranks\n"]
    fleet.plane.request("DELETE", f"{JOBS}/ranks?propagationPolicy=Background")


def test_a_deleted_workload_of_a_job_has_failed(fleet: Fleet, kubelets: Kubelets) -> None:
    container = {"name": "x", "image": "x"}
    spec = {"nodeName": fleet.add("kubelet-work"), "restartPolicy": "Never", "containers": [container]}
    job = {"backoffLimit": 0, "template": {"metadata": {"labels": {"name": "work"}}, "spec": spec}}
    assert fleet.plane.request("POST", JOBS, {"metadata": {"name": "work"}, "spec": job}).status == 201
    pods = f"{PODS}?labelSelector=name=work"
    eventually(
        lambda: [pod["status"]["phase"] for pod in fleet.plane.request("GET", pods).body["items"]] == ["Running"]
    )

    fleet.plane.request("DELETE", pods)

    eventually(lambda: status(fleet, f"{JOBS}/work").get("failed") == 1)
    assert "succeeded" not in status(fleet, f"{JOBS}/work")
    fleet.plane.request("DELETE", f"{JOBS}/work?propagationPolicy=Background")


def test_a_token_outlives_a_day(fleet: Fleet, kubelets: Kubelets, run: Callable[..., str]) -> None:
    path = run("token", "print('runs')")
    eventually(lambda: status(fleet, path)["phase"] == "Succeeded")

    user = json.loads((kubelets.folder / "token.kubeconfig").read_text())["users"][0]["user"]
    claims = user["token"].split(".")[1]
    content = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert content["exp"] - content["iat"] > 86400
    fleet.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
