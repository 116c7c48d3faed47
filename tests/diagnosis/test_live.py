"""A diagnosis of a real API server: every kind in pages, with all rights, with few, and with none."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck.cluster.connection import Connection, connect
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.pods import Listings
from gpu_healthcheck.healthcheck.node.state import RESULTS
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig
from tests.cli.cluster import run
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

_UNHEALTHY = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}
_DEAD, _HEALTHY = (f"GPU-8dbf1c52-{part}-4c5e-9b1f-0123456789ab" for part in ("1111", "2222"))
_FINDING = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "about": {"uuid": _DEAD}}
_RECORD = json.dumps({"schema": 1, "status": "fail", "severity": "REBOOT", "findings": [_FINDING]})
_READER = "diagnosis-reader"
TEAM, POD_OF_TEAM, TWIN = "team", "trainer-0", "server-0"


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """One of its own: whatever other tests leave on the shared one would be diagnosed."""
    del control_plane  # it builds the programs
    with ControlPlane() as own:
        own.create_node("withheld", devices={"nvidia.com/gpu": "8"}, taints=[_UNHEALTHY])
        own.create_node("healthy", devices={"nvidia.com/gpu": "8"})
        own.kubectl("create", "namespace", TEAM)
        yield own


@pytest.fixture
def reader(plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of an account that may do nothing yet."""
    plane.kubectl("create", "serviceaccount", _READER, "--namespace=default")
    token = plane.kubectl("create", "token", _READER, "--namespace=default").strip()
    path = tmp_path / "reader.kubeconfig"
    write_kubeconfig(path, url=plane.url, ca_file=plane.ca_file, token=token)
    yield path
    plane.kubectl("delete", "serviceaccount", _READER, "--namespace=default")


def _wait_for_permission(plane: ControlPlane, path: str, reader: Path) -> None:
    """The API server learns of a role a moment after it took it."""
    token = yaml.safe_load(reader.read_text())["users"][0]["user"]["token"]
    eventually(lambda: plane.request("GET", path, token=token).status == 200)


def _document(done: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_diagnose_live_equals_its_saved_state(plane: ControlPlane, tmp_path: Path) -> None:
    saved = tmp_path / "state.tar.gz"
    live = run(plane.kubeconfig, "diagnose", "--json", "--save", str(saved))
    assert (live.returncode, live.stderr) == (1, "")
    assert [(entry["cause"], entry["subject"]) for entry in _document(live)["causes"]] == [
        ("NodeKeptFromWork", "node/withheld")
    ]
    assert _document(live)["unobserved"] == []
    again = run(plane.kubeconfig, "diagnose", "--json", "--from", str(saved))
    assert _document(again) == _document(live)


def test_diagnose_names_a_missing_namespace(plane: ControlPlane, reader: Path) -> None:
    missing = run(plane.kubeconfig, "diagnose", "-n", "nope")
    assert (missing.returncode, missing.stderr) == (3, "gpu-healthcheck diagnose: there is no namespace nope\n")
    assert run(plane.kubeconfig, "diagnose", "-n", "default").returncode == 0
    assert "there is no namespace" not in run(reader, "diagnose", "-n", "nope").stderr


def test_status_allocation_shows_the_gpus_of_each_node(plane: ControlPlane) -> None:
    fields = _document(run(plane.kubeconfig, "status", "--allocation", "-o", "json"))
    assert [(entry["node"], entry["gpus"], entry["usable"]) for entry in fields["nodes"]] == [
        ("healthy", 8, True),
        ("withheld", 8, False),
    ]
    table = run(plane.kubeconfig, "status", "--allocation")
    assert (table.returncode, "GPUs nvidia.com/gpu: 8 of 16 free" in table.stdout) == (0, True)


@pytest.mark.parametrize(("device", "causes"), [(_DEAD, ["PodOnFaultyGpu"]), (_HEALTHY, [])])
def test_diagnose_uses_the_gpu_that_the_kubelet_reports(
    plane: ControlPlane, device: str, causes: list[str], tmp_path: Path
) -> None:
    plane.kubectl("annotate", "node", "withheld", f"{RESULTS}={_RECORD}", "--overwrite")
    box = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": "withheld", "containers": [box], "tolerations": [{"operator": "Exists"}]}
    manifest = tmp_path / "pod.json"
    named = {"name": "rank-0", "namespace": "default"}
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec}))
    plane.kubectl("create", "serviceaccount", "default")
    plane.kubectl("create", "-f", str(manifest))
    try:
        plane.kubectl("patch", "pod", "rank-0", "--subresource=status", "--type=merge", "-p", _status(device))
        if "allocatedResourcesStatus" not in plane.kubectl("get", "pod", "rank-0", "-o=json"):
            pytest.skip("NOT TESTED: without its feature gate, Kubernetes up to 1.35 drops allocatedResourcesStatus")
        fields = _document(run(plane.kubeconfig, "diagnose", "pod", "rank-0", "--json"))
        assert [entry["cause"] for entry in fields["causes"]] == causes
    finally:
        plane.kubectl("delete", "pod", "rank-0", "--force", "--grace-period=0")
        plane.kubectl("delete", "serviceaccount", "default")
        plane.kubectl("annotate", "node", "withheld", f"{RESULTS}-")


def _status(device: str, health: str = "Healthy") -> str:
    """Of a pod that runs, as the kubelet of Kubernetes 1.36 writes it."""
    devices = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": device, "health": health}]}]
    state = {"name": "main", "image": "x", "imageID": "x", "ready": True, "restartCount": 0}
    state |= {"state": {"running": {"startedAt": "2026-11-22T11:00:00Z"}}, "allocatedResourcesStatus": devices}
    return json.dumps({"status": {"phase": "Running", "containerStatuses": [state]}})


def test_diagnose_of_a_healthy_node_finds_nothing(plane: ControlPlane) -> None:
    assert run(plane.kubeconfig, "diagnose", "node", "healthy").returncode == 0
    assert run(plane.kubeconfig, "diagnose", "node", "withheld").returncode == 1
    gone = run(plane.kubeconfig, "diagnose", "node", "gone")
    assert (gone.returncode, gone.stderr) == (3, "gpu-healthcheck diagnose: there is no node/gone\n")


@pytest.mark.parametrize(
    ("scope", "resources", "where"),
    [("cluster", "pods", ()), ("", "*.*", ("-n", "default"))],
    ids=["pods of all namespaces", "all of one namespace"],
)
def test_diagnose_with_few_permissions_names_what_is_not_visible(
    plane: ControlPlane, reader: Path, scope: str, resources: str, where: tuple[str, ...]
) -> None:
    own = () if scope else ("--namespace=default",)
    account = f"--serviceaccount=default:{_READER}"
    plane.kubectl("create", f"{scope}role", _READER, "--verb=get,list", f"--resource={resources}", *own)
    plane.kubectl("create", f"{scope}rolebinding", _READER, f"--{scope}role={_READER}", account, *own)
    _wait_for_permission(plane, "/api/v1/pods" if scope else "/api/v1/namespaces/default/pods", reader)
    try:
        done = run(reader, "diagnose", "--json", *where)
    finally:
        plane.kubectl("delete", f"{scope}role", _READER, *own)
        plane.kubectl("delete", f"{scope}rolebinding", _READER, *own)
    unseen = {entry["kind"]: entry["why"] for entry in _document(done)["unobserved"]}
    assert (done.returncode, _document(done)["causes"]) == (2, [])
    assert unseen["Node"] == "the right to list nodes is missing"
    assert "Pod" not in unseen


@pytest.fixture
def member(plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """Yield the kubeconfig of a member of a team: `view` in its namespace, which is that of the context.

    Two pods of a Job of the team run on the node `withheld`; the kubelet reports the GPU of one as unhealthy.
    """
    for name in ("member", "default"):
        plane.kubectl("create", "serviceaccount", name, f"--namespace={TEAM}")
    # The rules of `view`, which the controller-manager copies into it.
    rules = "--clusterrole=system:aggregate-to-view"
    plane.kubectl("create", "rolebinding", "member", rules, f"--serviceaccount={TEAM}:member", f"--namespace={TEAM}")
    box = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    job = {
        "metadata": {"name": "train", "namespace": TEAM},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [box]}}},
    }
    uid = plane.request("POST", f"/apis/batch/v1/namespaces/{TEAM}/jobs", job).body["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    for name, health in ((POD_OF_TEAM, "Unhealthy"), (TWIN, "Healthy")):
        spec = {"nodeName": "withheld", "containers": [box], "tolerations": [{"operator": "Exists"}]}
        body = {"metadata": {"name": name, "ownerReferences": [owner] if health == "Unhealthy" else []}, "spec": spec}
        answer = plane.request("POST", f"/api/v1/namespaces/{TEAM}/pods", body)
        assert answer.status == 201, answer.message
        status = _status(_DEAD, health)
        plane.kubectl("-n", TEAM, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", status)
    token = plane.kubectl("create", "token", "member", f"--namespace={TEAM}").strip()
    path = write_kubeconfig(tmp_path / "member.kubeconfig", url=plane.url, ca_file=plane.ca_file, token=token)
    content = json.loads(path.read_text())
    content["contexts"][0]["context"]["namespace"] = TEAM
    path.write_text(json.dumps(content))
    _wait_for_permission(plane, f"/api/v1/namespaces/{TEAM}/pods", path)
    yield path
    for name in (POD_OF_TEAM, TWIN):
        plane.request("DELETE", f"/api/v1/namespaces/{TEAM}/pods/{name}?gracePeriodSeconds=0")
    named = ("job/train", "rolebinding/member", "serviceaccount/member", "serviceaccount/default")
    plane.kubectl("-n", TEAM, "delete", *named)


def test_diagnose_works_with_view_in_a_namespace(plane: ControlPlane, member: Path) -> None:
    """Each target without a namespace is in that of the context; what needs Nodes is unknown and never fine."""
    reported = "allocatedResourcesStatus" in plane.kubectl("-n", TEAM, "get", "pod", POD_OF_TEAM, "-o=json")
    for words in (("pod", POD_OF_TEAM), ("job", "train"), (), ("-n", TEAM)):
        done = run(member, "diagnose", *words)
        found = "PodOnFaultyGpu node/withheld" in done.stdout
        assert (done.returncode, found) == ((1, True) if reported else (2, False)), done.stdout + done.stderr
        assert "✓ CUDA" not in done.stdout

    twin = run(member, "diagnose", "pod", TWIN)
    assert (twin.returncode, "PodOnFaultyGpu" in twin.stdout) == (2, False)
    assert "? CUDA works in its containers: its containers run, but Nodes are not visible" in _in_one_line(twin.stdout)
    elsewhere = run(member, "diagnose", "job", "train", "-n", "default")
    assert (elsewhere.returncode, 'pods" in API group "" in the namespace "default"' in elsewhere.stderr) == (2, True)
    assert "only namespace team: you may not list the pods of all namespaces" in run(member, "diagnose").stderr


def test_diagnose_reads_the_agents_event_without_nodes(plane: ControlPlane, member: Path) -> None:
    pod = plane.request("GET", f"/api/v1/namespaces/{TEAM}/pods/{TWIN}").body
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": TEAM, "name": TWIN, "uid": pod["metadata"]["uid"]}
    text = "GPU 3 of the node (GPU-1), which this pod uses, is faulty"
    event = {
        "metadata": {"name": "withheld.0123456789ab"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "GpuUnhealthy",
        "message": text,
        "source": {"component": "gpu-healthcheck", "host": "withheld"},
    }
    assert plane.request("POST", f"/api/v1/namespaces/{TEAM}/events", event).status == 201
    done = run(member, "diagnose", "pod", TWIN)
    plane.request("DELETE", f"/api/v1/namespaces/{TEAM}/events/withheld.0123456789ab")

    assert (done.returncode, "PodOnFaultyGpu node/withheld" in done.stdout) == (1, True)
    assert f"Event GpuUnhealthy: {text}" in _in_one_line(done.stdout)


@contextmanager
def _granted(plane: ControlPlane, user: Path, words: str, *target: str) -> Iterator[None]:
    """Run the command with which `diagnose` says that an administrator permits these words."""
    before = _in_one_line(run(user, "diagnose", *target).stdout)
    found = re.search(rf"An administrator of the cluster {words}: `(kubectl create clusterrolebinding [^`]*)`", before)
    assert found is not None, before
    binding = shlex.split(found[1])
    plane.kubectl("apply", "-f", str(MANIFESTS / "14-rbac-viewer.yaml"))
    record = json.loads(_RECORD) | {"findings": [{**_FINDING, "first_seen": timestamp(datetime.now(UTC))}]}
    plane.kubectl("annotate", "node", "withheld", f"{RESULTS}={json.dumps(record)}", "--overwrite")
    plane.kubectl(*binding[1:])
    try:
        _wait_for_permission(plane, "/api/v1/nodes", user)
        yield
    finally:
        plane.kubectl("delete", "clusterrolebinding", binding[3])
        plane.kubectl("delete", "-f", str(MANIFESTS / "14-rbac-viewer.yaml"))
        plane.kubectl("annotate", "node", "withheld", f"{RESULTS}-")


@pytest.mark.usefixtures("member")
def test_diagnose_prints_the_command_that_grants_its_permissions(plane: ControlPlane, reader: Path) -> None:
    """A user who may list the pods of all namespaces."""
    account = f"--serviceaccount=default:{_READER}"
    plane.kubectl("create", "clusterrole", _READER, "--verb=get,list", "--resource=pods")
    plane.kubectl("create", "clusterrolebinding", _READER, f"--clusterrole={_READER}", account)
    _wait_for_permission(plane, "/api/v1/pods", reader)
    try:
        with _granted(plane, reader, "permits it", "pod", f"{TEAM}/{TWIN}"):
            done = run(reader, "diagnose", "pod", f"{TEAM}/{TWIN}", "--json")
            status = run(reader, "status")
    finally:
        plane.kubectl("delete", "clusterrole", _READER)
        plane.kubectl("delete", "clusterrolebinding", _READER)
    assert (_document(done)["unobserved"], done.returncode) == ([], 1)
    assert _document(done)["causes"][0]["subject"] == "node/withheld"
    assert (status.returncode, status.stderr) == (0, "")


def test_diagnose_works_for_a_team_that_may_list_nodes(plane: ControlPlane, member: Path) -> None:
    """`view` in a namespace and the role for teams: the node's finding, and nothing of other namespaces."""
    fine = {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
    template = {"template": {"spec": {**fine, "restartPolicy": "Never"}}}
    body = {"metadata": {"name": "fine", "namespace": TEAM}, "spec": template}
    uid = plane.request("POST", f"/apis/batch/v1/namespaces/{TEAM}/jobs", body).body["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "fine", "uid": uid, "controller": True}
    pod = {"metadata": {"name": "fine-0", "ownerReferences": [owner]}, "spec": {**fine, "nodeName": "healthy"}}
    assert plane.request("POST", f"/api/v1/namespaces/{TEAM}/pods", pod).status == 201
    plane.kubectl("-n", TEAM, "patch", "pod", "fine-0", "--subresource=status", "--type=merge", "-p", _status(_HEALTHY))
    try:
        with _granted(plane, member, "permits Nodes", "job", f"{TEAM}/train"):
            done, text = (run(member, "diagnose", "job", f"{TEAM}/train", *form) for form in (("--json",), ()))
            twin = run(member, "diagnose", "job", f"{TEAM}/fine", "--json")
            other = [run(member, "diagnose", *words) for words in (("job", "default/x"), ("-n", "default"))]
            node = run(member, "diagnose", "node", "healthy", "--json")
            allocation = _document(run(member, "diagnose", "--json"))["cluster"]["nodes"]
            token = yaml.safe_load(member.read_text())["users"][0]["user"]["token"]
            paths = ("/api/v1/pods", "/api/v1/namespaces/default/pods", "/api/v1/events", "/apis/apps/v1/daemonsets")
            answers = [plane.request("GET", path, token=token).status for path in paths]
    finally:
        plane.kubectl("-n", TEAM, "delete", "job/fine", "pod/fine-0", "--force", "--grace-period=0")

    (cause,) = [one for one in _document(done)["causes"] if one["cause"] == "PodOnFaultyGpu"]
    assert (done.returncode, cause["subject"]) == (1, "node/withheld")
    assert any("Xid79 REBOOT on gpu/0000:18:00.0" in line for line in cause["evidence"])
    assert [row["what"] for row in _document(done)["timeline"]][-1] == "node withheld: Xid79 REBOOT: gpu/0000:18:00.0"
    unseen = {entry["kind"] for entry in _document(done)["unobserved"]}
    assert ("Node" in unseen, "DaemonSet" in unseen) == (False, True)
    assert f"An administrator of the cluster can check it: `gpu-healthcheck diagnose -n {TEAM}`" in _in_one_line(
        text.stdout
    )
    assert (twin.returncode, _document(twin)["causes"]) == (0, []), twin.stderr
    assert [one.returncode for one in other] == [2, 2]
    assert "job/default/x can't be read: the right to list jobs is missing" in other[0].stderr
    assert "You may not list Event, Pod" in _in_one_line(other[1].stdout)
    assert "Nothing found in the visible part of the cluster." in other[1].stdout
    in_use = [row["value"] for row in _document(node)["node"] if row["what"] == "nvidia.com/gpu"]
    assert in_use == ["capacity 8, allocatable 8, in use unknown"]
    assert {each["free"] for one in allocation for each in one["resources"]} == {None}
    assert answers == [403, 403, 403, 403]


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def placed(plane: ControlPlane) -> Iterator[str]:
    """A pod on a node, by its namespace and name."""
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": "healthy", "containers": [container]}
    plane.kubectl("create", "serviceaccount", "worker", "--namespace=default")
    body = {"metadata": {"name": "placed"}, "spec": {**spec, "serviceAccountName": "worker"}}
    plane.request("POST", "/api/v1/namespaces/default/pods", body)
    yield "default/placed"
    plane.request("DELETE", "/api/v1/namespaces/default/pods/placed?gracePeriodSeconds=0")
    plane.kubectl("delete", "serviceaccount", "worker", "--namespace=default")


def test_diagnose_of_a_placed_pod_lists_only_its_dependencies(plane: ControlPlane, placed: str) -> None:
    since = datetime.now(UTC)
    done = run(plane.kubeconfig, "diagnose", "pod", placed, "--json")
    asked = [event["requestURI"] for event in plane.audit(since) if event["verb"] == "list"]
    assert done.returncode == 0
    assert [
        entry
        for entry in asked
        if entry.startswith(("/api/v1/pods?", "/api/v1/nodes?")) and "fieldSelector" not in entry
    ] == []


def test_since_of_one_pod_reports_no_deletions(plane: ControlPlane, placed: str, tmp_path: Path) -> None:
    saved = tmp_path / "state.tar.gz"
    run(plane.kubeconfig, "diagnose", "--save", str(saved), "--json")
    done = run(plane.kubeconfig, "diagnose", "pod", placed, "--since", str(saved), "--json")
    assert (done.returncode, _document(done)["changes"]) == (0, [])


def test_listing_of_several_pages_is_complete(plane: ControlPlane) -> None:
    names = [f"page-{number:04d}" for number in range(501)]
    where = "/apis/coordination.k8s.io/v1/namespaces/kube-public/leases"
    for name in names:
        plane.request("POST", where, {"metadata": {"name": name}})
    listings = Listings(Connection(partial(connect, Access(str(plane.kubeconfig)))))
    assert [entry["metadata"]["name"] for entry in listings.objects(where, "leases", {})] == names
    plane.request("DELETE", where)


def test_diagnose_without_permissions_fails(reader: Path) -> None:
    done = run(reader, "diagnose")
    assert done.returncode == 2
    assert "forbidden" in done.stderr.lower()
