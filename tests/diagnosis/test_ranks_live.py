"""Permissions and errors of `--ranks` on the real API server, over TLS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.cluster.connection import Connection, connect
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden, NotFound, Refused
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.pods import Listings
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ROLE = re.compile(r"```yaml\n(apiVersion: rbac[^`]*name: gpu-healthcheck-ranks\n[^`]*)```")
TEAM = "team-of-ranks"


@pytest.fixture(scope="module")
def member(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the kubeconfig of an account without permissions, in a namespace with a pod on a node without a kubelet."""
    plane, path = control_plane, tmp_path_factory.mktemp("member") / "kubeconfig"
    plane.kubectl("create", "namespace", TEAM)
    plane.create_node("without-kubelet", devices={"nvidia.com/gpu": "8"})
    for name in ("default", "member"):
        plane.request("POST", f"/api/v1/namespaces/{TEAM}/serviceaccounts", {"metadata": {"name": name}})
    spec = {"nodeName": "without-kubelet", "containers": [{"name": "main", "image": "x"}]}
    answer = plane.request("POST", f"/api/v1/namespaces/{TEAM}/pods", {"metadata": {"name": "train-0"}, "spec": spec})
    assert answer.status == 201, answer.message
    token = plane.kubectl("create", "token", "member", "-n", TEAM).strip()
    yield write_kubeconfig(path, url=plane.url, ca_file=plane.ca_file, token=token)
    plane.request("DELETE", f"/api/v1/namespaces/{TEAM}/pods/train-0?gracePeriodSeconds=0")
    plane.kubectl("delete", "namespace", TEAM)
    plane.kubectl("delete", "node", "without-kubelet")


def execute(kubeconfig: Path, pod: str = "train-0") -> bytes:
    listings = Listings(Connection(partial(connect, Access(str(kubeconfig)))))
    return listings.execute(TEAM, pod, "main", ["sh", "-c", "echo"], 60, 100)


def is_forbidden(kubeconfig: Path) -> bool:
    try:
        execute(kubeconfig)
    except Forbidden:
        return True
    except Refused:
        return False
    return False


def bind(plane: ControlPlane, role: str) -> None:
    account = f"--serviceaccount={TEAM}:member"
    plane.kubectl("-n", TEAM, "create", "rolebinding", role, f"--role={role}", account)


def test_execute_needs_a_kubelet(control_plane: ControlPlane, member: Path) -> None:
    """The API server reports over the WebSocket that it can't reach the kubelet."""
    del member
    with pytest.raises(Refused, match="create pods/exec: Internal error occurred: error sending request"):
        execute(control_plane.kubeconfig)
    with pytest.raises(NotFound, match='create pods/exec: 404: pods "gone" not found'):
        execute(control_plane.kubeconfig, "gone")


def test_role_of_the_guide_is_enough(control_plane: ControlPlane, member: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/diagnose.md").read_text()
    role = ROLE.search(guide)
    assert role is not None

    assert is_forbidden(member)
    control_plane.kubectl("-n", TEAM, "apply", "-f", "-", input=role[1])
    bind(control_plane, "gpu-healthcheck-ranks")
    eventually(lambda: not is_forbidden(member))
    control_plane.kubectl("-n", TEAM, "delete", "role/gpu-healthcheck-ranks", "rolebinding/gpu-healthcheck-ranks")
    eventually(lambda: is_forbidden(member))
