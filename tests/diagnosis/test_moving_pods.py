"""The printed way off a faulty node, by what it does to the workload; each row has the commands in their order."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.sources.redaction import redacted
from gpu_healthcheck.healthcheck.operations.pod_removal import read_retries
from tests.diagnosis.hami.hami_states import asking, hami, hami_node, unplaced, vgpu_pod
from tests.diagnosis.states import Object, judged, node, obj, pod, recorded

XID = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "detail": "fell off the bus"}
RECORD = recorded(XID, status="fail", severity="REBOOT")
FAULTY = node("a", cordoned=True, annotations=RECORD)
DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
DELETE = "kubectl -n team delete pod train-0"
UNBOUND = '{"spec": {"nodeName": null}}'
CREATE_AGAIN = [
    "kubectl -n team get pod train-0 -o yaml > train-0.yaml",
    f"{DELETE} && kubectl patch --local --type=merge -o json -p '{UNBOUND}' -f train-0.yaml | kubectl create -f -",
]
DRAIN = "kubectl drain a --pod-selector=batch.kubernetes.io/controller-uid=job-team-train --delete-emptydir-data"


def job(limit: int, *rules: Object, pods: int = 1, owner: tuple[str, str] | None = None, **more: Any) -> Object:
    spec = {"backoffLimit": limit, "parallelism": pods, "podFailurePolicy": {"rules": [*rules]}}
    metadata: Object = {}
    if owner:
        kind, name = owner
        uid = f"{kind}-team-{name}".lower()
        metadata["ownerReferences"] = [{"kind": kind, "name": name, "uid": uid, "controller": True}]
    return obj("Job", "train", "team", spec=spec, metadata=metadata | more)


def suspend(kind: str = "job", patch: str = '{"spec":{"suspend":true}}') -> list[str]:
    command = f"kubectl -n team patch {kind} train --type=merge -p '{patch}'"
    return [command, command.replace("true", "false")]


def by(kind: str) -> Object:
    return pod("train-0", 8, on="a", owner=(kind, "train"))


def job_set(used: int) -> Object:
    return obj("JobSet", "train", "team", spec={"failurePolicy": {"maxRestarts": 2}}, status={"restarts": used})


def torch(policy: str) -> Object:
    return obj("PyTorchJob", "train", "team", spec={"pytorchReplicaSpecs": {"": {"restartPolicy": policy}}})


SET = ("JobSet", "train")
UNCHECKED = "could not check whether this fails"
RUN_POLICY = '{"spec":{"runPolicy":{"suspend":true}}}'
ROWS: list[tuple[str, list[Object], list[str], str]] = [
    ("retries are left", [job(6), by("Job")], [DELETE], "Then delete its pods there, so that it continues"),
    ("no retry is left", [job(0), by("Job")], suspend(), "this fails Job train: backoffLimit 0."),
    ("it ignores evictions", [job(0, DISRUPTION), by("Job")], [DRAIN], "Then evict its pods there"),
    (
        "it ignores evictions, and other ranks may fail",
        [job(0, DISRUPTION, pods=4), by("Job")],
        [*suspend(), DRAIN],
        "If its pods do not wait for each other, instead evict its pods there",
    ),
    ("its JobSet has restarts left", [job(0, owner=SET), job_set(1), by("Job")], [DELETE], ""),
    (
        "its JobSet has none left",
        [job(0, owner=SET), job_set(2), by("Job")],
        suspend("jobset"),
        "2 of maxRestarts 2 are used",
    ),
    (
        "its JobSet is gone",
        [job(0, owner=SET), by("Job")],
        [DELETE],
        f"{UNCHECKED} the owner of Job train, which fails (backoffLimit 0): it",
    ),
    ("its Job was not listed", [by("Job")], [DELETE], f"{UNCHECKED} Job train: it was not found"),
    ("a Job of another API", [job(6, uid="other"), by("Job")], [DELETE], f"{UNCHECKED} Job train"),
    (
        "a PyTorchJob with Never",
        [torch("Never"), by("PyTorchJob")],
        suspend("pytorchjob", RUN_POLICY),
        "restartPolicy Never",
    ),
    ("a PyTorchJob with OnFailure", [torch("OnFailure"), by("PyTorchJob")], [DELETE], ""),
    ("Ray's cluster", [by("RayCluster")], [DELETE], f"{UNCHECKED} RayCluster train: the rules"),
    ("a Deployment", [by("ReplicaSet")], [DELETE], "so that it continues on healthy nodes"),
    ("a DaemonSet", [by("DaemonSet")], [], "its DaemonSet train creates pod/team/train-0 there again"),
    ("no controller", [pod("train-0", 8, on="a")], CREATE_AGAIN, "which no controller creates again"),
]


@pytest.mark.parametrize(("state", "commands", "part"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_remedy_keeps_the_job(state: list[Object], commands: list[str], part: str) -> None:
    first = judged(FAULTY, *state).problems[0].found

    assert first.cause.name == "PodOnFaultyGpu"
    assert re.findall(r"`(kubectl [^`]+)`", " ".join(first.remedy)) == commands
    assert part in " ".join(first.remedy)


def test_drain_of_a_tainted_node_ends_with_uncordon() -> None:
    taint = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}
    remedy = (
        judged(node("a", taints=[taint], annotations=RECORD), job(0, DISRUPTION), by("Job")).problems[0].found.remedy
    )

    assert remedy[-1].endswith("as a taint keeps new pods off: `kubectl uncordon a`")


def test_pods_of_one_job_are_one_command() -> None:
    ranks = [pod(f"train-{number}", 2, on="a", owner=("Job", "train")) for number in range(2)]
    remedy = judged(FAULTY, job(2, pods=2), *ranks).problems[0].found.remedy

    assert remedy[-1].endswith("`kubectl -n team delete pod train-0 train-1`")


def test_saved_job_keeps_its_retry_rules() -> None:
    raw = job(2, DISRUPTION, pods=4, owner=SET)
    assert read_retries("Job", redacted(raw)) == read_retries("Job", raw)


def test_unlisted_job_is_not_checked() -> None:
    remedy = judged(FAULTY, by("Job"), missing=["Job"]).problems[0].found.remedy

    assert "could not check whether this fails Job train: forbidden" in " ".join(remedy)


LOST_ACCESS = {("pod/team/train-0", "main"): "Failed to initialize NVML: Unknown Error"}
STUCK = {"hami.io/bind-phase": "allocating", "hami.io/bind-time": "1795348000"}
MISSED = "0/1 nodes are available: 1 Insufficient nvidia.com/gpumem."
BY_JOB: dict[str, Any] = {"owner": ("Job", "train")}
OTHER_CAUSES: dict[str, list[Object]] = {
    "GpuAccessLostAtRuntime": [node("a"), by("Job")],
    "GpuNodeGone": [node("b"), pod("train-0", 8, on="a", phase="Pending", **BY_JOB)],
    "HamiAllocationHangs": [
        *hami(hami_node("a")),
        vgpu_pod("train-0", on="a", phase="Pending", annotations=STUCK, **BY_JOB),
    ],
    "HamiWebhookMissed": [
        *hami(hami_node("a")),
        unplaced("train-0", MISSED, asking(1, 1000), spec={"schedulerName": "default-scheduler"}, **BY_JOB),
    ],
}


@pytest.mark.parametrize(("cause", "state"), OTHER_CAUSES.items(), ids=OTHER_CAUSES)
def test_pod_of_a_job_is_deleted_only_if_the_job_continues(cause: str, state: list[Object]) -> None:
    for limit, commands in ((6, [DELETE]), (0, suspend())):
        problems = judged(*state, job(limit), logs=LOST_ACCESS).problems
        (found,) = [problem.found for problem in problems if problem.found.cause.name == cause]
        changes = [text for text in re.findall(r"`(kubectl [^`]+)`", " ".join(found.remedy)) if " get " not in text]
        assert changes == commands
