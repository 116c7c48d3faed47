"""Changes of HAMi's list of cordoned cards that an agent's token may and may not write on the real API server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.hami import CORDON, cordon_change
from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON, NodeState
from gpu_healthcheck.sim.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

OWN, OTHER = "cordons-own", "cordons-other"
A, B, C = (f"GPU-00000000-51e0-4000-8000-00000000000{end}" for end in "abc")
THEIRS = "an agent may add to hami.io/device-cordon only what its annotation device-cordon names as its own"
NO_GPU = "an agent may cordon only GPUs, each by its UUID"
FOREIGN = "an agent may change annotations under gpu-healthcheck.aws-samples.io/ only"
Annotations = Mapping[str, str | None]


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    for name in (OWN, OTHER):
        installed.create_node(name)
    yield installed
    for name in (OWN, OTHER):
        installed.request("DELETE", f"/api/v1/nodes/{name}")
        installed.request("DELETE", f"/api/v1/namespaces/gpu-healthcheck/pods/agent-on-{name}?gracePeriodSeconds=0")


def write(plane: ControlPlane, annotations: Annotations, token: str = "", node: str = OWN) -> str:
    """Return the message of a refusal; '' if the write is allowed."""
    body: dict[str, Any] = {"metadata": {"annotations": dict(annotations)}}
    path = f"/api/v1/nodes/{node}?fieldManager=gpu-healthcheck"
    answer = plane.request("PATCH", path, body, token=token or None, content_type="application/merge-patch+json")
    return "" if answer.status == 200 else answer.message


CASES: list[tuple[str, Annotations, Annotations, str]] = [
    ("cordon a GPU", {}, {CORDON: A, DEVICE_CORDON: A}, ""),
    ("cordon beside a person's", {CORDON: B}, {CORDON: f"{B},{A}", DEVICE_CORDON: A}, ""),
    ("cordon two", {CORDON: A, DEVICE_CORDON: A}, {CORDON: f"{A},{B}", DEVICE_CORDON: f"{A},{B}"}, ""),
    ("restore a removed one", {DEVICE_CORDON: A}, {CORDON: A, DEVICE_CORDON: A}, ""),
    ("lift its own", {CORDON: f"{B}, {A}", DEVICE_CORDON: A}, {CORDON: B, DEVICE_CORDON: None}, ""),
    ("lift the last", {CORDON: A, DEVICE_CORDON: A}, {CORDON: None, DEVICE_CORDON: None}, ""),
    ("cordon without naming it", {}, {CORDON: A}, THEIRS),
    ("name without cordoning", {}, {DEVICE_CORDON: A}, THEIRS),
    ("lift a person's", {CORDON: B}, {CORDON: None}, THEIRS),
    ("lift a person's beside its own", {CORDON: f"{A},{B}", DEVICE_CORDON: A}, {CORDON: A}, THEIRS),
    ("claim a person's", {CORDON: B}, {DEVICE_CORDON: B}, THEIRS),
    ("claim and lift at once", {CORDON: B}, {CORDON: None, DEVICE_CORDON: B}, THEIRS),
    ("claim a person's in other spelling", {CORDON: f" {B} ,"}, {CORDON: B, DEVICE_CORDON: B}, THEIRS),
    ("exchange a person's", {CORDON: B}, {CORDON: A, DEVICE_CORDON: A}, THEIRS),
    ("keep the name of a lifted one", {CORDON: A, DEVICE_CORDON: A}, {CORDON: None}, THEIRS),
    ("cordon a MIG instance", {}, {CORDON: f"MIG-{A[4:]}", DEVICE_CORDON: f"MIG-{A[4:]}"}, NO_GPU),
    ("cordon anything", {}, {CORDON: "all", DEVICE_CORDON: "all"}, NO_GPU),
    ("pad", {}, {CORDON: A, DEVICE_CORDON: f"{A} "}, NO_GPU),
    ("write an empty name", {CORDON: A, DEVICE_CORDON: A}, {CORDON: None, DEVICE_CORDON: ""}, NO_GPU),
    ("write another annotation of HAMi", {}, {"hami.io/node-nvidia-register": "[]"}, FOREIGN),
]


@pytest.mark.parametrize(("before", "change", "refusal"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_agent_cordons_gpus_and_lifts_only_its_own_cordons(
    plane: ControlPlane, before: Annotations, change: Annotations, refusal: str
) -> None:
    assert not write(plane, before)
    answer = write(plane, change, plane.agent_token(OWN))
    assert refusal in answer if refusal else not answer


def test_an_agent_cordons_no_gpu_of_another_node(plane: ControlPlane) -> None:
    change = {CORDON: A, DEVICE_CORDON: A}
    assert "an agent may change its own Node only" in write(plane, change, plane.agent_token(OWN), OTHER)


def test_a_long_list_of_another_client_keeps_no_agent_from_its_labels(plane: ControlPlane) -> None:
    many = ",".join(f"GPU-00000000-51e0-4000-8000-{number:012x}" for number in range(5000))
    assert not write(plane, {CORDON: many})
    token = plane.agent_token(OWN)
    assert not write(plane, {"gpu-healthcheck.aws-samples.io/results": "{}"}, token)
    assert "at most 20 KiB" in write(plane, {CORDON: f"{many},{A}", DEVICE_CORDON: A}, token)


def test_each_change_that_an_agent_plans_is_allowed(plane: ControlPlane) -> None:
    token = plane.agent_token(OWN)
    assert not write(plane, {CORDON: f" {C},"})
    seen = []
    for wanted in ({A}, {A, B, C}, {B}, set(), {C}, set()):
        metadata = plane.request("GET", f"/api/v1/nodes/{OWN}").body["metadata"]
        change = cordon_change(NodeState(OWN, annotations=metadata["annotations"]), wanted)
        assert not (change and write(plane, change, token))
        annotations = plane.request("GET", f"/api/v1/nodes/{OWN}").body["metadata"]["annotations"]
        seen.append((annotations.get(CORDON, "").replace(" ", ""), annotations.get(DEVICE_CORDON, "")))
    assert seen == [
        (f"{C},{A}", A),
        (f"{C},{A},{B}", f"{A},{B}"),
        (f"{C},{B}", B),
        (C, ""),
        (C, ""),
        (C, ""),
    ]
