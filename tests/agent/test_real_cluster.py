"""The real agent with its node-bound token on a real kube-apiserver, our manifests and policies applied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.probes.kubelet_pods import PODS_API
from gpu_healthcheck.healthcheck.probes.pod_resources import SOCKETS
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane, install
from tests.agent.node.test_gate import devices
from tests.agent.world import UNHEALTHY, P, RealCluster, World
from tests.host.grpc_server import answers_to, serving
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
Json = dict[str, Any]
Story = Callable[[ControlPlane, World], None]


@pytest.fixture(scope="module")
def troubled(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a separate control plane, so that its outages do not affect other tests."""
    with ControlPlane() as plane:
        install(plane)
        yield plane


@contextmanager
def watched_on(plane: ControlPlane, name: str, folder: Path) -> Iterator[World]:
    """Yield a healthy node with an agent that reported `pass` and created its Lease."""
    cluster = RealCluster(plane, name, taints=[SPOT], labels={"example.com/team": "vision"})
    with World(folder / name, cluster) as world:
        # Taints of other nodes in the same cluster must not withhold the taint of this node.
        world.hurry()
        world.imports = True  # as in a container, here with all that an agent meets
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        world.start()
        world.wait_for_status("pass")
        eventually(cluster.lease)
        yield world


def a_healthy_node_passes_and_its_lease_is_owned_by_it(plane: ControlPlane, world: World) -> None:
    node, lease = world.node(), world.cluster.lease()
    assert lease is not None

    assert node.condition["status"] == "True"
    statuses = {row["check"]: row["status"] for row in node.record["checks"]}
    looked_at = ("0-nvidia-smi", "2-efa-enumeration", "3-topology-check")
    assert statuses == {
        **dict.fromkeys(looked_at, "pass"),
        **dict.fromkeys(("7-container-runtime", "8-hami", "9-roce"), "not-configured"),
    }
    assert [(entry["kind"], entry["uid"]) for entry in lease["metadata"]["ownerReferences"]] == [("Node", node.uid)]
    assert len(eventually(lambda: world.events("GpuHealthPass"))) == 1
    table = plane.kubectl("get", "nodes", world.cluster.name, "-L", "gpu-healthcheck.aws-samples.io/status")
    assert "pass" in table.splitlines()[1]

    # The second check cycle renews the heartbeat and writes nothing else.
    renewed = lease["spec"]["renewTime"]
    eventually(lambda: (world.cluster.lease() or lease)["spec"]["renewTime"] != renewed)
    assert world.node().record == node.record
    assert world.agent.metric("cluster_writes_total{nodes,ok}") == 1
    assert world.agent.metric("cluster_writes_total{nodes/status,ok}") == 1
    assert len(world.events("GpuHealthPass")) == 1


def a_fault_is_seen_with_kubectl_and_ends_with_a_reboot(plane: ControlPlane, world: World) -> None:
    world.host.xid(3, 79, ERROR)
    node = world.wait_for_taint()
    world.wait_for_event("Xid79")

    assert node.taints == [SPOT, UNHEALTHY]
    assert node.labels["example.com/team"] == "vision"
    described = plane.kubectl("describe", "node", world.cluster.name)
    condition = next(line for line in described.splitlines() if line.strip().startswith("GpuHealthy"))
    assert condition.split()[1] == "False"
    assert "Xid79" in condition
    assert "gpu-healthcheck.aws-samples.io/unhealthy=true:NoSchedule" in described
    textses = [line.split() for line in described.splitlines() if "gpu-healthcheck" in line]
    assert ["Warning", "Xid79"] in [words[:2] for words in textses]

    assert world.agent.terminate() == 0
    world.host.reboot()
    world.start()
    assert world.wait_for_status("pass").taints == [SPOT]


def a_release_by_kubectl_label_is_taken_and_its_place_given_back(plane: ControlPlane, world: World) -> None:
    cluster = slots_of(world)
    world.host.xid(3, 79, ERROR)
    node = world.wait_for_taint()
    (slot,) = cluster.slots()
    assert [entry["uid"] for entry in slot["metadata"]["ownerReferences"]] == [node.uid]

    plane.kubectl("label", "node", world.cluster.name, f"{P}/status=pass", "--overwrite")
    node = world.wait(lambda node: node.status == "pass" and not node.tainted)
    assert (node.record["released"]["by"], node.findings) == ("kubectl-label", {})
    assert world.wait_for_event("Released")["message"].startswith("kubectl-label released Xid79 on gpu/")
    eventually(lambda: not cluster.slots())

    # The label is still kubectl's, and means nothing any more.
    world.host.xid(3, 79, ERROR)
    world.wait_for_taint()
    eventually(cluster.slots)
    assert len(world.events("Released")) == 1


def a_release_is_seen_though_nobody_is_noted_for_it(plane: ControlPlane, world: World) -> None:
    world.host.xid(3, 79, ERROR)
    world.wait_for_taint()
    world.cluster.edit({"metadata": {"managedFields": [{}]}})
    plane.kubectl("label", "node", world.cluster.name, f"{P}/status=pass", "--overwrite")
    node = world.wait(lambda node: node.status == "pass" and not node.tainted)

    assert (node.record["released"]["by"], node.findings) == ("a person", {})


def no_word_of_the_future_hides_a_later_fault(plane: ControlPlane, world: World) -> None:
    world.host.xid(3, 79, ERROR)
    before = world.wait_for_taint()
    finding = before.findings["Xid79"]
    ahead = "9998-01-01T00:00:00Z"
    row = {"reason": "Xid79", "subject": finding["subject"], "boot_id": before.record["boot_id"], "last_seen": ahead}
    word = {"by": "x", "reason": "x", "at": ahead, "findings": [{**row, "cursor": 10**15}, {**row, "cursor": None}]}
    checks = [{"check": "4-dcgm-diag-l4", "status": "pass", "severity": "PASS"}]
    passed = {"schema": 1, "timestamp": ahead, "started": ahead, "status": "pass", "severity": "PASS", "checks": checks}
    fields = {f"{P}/release": json.dumps(word), f"{P}/quarantine-result": json.dumps(passed)}
    world.cluster.edit({"metadata": {"annotations": fields}})
    world.wait_for_status("pass")

    world.host.xid(3, 79, ERROR)
    world.wait_for_taint()
    world.restart()
    world.host.xid(5, 79, ERROR)
    world.wait(lambda node: len(node.record.get("findings", [])) == 2)


def an_unrepresentable_time_is_rejected_and_reported(plane: ControlPlane, world: World) -> None:
    world.host.xid(3, 79, ERROR)
    world.wait_for_taint()
    word = {"by": "x", "reason": "x", "at": "0001-01-01T00:00:00+23:59", "findings": []}
    held = {"kind": "l2", "holder": "x", "until": "9999-12-31T23:59:59-23:59"}
    fields = {f"{P}/release": json.dumps(word), f"{P}/run": json.dumps(held)}
    world.cluster.edit({"metadata": {"annotations": fields}})

    wanted = {f"annotation {key}" for key in fields}
    eventually(lambda: wanted <= {event["message"].partition(":")[0] for event in world.events("BadAnnotation")})
    world.restart().wait_for_looks()
    node = world.wait(lambda node: f"{P}/release" not in node.object["metadata"]["annotations"])
    assert (node.status, node.tainted) == ("fail", True)


def a_release_by_command_is_waited_for(plane: ControlPlane, world: World) -> None:
    world.host.xid(3, 79, ERROR)
    world.wait_for_taint()
    command = [sys.executable, "-m", "cli", "release", world.cluster.name, "--reason", "board swapped"]
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{world.cluster.name}: its agent reports pass\n")
    node = world.node()
    assert (node.status, node.tainted) == ("pass", False)
    assert node.record["released"]["reason"] == "board swapped"


def a_startup_taint_is_taken_away_with_the_first_good_look(plane: ControlPlane, world: World) -> None:
    world.cluster.edit({"spec": {"taints": [SPOT, {"key": f"{P}/startup", "effect": "NoSchedule"}]}})

    world.wait(lambda node: node.taints == [SPOT])


def a_place_of_a_node_of_before_goes_with_it(plane: ControlPlane, world: World) -> None:
    cluster = slots_of(world)
    world.host.xid(3, 79, ERROR)
    before = world.wait_for_taint()
    plane.request("DELETE", f"/api/v1/nodes/{world.cluster.name}")
    plane.create_node(world.cluster.name)
    node = world.wait(lambda node: node.uid != before.uid and node.tainted)

    owners = [entry["uid"] for slot in eventually(cluster.slots) for entry in slot["metadata"]["ownerReferences"]]
    assert owners == [node.uid]


def slots_of(world: World) -> RealCluster:
    assert isinstance(world.cluster, RealCluster)
    return world.cluster


def a_node_that_came_back_under_another_uid_owns_its_lease(plane: ControlPlane, world: World) -> None:
    before = world.node()
    plane.request("DELETE", f"/api/v1/nodes/{world.cluster.name}")
    plane.create_node(world.cluster.name)
    node = world.wait_for_status("pass")
    assert node.uid != before.uid

    eventually(lambda: node.uid in str(world.cluster.lease()))
    assert world.node().record["node_uid"] == node.uid


def a_token_that_ended_is_replaced_by_the_one_that_lies_there_now(plane: ControlPlane, world: World) -> None:
    pod = f"/api/v1/namespaces/gpu-healthcheck/pods/agent-on-{world.cluster.name}?gracePeriodSeconds=0"
    assert plane.request("DELETE", pod).status == 200
    world.agent.wait_for_log(
        "the API server does not accept the agent's token; the newest verdict is kept", error="401"
    )
    world.host.xid(3, 79, ERROR)
    eventually(lambda: world.agent.metric("verdict_pending") == 1)
    assert world.agent.get("/healthz")[0] == 200

    world.cluster.kubeconfig(world.kubeconfig)
    world.wait(lambda node: node.status == "fail" and node.tainted)  # the taint waits for its slot in the budget


STORIES = (
    a_healthy_node_passes_and_its_lease_is_owned_by_it,
    a_fault_is_seen_with_kubectl_and_ends_with_a_reboot,
    a_release_by_kubectl_label_is_taken_and_its_place_given_back,
    a_release_is_seen_though_nobody_is_noted_for_it,
    no_word_of_the_future_hides_a_later_fault,
    an_unrepresentable_time_is_rejected_and_reported,
    a_release_by_command_is_waited_for,
    a_startup_taint_is_taken_away_with_the_first_good_look,
    a_place_of_a_node_of_before_goes_with_it,
    a_node_that_came_back_under_another_uid_owns_its_lease,
    a_token_that_ended_is_replaced_by_the_one_that_lies_there_now,
)


@pytest.fixture(scope="module")
def lived(installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Story, Future[None]]]:
    folder = tmp_path_factory.mktemp("stories")

    def live(story: Story, name: str) -> None:
        with watched_on(installed, name, folder) as world:
            story(installed, world)

    with ThreadPoolExecutor(len(STORIES)) as threads:
        yield {story: threads.submit(live, story, f"real-{number}") for number, story in enumerate(STORIES)}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_that(story: Story, lived: dict[Story, Future[None]]) -> None:
    lived[story].result()


def test_a_pod_of_the_faulty_gpu_is_warned_and_no_other_one(installed: ControlPlane, short_root: Path) -> None:
    plane = installed
    with watched_on(plane, "real-pods", short_root) as world:
        root = world.host.root
        held = {"trainer": world.host.gpus[3].uuid, "server": world.host.gpus[5].uuid}
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})  # another test may have made it
        plane.kubectl("create", "serviceaccount", "worker", "--namespace=team")
        uids = {}
        for name in held:
            box = {"name": "main", "image": "x"}
            spec = {"nodeName": world.cluster.name, "serviceAccountName": "worker", "containers": [box]}
            body = {"metadata": {"name": name}, "spec": spec}
            answer = plane.request("POST", "/api/v1/namespaces/team/pods", body)
            assert answer.status == 201, answer.message
            uids[name] = answer.body["metadata"]["uid"]
        pods = [{"metadata": {"uid": uid, "namespace": "team", "name": name}} for name, uid in uids.items()]
        with (
            serving(root / PODS_API[1:], answers_to("pods", {"pods": pods})),
            serving(root / SOCKETS[0][1:], devices(**held)),
        ):
            world.host.xid(3, 79, ERROR)
            described = eventually(lambda: _described(plane, "trainer"))

        assert "GPU 3 of the node" in described
        assert not _described(plane, "server")
        events = plane.request("GET", "/api/v1/namespaces/team/events").body["items"]
        assert [event["involvedObject"]["name"] for event in events if event["reason"] == "GpuUnhealthy"] == ["trainer"]
        assert world.agent.metrics().get("forbidden{events}", 0) == 0
        for name in held:
            plane.request("DELETE", f"/api/v1/namespaces/team/pods/{name}?gracePeriodSeconds=0")


def _described(plane: ControlPlane, name: str) -> str:
    """Return what `kubectl describe pod` shows of the warning; '' without one."""
    printed = plane.kubectl("-n", "team", "describe", "pod", name)
    return next((line for line in printed.splitlines() if "GpuUnhealthy" in line and "gpu-healthcheck" in line), "")


def test_a_server_that_hangs_delays_the_telling_and_nothing_else(troubled: ControlPlane, tmp_path: Path) -> None:
    with watched_on(troubled, "real-hang", tmp_path) as world:
        looks = world.agent.metric("looks_total")
        troubled.pause()
        try:
            world.host.xid(3, 79, ERROR)
            eventually(lambda: world.agent.metric("verdict_pending") == 1)
            world.agent.wait_for_log("the API server is unavailable; the newest verdict is kept")
            eventually(lambda: world.agent.metric("looks_total") > looks)
            assert world.agent.get("/healthz")[0] == 200
        finally:
            troubled.resume()

        world.wait(lambda node: node.status == "fail" and node.tainted)


def test_a_server_that_comes_back_with_another_certificate_is_believed_by_its_new_authority(
    troubled: ControlPlane, tmp_path: Path
) -> None:
    with watched_on(troubled, "real-certificate", tmp_path) as world:
        troubled.stop_api()
        world.host.xid(3, 79, ERROR)
        eventually(lambda: world.agent.metric("verdict_pending") == 1)
        world.agent.wait_for_log("the API server is unavailable; the newest verdict is kept")
        troubled.start_api(new_certificate=True)

        world.wait(lambda node: node.status == "fail" and node.tainted)
        # The watch works again: an edit by another client is answered.
        world.cluster.edit({"metadata": {"labels": {f"{P}/severity": "PASS"}}})
        world.wait(lambda node: node.severity == "REBOOT")


def test_without_its_role_the_agent_names_the_permission_and_recovers(troubled: ControlPlane, tmp_path: Path) -> None:
    with watched_on(troubled, "real-forbidden", tmp_path) as world:
        troubled.kubectl("delete", "clusterrolebinding", "gpu-healthcheck")
        try:
            account = "system:serviceaccount:gpu-healthcheck:gpu-healthcheck"
            question = ("auth", "can-i", "patch", "nodes", f"--as={account}")
            eventually(lambda: _answer(troubled, *question) == "no")
            world.host.xid(3, 79, ERROR)
            eventually(lambda: world.agent.metric("forbidden{nodes}") == 1)
            assert world.agent.metric("verdict_pending") == 1
            refusal = f'User "{account}" cannot patch resource "nodes"'
            fields = world.agent.wait_for_log("the cluster forbids a request that the agent needs", answer=refusal)
            assert fields["level"] == "error"
            assert world.agent.get("/healthz")[0] == 200
        finally:
            troubled.kubectl("apply", "-f", str(MANIFESTS / "01-rbac-agent.yaml"))

        world.wait(lambda node: node.status == "fail" and node.tainted)
        eventually(lambda: world.agent.metric("forbidden{nodes}") == 0)


def _answer(plane: ControlPlane, *question: str) -> str:
    """`kubectl auth can-i` ends with 1 for a no."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": question[-1].partition("=")[2],
            "resourceAttributes": {"verb": question[2], "resource": question[3]},
        },
    }
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return "yes" if answer.body["status"]["allowed"] else "no"
