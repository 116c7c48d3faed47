"""A cluster at work: much has failed, was put right, is on its way or is meant so, and nothing of it is a fault."""

from __future__ import annotations

import pytest

from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    results,
    terminated,
    waiting,
)

NODES = [node("a"), node("b"), node("cpu", None)]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
NO_RUNTIME = 'Failed to create pod sandbox: failed to get sandbox runtime: no runtime for "nvidia" is configured'


def ran_before(end: Object) -> Object:
    state = {"running": {"startedAt": ago(90)}}
    return {"name": "main", "ready": True, "restartCount": 4, "state": state, "lastState": {"terminated": end}}


def failed(name: str, end: Object, **changes: object) -> Object:
    return pod(name, on="a", phase="Failed", states=[{"name": "main", "state": {"terminated": end}}], **changes)


def job(name: str, **status: object) -> Object:
    template = {"spec": {"containers": [container("main", 1)]}}
    return obj("Job", name, "team", spec={"parallelism": 1, "template": template}, status=status)


def done(name: str) -> list[Object]:
    complete = [{"type": "Complete", "status": "True"}]
    first = failed(f"{name}-0", terminated(1, "Error", OOM, minutes=50), owner=("Job", name))
    return [
        job(name, succeeded=1, conditions=complete),
        first,
        pod(f"{name}-1", phase="Succeeded", owner=("Job", name)),
    ]


PULLS = pod("pulls", on="a", phase="Pending", age=18, states=[waiting("ContainerCreating")])
YOUNG = pod("young", on="a", phase="Pending", age=0.5, states=[waiting("ContainerCreating")])
STARTS = pod("starts", on="a", phase="Pending", age=9, states=[waiting("PodInitializing")])
CLAIM = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
MOVES = pod("moves", on="a", phase="Pending", age=3, states=[waiting("ContainerCreating")], spec=CLAIM)
HELD = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) moved'
REGISTRY = waiting("ErrImagePull", "failed to pull: dial tcp: i/o timeout")
ATTACHED = pod("attached", on="a", phase="Pending", age=5, states=[waiting("ContainerCreating")])
PROVISIONED = pod(
    "provisioned",
    age=0.3,
    spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "new"}}]},
    conditions=[
        condition(
            *("PodScheduled", "False", "Unschedulable"),
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        )
    ],
)
MENDED = pod("mended", on="a", spec={"runtimeClassName": "nvidia"})
STATES = {
    "a container that ran out of GPU memory an hour ago and works": [
        pod("x", on="a", states=[ran_before(terminated(1, "Error", OOM, minutes=91))])
    ],
    "one that the kernel had killed and that works": [
        pod("x", on="a", states=[ran_before(terminated(137, "OOMKilled", minutes=91))])
    ],
    "a job that came through at its second try": done("train"),
    "a pod that failed last week": [failed("old", terminated(1, "Error", OOM, minutes=9000), age=9100)],
    "a large image": [PULLS, event(PULLS, "Pulling", "Pulling image", warning=False, minutes=17)],
    "a first try that failed, seconds ago": [YOUNG, event(YOUNG, "FailedMount", "object not registered", minutes=0.2)],
    "a registry that did not answer once": [
        pod("pulls-again", on="a", phase="Pending", age=1, states=[REGISTRY]),
    ],
    "a volume that was attached at the second try": [
        ATTACHED,
        event(ATTACHED, "FailedAttachVolume", HELD, minutes=4),
        event(ATTACHED, "SuccessfulAttachVolume", 'Attach succeeded for volume "pvc-1"', warning=False, minutes=2),
    ],
    "a volume that moves with its pod": [
        MOVES,
        event(MOVES, "FailedAttachVolume", HELD, minutes=2),
        pod("moved", on="b", spec=CLAIM, metadata={"deletionTimestamp": ago(0.5)}),
    ],
    "a volume that is being made": [
        PROVISIONED,
        obj("PersistentVolumeClaim", "new", "team", age=0.3, status={"phase": "Pending"}),
    ],
    "an init container that fetches a model": [
        STARTS
        | {
            "status": STARTS["status"]
            | {"initContainerStatuses": [{"name": "fetch", "state": {"running": {"startedAt": ago(8)}}}]}
        }
    ],
    "an event about a runtime that was missing before the toolkit came": [
        MENDED,
        event(MENDED, "FailedCreatePodSandBox", NO_RUNTIME, minutes=40, count=30),
        obj("RuntimeClass", "nvidia", handler="nvidia"),
    ],
    "pods that were rejected while the plugin started, and replaced": [
        obj("StatefulSet", "llm", "team", spec={"replicas": 1}, status={"replicas": 1, "readyReplicas": 1}),
        pod(
            "llm-0-old",
            on="a",
            phase="Failed",
            owner=("StatefulSet", "llm"),
            status={"reason": "UnexpectedAdmissionError", "message": "Allocate failed due to no healthy devices"},
        ),
    ],
    "pods that preemption and a drain ended": [
        failed("x", terminated(137), conditions=[condition("DisruptionTarget", "True", "PreemptionByScheduler")]),
        pod("y", on="a", phase="Failed", status={"reason": "NodeShutdown", "message": "Pod was rejected"}),
        pod("z", on="a", metadata={"deletionTimestamp": ago(2)}),
    ],
    "trouble of pods without GPUs": [
        pod("web", 0, on="cpu", phase="Pending", states=[waiting("ImagePullBackOff", "not found")]),
        pod("db", 0, on="cpu", states=[waiting("CrashLoopBackOff", lastState={"terminated": terminated(1)})]),
        pod("old", 0, on="cpu", phase="Failed", status={"reason": "Evicted", "message": "low on resource: memory"}),
    ],
    "a debug pod that sees all GPUs and asks for none": [
        pod(
            "debug",
            0,
            on="a",
            containers=[
                container(
                    "main",
                    0,
                    securityContext={"privileged": True},
                    env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                )
            ],
        )
    ],
    "variables that say what is so": [
        pod("x", 2, on="a", containers=[container("main", 2, env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}])])
    ],
    "a suspended job whose class is gone": [
        obj(
            "Job",
            "x",
            "team",
            spec={
                "parallelism": 1,
                "suspend": True,
                "template": {"spec": {"runtimeClassName": "gone", "containers": [container("main", 1)]}},
            },
        )
    ],
    "a node that joins": [
        obj("Node", "new", age=3, spec={}, status={"conditions": [condition("Ready", "False", minutes=3)]})
    ],
    "a probe that failed once": [
        MENDED,
        event(MENDED, "Unhealthy", "Liveness probe failed: timeout", minutes=5),
    ],
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_work_in_progress_is_no_fault(state: list[Object]) -> None:
    assert not results(judged(*NODES, *state))


def test_all_work_in_progress_together_is_no_fault() -> None:
    objects = {(entry["kind"], entry["metadata"]["name"]): entry for state in STATES.values() for entry in state}

    assert not results(judged(*NODES, *objects.values()))
