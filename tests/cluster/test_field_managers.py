"""A stolen token of any of our accounts can note no field manager but ours on its writes, also by apply."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.sim.control_plane import Answer, ControlPlane, unbound_token
from tests.cluster.test_admission import client, event, lease, node_owner, slot
from tests.cluster.test_sweep_job_admission import sweep_job

pytestmark = pytest.mark.cluster

P = "gpu-healthcheck.aws-samples.io"
OWN = "managers-own"
NOW = datetime(2026, 11, 23, tzinfo=UTC)
NODE = f"/api/v1/nodes/{OWN}"
BEATS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
SLOTS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck-budget/leases"
EVENTS = "/api/v1/namespaces/default/events"
JOBS = "/apis/batch/v1/namespaces/gpu-healthcheck/jobs"
APPLY = "application/apply-patch+yaml"
NAMED = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OWN}}
RUN = '{{"kind":"{}","holder":"{}","until":"2026-11-21T12:00:00Z"}}'
OUR_WRITES: dict[str, dict[str, Any]] = {
    "": {"labels": {f"{P}/status": "pass"}},
    "-sweeper": {"annotations": {f"{P}/run": RUN.format("sweep", "gpu-sweep-x")}},
    "-sweep": {"annotations": {f"{P}/sweep-result": "{}"}},
    "-quarantine": {"labels": {f"{P}/mode": "quarantine"}},
}
"""What each account may write on a Node."""
FOREIGN = ("evil-1", "", "kubectl-client-side-apply", "gpu-healthcheck2", "gpu-healthcheck-sweeper")


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    installed.create_node(OWN, labels={"example.com/team": "vision"})
    yield installed
    for path in (f"/api/v1/nodes/{OWN}", f"{BEATS}/{OWN}", SLOTS, EVENTS):
        installed.request("DELETE", path)
    pods = installed.request("GET", "/api/v1/namespaces/gpu-healthcheck/pods").body["items"]
    for name in (pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == OWN):
        installed.request("DELETE", f"/api/v1/namespaces/gpu-healthcheck/pods/{name}?gracePeriodSeconds=0")


def token_of(plane: ControlPlane, suffix: str) -> str:
    if suffix == "-sweeper":
        return unbound_token(plane, "gpu-healthcheck-sweeper")
    account = f"gpu-healthcheck{suffix}"
    spec = {"nodeName": OWN, "serviceAccountName": account, "containers": [{"name": "x", "image": "x"}]}
    pod = {"metadata": {"name": f"managers{suffix}", "namespace": "gpu-healthcheck"}, "spec": spec}
    made = plane.request("POST", "/api/v1/namespaces/gpu-healthcheck/pods", pod)
    assert made.status == 201, made.message
    return plane.pod_token(made.body)


def managers(plane: ControlPlane, path: str = NODE) -> set[str]:
    """Return the field managers but the controller manager, which may write a new Node at any time."""
    entries = plane.request("GET", path).body["metadata"].get("managedFields", [])
    return {entry["manager"] for entry in entries} - {"kube-controller-manager"}


def fields(manager: str, label: str = "nothing") -> dict[str, Any]:
    owned: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{label}": {}}}}
    return {"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": owned}


def assert_refused(answer: Answer, message: str) -> None:
    assert (answer.status, message in answer.message) == (403, True), (answer.status, answer.message)


WRITES_AS = "as field manager gpu-healthcheck"
NO_OTHER = "may add no field manager except gpu-healthcheck"


@pytest.mark.parametrize("account", OUR_WRITES)
def test_an_account_writes_a_node_under_its_own_name_only(plane: ControlPlane, account: str) -> None:
    token, change = token_of(plane, account), {"metadata": OUR_WRITES[account]}
    for name in FOREIGN:
        for query, kind, body in (
            (f"?fieldManager={name}", "application/merge-patch+json", change),
            (f"?fieldManager={name}", "application/strategic-merge-patch+json", change),
            (
                f"?fieldManager={name or 'x'}&force=true",
                APPLY,
                {**NAMED, "metadata": {"name": OWN} | change["metadata"]},
            ),
        ):
            assert_refused(plane.request("PATCH", NODE + query, body, token=token, content_type=kind), WRITES_AS)
    before, wiped = managers(plane), dict[str, Any]()
    for listed in ([fields(f"evil-{number}") for number in range(9)], [wiped]):
        whole = {"metadata": change["metadata"] | {"managedFields": listed}}
        assert_refused(plane.request("PATCH", NODE, whole, token=token), NO_OTHER)
    assert managers(plane) == before

    assert plane.request("PATCH", NODE, change, token=token).status == 200
    assert managers(plane) == before | {"gpu-healthcheck"}


def test_of_its_own_name_there_are_few_entries(plane: ControlPlane) -> None:
    token = token_of(plane, "")
    kept = plane.request("GET", NODE).body["metadata"]["managedFields"]
    ours = fields("gpu-healthcheck")
    flood = [ours | {"subresource": f"x{number}"} for number in range(9)]
    flooded = {"metadata": {"labels": {f"{P}/status": "pass"}, "managedFields": [*kept, *flood]}}
    assert_refused(plane.request("PATCH", NODE, flooded, token=token), NO_OTHER)

    copies = [
        ours | {"operation": operation, "apiVersion": f"v{number}", "time": f"2026-11-23T00:00:0{number}Z"}
        for operation in ("Apply", "Update")
        for number in range(1, 10)
    ]
    merged = {"metadata": {"labels": {f"{P}/status": "pass"}, "managedFields": [*kept, *copies]}}
    plane.request("PATCH", NODE, merged, token=token)
    for value in ("fail", "pass"):
        assert plane.request("PATCH", NODE, {"metadata": {"labels": {f"{P}/status": value}}}, token=token).status == 200
    entries = plane.request("GET", NODE).body["metadata"]["managedFields"]
    assert len([entry for entry in entries if entry["manager"] == "gpu-healthcheck"]) <= 3, entries


def test_an_agent_goes_on_on_a_node_with_a_crowd_of_managers_from_before(plane: ControlPlane) -> None:
    crowd = [fields(f"evil-{number}", "example.com/team") for number in range(500)]
    crowd += [fields("gpu-healthcheck") | {"subresource": f"x{number}"} for number in range(12)]
    patched = plane.request("PATCH", NODE, {"metadata": {"managedFields": crowd}})
    assert patched.status == 200, patched.message
    token = token_of(plane, "")

    for value in ("pass", "fail"):
        done = plane.request("PATCH", NODE, {"metadata": {"labels": {f"{P}/status": value}}}, token=token)
        assert done.status == 200, done.message
    more = {"metadata": {"name": OWN, "labels": {f"{P}/status": "fail"}}}
    refused = plane.request(
        "PATCH", f"{NODE}?fieldManager=evil-new&force=true", NAMED | more, token=token, content_type=APPLY
    )
    assert_refused(refused, WRITES_AS)


def conditions(name: str) -> dict[str, Any]:
    return {"type": "GpuHealthy", "status": name, "reason": "Xid79", "message": "x"}


def test_so_it_is_with_what_else_an_agent_writes(plane: ControlPlane) -> None:
    token, owner = token_of(plane, ""), [node_owner(OWN, plane.request("GET", NODE).body["metadata"]["uid"])]
    beat, values = lease(OWN, OWN, ownerReferences=owner), event("0123456789ab", OWN)
    place = slot("slot-9", OWN, ownerReferences=owner)
    for path, body in ((BEATS, beat), (SLOTS, place), (EVENTS, values)):
        for name in FOREIGN:
            assert_refused(plane.request("POST", f"{path}?fieldManager={name}", body, token=token), WRITES_AS)
        noted = fields("evil") | {"apiVersion": body["apiVersion"]}
        planted = body | {"metadata": body["metadata"] | {"managedFields": [noted]}}
        assert_refused(plane.request("POST", path, planted, token=token), NO_OTHER)
        assert plane.request("POST", path, body, token=token).status == 201
        at = f"{path}/{body['metadata']['name']}"
        assert managers(plane, at) == {"gpu-healthcheck"}
        if path != SLOTS:
            assert_refused(
                plane.request("PATCH", f"{at}?fieldManager=x&force=true", body, token=token, content_type=APPLY),
                WRITES_AS,
            )
            assert_refused(plane.request("PATCH", f"{at}?fieldManager=x", body, token=token), WRITES_AS)
    verdict = {"status": {"conditions": [conditions("False")]}}
    strategic = "application/strategic-merge-patch+json"
    refused = plane.request("PATCH", f"{NODE}/status?fieldManager=x", verdict, token=token, content_type=strategic)
    assert_refused(refused, WRITES_AS)
    assert plane.request("PATCH", f"{NODE}/status", verdict, token=token, content_type=strategic).status == 200


def test_so_it_is_with_the_sweepers_jobs(plane: ControlPlane) -> None:
    token, path = unbound_token(plane, "gpu-healthcheck-sweeper"), f"{JOBS}?dryRun=All"
    for name in FOREIGN:
        assert_refused(plane.request("POST", f"{path}&fieldManager={name}", sweep_job(), token=token), WRITES_AS)
    assert plane.request("POST", path, sweep_job(), token=token).status == 201


def test_a_heartbeat_goes_on_whatever_an_administrator_noted_on_its_lease(plane: ControlPlane) -> None:
    """A field that is not ours stays as it is; no agent may add or change one."""
    token, uid = token_of(plane, ""), plane.request("GET", NODE).body["metadata"]["uid"]
    agent, node = client(plane, token), NodeState(OWN, uid)
    agent.leases.renew_heartbeat(node, NOW, 900)
    foreign = {"acquireTime": "2026-11-20T00:00:00.000000Z", "leaseTransitions": 3}
    marks = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/hold"]}
    edited = plane.request("PATCH", f"{BEATS}/{OWN}", {"metadata": marks, "spec": foreign | {"holderIdentity": "me"}})
    assert edited.status == 200, edited.message

    agent.leases.renew_heartbeat(node, NOW + timedelta(minutes=5), 900)

    beat = plane.request("GET", f"{BEATS}/{OWN}").body
    plane.request("PATCH", f"{BEATS}/{OWN}", {"metadata": {"finalizers": None}})
    assert beat["spec"]["renewTime"] == "2026-11-23T00:05:00.000000Z"
    assert beat["spec"] | foreign | {"holderIdentity": OWN} == beat["spec"]
    for change in ({"leaseTransitions": 4}, {"acquireTime": "2026-11-21T00:00:00.000000Z"}):
        refused = plane.request("PATCH", f"{BEATS}/{OWN}", {"spec": change}, token=token)
        assert_refused(refused, "an agent's Lease may contain only its holder")
