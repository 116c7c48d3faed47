"""The API server is away, slow, or says no: the agent looks on, and tells as soon as it can."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.agent.conftest import MakeWorld
from tests.agent.world import UNHEALTHY, World
from tests.waiting import eventually

ERROR = "GPU has fallen off the bus."
AWAY = "the API server is away; the newest verdict is kept"
BACK = "the API server is back; the node is up to date"
NODE = "/api/v1/nodes/gpu-node-1"
OUTAGES: dict[str, Callable[[World], None]] = {
    "refused": lambda world: world.api.refuse(),
    "hanging": lambda world: world.api.hang(),
    "500": lambda world: world.api.fail_with(500),
    "503": lambda world: world.api.fail_with(503),
    "504": lambda world: world.api.fail_with(504),
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
        assert agent.wait_for_log(AWAY)["level"] == "warning"
    eventually(lambda: agent.metric("verdict_pending") == 1)
    eventually(lambda: agent.get("/readyz")[0] == 200)
    assert agent.get("/healthz")[0] == 200

    end_outage(world)
    assert world.wait_for_status("fail").tainted


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_fault_during_an_outage_stands_on_the_node_after_it(watched: World, outage: str) -> None:
    before = watched.node()
    OUTAGES[outage](watched)
    watched.host.xid(3, 79, ERROR)
    eventually(lambda: watched.agent.metric("verdict_pending") == 1)
    watched.host.xid(4, 79, ERROR)
    eventually(lambda: watched.agent.metric("standing_findings{REBOOT}") == 2)
    assert watched.node().object == before.object

    end_outage(watched)
    node = watched.wait_for_status("fail")
    assert node.tainted
    assert len(node.record["findings"]) == 2
    # The heartbeat of the first look may stand before it: the Events come in any case.
    eventually(lambda: len(watched.events("Xid79")) == 2)
    eventually(lambda: watched.agent.metric("verdict_pending") == 0)


def test_an_outage_is_said_once_and_its_end_too(watched: World) -> None:
    watched.api.fail_with(503, times=3)
    watched.host.xid(3, 79, ERROR)
    watched.wait_for_status("fail")
    watched.agent.wait_for_log(BACK)

    assert len(watched.agent.logged(AWAY)) == 1
    assert "the stand-in was told to answer 503" in watched.agent.logged(AWAY)[0]["error"]


def test_a_server_that_asks_for_patience_gets_it_even_when_there_is_news(watched: World) -> None:
    eventually(watched.cluster.lease)
    watched.api.fail_with(429, 3, path_part=NODE)
    watched.host.xid(3, 79, ERROR)
    refused = watched.api.wait_for_request(lambda one: one.status == 429, 60)
    watched.api.recover()
    watched.host.xid(4, 79, ERROR)
    watched.cluster.edit({"metadata": {"labels": {"gpu-healthcheck.aws-samples.io/status": "warn"}}})
    watched.wait_for_status("fail")

    after = [one for one in watched.api.requests if one.path.startswith(NODE) and one.at > refused.at]
    assert after[0].at - refused.at >= 3


def test_a_watch_that_breaks_off_is_taken_up_again(watched: World) -> None:
    watched.api.cut_connections()
    watched.api.store.compact()
    watches = len([one for one in watched.api.requests if "watch=true" in one.path])
    watched.api.wait_for_request(
        lambda _: len([one for one in watched.api.requests if "watch=true" in one.path]) > watches, 90
    )
    watched.cluster.edit({"metadata": {"labels": {"gpu-healthcheck.aws-samples.io/status": None}}})

    watched.wait_for_status("pass")


def test_foreign_taints_that_came_in_between_survive_a_conflict(watched: World) -> None:
    def taint(number: int) -> dict[str, str]:
        return {"key": f"example.com/{number}", "value": "true", "effect": "NoSchedule"}

    for number in range(6):
        # While the store stands still, neither our edit is seen nor the agent's patch done.
        with watched.api.store.changed:
            foreign = [one for one in watched.node().taints if one != UNHEALTHY]
            ours = [one for one in watched.node().taints if one == UNHEALTHY]
            watched.cluster.edit({"spec": {"taints": [*foreign, taint(number), *ours]}})
            watched.host.xid(number, 79, ERROR)
            eventually(lambda: watched.agent.metric("verdict_pending") == 1)
        address = watched.host.gpus[number].address
        watched.wait(lambda node, address=address: f"gpu/{address}" in str(node.record["findings"]))  # type: ignore[misc]

    assert [one["key"] for one in watched.node().taints if one != UNHEALTHY] == [taint(n)["key"] for n in range(6)]
    assert watched.node().tainted
    assert 409 in [one.status for one in watched.api.requests]
    assert watched.agent.metric("cluster_writes_total{nodes,conflict}") >= 1


def test_a_node_that_is_deleted_and_comes_back_is_told_anew(watched: World) -> None:
    watched.host.xid(3, 79, ERROR)
    before = watched.wait_for_status("fail")
    watched.api.delete_node("gpu-node-1")
    watched.host.xid(4, 79, ERROR)
    watched.agent.wait_for_log("the Node is gone")
    assert watched.agent.get("/healthz")[0] == 200
    watched.api.add_node("gpu-node-1")
    node = watched.wait_for_status("fail")

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
