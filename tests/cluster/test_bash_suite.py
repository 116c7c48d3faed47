"""A cluster of the bash suite: its manifests' grants end when ours are applied over them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ACCOUNT = "system:serviceaccount:gpu-healthcheck:gpu-healthcheck"
GROUP = "rbac.authorization.k8s.io"
RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
]
"""What the suite's one account could do everywhere."""
ENDS = [("create", "batch", "jobs"), ("delete", "batch", "jobs"), ("list", "", "pods"), ("list", "", "nodes")]
STAYS = [("patch", "", "nodes"), ("watch", "", "nodes")]


def role_and_binding() -> list[dict[str, Any]]:
    named = {"apiVersion": f"{GROUP}/v1", "metadata": {"name": "gpu-healthcheck"}}
    reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "gpu-healthcheck"}
    subjects = [{"kind": "ServiceAccount", "name": "gpu-healthcheck", "namespace": "gpu-healthcheck"}]
    return [
        named | {"kind": "ClusterRole", "rules": RULES},
        named | {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": subjects},
    ]


@pytest.fixture
def suite(installed: ControlPlane) -> Iterator[ControlPlane]:
    """The suite's role and binding, as its manifests make them."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": role_and_binding()})
    installed.kubectl("delete", "clusterrole/gpu-healthcheck", "clusterrolebinding/gpu-healthcheck")
    installed.kubectl("apply", "-f", "-", input=text)
    yield installed
    installed.kubectl("apply", "-f", str(MANIFESTS / "01-rbac-agent.yaml"))


def may(plane: ControlPlane, verb: str, group: str, resource: str) -> bool:
    """Return the answer of `kubectl auth can-i VERB RESOURCE --as=ACCOUNT`."""
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": "default"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
    }
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.status == HTTPStatus.CREATED, answer.message
    return answer.body["status"]["allowed"] is True


def test_its_wide_rights_end_when_our_manifests_are_applied(suite: ControlPlane) -> None:
    eventually(lambda: all(may(suite, *right) for right in ENDS))

    printed = suite.kubectl("apply", "-f", str(MANIFESTS / "01-rbac-agent.yaml"))

    assert "clusterrole.rbac.authorization.k8s.io/gpu-healthcheck configured" in printed
    eventually(lambda: not any(may(suite, *right) for right in ENDS))
    assert all(may(suite, *right) for right in STAYS)
