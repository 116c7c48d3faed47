"""What the tokens of the sweeper and of its Jobs' pods may write on the real API server, and what they may not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from sim.control_plane import ControlPlane, unbound_token
from sweeper.jobs import Order, job_for
from sweeper.select import Candidate

pytestmark = pytest.mark.control_plane

P = "gpu-healthcheck.aws-samples.io"
OWN, OTHER = "sweep-own", "sweep-other"
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
LEFT = {"key": f"{P}/maintenance", "value": "sweep", "effect": "NoSchedule"}
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
RUN = json.dumps({"kind": "sweep", "holder": "x", "until": "2026-11-21T12:00:00Z"}, separators=(",", ":"))
POD = {"metadata": {"name": "sweep-pod", "namespace": "gpu-healthcheck"}}
MARKED = {"labels": {"example.com/team": "vision", f"{P}/status": "pass"}, "annotations": {f"{P}/results": "{}"}}


def annotated(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


def labelled(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {key: value}}}


def tainted(*taints: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"taints": list(taints)}}


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    for name in (OWN, OTHER):
        installed.create_node(name, labels=MARKED["labels"], taints=[SPOT, LEFT])
        installed.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": MARKED["annotations"]}})
    yield installed
    for name in (OWN, OTHER):
        installed.request("DELETE", f"/api/v1/nodes/{name}")
    installed.request("DELETE", "/api/v1/namespaces/gpu-healthcheck/pods/sweep-pod?gracePeriodSeconds=0")


def asked(plane: ControlPlane, token: str, patch: dict[str, Any], name: str = OWN, resource: str = "") -> str:
    """'' where the patch was taken, else what was said."""
    answer = plane.request("PATCH", f"/api/v1/nodes/{name}{resource}", patch, token=token)
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
    "call it something else": (labelled(f"{P}/mode", "quarantine"), "sets the mode sweep"),
    "take a node for another": (annotated(f"{P}/run", RUN.replace("sweep", "l2")), "for a sweep and for nothing else"),
    "lift a foreign taint": (tainted(LEFT), "touch no other"),
    "set our taint": (tainted(SPOT, LEFT, UNHEALTHY), "touch no other"),
    "cordon": ({"spec": {"unschedulable": True}}, "nothing of a Node's spec"),
    "hold a node": ({"metadata": {"finalizers": ["example.com/hold"]}}, "finalizers"),
}


@pytest.mark.parametrize("patch", SWEEPER_MAY.values(), ids=SWEEPER_MAY)
def test_the_sweeper_may_mark_its_runs_on_any_node(plane: ControlPlane, patch: dict[str, Any]) -> None:
    token = unbound_token(plane, "gpu-healthcheck-sweeper")
    assert [asked(plane, token, patch, name) for name in (OWN, OTHER)] == ["", ""]


@pytest.mark.parametrize(("patch", "refusal"), SWEEPER_MAY_NOT.values(), ids=SWEEPER_MAY_NOT)
def test_the_sweeper_may_not(plane: ControlPlane, patch: dict[str, Any], refusal: str) -> None:
    assert refusal in asked(plane, unbound_token(plane, "gpu-healthcheck-sweeper"), patch)


def test_the_sweeper_may_clear_the_marks_of_another_kind_of_run(plane: ControlPlane) -> None:
    """Past its time a run is nobody's."""
    marks = {"annotations": {f"{P}/run": RUN.replace("sweep", "l2")}, "labels": {f"{P}/mode": "l2"}}
    plane.request("PATCH", f"/api/v1/nodes/{OWN}", {"metadata": marks})

    assert asked(plane, unbound_token(plane, "gpu-healthcheck-sweeper"), SWEEPER_MAY["give it back"]) == ""


@pytest.fixture
def token(plane: ControlPlane) -> str:
    """Of a Job's pod on its node."""
    spec = {
        "nodeName": OWN,
        "serviceAccountName": "gpu-healthcheck-sweep",
        "containers": [{"name": "sweep", "image": "x"}],
    }
    answer = plane.request("POST", "/api/v1/namespaces/gpu-healthcheck/pods", {**POD, "spec": spec})
    assert answer.status == 201, answer.message
    return plane.pod_token(answer.body)


def test_a_jobs_pod_may_write_its_record_on_its_own_node_only(plane: ControlPlane, token: str) -> None:
    record = annotated(f"{P}/sweep-result", "{}")

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
        (tainted(SPOT), "nothing of a Node's spec"),
        ({"spec": {"unschedulable": True}}, "nothing of a Node's spec"),
        ({"metadata": {"finalizers": ["example.com/hold"]}}, "finalizers"),
    ],
)
def test_a_jobs_pod_may_write_nothing_else(
    plane: ControlPlane, token: str, patch: dict[str, Any], refusal: str
) -> None:
    assert refusal in asked(plane, token, patch)


JOBS = "/apis/batch/v1/namespaces/gpu-healthcheck/jobs"
TEMPLATE = "/apis/batch/v1/namespaces/gpu-healthcheck/cronjobs/gpu-healthcheck-sweep-node"


def job_from(plane: ControlPlane) -> dict[str, Any]:
    node = Candidate("n", "uid-1", "p5", {"nvidia.com/gpu": 8}, None, None, "", under_run=False, overdue=False)
    template = plane.request("GET", TEMPLATE).body["spec"]["jobTemplate"]
    return job_for(template, node, Order("gpu-healthcheck", "registry.example.com/x:1", 60), datetime.now(UTC))


def test_the_sweeper_may_make_a_job_from_its_template_and_delete_it(plane: ControlPlane) -> None:
    token, job = unbound_token(plane, "gpu-healthcheck-sweeper"), job_from(plane)

    made = plane.request("POST", JOBS, job, token=token)

    assert made.status == 201, made.message
    gone = plane.request("DELETE", f"{JOBS}/{job['metadata']['name']}?propagationPolicy=Background", token=token)
    assert gone.status == 200, gone.message


def privileged(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["containers"][0]["securityContext"] = {"privileged": True}


def with_the_host(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}})


def in_the_hosts_namespaces(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["hostPID"] = True


def as_the_agent(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["serviceAccountName"] = "gpu-healthcheck"


def with_another_command(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["containers"][0]["command"] = ["sh"]


def with_another_container(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["containers"].append(pod["containers"][0] | {"name": "another"})


def with_an_init_container(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["initContainers"] = [{"name": "first", "image": "x"}]


def of_higher_priority(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod["priorityClassName"] = "system-node-critical"


def of_another_component(job: dict[str, Any], pod: dict[str, Any]) -> None:
    job["metadata"]["labels"]["app.kubernetes.io/component"] = "agent"


@pytest.mark.parametrize(
    "change",
    [
        privileged,
        with_the_host,
        in_the_hosts_namespaces,
        as_the_agent,
        with_another_command,
        with_another_container,
        with_an_init_container,
        of_higher_priority,
        of_another_component,
    ],
)
def test_the_sweeper_may_make_no_job_of_another_kind(
    plane: ControlPlane, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> None:
    job = job_from(plane)
    change(job, job["spec"]["template"]["spec"])

    answer = plane.request("POST", JOBS, job, token=unbound_token(plane, "gpu-healthcheck-sweeper"))

    assert answer.status == 403, answer.body
    assert "sweeper" in answer.message


def test_the_sweeper_may_delete_no_job_of_another_component(plane: ControlPlane) -> None:
    job = job_from(plane)
    of_another_component(job, {})
    del job["metadata"]["ownerReferences"]  # or it is cleared away: the Node is not there
    assert plane.request("POST", JOBS, job).status == 201
    path = f"{JOBS}/{job['metadata']['name']}?propagationPolicy=Background"

    assert plane.request("DELETE", path, token=unbound_token(plane, "gpu-healthcheck-sweeper")).status == 403

    plane.request("DELETE", path)
