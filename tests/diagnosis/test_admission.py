"""For each cause before a pod exists one state that yields it, and a twin that yields nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.refusals import parse
from tests.diagnosis.states import GPU, Object, container, event, judged, messages, node, obj, pod, results

DEPLOYMENT = "deployment/team/serve"


def replicas(made: int, wanted: int = 2, **changes: Any) -> list[Object]:
    """A Deployment of pods of one GPU, and its ReplicaSet."""
    template = {"spec": {"containers": [container("main", 1)]} | changes.get("spec", {})}
    spec = {"replicas": wanted, "template": template}
    deployment = obj("Deployment", "serve", "team", spec=spec, status={"replicas": made})
    owner = {"kind": "Deployment", "name": "serve", "uid": deployment["metadata"]["uid"], "controller": True}
    metadata = {"ownerReferences": [owner]}
    status = {"replicas": made, "readyReplicas": made, "conditions": changes.get("conditions", [])}
    return [deployment, obj("ReplicaSet", "serve-7d", "team", metadata=metadata, spec=spec, status=status)]


def refused(text: str, made: int = 0, **changes: Any) -> list[Object]:
    made_of = replicas(made, **changes)
    return [*made_of, event(made_of[1], "FailedCreate", f"Error creating: {text}", by="replicaset-controller")]


def stateful(ready: int) -> Object:
    """Three pods are wanted, one after another, and one is there."""
    spec = {"replicas": 3, "template": {"spec": {"containers": [container("main", 1)]}}}
    return obj("StatefulSet", "serve", "team", spec=spec, status={"replicas": 1, "readyReplicas": ready})


def quota(used: str, hard: str = "2", key: str = f"requests.{GPU}", scopes: Object | None = None) -> Object:
    spec = {"hard": {key: hard}} | (scopes or {})
    return obj("ResourceQuota", "gpus", "team", spec=spec, status={"hard": {key: hard}, "used": {key: used}})


def plugin(text: str, made: int = 0) -> list[Object]:
    """The device plugin's DaemonSet, refused."""
    labels = {"app": "nvidia-device-plugin-daemonset"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container("plugin")]}}
    status = {"desiredNumberScheduled": 1, "currentNumberScheduled": made, "numberReady": made}
    name = "nvidia-device-plugin-daemonset"
    entry = obj("DaemonSet", name, "gpu-operator", spec={"template": template}, status=status)
    return [entry, event(entry, "FailedCreate", f"Error creating: {text}", by="daemonset-controller")]


def webhook(policy: str = "Fail") -> Object:
    client = {"service": {"namespace": "policy", "name": "gate", "path": "/v"}, "caBundle": "eA=="}
    rules = [{"resources": ["pods"], "operations": ["CREATE"]}]
    hook = {"name": "gate.example.com", "failurePolicy": policy, "clientConfig": client, "rules": rules}
    return obj("ValidatingWebhookConfiguration", "gate", webhooks=[hook])


def endpoints(ready: int) -> Object:
    labels = {"kubernetes.io/service-name": "gate"}
    each = [{"addresses": [f"10.0.0.{number}"], "conditions": {"ready": True}} for number in range(ready)]
    return obj("EndpointSlice", "gate-x", "policy", metadata={"labels": labels}, endpoints=each)


OF_TRAIN: Object = {
    "scopeSelector": {
        "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["train", "batch"]}]
    }
}
EXCEEDED = (
    'pods "serve-7d-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: '
    "requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
)
NO_CLASS = 'pods "serve-7d-x" is forbidden: pod rejected: RuntimeClass "nvidia" not found'
TOO_MANY = 'pods "serve-7d-x" is forbidden: maximum nvidia.com/gpu usage per Container is 4, but limit is 8'
RANGE = obj("LimitRange", "gpus", "team", spec={"limits": [{"type": "Container", "max": {GPU: "4"}}]})
DOWN = (
    'Internal error occurred: failed calling webhook "gate.example.com": failed to call webhook: Post '
    '"https://gate.policy.svc:443/v?timeout=10s": no endpoints available for service "gate"'
)
DENIED = 'admission webhook "gate.example.com" denied the request: images must come from registry.example'
PRIVILEGED = (
    'pods "nvidia-device-plugin-daemonset-x" is forbidden: violates PodSecurity "baseline:latest": privileged '
    '(container "plugin" must not set securityContext.privileged=true)'
)

STATES: list[tuple[str, list[Object], str, str]] = [
    *((text, refused(text), cause, subject) for _, cause, subject, text in messages("refusal")),
    ("quota", [*refused(EXCEEDED), quota("2")], "ExceededQuota", "resourcequota/team/gpus"),
    ("quota, by its numbers alone", [*replicas(0), quota("2")], "ExceededQuota", "resourcequota/team/gpus"),
    (
        "a quota of its priority class",
        [*replicas(0, spec={"priorityClassName": "train"}), quota("2", scopes=OF_TRAIN)],
        "ExceededQuota",
        "resourcequota/team/gpus",
    ),
    (
        "quota, by the condition",
        [
            *replicas(0, conditions=[{"type": "ReplicaFailure", "status": "True", "message": EXCEEDED}]),
            quota("2"),
        ],
        "ExceededQuota",
        "resourcequota/team/gpus",
    ),
    ("a stateful set, all ready so far", [stateful(ready=1), quota("2")], "ExceededQuota", "resourcequota/team/gpus"),
    ("limits of GPUs", [quota("0", key=f"limits.{GPU}")], "QuotaNeverApplies", "resourcequota/team/gpus"),
    ("limit range", [*refused(TOO_MANY), RANGE], "LimitRangeViolated", "limitrange/team/gpus"),
    (
        "runtime class, by the objects alone",
        [*replicas(0, spec={"runtimeClassName": "nvidia"})],
        "RuntimeClassMissing",
        "runtimeclass/nvidia",
    ),
    ("denied", [*refused(DENIED), webhook(), endpoints(1)], "WebhookDeniesPods", DEPLOYMENT),
    (
        "webhook down",
        [*refused(DOWN), webhook(), endpoints(0)],
        "WebhookUnreachable",
        "validatingwebhookconfiguration/gate",
    ),
    ("pod security of a component", plugin(PRIVILEGED), "PodSecurityDenied", "namespace/gpu-operator"),
    (
        "priority of a component",
        plugin(
            'pods "x" is forbidden: insufficient quota to match these scopes: '
            "[{PriorityClass In [system-node-critical system-cluster-critical]}]"
        ),
        "PriorityClassNeedsQuota",
        "namespace/gpu-operator",
    ),
]


@pytest.mark.parametrize(("state", "cause", "subject"), [pair[1:] for pair in STATES], ids=[pair[0] for pair in STATES])
def test_state_has_its_cause_and_no_other(state: list[Object], cause: str, subject: str) -> None:
    assert results(judged(node("a"), *state)) == [(cause, subject)]


SILENT: list[tuple[str, list[Object]]] = [
    ("quota with room by now", [*refused(EXCEEDED), quota("1")]),
    ("all pods made since", [*refused(EXCEEDED, made=2), quota("2")]),
    ("the class exists by now", [*refused(NO_CLASS), obj("RuntimeClass", "nvidia", handler="nvidia")]),
    ("the webhook is back", [*refused(DOWN), webhook(), endpoints(1)]),
    ("a quota of another priority class", [*replicas(0), quota("2", scopes=OF_TRAIN)]),
    ("a quota of other pods", [*replicas(0), quota("2", scopes={"scopes": ["BestEffort"]})]),
    ("a stateful set that waits for its first pod", [stateful(ready=0), quota("2")]),
    (
        "what needed a quota has been made",
        refused('pods "x" is forbidden: insufficient quota to consume: requests.nvidia.com/gpu', made=2),
    ),
    (
        "requests and limits",
        [
            quota("0", key=f"limits.{GPU}"),
            obj("ResourceQuota", "right", "team", spec={"hard": {f"requests.{GPU}": "4"}}),
        ],
    ),
    ("HAMi's quota", [quota("0", key="limits.nvidia.com/gpumem")]),
    ("scaled to none", [*refused(EXCEEDED, wanted=0), quota("2")]),
    ("a passing trouble", refused("Operation cannot be fulfilled on resourcequotas: the object has been modified")),
]


@pytest.mark.parametrize("state", [pair[1] for pair in SILENT], ids=[pair[0] for pair in SILENT])
def test_refusal_that_has_passed_is_no_cause(state: list[Object]) -> None:
    assert results(judged(node("a"), *state)) == []


def test_message_of_a_stateful_set_is_parsed() -> None:
    read = parse(f"create Pod serve-0 in StatefulSet serve failed error: {EXCEEDED}")
    assert read is not None
    assert (read.cause and read.cause.name, read.name, read.amounts) == (
        "ExceededQuota",
        "gpus",
        {"requests.nvidia.com/gpu": "1"},
    )


@pytest.mark.parametrize("made", [0, 2])
def test_deployment_reports_the_refusal_of_invisible_replica_sets(made: int) -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": EXCEEDED}
    deployment, replica_set = replicas(made)
    deployment["status"]["conditions"] = [failed]
    noted = [event(replica_set, "FailedCreate", f"Error creating: {EXCEEDED}")] if not made else []
    diagnosis = judged(node("a"), deployment, *noted, quota("2"), missing=["ReplicaSet"])

    assert results(diagnosis) == ([] if made else [("ExceededQuota", "resourcequota/team/gpus")])
    assert all(problem.found.affected == (DEPLOYMENT,) for problem in diagnosis.problems)


def test_owned_deployment_is_recognised_by_its_replica_set() -> None:
    deployment, *others = refused(EXCEEDED)
    owner = {"kind": "InferenceService", "name": "llm", "uid": "i", "controller": True}
    deployment["metadata"]["ownerReferences"] = [owner]
    (problem,) = judged(node("a"), deployment, *others, quota("2")).problems

    assert problem.found.affected == ("inferenceservice/team/llm",)
    assert not any("deployment/" in line for line in problem.found.evidence)


def test_job_set_without_its_jobs_is_reported() -> None:
    made_of = obj("JobSet", "train", "team")
    text = f'job "train-w-0" creation failed with error: {DENIED}, for nvidia.com/gpu'
    state = [node("a"), made_of, event(made_of, "JobCreationFailed", text)]
    assert results(judged(*state)) == [("WebhookDeniesPods", "jobset/team/train")]


def test_pods_that_use_the_quota_are_named() -> None:
    (problem,) = judged(node("a"), *refused(EXCEEDED), quota("2"), pod("holder", 2, on="a")).problems
    assert any("pod/team/holder (2)" in line for line in problem.found.evidence)


def test_event_of_a_training_operator_counts_while_it_is_new() -> None:
    job = obj("PyTorchJob", "train", "team")
    fresh = event(job, "FailedCreatePod", f"Error creating: {EXCEEDED}")
    assert results(judged(node("a"), fresh)) == [("ExceededQuota", "pytorchjob/team/train")]
    old = event(job, "FailedCreatePod", f"Error creating: {EXCEEDED}", minutes=50)
    assert results(judged(node("a"), old)) == []
