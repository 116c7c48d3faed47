"""Token of the program evict on the real API server: what the overlay permits, and what its policies refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

from gpu_healthcheck.sim.control_plane import ControlPlane, install, unbound_token
from tests.cluster.node_patches import annotated, labelled, tainted
from tests.overlays import OVERLAYS
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

P = "gpu-healthcheck.aws-samples.io"
ACCOUNT, EVICT = "gpu-healthcheck-evict", f"{P}/evict"
OVERLAY = str(OVERLAYS / "evict")
NODE, POD = "/api/v1/nodes/evict-node", "evict-pod"
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
NAMESPACES = ("default", "kube-system", "gpu-healthcheck")
SPEC = {"nodeName": "evict-node", "automountServiceAccountToken": False, "containers": [{"name": "x", "image": "x"}]}
Body = dict[str, Any]


class Stolen(Struct, frozen=True):
    """A token of the program, and the UID of the pod of that name in each namespace."""

    plane: ControlPlane
    token: str
    uids: dict[str, str]

    def refusal(self, method: str, path: str, body: Body | None = None, *, manager: str = "gpu-healthcheck") -> str:
        """Return the status and message of a refused dry run; '' if the request is accepted."""
        query = f"{'&' if '?' in path else '?'}dryRun=All&fieldManager={manager}" if method != "GET" else ""
        answer = self.plane.request(method, path + query, body, token=self.token)
        return "" if answer.status < 300 else f"{answer.status} {answer.message}"


@pytest.fixture(scope="module")
def stolen() -> Iterator[Stolen]:
    """Yield the token; every write with it is a dry run."""
    with ControlPlane() as plane:
        install(plane)
        applied = plane.kubectl("apply", "-k", OVERLAY).splitlines()
        assert [line for line in applied if not line.endswith(" created")] == []
        plane.create_node("evict-node", labels={f"{P}/severity": "REBOOT"}, taints=[UNHEALTHY, SPOT])
        plane.request("PATCH", NODE, annotated(f"{P}/results", "{}"))
        uids = {}
        for namespace in NAMESPACES:
            path = f"/api/v1/namespaces/{namespace}/pods"
            plane.request("POST", path.replace("pods", "serviceaccounts"), {"metadata": {"name": "default"}})
            answer = plane.request("POST", path, {"metadata": {"name": POD}, "spec": SPEC})
            assert answer.status == 201, answer.message
            uids[namespace] = str(answer.body["metadata"]["uid"])
        found = Stolen(plane, unbound_token(plane, ACCOUNT), uids)
        eventually(lambda: "no label" in found.refusal("PATCH", NODE, labelled("a", "b")))
        eventually(lambda: "no pod of kube-system" in found.refusal(*eviction(found, "kube-system")))
        eventually(lambda: "only Events" in found.refusal(*event(reason="Other")))
        yield found


def eviction(stolen: Stolen, namespace: str = "default", **options: Any) -> tuple[str, str, Body]:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": POD, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": stolen.uids[namespace]}, **options},
    }
    return "POST", f"/api/v1/namespaces/{namespace}/pods/{POD}/eviction", body


def event(namespace: str = "default", about: Body | None = None, **fields: Any) -> tuple[str, str, Body]:
    """Return the request of the Event that announces an eviction, changed."""
    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": POD, "uid": "u"}
    involved = pod if about is None else {"apiVersion": "v1", **about}
    body = {
        "metadata": {"name": f"{involved['name']}.0123456789ab"},
        "involvedObject": involved,
        "type": "Warning",
        "reason": "EvictionAnnounced",
        "message": "the pod is evicted",
        "count": 1,
        "source": {"component": "gpu-healthcheck", "host": "evict-node"},
        "reportingComponent": "gpu-healthcheck",
        "reportingInstance": "evict-node",
        **fields,
    }
    return "POST", f"/api/v1/namespaces/{namespace}/events", body


ABOUT_NODE = {"kind": "Node", "name": "evict-node", "uid": "u"}
READS = {
    "the faulty nodes": "/api/v1/nodes?labelSelector=gpu-healthcheck.aws-samples.io/severity",
    "a watch of them": "/api/v1/nodes?watch=true&timeoutSeconds=1",
    "a Node": NODE,
    "all claims": "/apis/resource.k8s.io/v1/resourceclaims",
    "its pods": "/api/v1/pods?fieldSelector=spec.nodeName=evict-node",
    "the fleet's heartbeats": LEASES.format("gpu-healthcheck"),
}


@pytest.mark.parametrize("path", READS.values(), ids=READS)
def test_evict_reads(stolen: Stolen, path: str) -> None:
    assert stolen.refusal("GET", path) == ""


def test_evict_writes_its_annotation_and_its_events(stolen: Stolen) -> None:
    assert stolen.refusal("PATCH", NODE, annotated(EVICT, "x" * 32_768)) == ""
    assert stolen.refusal("PATCH", NODE, annotated(EVICT, None)) == ""
    assert stolen.refusal(*event()) == ""
    assert stolen.refusal(*event(about=ABOUT_NODE, reason="SlurmMustDrain")) == ""


def test_evict_evicts_a_pod_by_its_uid(stolen: Stolen) -> None:
    assert stolen.refusal(*eviction(stolen)) == ""
    assert stolen.refusal(*eviction(stolen, dryRun=["All"])) == ""


NODE_WRITES: dict[str, tuple[Body, str]] = {
    "another annotation": (annotated(f"{P}/results", "{}x"), "no annotation but"),
    "no record": (annotated(f"{P}/results", None), "no annotation but"),
    "40 KiB": (annotated(EVICT, "x" * 40_960), "at most 32 KiB"),
    "40 KiB of two bytes each": (annotated(EVICT, "é" * 20_480), "at most 32 KiB"),
    "our label": (labelled(f"{P}/severity", "ISOLATE"), "no label"),
    "a foreign label": (labelled("example.com/team", "x"), "no label"),
    "no taint": (tainted(SPOT), "nothing in a Node's spec"),
    "a taint": (tainted(UNHEALTHY, SPOT, {**UNHEALTHY, "effect": "NoExecute"}), "nothing in a Node's spec"),
    "cordon": ({"spec": {"unschedulable": True}}, "nothing in a Node's spec"),
    "finalizer": ({"metadata": {"finalizers": ["example.com/hold"]}}, "finalizers"),
    "owner": (
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}},
        "owners",
    ),
    "empty managers": ({"metadata": {"managedFields": [{}], **annotated(EVICT, "x")["metadata"]}}, "list of managers"),
}


@pytest.mark.parametrize(("patch", "refusal"), NODE_WRITES.values(), ids=NODE_WRITES)
def test_a_stolen_token_writes_nothing_else_on_a_node(stolen: Stolen, patch: Body, refusal: str) -> None:
    assert refusal in stolen.refusal("PATCH", NODE, patch)


def test_a_stolen_token_writes_only_under_our_name(stolen: Stolen) -> None:
    patch = annotated(EVICT, "{}")
    assert "as field manager gpu-healthcheck" in stolen.refusal("PATCH", NODE, patch, manager="x")
    method, path, body = event()
    assert "as field manager gpu-healthcheck" in stolen.refusal(method, path, body, manager="x")


def test_a_stolen_token_evicts_only_by_uid_and_with_the_pods_own_grace_period(stolen: Stolen) -> None:
    method, path, body = eviction(stolen)
    assert "no pod of kube-system" in stolen.refusal(*eviction(stolen, "kube-system"))
    assert "no pod of kube-system or gpu-healthcheck" in stolen.refusal(*eviction(stolen, "gpu-healthcheck"))
    assert "name the UID" in stolen.refusal(method, path, {**body, "deleteOptions": {}})
    assert "name the UID" in stolen.refusal(method, path, {**body, "deleteOptions": None})
    other = {"preconditions": {"resourceVersion": "1"}}
    assert "name the UID" in stolen.refusal(method, path, {**body, "deleteOptions": other})
    for seconds in (0, 1, 3600):
        assert "no grace period" in stolen.refusal(*eviction(stolen, gracePeriodSeconds=seconds))
    assert "no grace period" in stolen.refusal(*eviction(stolen, propagationPolicy="Foreground"))
    beta = {**body, "apiVersion": "policy/v1beta1", "deleteOptions": {"gracePeriodSeconds": 0}}
    assert stolen.refusal(method, path, beta).startswith(("400 ", "403 ", "404 "))


def test_another_pod_of_that_name_is_not_evicted(stolen: Stolen) -> None:
    method, path, body = eviction(stolen)
    options = {"preconditions": {"uid": stolen.uids["kube-system"]}}
    assert stolen.refusal(method, path, {**body, "deleteOptions": options}).startswith("409 ")


EVENTS: dict[str, tuple[tuple[str, str, Body], str]] = {
    "another reason": (event(reason="GpuUnhealthy"), "only Events of evictions"),
    "a pod of kube-system": (event("kube-system"), "outside kube-system"),
    "a Node elsewhere": (event("kube-public", {**ABOUT_NODE, "namespace": "kube-public"}), "only about Nodes"),
    "a Secret": (event(about={"kind": "Secret", "name": "x", "uid": "u", "namespace": "default"}), "only about Nodes"),
    "another source": (event(source={"component": "kubelet"}, reportingComponent=""), "source of evict's"),
    "another name": (event(metadata={"name": "other.0123456789ab"}), "name of evict's Event"),
    "a label": (event(metadata={"name": f"{POD}.0123456789ab", "labels": {"a": "b"}}), "may contain only"),
    "a long message": (event(message="x" * 1025), "at most 1,024 bytes"),
}


@pytest.mark.parametrize(("request_", "refusal"), EVENTS.values(), ids=EVENTS)
def test_a_stolen_token_writes_no_other_event(stolen: Stolen, request_: tuple[str, str, Body], refusal: str) -> None:
    assert refusal in stolen.refusal(*request_)


PODS = "/api/v1/namespaces/default/pods"
NOT_GRANTED: dict[str, tuple[str, str, Body | None]] = {
    "delete a pod": ("DELETE", f"{PODS}/{POD}", None),
    "create a pod": ("POST", PODS, {"metadata": {"name": "x"}, "spec": SPEC}),
    "change a pod": ("PATCH", f"{PODS}/{POD}", labelled("a", "b")),
    "read a pod's log": ("GET", f"{PODS}/{POD}/log", None),
    "run a command": ("POST", f"{PODS}/{POD}/exec?command=id", None),
    "read Secrets": ("GET", "/api/v1/namespaces/gpu-healthcheck/secrets", None),
    "read other Leases": ("GET", LEASES.format("kube-system"), None),
    "write a Lease": ("POST", LEASES.format("gpu-healthcheck"), {"metadata": {"name": "x"}}),
    "write a status": ("PATCH", f"{NODE}/status", {"status": {"conditions": []}}),
    "delete a Node": ("DELETE", NODE, None),
    "create a Node": ("POST", "/api/v1/nodes", {"metadata": {"name": "x"}}),
    "read Events": ("GET", "/api/v1/namespaces/default/events", None),
    "bind a role": ("GET", BINDINGS, None),
    "get a token": (
        "POST",
        "/api/v1/namespaces/gpu-healthcheck/serviceaccounts/gpu-healthcheck/token",
        {"spec": {"expirationSeconds": 600}},
    ),
}


@pytest.mark.parametrize(("method", "path", "body"), NOT_GRANTED.values(), ids=NOT_GRANTED)
def test_the_overlay_grants_nothing_else(stolen: Stolen, method: str, path: str, body: Body | None) -> None:
    refusal = stolen.refusal(method, path, body)

    assert refusal.startswith("403 ")
    assert "cannot" in refusal


def test_other_accounts_evict_as_before(stolen: Stolen) -> None:
    method, path, body = eviction(stolen, "kube-system", gracePeriodSeconds=0)
    assert stolen.plane.request(method, f"{path}?dryRun=All", body).status == 201


def test_a_cluster_without_the_overlay_grants_nothing(stolen: Stolen) -> None:
    stolen.plane.kubectl("delete", "-k", OVERLAY)
    eventually(lambda: "401" in stolen.refusal("GET", NODE) or "403" in stolen.refusal("GET", NODE))
