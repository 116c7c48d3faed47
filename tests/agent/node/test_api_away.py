"""The API server is away, slow, or refuses: the agent continues its checks and reports when it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.errors import Unavailable
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.sim.api_requests import Request
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.agent.conftest import MakeWorld
from tests.agent.node.test_release import by_command
from tests.agent.world import BUDGET, UNHEALTHY, P, World
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."
AWAY = "the API server is unavailable; the newest verdict is kept"
REJECTED = "the API server does not accept the agent's token; the newest verdict is kept"
BACK = "the API server is available again; the Node is up to date"
NODE = "/api/v1/nodes/gpu-node-1"
HEARTBEATS = "/namespaces/gpu-healthcheck/leases"
OUTAGES: dict[str, Callable[[World], None]] = {
    "refused": lambda world: world.api.refuse(),
    "hanging": lambda world: world.api.hang(),
    "503": lambda world: world.api.fail_with(503),  # the others are of its kind: tests/cluster/test_client.py
    "429": lambda world: world.api.fail_with(429, 1),
    "401": lambda world: world.api.fail_with(401),
}


def end_outage(world: World) -> None:
    world.api.accept()
    world.api.recover()


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_start_without_the_api_server_waits_for_it_looking(world: World, outage: str) -> None:
    OUTAGES[outage](world)
    agent = world.start()
    world.host.xid(3, 79, ERROR)
    eventually(lambda: agent.metric("node_severity") == 3)
    if outage != "hanging":
        assert agent.wait_for_log(REJECTED if outage == "401" else AWAY)["level"] == "warning"
    eventually(lambda: agent.metric("verdict_pending") == 1)
    eventually(lambda: agent.get("/readyz")[0] == 200)
    assert agent.get("/healthz")[0] == 200

    end_outage(world)
    # The verdict waits only briefly for its slot in the budget. The taint may follow in a later write.
    world.wait(lambda node: node.status == "fail" and node.tainted)


@pytest.mark.parametrize("outage", OUTAGES)
def test_fault_during_an_outage_is_written_after_it(watched: World, outage: str) -> None:
    before = watched.node()
    OUTAGES[outage](watched)
    watched.host.xid(3, 79, ERROR)
    eventually(lambda: watched.agent.metric("verdict_pending") == 1)
    watched.host.xid(4, 79, ERROR)
    eventually(lambda: watched.agent.metric("standing_findings{REBOOT}") == 2)
    assert watched.node().object == before.object

    end_outage(watched)
    watched.wait_for_taint()
    node = watched.wait(lambda node: node.tainted)
    assert len(node.record["findings"]) == 2
    # The heartbeat of the first check cycle may be written before the Events. The Events are written in any case.
    eventually(lambda: len(watched.events("Xid79")) == 2)
    eventually(lambda: watched.agent.metric("verdict_pending") == 0)


def test_outage_is_reported_once_at_its_start_and_end(watched: World) -> None:
    watched.api.fail_with(503, times=3)
    watched.host.xid(3, 79, ERROR)
    watched.wait_for_taint()
    watched.agent.wait_for_log(BACK)

    assert len(watched.agent.logged(AWAY)) == 1
    assert "the stand-in is configured to answer 503" in watched.agent.logged(AWAY)[0]["error"]


def test_a_server_that_asks_for_patience_gets_it_even_when_there_is_news(watched: World) -> None:
    eventually(watched.cluster.lease)
    watched.api.fail_with(429, 3, path_part=NODE)
    watched.host.xid(3, 79, ERROR)
    refused = watched.api.wait_for_request(lambda request: request.status == 429, GIVE_UP_SECONDS)
    watched.api.recover()
    watched.host.xid(4, 79, ERROR)
    watched.cluster.edit({"metadata": {"labels": {"gpu-healthcheck.aws-samples.io/status": "warn"}}})
    watched.wait_for_taint()

    after = [request for request in watched.api.requests if request.path.startswith(NODE) and request.at > refused.at]
    assert after[0].at - refused.at >= 3


def test_interrupted_watch_continues(watched: World) -> None:
    watched.api.cut_connections()
    watched.api.store.compact()
    watches = len([request for request in watched.api.requests if "watch=true" in request.path])
    watched.api.wait_for_request(
        lambda _: len([request for request in watched.api.requests if "watch=true" in request.path]) > watches,
        GIVE_UP_SECONDS,
    )
    watched.cluster.edit({"metadata": {"labels": {"gpu-healthcheck.aws-samples.io/status": None}}})

    watched.wait_for_status("pass")


def test_foreign_taints_that_came_in_between_survive_a_conflict(watched: World) -> None:
    def taint(number: int) -> dict[str, str]:
        return {"key": f"example.com/{number}", "value": "true", "effect": "NoSchedule"}

    for number in range(6):
        # While the store is locked, the agent cannot observe this edit, and its patch cannot complete.
        with watched.api.store.changed:
            foreign = [entry for entry in watched.node().taints if entry != UNHEALTHY]
            ours = [entry for entry in watched.node().taints if entry == UNHEALTHY]
            watched.cluster.edit({"spec": {"taints": [*foreign, taint(number), *ours]}})
            watched.host.xid(number, 79, ERROR)
            eventually(lambda: watched.agent.metric("verdict_pending") == 1)
        address = watched.host.gpus[number].address
        watched.wait(lambda node, address=address: f"gpu/{address}" in str(node.record["findings"]))  # type: ignore[misc]

    assert [entry["key"] for entry in watched.node().taints if entry != UNHEALTHY] == [
        taint(n)["key"] for n in range(6)
    ]
    assert watched.node().tainted
    assert 409 in [request.status for request in watched.api.requests]
    assert watched.agent.metric("cluster_writes_total{nodes,conflict}") >= 1


def test_a_recreated_node_is_reported_again(watched: World) -> None:
    watched.host.xid(3, 79, ERROR)
    before = watched.wait_for_taint()
    watched.api.delete_node("gpu-node-1")
    watched.host.xid(4, 79, ERROR)
    watched.agent.wait_for_log("the Node is gone")
    assert watched.agent.get("/healthz")[0] == 200
    watched.api.add_node("gpu-node-1")
    node = watched.wait_for_taint()

    assert node.uid != before.uid
    assert (node.tainted, node.record["node_uid"], len(node.record["findings"])) == (True, node.uid, 2)


def test_a_node_that_does_not_exist_yet_is_waited_for(make_world: MakeWorld) -> None:
    world = make_world()
    world.api.delete_node("gpu-node-1")
    agent = world.start()
    agent.wait_for_log("the Node is gone")
    eventually(lambda: agent.get("/readyz")[0] == 200)
    world.api.add_node("gpu-node-1")

    world.wait_for_status("pass")


EVENTS_AND_LEASES = {"Events": "/events", "heartbeats": f"{HEARTBEATS}/gpu-node-1", "the budget": BUDGET}


class TestAnUrgentVerdict:
    """An urgent verdict waits for nothing but the Node write."""

    @pytest.mark.parametrize("part", EVENTS_AND_LEASES.values(), ids=EVENTS_AND_LEASES)
    def test_does_not_wait_for_a_server_that_asks_for_patience_elsewhere(self, quick: World, part: str) -> None:
        quick.api.fail_with(429, 600, path_part=part)
        if part != BUDGET:
            quick.host.kernel_log.overrun(17)  # so that there is an Event to refuse
            quick.host.kernel_log.write("usb 1-1: new high-speed USB device")
            quick.api.wait_for_request(lambda request: request.status == 429, GIVE_UP_SECONDS)
        quick.host.xid(3, 79, ERROR)
        quick.wait(lambda node: node.severity == "REBOOT")

        if part != BUDGET:
            quick.wait(lambda node: node.tainted)

    @pytest.mark.parametrize("part", EVENTS_AND_LEASES.values(), ids=EVENTS_AND_LEASES)
    def test_does_not_wait_for_a_request_that_hangs(self, quick: World, part: str) -> None:
        held = quick.api.stop_at("POST" if part != EVENTS_AND_LEASES["heartbeats"] else "PATCH", part)
        quick.host.xid(2, 79, ERROR)
        eventually(held.is_set)
        quick.host.xid(3, 79, ERROR)

        quick.wait(lambda node: len(node.record["findings"]) == 2 and node.severity == "REBOOT")

    def test_does_not_wait_as_long_as_the_server_asked_for_a_lesser_write(self, watched: World) -> None:
        watched.api.fail_with(429, 600, path_part=NODE)
        watched.cluster.edit({"metadata": {"labels": {f"{P}/severity": None}}})
        watched.api.wait_for_request(
            lambda request: request.status == 429 and request.path.startswith(NODE), GIVE_UP_SECONDS
        )
        watched.api.recover()
        watched.host.xid(3, 79, ERROR)

        watched.wait(lambda node: node.severity == "REBOOT" and node.tainted)

    def test_itself_put_off_is_tried_again_soon(self, watched: World) -> None:
        watched.api.fail_with(429, 600, path_part=NODE, times=1)
        watched.host.xid(3, 79, ERROR)

        watched.wait(lambda node: node.severity == "REBOOT" and node.tainted)

    def test_gets_its_taint_as_soon_as_the_budget_answers(self, watched: World) -> None:
        watched.api.fail_with(503, path_part=BUDGET)
        watched.host.xid(3, 79, ERROR)
        node = watched.wait(lambda node: node.severity == "REBOOT")
        assert (node.tainted, node.record["taint"]) == (False, "withheld")
        watched.api.recover()

        assert watched.wait(lambda node: node.tainted).record["taint"] == "set"


@pytest.mark.parametrize("status", [429, 403, 500])
def test_the_heartbeat_goes_on_where_events_are_refused(world: World, status: int) -> None:
    world.hurry()
    world.api.fail_with(status, 600, path_part="/events")
    world.start()
    world.wait_for_status("pass")
    first = eventually(world.cluster.lease)["spec"]["renewTime"]

    eventually(lambda: (world.cluster.lease() or {})["spec"]["renewTime"] != first)
    assert world.cluster.events() == []


def test_delayed_events_are_reported_later(world: World) -> None:
    world.api.fail_with(429, 1, path_part="/events", times=2)
    world.start()
    world.wait_for_status("pass")
    world.host.xid(3, 79, ERROR)

    world.wait_for_event("Xid79")
    world.wait_for_event("GpuHealthPass")
    assert len(world.agent.logged("Events are delayed")) == 1


def test_a_release_is_processed_while_events_fail(watched: World) -> None:
    watched.host.xid(3, 79, ERROR)
    watched.wait_for_taint()
    watched.api.fail_with(429, 600, path_part="/events")
    by_command(watched)

    assert not watched.wait_for_status("pass").tainted


def test_once_ends_when_verdict_events_and_heartbeat_stand(world: World) -> None:
    world.host.xid(3, 79, ERROR)
    world.api.fail_with(503, path_part="/events", times=2)
    agent = world.start("--once")

    assert agent.exit_code() == 0
    assert world.node().tainted
    assert {"Xid79", "GpuHealthFail"} <= {event["reason"] for event in world.cluster.events()}
    assert world.cluster.lease()


# Ways of a client to its cluster: each reads a file that can be removed.


def by_our_rules(_: str, kubeconfig: Path) -> ApiClient:
    return connect(Access(str(kubeconfig)))


def by_the_library(_: str, kubeconfig: Path) -> ApiClient:
    settings = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    settings.retries = False
    return ApiClient(settings)


def as_a_pods_account(endpoint: str, token: Path) -> ApiClient:
    """Return a client that reads its token before each request, not once a minute."""
    address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    settings, loader = Configuration(), InClusterConfigLoader(str(token), str(token), environ=address)
    loader._token_refresh_period = timedelta(0)
    loader._load_config()
    loader.host = endpoint
    loader.ssl_ca_cert = None
    loader._set_config(settings)
    settings.retries = False
    return ApiClient(settings)


def refused(world: World, part: str) -> list[Request]:
    return [request for request in world.api.requests if part in request.path and request.status == 401]


class TestAKubeconfigThatGoesAway:
    @pytest.fixture
    def api(self) -> Iterator[ApiStandIn]:
        with ApiStandIn("node") as api:
            yield api

    @pytest.mark.parametrize("left", [None, b"", b"\xff{", b"a\nb"], ids=["gone", "empty", "garbage", "two lines"])
    @pytest.mark.parametrize("way", [by_our_rules, by_the_library, as_a_pods_account])
    def test_is_a_server_that_is_away_until_it_is_back(
        self, api: ApiStandIn, tmp_path: Path, way: Callable[[str, Path], ApiClient], left: bytes | None
    ) -> None:
        path = api.kubeconfig(tmp_path / "kubeconfig")
        if way is as_a_pods_account:
            path.write_text("token")
        whole = path.read_bytes()
        cluster = Cluster(lambda: way(api.endpoint, path))
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        api.fail_with(401)
        for _ in range(2):
            with pytest.raises(Unavailable):
                cluster.nodes.read("node")
        path.write_bytes(whole)
        api.recover()

        assert cluster.nodes.read("node").name == "node"

    def test_ends_no_agent_and_is_said_once(self, watched: World) -> None:
        aside = watched.kubeconfig.with_suffix(".aside")
        watched.kubeconfig.rename(aside)
        watched.api.fail_with(401)
        watched.api.cut_connections()
        watched.host.xid(3, 79, ERROR)
        for part in (NODE, BUDGET):
            eventually(lambda part=part: len(refused(watched, part)) >= 3)  # type: ignore[misc]
        agent = watched.agent
        assert agent.running
        assert agent.get("/healthz")[0] == 200
        assert len([*agent.logged(AWAY), *agent.logged(REJECTED)]) == 1
        assert not [line for line in agent.lines if line["level"] == "error"]

        aside.rename(watched.kubeconfig)
        watched.api.recover()
        watched.wait(lambda node: node.status == "fail" and node.tainted)
        agent.wait_for_log(BACK)
