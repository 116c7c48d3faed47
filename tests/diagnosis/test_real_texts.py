"""Texts that the real kubectl prints about objects of a real API server name the same causes as its JSON."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.diagnosis.states import GPU, ago, condition, container, event, pod, terminated, waiting
from tests.diagnosis.test_pasted import HANDLER, NOTHING_LEFT, causes, diagnosed
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

_NAMESPACE = "texts"
_AT = f"/api/v1/namespaces/{_NAMESPACE}"
_ECC = "epoch 3\nRuntimeError: CUDA error: uncorrectable ECC error encountered"
_REJECTED = "Pod was rejected: Allocate failed due to no healthy devices present, which is unexpected"
_UNSCHEDULED = condition("PodScheduled", "False", "Unschedulable", NOTHING_LEFT)
STATES: dict[str, tuple[dict[str, Any], tuple[str, str, str], str]] = {
    "unscheduled": (
        pod("unscheduled", namespace=_NAMESPACE, conditions=[_UNSCHEDULED]),
        ("FailedScheduling", NOTHING_LEFT, "default-scheduler"),
        "InsufficientResource",
    ),
    "no-handler": (
        pod("no-handler", namespace=_NAMESPACE, on="gpu-1", phase="Pending"),
        ("FailedCreatePodSandBox", HANDLER, "kubelet"),
        "RuntimeHandlerMissing",
    ),
    "crashed": (
        pod(
            "crashed",
            namespace=_NAMESPACE,
            on="gpu-1",
            states=[
                waiting("CrashLoopBackOff", lastState={"terminated": terminated(1, "Error", _ECC)}, restartCount=9)
            ],
        ),
        ("BackOff", "Back-off restarting failed container main in pod crashed", "kubelet"),
        "GpuHardwareFault",
    ),
    "rejected": (
        pod(
            "rejected",
            namespace=_NAMESPACE,
            on="gpu-1",
            phase="Failed",
            status={"reason": "UnexpectedAdmissionError", "message": _REJECTED},
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present, which is unexpected",
            "kubelet",
        ),
        "NoHealthyGpuAtAdmission",
    ),
}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """An API server with each pod of STATES, and an event about it."""
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    if control_plane.has_controllers:
        eventually(lambda: control_plane.request("GET", f"{_AT}/serviceaccounts/default").status == http.client.OK)
    for entry, (reason, message, by), _ in STATES.values():
        _create(control_plane, entry, reason, message, by)
    yield control_plane
    for name in STATES:
        control_plane.request("DELETE", f"{_AT}/pods/{name}?gracePeriodSeconds=0")
    control_plane.request("DELETE", f"/api/v1/namespaces/{_NAMESPACE}")


def _create(plane: ControlPlane, entry: dict[str, Any], reason: str, message: str, by: str) -> None:
    name, now = entry["metadata"]["name"], datetime.now(UTC)
    begun, last = (timestamp(now - timedelta(minutes=minutes)) for minutes in (40, 1))
    spec = entry["spec"] | {"containers": [container("main", 1)]}
    if not plane.has_controllers:
        spec |= {"automountServiceAccountToken": False}
    created = plane.request("POST", f"{_AT}/pods", {"metadata": {"name": name}, "spec": spec})
    assert created.status == http.client.CREATED, created.body
    status = json.loads(json.dumps(entry["status"]).replace(ago(300), begun).replace(ago(60), begun))
    status |= {"startTime": begun} if spec.get("nodeName") else {}
    for state in status["containerStatuses"]:
        state |= {"image": "x", "imageID": ""}
    patched = plane.request("PATCH", f"{_AT}/pods/{name}/status", {"status": status})
    assert patched.status == http.client.OK, patched.body
    told = event(created.body, reason, message, by=by) | {"firstTimestamp": begun, "lastTimestamp": last, "count": 12}
    told["involvedObject"]["apiVersion"] = "v1"
    told["metadata"] = {"name": f"{name}.1", "namespace": _NAMESPACE}
    answer = plane.request("POST", f"{_AT}/events", told)
    assert answer.status == http.client.CREATED, answer.body


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("form", ["describe", "events", "get events", "get events -o wide", "yaml"])
def test_text_of_kubectl_names_the_cause_of_the_object(
    form: str, name: str, plane: ControlPlane, tmp_path: Path
) -> None:
    words = {
        "describe": ("describe", "pod", name),
        "events": ("events", f"--for=pod/{name}"),
        "get events": (
            "get",
            "events",
            "-A",
            f"--field-selector=involvedObject.name={name}",
            "--sort-by=.lastTimestamp",
        ),
        "get events -o wide": ("get", "events", "-o", "wide", f"--field-selector=involvedObject.name={name}"),
        "yaml": ("get", "pods", "-o", "yaml", f"--field-selector=metadata.name={name}"),
    }
    if (name, form) == ("no-handler", "yaml") or (name == "crashed" and "events" in form):
        pytest.skip("this form lacks the message")
    text = plane.kubectl("-n", _NAMESPACE, *words[form])
    created = timestamp(datetime.now(UTC) - timedelta(minutes=40))
    text = re.sub(r'creationTimestamp: "[^"]*"', f'creationTimestamp: "{created}"', text)

    code, document, stderr = diagnosed(tmp_path, text)

    assert (code, [cause for cause, _ in causes(document)]) == (1, [STATES[name][2]]), stderr + text
    assert document["recognised"]["pods"] == 1


def test_text_of_all_pods_names_the_causes_of_their_json(plane: ControlPlane, tmp_path: Path) -> None:
    listed = plane.kubectl("-n", _NAMESPACE, "get", "pods,events", "-o", "json")
    text = plane.kubectl("-n", _NAMESPACE, "describe", "pods", "--show-events")

    by_json, by_text = (diagnosed(tmp_path, content)[1] for content in (listed, text))

    missing = {cause for cause, _ in causes(by_json)} - {cause for cause, _ in causes(by_text)}
    assert (missing, by_text["recognised"]) == (set(), {"pods": len(STATES), "events": len(STATES)})
    assert GPU in text
