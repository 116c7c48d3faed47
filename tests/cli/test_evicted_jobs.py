"""Jobs whose pods leave a node, by `quarantine` or by the printed commands: real controllers count or ignore that."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.state import RESULTS
from tests.cli.cluster import run
from tests.cli.quarantine_world import ACCOUNT, DEFAULT_PODS, Hospital
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
JOBS = "/apis/batch/v1/namespaces/default/jobs"
DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


class Training:
    """A Job whose pod runs on the node `first`, and elsewhere once that is cordoned."""

    def __init__(self, hospital: Hospital) -> None:
        self.hospital = hospital
        for name, is_first in (("first", "true"), ("second", "false")):
            hospital.admit(name, labels={"example.com/first": is_first}, devices={"nvidia.com/gpu": "8"})

    def start(self, *rules: dict[str, Any], pods: int = 1, **spec: Any) -> None:
        wanted = {"key": "example.com/first", "operator": "In", "values": ["true"]}
        preferred = [{"weight": 100, "preference": {"matchExpressions": [wanted]}}]
        on_trainers = {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "example.com/first", "operator": "Exists"}]}]
        }
        affinity = {
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            "requiredDuringSchedulingIgnoredDuringExecution": on_trainers,
        }
        pod = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "affinity": {"nodeAffinity": affinity},
            "containers": [{"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        }
        policy = {"podFailurePolicy": {"rules": [*rules]}} if rules else {}
        body = {"backoffLimit": 0, "parallelism": pods, "template": {"spec": pod}, **policy, **spec}
        answer = self.hospital.plane.request("POST", JOBS, {"metadata": {"name": "train"}, "spec": body})
        assert answer.status == 201, answer.message
        eventually(lambda: self.nodes() == ["first"] * pods)

    def pods(self) -> dict[str, str]:
        """Return the nodes of the pods that run, by name."""
        pods = self.hospital.plane.request("GET", DEFAULT_PODS).body["items"]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        there = [pod for pod in running if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in there}

    def nodes(self) -> list[str]:
        return [*self.pods().values()]

    def break_first(self) -> None:
        """Let the record of the first node have a fault, without a taint."""
        found = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0"}
        found["first_seen"] = "2026-01-01T00:00:00Z"
        record = {"schema": 1, "status": "fail", "severity": "REBOOT", "findings": [found]}
        path = "/api/v1/nodes/first"
        self.hospital.plane.request("PATCH", path, {"metadata": {"annotations": {RESULTS: json.dumps(record)}}})

    def diagnosed(self) -> list[dict[str, Any]]:
        done = run(self.hospital.plane.kubeconfig, "diagnose", "job", "default/train", "--json")
        causes: list[dict[str, Any]] = json.loads(done.stdout)["causes"]
        assert (done.returncode, done.stderr) == (int(bool(causes)), ""), done.stdout
        return causes

    def failed(self) -> list[str]:
        status = self.hospital.plane.request("GET", f"{JOBS}/train").body["status"]
        return [entry["reason"] for entry in status.get("conditions", ()) if entry["type"] == "Failed"]


@pytest.fixture
def training(hospital: Hospital) -> Iterator[Training]:
    yield Training(hospital)
    hospital.plane.request("DELETE", f"{JOBS}/train?propagationPolicy=Background")


def test_eviction_that_fails_a_job_needs_force(training: Training) -> None:
    training.start()

    code, out, _ = training.hospital.quarantine("first")

    assert (code, training.hospital.cordon("first"), training.nodes()) == (2, (False, None), ["first"])
    assert "this fails Job train: backoffLimit 0 (needs --force)" in out
    code, out, _ = training.hospital.quarantine("first", "--dry-run", "--force")
    assert (code, "(this fails Job train: backoffLimit 0)" in out) == (0, True)

    code, out, _ = training.hospital.quarantine("first", "--force")

    lines = [line for line in out.splitlines() if "this fails Job train" in line or "cordoned" in line]
    assert ("will evict default/train-" in lines[0], "cordoned" in lines[1], code) == (True, True, 0), out
    assert eventually(training.failed) == ["BackoffLimitExceeded"]


def test_eviction_of_a_job_that_ignores_disruptions(training: Training) -> None:
    training.start(DISRUPTION)

    code, out, _ = training.hospital.quarantine("first")

    assert (code, "fail" in out) == (0, False), out
    eventually(lambda: training.nodes() == ["second"])
    assert training.failed() == []


def test_eviction_of_a_job_with_retries_left_has_no_warning(training: Training) -> None:
    training.start(backoffLimit=2, pods=2)

    code, out, _ = training.hospital.quarantine("first")

    assert (code, "fail" in out) == (0, False), out
    eventually(lambda: training.nodes() == ["second", "second"])


def test_eviction_of_an_unreadable_job_could_not_check(training: Training) -> None:
    training.start()
    plane, rbac = training.hospital.plane, "/apis/rbac.authorization.k8s.io/v1"
    reads = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "patch"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    ]
    own = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "gpu-healthcheck"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "name": "evicting"}
    for kind, where, rules in (("ClusterRole", "", reads), ("Role", "/namespaces/gpu-healthcheck", own)):
        reference = {"subjects": [subject], "roleRef": {**role, "kind": kind}}
        for path, body in ((f"{kind.lower()}s", {"rules": rules}), (f"{kind.lower()}bindings", reference)):
            plane.request("POST", f"{rbac}{where}/{path}", {"metadata": {"name": "evicting"}, **body})
    kubeconfig = plane.account_kubeconfig(ACCOUNT)

    code, out, err = training.hospital.quarantine("first", "--dry-run", kubeconfig=kubeconfig)

    assert (code, err) == (0, ""), out
    assert "(could not check whether this fails Job train: get jobs: " in out


@pytest.mark.parametrize(
    ("rules", "spec", "verb"),
    [((), {}, "patch"), ((DISRUPTION,), {}, "drain"), ((), {"backoffLimit": 2}, "delete")],
    ids=["no retry is left", "evictions are ignored", "retries are left"],
)
def test_diagnose_commands_move_a_job_off_a_faulty_node(
    training: Training, rules: tuple[dict[str, Any], ...], spec: dict[str, Any], verb: str
) -> None:
    training.start(*rules, **spec)
    training.break_first()
    first = training.diagnosed()[0]
    commands = re.findall(r"`kubectl ([^`]+)`", " ".join(first["remedy"]))
    assert verb in commands[1].split()

    for line in commands:
        if '"suspend":false' in line:
            eventually(lambda: training.nodes() == [])
        training.hospital.plane.kubectl(*shlex.split(line))

    eventually(lambda: training.nodes() == ["second"])
    assert training.failed() == []
    assert "PodOnFaultyGpu" not in [cause["cause"] for cause in training.diagnosed()]


def test_diagnose_of_a_failed_job_names_reason_and_finding(training: Training) -> None:
    training.start()
    training.break_first()
    (name,) = training.pods()
    training.hospital.plane.kubectl("delete", "pod", name)
    eventually(training.failed)

    (cause,) = training.diagnosed()

    text = " ".join(cause["evidence"])
    assert (cause["cause"], cause["subject"]) == ("JobFailed", "job/default/train")
    assert "BackoffLimitExceeded: Job has reached the specified backoff limit" in text
    assert f"its last pod pod/default/{name} ran on node/first, and is gone" in text
    assert "node/first had then: Xid79 REBOOT on gpu/0000:18:00.0" in text
