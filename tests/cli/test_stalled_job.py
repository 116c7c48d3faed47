"""A job of eight pods whose GPUs wait, on a real control plane: `diagnose` names the rank to look at first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.state import RESULTS
from gpu_healthcheck.healthcheck.text.moments import timestamp
from tests.cli.cluster import start
from tests.cli.quarantine_world import DEFAULT_PODS, NODES, Hospital
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
JOBS = "/apis/batch/v1/namespaces/default/jobs"
INDEX = "batch.kubernetes.io/job-completion-index"
RANKS = 8


class Gang:
    """An indexed Job with one pod of one GPU on each of its nodes."""

    def __init__(self, hospital: Hospital) -> None:
        self.hospital = hospital
        for number in range(RANKS):
            hospital.admit(f"rank-{number}", devices={"nvidia.com/gpu": "1"})
        train = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        train["securityContext"] = {"privileged": True}  # it has EFA, as a multi-node job should
        pod = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [train, {"name": "logs", "image": "x"}],
        }
        spec = {"completionMode": "Indexed", "completions": RANKS, "parallelism": RANKS, "template": {"spec": pod}}
        answer = hospital.plane.request("POST", JOBS, {"metadata": {"name": "train"}, "spec": spec})
        assert answer.status == 201, answer.message
        self.pods: list[dict[str, Any]] = eventually(self._running)
        for rank in range(RANKS):
            (hospital.folder / f"{self.name(rank)}.log").touch()
        self.since = timestamp(datetime.now(UTC) - timedelta(minutes=30))

    def _running(self) -> list[dict[str, Any]]:
        pods = self.hospital.plane.request("GET", DEFAULT_PODS).body["items"]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        in_order = sorted(running, key=lambda pod: int(pod["metadata"]["labels"][INDEX]))
        return in_order if len(in_order) == RANKS else []

    def name(self, rank: int) -> str:
        return str(self.pods[rank]["metadata"]["name"])

    def record(self, rank: int, state: str, *findings: dict[str, str]) -> None:
        """Write what the agent of the rank's node would: the state of its GPU, and findings."""
        pod = self.pods[rank]
        row = {"state": state, "since": self.since, "pod": pod["metadata"]["uid"][:8]}
        work = {f"GPU-{rank}": row} if state else {}
        record = {"schema": 1, "status": "warn", "findings": findings, "work": work}
        path = f"{NODES}/{pod['spec']['nodeName']}"
        self.hospital.plane.request("PATCH", path, {"metadata": {"annotations": {RESULTS: json.dumps(record)}}})

    def restart(self, rank: int) -> None:
        """Let the container with the GPU be restarted, later than the pods were created."""
        ended = {"exitCode": 1, "finishedAt": timestamp(datetime.now(UTC) + timedelta(minutes=10))}
        states = self.pods[rank]["status"]["containerStatuses"]
        states[0] |= {"name": "train", "restartCount": 1, "lastState": {"terminated": ended}}
        path = f"{DEFAULT_PODS}/{self.name(rank)}/status"
        answer = self.hospital.plane.request("PATCH", path, {"status": {"containerStatuses": states}})
        assert answer.status == 200, answer.message

    def diagnosed(self, *words: str) -> tuple[int, str]:
        """Return the exit code, and the output from the cause on."""
        done = start(self.hospital.plane.kubeconfig, "diagnose", *words)
        out, err = done.communicate()
        assert err == ""
        return done.returncode, out[out.find("JobStalled job/") :] if "JobStalled job/" in out else ""


@pytest.fixture
def gang(hospital: Hospital) -> Iterator[Gang]:
    gang = Gang(hospital)
    yield gang
    hospital.plane.request("DELETE", f"{JOBS}/train?propagationPolicy=Background")


def test_diagnose_names_the_rank_for_which_the_others_wait(gang: Gang) -> None:
    for rank in range(RANKS):
        gang.record(rank, "")
    assert gang.diagnosed("job", "default/train") == (0, "")

    for rank in range(RANKS):
        gang.record(rank, "waiting")
    code, shown = gang.diagnosed("job", "default/train")
    assert (code, "8 of 8 GPUs wait since" in shown, "no rank differs" in shown) == (1, True, True), shown

    gang.record(5, "idle")
    _, shown = gang.diagnosed("job", "default/train")
    node = gang.pods[5]["spec"]["nodeName"]
    first = f"start with rank 5, pod/default/{gang.name(5)} on node/{node}: 1 of 1 GPU idle since"
    assert (first in shown, "7 of 8 GPUs wait since" in shown) == (True, True), shown
    assert f"`kubectl -n default exec {gang.name(5)} -c train -- py-spy dump --pid 1`" in shown
    assert first in gang.diagnosed("pod", f"default/{gang.name(1)}")[1]

    gang.record(3, "waiting", {"reason": "Xid74", "severity": "RESET", "subject": "gpu/0000:18:00.0"})
    _, shown = gang.diagnosed("job", "default/train")
    assert "start with rank 3," in shown, shown
    assert f"then rank 5, pod/default/{gang.name(5)}" in shown, shown

    gang.restart(6)
    _, shown = gang.diagnosed("job", "default/train")
    assert re.findall(r"(?:start with|then) rank (\d)", shown) == ["6", "3", "5"], shown
    assert f"`kubectl -n default logs {gang.name(6)} -c train --timestamps --tail=20`" in shown

    for rank in range(RANKS):
        gang.record(rank, "")
    assert gang.diagnosed("job", "default/train") == (0, "")
