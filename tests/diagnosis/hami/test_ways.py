"""From the webhook to the binding: where a pod that HAMi should serve leaves the way."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.model import Certainty
from tests.diagnosis.hami.hami_states import asking, hami, hami_node, unplaced, vgpu_pod
from tests.diagnosis.hami.test_two_installations import cluster
from tests.diagnosis.states import Object, ago, consequences, event, judged, node, obj, pod, results

A = hami_node("a")
SHORT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpumem. preemption: 0/3 nodes are available."
IGNORED = {"hami.io/webhook": "ignore"}
HOOK, SCHEDULER = "mutatingwebhookconfiguration/hami-webhook", "deployment/kube-system/hami-scheduler"
NOT_PLACED = "no binding pod found on node a"
DIAL = 'Post "https://127.0.0.1:443/filter": dial tcp 127.0.0.1:443: connect: connection refused'
SLOW = 'Post "https://127.0.0.1:443/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
FORBIDDEN = (
    'nodes "a" is forbidden: User "system:serviceaccount:kube-system:hami-scheduler" cannot patch resource "nodes"'
)


def plain(*containers: Object, **changes: Any) -> Object:
    """One that Kubernetes' own scheduler can't place, as no node offers HAMi's shares."""
    spec = {"schedulerName": "default-scheduler"} | changes.pop("spec", {})
    return unplaced("x", SHORT, *containers, spec=spec, **changes)


def rejected(message: str, **changes: Any) -> Object:
    text = f"Allocate failed due to rpc error: code = Unknown desc = {message}, which is unexpected"
    return pod(
        "x", 1, on="a", phase="Failed", status={"reason": "UnexpectedAdmissionError", "message": text}, **changes
    )


def test_missed_webhook_explains_a_shortage_of_shares() -> None:
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 2 Insufficient nvidia.com/gpumem."
    waits = unplaced("x", message, asking(1, 1000), spec={"schedulerName": "default-scheduler"})
    [problem] = judged(*hami(A), node("cpu", None), waits).problems
    assert problem.found.cause.name == "HamiWebhookMissed"
    assert consequences(problem) == [("NoNodeFits", "pod/team/x")]


def in_team(labels: dict[str, str], **changes: Any) -> list[Object]:
    others = [entry for entry in hami(A, **changes) if entry["metadata"]["name"] != "team"]
    return [*others, obj("Namespace", "team", metadata={"labels": {"kubernetes.io/metadata.name": "team"} | labels})]


def only(*, namespaces: str = "", pods: str = "") -> dict[str, Any]:
    """A webhook that selects by a label."""
    changes: dict[str, Any] = {}
    if namespaces:
        changes["namespaceSelector"] = {"matchLabels": {namespaces: "true"}}
    if pods:
        changes["objectSelector"] = {"matchLabels": {pods: "true"}}
    return changes


def refused(text: str, *more: Object) -> list[Object]:
    """A ReplicaSet with pods that the webhook denies."""
    spec = {"replicas": 1, "template": {"spec": {"containers": [asking(1, 1000)], "nodeName": "a"}}}
    maker = obj("ReplicaSet", "rs", "team", spec=spec, status={"replicas": 0})
    message = f'Error creating: admission webhook "vgpu.hami.io" denied the request: {text}'
    return [*hami(A), maker, event(maker, "FailedCreate", message), *more]


def on_hami(*pods: Object, **changes: Any) -> list[Object]:
    return [*hami(A, **changes), *pods]


def not_bound(message: str) -> Object:
    return unplaced("x", message, reason="SchedulerError")


QUOTA = obj("ResourceQuota", "q", "team", status={"hard": {"limits.nvidia.com/gpumem": "2000"}})
VOLCANO = {"schedulerName": "volcano"}
PRIVILEGED = asking(1, 1000, securityContext={"privileged": True})
NODE_NAME = "pod annotation format error, missing fields, do not use nodeName in task spec"
GONE = 'resolve allocated NVIDIA devices: device "GPU-9" not found'
POD, REPLICA_SET, SERVICE = "pod/team/x", "replicaset/team/rs", "service/kube-system/hami-scheduler"
LOCKED = hami_node("a", annotations={"hami.io/mutex.lock": f"{ago(9)},team,y"})
WAITS_FOR_LOCK = not_bound("binding rejected: node a has been locked within 5m0s")
ROWS: dict[str, tuple[list[Object], str, str]] = {
    "ignored by its label": (on_hami(plain(labels=IGNORED)), "HamiWebhookIgnored", POD),
    "ignored by its namespace": ([*in_team(IGNORED), plain()], "HamiWebhookIgnored", "namespace/team"),
    "a namespace not selected": (on_hami(plain(), webhook=only(namespaces="vgpu")), "HamiWebhookIgnored", HOOK),
    "a pod not selected": (on_hami(plain(), webhook=only(pods="vgpu")), "HamiWebhookIgnored", HOOK),
    "another scheduler": (on_hami(plain(spec=VOLCANO)), "HamiOtherScheduler", POD),
    "another scheduler, rejected": (on_hami(rejected(NOT_PLACED, spec=VOLCANO)), "HamiOtherScheduler", POD),
    "privileged": (on_hami(plain(PRIVILEGED), version="v2.8.0"), "HamiSkipsPrivileged", POD),
    "no webhook": (on_hami(plain(), webhook=None), "HamiWebhookMissing", SCHEDULER),
    "missed": (on_hami(plain()), "HamiWebhookMissed", POD),
    "missed, rejected": (on_hami(rejected(NOT_PLACED)), "HamiWebhookMissed", POD),
    "missed, rejected by 2.10": (
        on_hami(rejected("no node lock naming a pending pod on node a")),
        "HamiWebhookMissed",
        POD,
    ),
    "the scheduler is down": (on_hami(rejected(NOT_PLACED), ready=False), "HamiSchedulerNotReady", SCHEDULER),
    "no leader": (
        on_hami(rejected(NOT_PLACED), addresses=0, leads=False),
        "HamiSchedulerWithoutEndpoints",
        SERVICE,
    ),
    "its node is named, rejected": (on_hami(rejected(NODE_NAME)), "HamiNodeNamed", POD),
    "other numbers of devices": (on_hami(rejected("device number not matched")), "HamiDeviceNumberMismatch", POD),
    "a card that is gone": (on_hami(rejected(GONE)), "HamiAllocatedCardGone", "node/a"),
    "its node is named": (refused("pod has node assigned"), "HamiNodeNamed", REPLICA_SET),
    "privileged, refused": (refused("container main is privileged"), "HamiSkipsPrivileged", REPLICA_SET),
    "over HAMi's quota": (
        refused("exceeding resource quota", QUOTA, vgpu_pod("y", on="a")),
        "HamiQuotaExceeded",
        "resourcequota/team/q",
    ),
    "refused otherwise": (refused("pod has no containers"), "WebhookDeniesPods", REPLICA_SET),
    "the extender does not answer": (on_hami(not_bound(DIAL)), "HamiExtenderUnreachable", SCHEDULER),
    "the extender crashes": (on_hami(not_bound(DIAL), ready=False), "HamiSchedulerNotReady", SCHEDULER),
    "the extender is slow": (on_hami(not_bound(SLOW)), "HamiExtenderSlow", SCHEDULER),
    "no permission to write": (
        on_hami(not_bound(f"binding rejected: {FORBIDDEN}")),
        "HamiMayNotWrite",
        "serviceaccount/kube-system/hami-scheduler",
    ),
    "etcd rejects the write": (
        on_hami(not_bound("binding rejected: etcdserver: request timed out")),
        "HamiWriteFails",
        SCHEDULER,
    ),
    "a stale lock": ([*hami(LOCKED), WAITS_FOR_LOCK], "HamiNodeLockStale", "node/a"),
}


@pytest.mark.parametrize(("state", "cause", "subject"), ROWS.values(), ids=ROWS)
def test_unbound_pod_has_a_cause(state: list[Object], cause: str, subject: str) -> None:
    diagnosis = judged(*state)
    assert results(diagnosis) == [(cause, subject)]
    assert all(problem.found.evidence and problem.found.affected is not None for problem in diagnosis.problems)


def noted(reason: str, message: str, minutes: float = 20, **changes: Any) -> list[Object]:
    """A pod without a node, of which HAMi's scheduler has said this."""
    waits = vgpu_pod("x", conditions=[], **changes)
    return [
        *hami(A),
        waits,
        event(waits, reason, message, warning="Failed" in reason, minutes=minutes, by="hami-scheduler"),
    ]


FIT = "find fit node(a), 0 nodes not fit, 1 nodes fit(a:0.1)"


def test_pod_that_passed_the_filter_and_waits_has_a_cause() -> None:
    assert results(judged(*noted("FilteringSucceed", FIT))) == [("HamiFilteredNotBound", "pod/team/x")]


def test_failed_binding_is_quoted() -> None:
    waits = unplaced("x", "binding rejected: no such annotation", reason="SchedulerError")
    found = judged(*hami(A), waits, event(waits, "BindingFailed", "no such annotation", by="hami-scheduler"))
    assert results(found) == [("HamiBindingFails", "pod/team/x")]
    assert "no such annotation" in found.problems[0].found.evidence[0]


HEALTHY: dict[str, list[Object]] = {
    "running": on_hami(vgpu_pod("x", on="a")),
    "just filtered": noted("FilteringSucceed", FIT, minutes=0.5, age=1),
    "a lock in its time": [
        *hami(hami_node("a", annotations={"hami.io/mutex.lock": f"{ago(0.2)},team,y"})),
        vgpu_pod("y", on="a", phase="Pending", age=0.5),
        WAITS_FOR_LOCK,
    ],
    "another scheduler's pod on its own node": on_hami(node("b"), pod("z", 8, on="b", spec=VOLCANO)),
    "rejected, and created again": on_hami(
        rejected(NOT_PLACED, owner=("ReplicaSet", "rs")),
        vgpu_pod("x2", on="a", owner=("ReplicaSet", "rs"), age=10),
    ),
}


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
def test_starting_pod_has_no_cause(state: list[Object]) -> None:
    assert results(judged(*state)) == []


def test_missed_webhook_explains_the_rejection_by_the_kubelet() -> None:
    found = judged(*hami(A, ready=False), rejected(NOT_PLACED))
    [missed] = found.problems[0].consequences
    assert missed.found.cause.name == "HamiWebhookMissed"
    assert consequences(missed) == [("HamiNoBindingPod", "pod/team/x")]


@pytest.mark.parametrize(
    ("state", "missing", "certainty"),
    [
        (hami(A), (), Certainty.PROVEN),
        (hami(A, webhook={"matchConditions": [{"name": "gpus", "expression": "has(x)"}]}), (), Certainty.LIKELY),
        (hami(A), ("MutatingWebhookConfiguration",), Certainty.LIKELY),
    ],
)
def test_unchecked_selector_makes_a_missed_webhook_likely(
    state: list[Object], missing: tuple[str, ...], certainty: Certainty
) -> None:
    [missed] = judged(*state, plain(), missing=missing).problems
    assert (missed.found.cause.name, missed.found.certainty) == ("HamiWebhookMissed", certainty)
    doubts = [text for text in missed.found.evidence if " may also " in text]
    assert bool(doubts) == (certainty is Certainty.LIKELY)


def test_installation_of_the_requested_resources_is_checked() -> None:
    kept = [entry for entry in cluster() if entry["metadata"]["name"] != "hami-webhook"]
    assert results(judged(*kept, plain())) == [("HamiWebhookMissing", SCHEDULER)]
