"""What removing pods does to their workload: rules of Job, JobSet, PyTorchJob and MPIJob, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.operations.pod_removal import (
    Fate,
    OwnerRef,
    Removal,
    RemovedPod,
    controller_of,
    read_retries,
    removal_effect,
)

DELETION, EVICTION = Removal.DELETION, Removal.EVICTION
CONTINUES, UNKNOWN, MAY_FAIL, FAILS, GONE = Fate


def exits(operator: str, *values: int, container: str = "", action: str = "FailJob") -> dict[str, Any]:
    name = {"containerName": container} if container else {}
    return {"action": action, "onExitCodes": {"operator": operator, "values": [*values], **name}}


def disrupted(action: str) -> dict[str, Any]:
    return {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


GATE, DISRUPTION = exits("In", 75, container="gpu-gate", action="Ignore"), disrupted("Ignore")
NOT_75 = exits("NotIn", 75)
NO_POLICY: dict[str, Any] = {"metadata": {"name": "set"}, "spec": {}}
SECOND_TRY = RemovedPod({}, {"batch.kubernetes.io/job-index-failure-count": "1"})
POD = RemovedPod({"training.kubeflow.org/replica-type": "worker"})


def job(*rules: Mapping[str, Any], status: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    pod = {"initContainers": [{"name": "gpu-gate"}, {"name": "proxy", "restartPolicy": "Always"}]}
    fields = {"backoffLimit": 0, "template": {"spec": pod}, "podFailurePolicy": {"rules": [*rules]}, **spec}
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "workers"}
    return {"metadata": {"name": "train", "uid": "u", "labels": labels}, "spec": fields, "status": status or {}}


def effect(
    removal: Removal, raw: Mapping[str, Any], pods: int | list[RemovedPod] = 1, kind: str = "Job", **above: Any
) -> tuple[Fate, str]:
    removed = [POD] * pods if isinstance(pods, int) else pods
    chain = [read_retries(kind, raw), *(read_retries(name, entry) for name, entry in above.items())]
    found = removal_effect(removal, removed, OwnerRef(kind, "train"), chain, "")
    return found.fate, found.text


@pytest.mark.parametrize(
    ("raw", "pods", "deletion", "eviction"),
    [
        (job(), 1, FAILS, FAILS),
        (job(GATE), 1, FAILS, FAILS),
        (job(GATE, DISRUPTION), 1, FAILS, CONTINUES),
        (job({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}), 1, FAILS, CONTINUES),
        (job({"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "False"}]}), 1, FAILS, FAILS),
        (job(disrupted("FailJob"), backoffLimit=6), 1, CONTINUES, FAILS),
        (job(disrupted("Count")), 1, FAILS, FAILS),
        (job(NOT_75, DISRUPTION, backoffLimit=6), 1, FAILS, FAILS),
        (job(DISRUPTION, NOT_75, backoffLimit=6), 1, FAILS, CONTINUES),
        # The program may handle SIGTERM and exit with 1.
        (job(exits("In", 1), backoffLimit=6), 1, MAY_FAIL, MAY_FAIL),
        (job(exits("In", 137, 143, action="Ignore")), 1, MAY_FAIL, MAY_FAIL),
        # An init container has ended when the pod runs; a sidecar has not.
        (job(exits("NotIn", 75, container="gpu-gate"), backoffLimit=1), 1, CONTINUES, CONTINUES),
        (job(exits("NotIn", 75, container="proxy"), backoffLimit=1), 1, FAILS, FAILS),
        (job(backoffLimit=1), 1, CONTINUES, CONTINUES),
        (job(backoffLimit=1), 2, FAILS, FAILS),
        (job(backoffLimit=1, status={"failed": 1}), 1, FAILS, FAILS),
        (job(backoffLimit=None), 6, CONTINUES, CONTINUES),
        (job(backoffLimit=None), 7, FAILS, FAILS),
        # Other ranks may fail with the removed one, and an eviction of one rank does not excuse them.
        (job(backoffLimit=2, status={"active": 4}), 1, MAY_FAIL, MAY_FAIL),
        (job(DISRUPTION, parallelism=4), 1, FAILS, MAY_FAIL),
        (job(DISRUPTION, parallelism=4), 4, FAILS, CONTINUES),
        (job(backoffLimit=4, status={"active": 4}), 1, CONTINUES, CONTINUES),
        (job(backoffLimit=None, backoffLimitPerIndex=0), 1, FAILS, FAILS),
        (job(backoffLimit=None, backoffLimitPerIndex=1), 1, CONTINUES, CONTINUES),
        (job(backoffLimit=None, backoffLimitPerIndex=1), [SECOND_TRY], FAILS, FAILS),
        (job(DISRUPTION, backoffLimit=None, backoffLimitPerIndex=0), 1, FAILS, CONTINUES),
        (job(exits("NotIn", 75, action="FailIndex"), backoffLimit=None, backoffLimitPerIndex=3), 1, FAILS, FAILS),
    ],
)
def test_a_job_continues_or_fails_by_its_rules(
    raw: Mapping[str, Any], pods: int | list[RemovedPod], deletion: Fate, eviction: Fate
) -> None:
    assert (effect(DELETION, raw, pods)[0], effect(EVICTION, raw, pods)[0]) == (deletion, eviction)


def job_set(*rules: Mapping[str, Any], used: int = 0) -> dict[str, Any]:
    spec = {"failurePolicy": {"maxRestarts": 3, "rules": [*rules]}}
    return {"metadata": {"name": "set"}, "spec": spec, "status": {"restarts": 9, "restartsCountTowardsMax": used}}


def on_reason(reason: str) -> dict[str, Any]:
    return job_set({"action": "FailJobSet", "onJobFailureReasons": [reason]})


@pytest.mark.parametrize(
    ("raw", "above", "fate", "part"),
    [
        (job(), NO_POLICY, FAILS, "the JobSet has no failurePolicy"),
        (job(), job_set(used=2), CONTINUES, ""),
        (
            job(),
            job_set(used=3),
            FAILS,
            "fails JobSet set: its Job train fails (backoffLimit 0), and 3 of maxRestarts 3 are used",
        ),
        (job(), {"metadata": {"name": "set"}, "spec": {"failurePolicy": {}}}, FAILS, "0 of maxRestarts 0"),
        (job(), on_reason("BackoffLimitExceeded"), FAILS, "rule FailJobSet"),
        (job(), on_reason("DeadlineExceeded"), CONTINUES, ""),
        (job(), job_set({"action": "FailJobSet", "targetReplicatedJobs": ["driver"]}), CONTINUES, ""),
        (job(), job_set({"action": "RestartJobSetAndIgnoreMaxRestarts"}, used=3), CONTINUES, ""),
        (job(), job_set({"action": "RestartJobSet"}, used=3), FAILS, "3 of maxRestarts 3"),
        (job(), job_set({"action": "Unheard"}), UNKNOWN, "could not check whether this fails JobSet set"),
        (job(NOT_75), on_reason("PodFailurePolicy"), FAILS, "rule FailJobSet"),
        (job(backoffLimit=1), NO_POLICY, CONTINUES, ""),
        (job(parallelism=2, backoffLimit=1), NO_POLICY, MAY_FAIL, "this may fail JobSet set"),
    ],
)
def test_a_job_set_may_survive_its_job(raw: Any, above: Any, fate: Fate, part: str) -> None:
    found, text = effect(DELETION, raw, JobSet=above)
    assert (found, part in text) == (fate, True), text


def torch(policy: str = "", **run_policy: Any) -> dict[str, Any]:
    replica = {"restartPolicy": policy} if policy else {}
    return {
        "metadata": {"name": "train"},
        "spec": {
            "runPolicy": run_policy,
            "pytorchReplicaSpecs": {"Master": {"restartPolicy": "Never"}, "Worker": replica},
        },
    }


@pytest.mark.parametrize(
    ("raw", "kind", "fate"),
    [
        (torch(), "PyTorchJob", CONTINUES),
        (torch("OnFailure", backoffLimit=3), "PyTorchJob", CONTINUES),
        (torch("OnFailure", backoffLimit=0), "PyTorchJob", FAILS),
        (torch("Never"), "PyTorchJob", FAILS),
        (torch("ExitCode"), "PyTorchJob", MAY_FAIL),
        ({"metadata": {"name": "train"}, "spec": {"runPolicy": {"backoffLimit": 0}}}, "MPIJob", MAY_FAIL),
        ({"metadata": {"name": "train"}, "spec": {"runPolicy": {}}}, "MPIJob", CONTINUES),
        ({"metadata": {"name": "train"}, "spec": {}}, "RayCluster", UNKNOWN),
        ({"metadata": {"name": "train"}, "spec": {}}, "StatefulSet", CONTINUES),
        ({"metadata": {"name": "train"}, "spec": {}}, "DaemonSet", CONTINUES),
    ],
)
def test_other_workloads_recreate_their_pods_or_fail(raw: Any, kind: str, fate: Fate) -> None:
    assert effect(DELETION, raw, kind=kind)[0] == fate


def test_an_mpi_job_fails_with_the_job_of_its_launcher() -> None:
    fate, text = effect(EVICTION, job(), MPIJob={"metadata": {"name": "mpi"}, "spec": {}})
    assert (fate, text) == (FAILS, "this fails MPIJob mpi with its Job train: backoffLimit 0")


@pytest.mark.parametrize(
    ("chain", "text"),
    [
        ([None], "could not check whether this fails Job train: forbidden"),
        (
            [job(), None],
            "could not check whether this fails the owner of Job train, which fails (backoffLimit 0): forbidden",
        ),
        ([job(backoffLimit=1), None], ""),
    ],
)
def test_an_unreadable_workload_is_not_checked(chain: list[Any], text: str) -> None:
    rules = [read_retries("Job", raw) if raw else None for raw in chain]
    assert removal_effect(EVICTION, [POD], OwnerRef("Job", "train"), rules, "forbidden").text == text


def test_a_pod_without_controller_is_not_recreated() -> None:
    assert removal_effect(EVICTION, [POD], None, [], "").fate == GONE
    assert controller_of({"metadata": {"ownerReferences": [{"kind": "Workspace", "name": "w"}]}}) is None


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None, "spec": None, "status": None},
        {"spec": {"backoffLimit": "0", "podFailurePolicy": [], "template": 1, "pytorchReplicaSpecs": [1]}},
        {"spec": {"podFailurePolicy": {"rules": [1, {}, {"onExitCodes": [], "onPodConditions": {}}]}}},
        {"spec": {"failurePolicy": {"rules": [{"onJobFailureReasons": "x"}], "maxRestarts": -7}, "runPolicy": 3}},
    ],
)
@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob", "MPIJob"])
def test_an_object_of_any_shape_is_no_crash(odd: Any, kind: str) -> None:
    rules = read_retries(kind, odd)
    assert removal_effect(EVICTION, [POD], OwnerRef(kind, "x"), [rules, read_retries("JobSet", odd)], "")
    assert controller_of({"metadata": {"ownerReferences": odd.get("spec")}}) is None
