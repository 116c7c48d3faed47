"""Evictions of Jobs' pods by `quarantine`: real controllers count or ignore them, as the plan says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.quarantine_world import ACCOUNT, DEFAULT_PODS, Hospital
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
JOBS = "/apis/batch/v1/namespaces/default/jobs"
DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


class Training:
    """A Job whose pod runs on the node `first`, and elsewhere once that is cordoned."""

    def __init__(self, hospital: Hospital) -> None:
        self.hospital = hospital
        hospital.admit("first", labels={"example.com/first": "true"})
        hospital.admit("second", labels={"example.com/first": "false"})

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
            "containers": [{"name": "train", "image": "x"}],
        }
        policy = {"podFailurePolicy": {"rules": [*rules]}} if rules else {}
        body = {"backoffLimit": 0, "parallelism": pods, "template": {"spec": pod}, **policy, **spec}
        answer = self.hospital.plane.request("POST", JOBS, {"metadata": {"name": "train"}, "spec": body})
        assert answer.status == 201, answer.message
        eventually(lambda: self.nodes() == ["first"] * pods)

    def nodes(self) -> list[str]:
        """Return the nodes of the pods that run."""
        pods = self.hospital.plane.request("GET", DEFAULT_PODS).body["items"]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        return [pod["spec"]["nodeName"] for pod in running if "deletionTimestamp" not in pod["metadata"]]

    def failed(self) -> list[str]:
        status = self.hospital.plane.request("GET", f"{JOBS}/train").body["status"]
        return [entry["reason"] for entry in status.get("conditions", ()) if entry["type"] == "Failed"]


@pytest.fixture
def training(hospital: Hospital) -> Iterator[Training]:
    yield Training(hospital)
    hospital.plane.request("DELETE", f"{JOBS}/train?propagationPolicy=Background")


def test_a_job_that_an_eviction_fails_needs_force(training: Training) -> None:
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


def test_a_job_that_ignores_disruptions_continues_on_another_node(training: Training) -> None:
    training.start(DISRUPTION)

    code, out, _ = training.hospital.quarantine("first")

    assert (code, "fail" in out) == (0, False), out
    eventually(lambda: training.nodes() == ["second"])
    assert training.failed() == []


def test_a_job_whose_other_pods_may_fail_is_named_and_evicted(training: Training) -> None:
    training.start(backoffLimit=2, pods=2)

    code, out, _ = training.hospital.quarantine("first")

    assert (code, "fail" in out) == (0, False), out
    eventually(lambda: training.nodes() == ["second", "second"])


def test_a_job_that_may_not_be_read_is_not_checked(training: Training) -> None:
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
