"""Work that comes back to the same bad node: Kueue's replacement pods, and restarts in place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.state import UNHEALTHY
from tests.diagnosis.component_states import gpu_node
from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    consequences,
    event,
    judged,
    obj,
    pod,
    recorded,
    results,
    terminated,
    waiting,
)

LOOP, IN_PLACE = "KueueReplacesOnTaintedNode", "RestartsOnFaultyNode"
TAINT = {"key": "example.com/maintenance", "value": "true", "effect": "NoSchedule"}
OURS = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
JOB = obj("Job", "train", "team", spec={"parallelism": 1}, status={"active": 1})
ENDED = condition("TerminatedByKueue", "True", "UnschedulableOnAssignedNode", "Pod terminated by Kueue", minutes=3)
SYSTEM = pod("coredns", 0, on="b", namespace="kube-system")
DIES = waiting("CrashLoopBackOff", "back-off", restartCount=6, lastState={"terminated": terminated(1)})


def assigned(name: str, host: str = "a", **changes: Any) -> Object:
    spec = {"nodeSelector": {"kubernetes.io/hostname": host}}
    changes.setdefault("owner", ("Job", "train"))
    return pod(f"train-{name}", 8, spec=spec, **changes)


def ended(name: str, **changes: Any) -> Object:
    return assigned(name, phase="Failed", conditions=[ENDED], age=5, **changes)


def queued(**spec: Any) -> Object:
    owner = {"kind": "Job", "name": "train", "uid": "x", "controller": True}
    status = {"conditions": [condition("Admitted", "True", "Admitted", "The workload is admitted")]}
    entry = obj("Workload", "job-train-1a2b", "team", metadata={"ownerReferences": [owner]}, spec=spec, status=status)
    return entry | {"apiVersion": "kueue.x-k8s.io/v1beta2"}


def pinned() -> Object:
    message = "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) didn't match Pod's node affinity."
    return assigned("3", conditions=[condition("PodScheduled", "False", "Unschedulable", message)], age=1)


TAINTED = [gpu_node("a", taints=[TAINT]), gpu_node("b"), SYSTEM, JOB, queued()]
FORGOTTEN = [event(ended(name), "PodTerminatedByKueue", "x", warning=False, by="kueue") for name in "12"]
TWICE = [ended("1"), ended("2")]
SUSPENDED = obj("Job", "train", "team", spec={"suspend": True})
LOOPS: list[tuple[str, list[Object], bool]] = [
    ("two ended, and the next one waits", [*TAINTED, *TWICE, pinned()], True),
    ("two ended, just now", [*TAINTED, *TWICE], True),
    ("two that only events name, and the next one waits", [*TAINTED, *FORGOTTEN, pinned()], True),
    ("one ended", [*TAINTED, ended("1")], False),
    ("one ended, and the next one waits elsewhere", [*TAINTED, ended("1"), assigned("2", "b", age=1)], False),
    ("two ended, and Kueue has assigned another node", [*TAINTED, *TWICE, assigned("3", "b", age=1)], False),
    ("the taint is gone", [gpu_node("a"), gpu_node("b"), SYSTEM, JOB, queued(), *TWICE], False),
    ("the Workload is evicted", [*TAINTED[:3], SUSPENDED, queued(active=False), *TWICE], False),
]


@pytest.mark.parametrize(("state", "loops"), [row[1:] for row in LOOPS], ids=[row[0] for row in LOOPS])
def test_kueue_replacement_loop(state: list[Object], loops: bool) -> None:
    found = [problem.found for problem in judged(*state).problems if problem.found.cause.name == LOOP]

    assert [result.subject for result in found] == ["job/team/train"] * loops


def test_kueue_replacement_loop_names_the_eviction() -> None:
    (problem,) = judged(*TAINTED, *TWICE, pinned()).problems

    assert consequences(problem) == [("TaintNotTolerated", "job/team/train")]
    patches = [line.partition(" -p ")[2].strip("`'") for line in problem.found.remedy]
    assert [json.loads(patch) for patch in patches] == [{"spec": {"active": False}}, {"spec": {"active": True}}]
    assert all("kubectl -n team patch workloads.kueue.x-k8s.io job-train-1a2b" in line for line in problem.found.remedy)


def bad(**changes: Any) -> Object:
    finding = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "detail": "fell off the bus"}
    record = recorded(finding, status="fail", severity="REBOOT")
    return gpu_node("a", annotations=record, taints=changes.pop("taints", [OURS]), **changes)


def restarting(policy: str = "OnFailure", state: Object = DIES, **changes: Any) -> Object:
    changes.setdefault("owner", ("Job", "train"))
    return pod("train-0", 8, on="a", phase="Running", states=[state], spec={"restartPolicy": policy}, **changes)


RUNS = {"name": "main", "ready": True, "restartCount": 6, "state": {"running": {"startedAt": ago(90)}}}
OF_MPI = ("MPIJob", "train")
FAILED_LATELY, FAILED_LONG_AGO = (RUNS | {"lastState": {"terminated": terminated(1, minutes=at)}} for at in (2, 95))
RESTARTS: list[tuple[str, list[Object], str]] = [
    ("a Job with OnFailure", [bad(), JOB, restarting()], "job/team/train"),
    ("a training operator's job with Always", [bad(), restarting("Always", owner=OF_MPI)], "mpijob/team/train"),
    (
        "between two failures",
        [bad(), JOB, restarting(state=FAILED_LATELY)],
        "job/team/train",
    ),
    ("a fault without our taint", [bad(taints=[]), JOB, restarting()], "job/team/train"),
    ("a healthy node", [gpu_node("a"), JOB, restarting()], ""),
    ("a Job with Never", [bad(), JOB, restarting("Never")], ""),
    (
        "one that works since",
        [bad(), JOB, restarting(state=FAILED_LONG_AGO)],
        "",
    ),
    ("its first failure", [bad(), JOB, restarting(state=DIES | {"restartCount": 1})], ""),
    ("a DaemonSet's pod", [bad(), restarting("Always", owner=("DaemonSet", "train"))], ""),
]


@pytest.mark.parametrize(("state", "subject"), [row[1:] for row in RESTARTS], ids=[row[0] for row in RESTARTS])
def test_a_restart_policy_keeps_a_pod_on_a_faulty_node(state: list[Object], subject: str) -> None:
    found = [problem.found for problem in judged(*state).problems if problem.found.cause.name == IN_PLACE]

    assert [result.subject for result in found] == ([subject] if subject else [])


def test_a_crash_on_a_faulty_node_follows_from_the_restarts_there() -> None:
    (restarts, withheld) = judged(bad(), JOB, restarting()).problems

    assert consequences(restarts) == [("ContainerCrashes", "job/team/train")]
    assert withheld.found.cause.name == "NodeKeptFromWork"


def test_a_restart_on_a_faulty_node_is_named_first_with_its_way_out() -> None:
    first = judged(bad(taints=[]), JOB, restarting()).problems[0].found

    assert first.cause.name == IN_PLACE
    assert [line.rpartition(": ")[2] for line in first.remedy[:2]] == [
        "`kubectl cordon a`",
        "`kubectl -n team delete pod train-0`",
    ]
    assert "restartPolicy OnFailure, container main restarted 6 times on node/a" in first.evidence[0]
    moved = pod("train-1", 8, on="b", owner=("Job", "train"), spec={"restartPolicy": "Never"})
    after = judged(bad(), gpu_node("b"), JOB, moved)
    assert IN_PLACE not in dict(results(after))


@pytest.mark.parametrize(
    ("message", "log", "quote"),
    [
        ("model hub: 401 Unauthorized", "", "ended: model hub: 401 Unauthorized"),
        ("", "fetching\nmodel hub: 401 Unauthorized\n\n", "log: model hub: 401 Unauthorized"),
    ],
)
@pytest.mark.parametrize("phase", ["Pending", "Failed"])
def test_a_failing_init_container_is_quoted(message: str, log: str, quote: str, phase: str) -> None:
    end = terminated(3, "Error", message)
    state = {"terminated": end} if phase == "Failed" else {"waiting": {"reason": "CrashLoopBackOff"}}
    init = {"name": "fetch", "restartCount": 5, "state": state, "lastState": {"terminated": end}}
    spec = {"initContainers": [{"name": "fetch", "image": "x"}]}
    status = {"initContainerStatuses": [init]}
    fails = pod("train-0", 8, on="a", phase=phase, owner=("Job", "train"), spec=spec, status=status, states=[])
    logs = {("pod/team/train-0", "fetch"): log} if log else {}

    (problem,) = judged(gpu_node("a"), JOB, fails, logs=logs).problems

    assert problem.found.cause.name == "InitContainerFails"
    assert problem.found.evidence[0] == (
        f"pod/team/train-0: container fetch ended with Error, exit code 3, 5 restarts: {quote}"
    )
