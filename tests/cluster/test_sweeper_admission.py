"""Allowed and forbidden writes of the sweeper's and its Jobs' tokens on Nodes of the real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane, unbound_token
from tests.cluster.node_patches import annotated, labelled, tainted

pytestmark = pytest.mark.cluster

P = "gpu-healthcheck.aws-samples.io"
OWN, OTHER = "sweep-own", "sweep-other"
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
LEFT = {"key": f"{P}/maintenance", "value": "sweep", "effect": "NoSchedule"}
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
HOLDER = "gpu-sweep-own-0123456789"
RUN = json.dumps({"kind": "sweep", "holder": HOLDER, "until": "2026-11-21T12:00:00Z"}, separators=(",", ":"))
POD = {"metadata": {"name": "sweep-pod", "namespace": "gpu-healthcheck"}}
MARKED = {"labels": {"example.com/team": "vision", f"{P}/status": "pass"}, "annotations": {f"{P}/results": "{}"}}


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Yield two nodes that no test changes: every write is a dry run."""
    for name in (OWN, OTHER):
        installed.create_node(name, labels=MARKED["labels"], taints=[SPOT, LEFT])
        installed.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": MARKED["annotations"]}})
    yield installed
    for name in (OWN, OTHER):
        installed.request("DELETE", f"/api/v1/nodes/{name}")
    installed.request("DELETE", "/api/v1/namespaces/gpu-healthcheck/pods/sweep-pod?gracePeriodSeconds=0")


def asked(plane: ControlPlane, token: str, patch: dict[str, Any], name: str = OWN) -> str:
    """Return '' for an accepted patch, else the error."""
    answer = plane.request("PATCH", f"/api/v1/nodes/{name}?dryRun=All", patch, token=token)
    return "" if answer.status == 200 else answer.message


SWEEPER_MAY: dict[str, dict[str, Any]] = {
    "take a node": {"metadata": {"annotations": {f"{P}/run": RUN}, "labels": {f"{P}/mode": "sweep"}}},
    "give it back": {"metadata": {"annotations": {f"{P}/run": None}, "labels": {f"{P}/mode": None}}},
    "clear what the scripts left": tainted(SPOT),
}
SWEEPER_MAY_NOT: dict[str, tuple[dict[str, Any], str]] = {
    "judge": (labelled(f"{P}/status", "fail"), "no label but"),
    "touch a foreign label": (labelled("example.com/team", None), "no label but"),
    "write a record": (annotated(f"{P}/results", "{}x"), "no annotation but"),
    "write a test's record": (annotated(f"{P}/sweep-result", "{}"), "no annotation but"),
    "release": (annotated(f"{P}/release", "{}"), "no annotation but"),
    "call it something else": (labelled(f"{P}/mode", "quarantine"), "sets the mode only to sweep"),
    "take a node for another": (
        annotated(f"{P}/run", RUN.replace('"sweep"', '"l2"')),
        "only for a sweep",
    ),
    "say two kinds": (annotated(f"{P}/run", RUN.replace("{", '{"kind":"l2",')), "only for a sweep"),
    "say another kind after it": (
        annotated(f"{P}/run", RUN.replace("}", ',"kind":"quarantine"}')),
        "only for a sweep",
    ),
    "pad it": (annotated(f"{P}/run", RUN.replace("}", " " * 250_000 + "}")), "only for a sweep"),
    "pad its holder": (
        annotated(f"{P}/run", RUN.replace(HOLDER, f"gpu-sweep-{'x' * 54}")),
        "only for a sweep",
    ),
    "hold it in another's name": (
        annotated(f"{P}/run", RUN.replace(HOLDER, "gpu-quarantine-own")),
        "only for a sweep",
    ),
    "add a line to it": (annotated(f"{P}/run", RUN + "\n"), "only for a sweep"),
    "lift a foreign taint": (tainted(LEFT), "touch no other"),
    "set our taint": (tainted(SPOT, LEFT, UNHEALTHY), "touch no other"),
    "cordon": ({"spec": {"unschedulable": True}}, "nothing in a Node's spec"),
    "hold a node": ({"metadata": {"finalizers": ["example.com/hold"]}}, "finalizers"),
}


@pytest.fixture(scope="module")
def sweeper(plane: ControlPlane) -> str:
    """Return a token of the sweeper."""
    return unbound_token(plane, "gpu-healthcheck-sweeper")


@pytest.mark.parametrize("patch", SWEEPER_MAY.values(), ids=SWEEPER_MAY)
def test_sweeper_marks_its_runs_on_any_node(plane: ControlPlane, sweeper: str, patch: dict[str, Any]) -> None:
    assert [asked(plane, sweeper, patch, name) for name in (OWN, OTHER)] == ["", ""]


@pytest.mark.parametrize(("patch", "refusal"), SWEEPER_MAY_NOT.values(), ids=SWEEPER_MAY_NOT)
def test_other_write_of_the_sweeper_is_rejected(
    plane: ControlPlane, sweeper: str, patch: dict[str, Any], refusal: str
) -> None:
    assert refusal in asked(plane, sweeper, patch)


def test_sweeper_clears_the_marks_of_another_kind_of_run(plane: ControlPlane, sweeper: str) -> None:
    """An expired run has no owner."""
    marks = {"annotations": {f"{P}/run": RUN.replace("sweep", "l2")}, "labels": {f"{P}/mode": "l2"}}
    plane.request("PATCH", f"/api/v1/nodes/{OWN}", {"metadata": marks})
    answer = asked(plane, sweeper, SWEEPER_MAY["give it back"])
    plane.request("PATCH", f"/api/v1/nodes/{OWN}", {"metadata": {key: dict.fromkeys(marks[key]) for key in marks}})

    assert answer == ""


@pytest.fixture(scope="module")
def token(plane: ControlPlane) -> str:
    """Return the token of a Job's pod on its own node."""
    spec = {
        "nodeName": OWN,
        "serviceAccountName": "gpu-healthcheck-sweep",
        "containers": [{"name": "sweep", "image": "x"}],
    }
    answer = plane.request("POST", "/api/v1/namespaces/gpu-healthcheck/pods", {**POD, "spec": spec})
    assert answer.status == 201, answer.message
    return plane.pod_token(answer.body)


def test_jobs_pod_writes_its_record_on_its_own_node_only(plane: ControlPlane, token: str) -> None:
    record = annotated(f"{P}/sweep-result", "x" * 20_480)

    assert asked(plane, token, record) == ""
    assert "its own Node only: the token belongs to 'sweep-own'" in asked(plane, token, record, OTHER)
    assert "bound to no node" in asked(plane, unbound_token(plane, "gpu-healthcheck-sweep"), record)


@pytest.mark.parametrize(
    ("patch", "refusal"),
    [
        (annotated(f"{P}/results", "{}x"), "no annotation but"),
        (annotated(f"{P}/run", RUN), "no annotation but"),
        (labelled(f"{P}/status", "pass2"), "may change no label"),
        (labelled("example.com/team", None), "may change no label"),
        (tainted(SPOT), "nothing in a Node's spec"),
        ({"spec": {"unschedulable": True}}, "nothing in a Node's spec"),
        ({"metadata": {"finalizers": ["example.com/hold"]}}, "finalizers"),
        (annotated(f"{P}/sweep-result", "x" * 20_481), "at most 20 KiB"),
        (annotated(f"{P}/sweep-result", "ß" * 10_241), "at most 20 KiB"),
    ],
)
def test_other_write_of_a_jobs_pod_is_rejected(
    plane: ControlPlane, token: str, patch: dict[str, Any], refusal: str
) -> None:
    assert refusal in asked(plane, token, patch)


BUDGET_LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck-budget/leases"
HEARTBEATS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
PLACE = {"metadata": {"name": "slot-12"}, "spec": {"holderIdentity": OTHER}}


def test_sweeper_deletes_slots_of_the_budget(plane: ControlPlane, sweeper: str) -> None:
    for name in ("slot-12", "slot-123456", OTHER):
        assert plane.request("POST", BUDGET_LEASES, PLACE | {"metadata": {"name": name}}).status == 201

        answer = plane.request("DELETE", f"{BUDGET_LEASES}/{name}", token=sweeper)

        assert answer.status == 200, answer.message


@pytest.mark.parametrize(
    ("method", "leases", "name", "refusal"),
    [
        ("DELETE", BUDGET_LEASES, "something", "may delete slots of the fleet budget, and no other Lease"),
        ("PATCH", BUDGET_LEASES, "slot-12", 'cannot patch resource "leases"'),
        ("POST", BUDGET_LEASES, "slot-12", 'cannot create resource "leases"'),
        ("DELETE", HEARTBEATS, OTHER, 'cannot delete resource "leases"'),
        ("DELETE", BUDGET_LEASES, "", "cannot deletecollection"),
    ],
)
def test_other_request_of_the_sweeper_for_leases_is_rejected(
    plane: ControlPlane, sweeper: str, method: str, leases: str, name: str, refusal: str
) -> None:
    lease = PLACE | {"metadata": {"name": name or "slot-12"}}
    assert plane.request("POST", leases, lease).status == 201
    path = leases if method == "POST" or not name else f"{leases}/{name}"

    answer = plane.request(method, path, None if method == "DELETE" else lease, token=sweeper)
    plane.request("DELETE", f"{leases}/{lease['metadata']['name']}")

    assert (answer.status, refusal in answer.message) == (403, True), answer.message
