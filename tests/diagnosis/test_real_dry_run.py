"""A dry run of a pod on a real API server: its changes, its rejection, and nothing stored."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.pod_fit import WouldFit, would_fit_each
from gpu_healthcheck.healthcheck.cluster.connection import Connection, connect
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.pods import Listings
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig
from tests.diagnosis.states import GPU, node, snapshot
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

_NAMESPACE = "would-fit"
_AT = f"/api/v1/namespaces/{_NAMESPACE}"


@pytest.fixture(scope="module")
def plane(controllers: ControlPlane) -> Iterator[ControlPlane]:
    controllers.request("POST", "/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    hard = {"spec": {"hard": {f"requests.{GPU}": "4"}}}
    limits = {"spec": {"limits": [{"type": "Container", "default": {"cpu": "2"}, "max": {"memory": "1Gi"}}]}}
    controllers.request("POST", f"{_AT}/resourcequotas", {"metadata": {"name": "gpus"}} | hard)
    controllers.request("POST", f"{_AT}/limitranges", {"metadata": {"name": "plain"}} | limits)
    eventually(lambda: controllers.request("GET", f"{_AT}/serviceaccounts/default").status == http.client.OK)
    eventually(lambda: "hard" in controllers.request("GET", f"{_AT}/resourcequotas/gpus").body.get("status", {}))
    yield controllers
    controllers.request("DELETE", f"/api/v1/namespaces/{_NAMESPACE}")


def tried(plane: ControlPlane, kubeconfig: Path | None = None, /, namespace: str = _NAMESPACE, **main: Any) -> WouldFit:
    """A pod with one container of this kind."""
    access = Access(str(kubeconfig or plane.kubeconfig), "")
    container = {"name": "main", "image": "x", "resources": {"limits": {GPU: "1"}}} | main
    raw: Mapping[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "new", "namespace": namespace},
        "spec": {"containers": [container]},
    }
    (answer,) = would_fit_each(snapshot(node("a", 8)), [raw], Listings(Connection(partial(connect, access))).try_pod)
    return answer


def test_admission_answers_and_stores_nothing(plane: ControlPlane) -> None:
    answer = tried(plane)
    assert (answer.admission.asked, answer.fits) == (True, True)
    assert set(answer.added) == {"container main: cpu 2", "container main: memory 1Gi"}
    assert plane.request("GET", f"{_AT}/pods").body["items"] == []


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ({"resources": {"limits": {GPU: "5"}}}, "exceeded quota"),
        ({"resources": {"limits": {GPU: "1", "memory": "2Gi"}}}, "maximum memory usage"),
        ({"image": "", "name": "Not a name"}, "invalid"),
        ({"resources": {"requests": {GPU: "1"}}}, "Limit must be set"),
    ],
)
def test_a_pod_that_admission_rejects_is_reported_with_its_message(
    plane: ControlPlane, main: dict[str, Any], message: str
) -> None:
    answer = tried(plane, **main)
    assert message.lower() in answer.admission.refused.lower()
    assert (answer.fits, answer.nodes) == (False, ())


def test_a_namespace_that_is_not_there_takes_no_pod(plane: ControlPlane) -> None:
    assert "not found" in tried(plane, namespace="no-such").admission.refused


def test_who_may_make_no_pods_hears_what_the_rules_say(plane: ControlPlane, tmp_path: Path) -> None:
    token = plane.kubectl("create", "token", "default", f"--namespace={_NAMESPACE}").strip()
    kubeconfig = write_kubeconfig(tmp_path / "config", url=plane.url, ca_file=plane.ca_file, token=token)
    answer = tried(plane, kubeconfig)
    assert 'cannot create resource "pods"' in answer.admission.why_not
    assert (answer.admission.asked, answer.fits) == (False, True)
