"""The real agent with its node-bound token on a real kube-apiserver, our manifests and policies applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sim.control_plane import MANIFESTS, ControlPlane, install
from tests.agent.world import UNHEALTHY, RealCluster, World, eventually

pytestmark = pytest.mark.control_plane

ERROR = "GPU has fallen off the bus."
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
Story = Callable[[ControlPlane, World], None]


@pytest.fixture(scope="module")
def troubled(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """One of its own: other tests shall not feel the trouble made here."""
    with ControlPlane() as plane:
        install(plane)
        yield plane


@contextmanager
def watched_on(plane: ControlPlane, name: str, folder: Path) -> Iterator[World]:
    """A healthy node whose agent said `pass` and has made its Lease."""
    cluster = RealCluster(plane, name, taints=[SPOT], labels={"example.com/team": "vision"})
    with World(folder / name, cluster) as world:
        world.configure(CHECK_INTERVAL="10")
        world.start()
        world.wait_for_status("pass")
        eventually(cluster.lease)
        yield world


def a_healthy_node_passes_and_its_lease_is_owned_by_it(plane: ControlPlane, world: World) -> None:
    node, lease = world.node(), world.cluster.lease()
    assert lease is not None

    assert node.condition["status"] == "True"
    assert [row["status"] for row in node.record["checks"]] == ["pass", "pass"]
    assert [(one["kind"], one["uid"]) for one in lease["metadata"]["ownerReferences"]] == [("Node", node.uid)]
    assert len(eventually(lambda: world.events("GpuHealthPass"))) == 1
    table = plane.kubectl("get", "nodes", world.cluster.name, "-L", "gpu-healthcheck.aws-samples.io/status")
    assert "pass" in table.splitlines()[1]

    # The second look renews the heartbeat and writes nothing else.
    renewed = lease["spec"]["renewTime"]
    eventually(lambda: (world.cluster.lease() or lease)["spec"]["renewTime"] != renewed)
    assert world.node().record == node.record
    assert world.agent.metric("cluster_writes_total{nodes,ok}") == 1
    assert world.agent.metric("cluster_writes_total{nodes/status,ok}") == 1
    assert len(world.events("GpuHealthPass")) == 1


def a_fault_is_seen_with_kubectl_and_ends_with_a_reboot(plane: ControlPlane, world: World) -> None:
    world.host.xid(3, 79, ERROR)
    node = world.wait_for_status("fail")
    world.wait_for_event("Xid79")

    assert node.taints == [SPOT, UNHEALTHY]
    assert node.labels["example.com/team"] == "vision"
    described = plane.kubectl("describe", "node", world.cluster.name)
    condition = next(line for line in described.splitlines() if line.strip().startswith("GpuHealthy"))
    assert condition.split()[1] == "False"
    assert "Xid79" in condition
    assert "gpu-healthcheck.aws-samples.io/unhealthy=true:NoSchedule" in described
    told = [line.split() for line in described.splitlines() if "gpu-healthcheck" in line]
    assert ["Warning", "Xid79"] in [words[:2] for words in told]

    assert world.agent.terminate() == 0
    world.host.reboot()
    world.start()
    assert world.wait_for_status("pass").taints == [SPOT]


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
    away = world.agent.wait_for_log("the API server is away; the newest verdict is kept")
    assert "401" in away["error"]
    world.host.xid(3, 79, ERROR)
    eventually(lambda: world.agent.metric("verdict_pending") == 1)
    assert world.agent.get("/healthz")[0] == 200

    world.cluster.kubeconfig(world.kubeconfig)
    assert world.wait_for_status("fail").tainted


STORIES = (
    a_healthy_node_passes_and_its_lease_is_owned_by_it,
    a_fault_is_seen_with_kubectl_and_ends_with_a_reboot,
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


def test_a_server_that_hangs_delays_the_telling_and_nothing_else(troubled: ControlPlane, tmp_path: Path) -> None:
    with watched_on(troubled, "real-hang", tmp_path) as world:
        looks = world.agent.metric("looks_total")
        troubled.pause()
        try:
            world.host.xid(3, 79, ERROR)
            eventually(lambda: world.agent.metric("verdict_pending") == 1)
            world.agent.wait_for_log("the API server is away; the newest verdict is kept")
            eventually(lambda: world.agent.metric("looks_total") > looks)
            assert world.agent.get("/healthz")[0] == 200
        finally:
            troubled.resume()

        assert world.wait_for_status("fail").tainted


def test_a_server_that_comes_back_with_another_certificate_is_believed_by_its_new_authority(
    troubled: ControlPlane, tmp_path: Path
) -> None:
    with watched_on(troubled, "real-certificate", tmp_path) as world:
        troubled.stop_api()
        world.host.xid(3, 79, ERROR)
        eventually(lambda: world.agent.metric("verdict_pending") == 1)
        world.agent.wait_for_log("the API server is away; the newest verdict is kept")
        troubled.start_api(new_certificate=True)

        assert world.wait_for_status("fail").tainted
        # The watch is back too: somebody's edit is answered.
        world.cluster.edit({"metadata": {"labels": {"gpu-healthcheck.aws-samples.io/status": "pass"}}})
        world.wait_for_status("fail")


def test_without_its_role_the_agent_names_the_permission_and_recovers(troubled: ControlPlane, tmp_path: Path) -> None:
    with watched_on(troubled, "real-forbidden", tmp_path) as world:
        troubled.kubectl("delete", "clusterrolebinding", "gpu-healthcheck-agent")
        try:
            account = "system:serviceaccount:gpu-healthcheck:gpu-healthcheck"
            question = ("auth", "can-i", "patch", "nodes", f"--as={account}")
            eventually(lambda: _answer(troubled, *question) == "no")
            world.host.xid(3, 79, ERROR)
            eventually(lambda: world.agent.metric("forbidden{nodes}") == 1)
            assert world.agent.metric("verdict_pending") == 1
            said = [line["answer"] for line in world.agent.lines if line["level"] == "error"]
            assert [one for one in said if f'User "{account}" cannot patch resource "nodes"' in one]
            assert world.agent.get("/healthz")[0] == 200
        finally:
            troubled.kubectl("apply", "-f", str(MANIFESTS / "01-rbac-agent.yaml"))

        assert world.wait_for_status("fail").tainted
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
