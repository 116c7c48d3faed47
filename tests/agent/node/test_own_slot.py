"""Requests of an agent about the fleet's slots before it needs one, and for its first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from gpu_healthcheck.agent.node.slot_requests import OwnSlot, SlotRequests
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.names import BUDGET_NAMESPACE, NAMESPACE
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.sim.api_objects import LEASES
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.agent.parts import Reports, api_server
from tests.waiting import eventually

P = "gpu-healthcheck.aws-samples.io"

LOOK_SECONDS = 300


@pytest.fixture
def api() -> Iterator[ApiStandIn]:
    with ApiStandIn("a") as api:
        yield api


@pytest.fixture
def cluster(api: ApiStandIn, tmp_path: Path) -> Cluster:
    return Cluster(partial(connect, Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))


def asked_since(api: ApiStandIn, before: int) -> list[str]:
    """Return the methods of the requests for slots; a count is COUNT."""
    urls = [(request.method, urlsplit(request.path)) for request in api.requests[before:]]
    return ["COUNT" if url.query == "limit=1" else method for method, url in urls if BUDGET_NAMESPACE in url.path]


def test_consecutive_cycles_count_used_slots_once_in_a_while(api: ApiStandIn, cluster: Cluster) -> None:
    now = [1000.0]
    slot, node = OwnSlot(cluster, lambda: now[0]), cluster.nodes.read("a")
    asked = []
    for _ in range(9):
        before = len(api.requests)
        slot.reconcile(node)
        asked.append("COUNT" in asked_since(api, before))
        now[0] += LOOK_SECONDS

    assert asked == [True, False, False, False, False, False, True, False, False]


def test_a_healthy_node_counts_in_advance_so_that_its_first_taint_costs_one_request(
    api: ApiStandIn, cluster: Cluster
) -> None:
    node = cluster.nodes.read("a")
    state = AgentState("a")
    requests = SlotRequests(api_server(cluster), state, Reports(state))
    requests.start()
    requests.release(node)
    eventually(lambda: asked_since(api, 0) == ["GET", "COUNT"])

    assert requests.request(node, 20, tainted=False).held
    assert asked_since(api, 0) == ["GET", "COUNT", "POST"]
    requests.cycle_ended()
    assert requests.request(node, 20, tainted=False).held
    requests.release(node)
    eventually(lambda: asked_since(api, 0)[3:5] == ["GET", "DELETE"])
    requests.end()


@pytest.fixture
def team(api: ApiStandIn, cluster: Cluster) -> NodeState:
    """Return a node of a team of 10 in a fleet of 30, where another node of the team is tainted."""
    for number in range(30):
        labels = {f"{P}/group": "vision"} if number < 10 else {}
        api.store.create(LEASES, NAMESPACE, {"metadata": {"name": f"n-{number}", "labels": labels}, "spec": {}})
    cluster.leases.create_slot("slot-90", NodeState("n-0", uid="0"), "vision")
    return replace(cluster.nodes.read("a"), labels={"team": "vision"})


def test_taint_of_a_group_costs_a_list_of_its_slots_and_a_count_of_its_nodes(
    api: ApiStandIn, cluster: Cluster, team: NodeState
) -> None:
    slot, before = OwnSlot(cluster), len(api.requests)

    assert slot.acquire(team, 20, "team").held
    assert asked_since(api, before) == ["GET", "COUNT", "POST", "GET"]
    counts = [request.path for request in api.requests[before:] if f"/{NAMESPACE}/leases" in request.path]
    assert ["labelSelector" in path for path in counts] == [False, True]


def test_refused_group_is_asked_again_only_from_a_closer_request(
    api: ApiStandIn, cluster: Cluster, team: NodeState
) -> None:
    cluster.leases.create_slot("slot-91", NodeState("n-1", uid="1"), "vision")
    slot = OwnSlot(cluster)
    refused = slot.acquire(team, 20, "team", closely=False)
    assert (refused.held, refused.why) == (False, "2 of at most 2 nodes with team=vision are tainted already")

    before = len(api.requests)
    assert slot.acquire(team, 20, "team", closely=False) == refused
    assert len(api.requests) == before
    assert slot.acquire(team, 20, "team") == refused
    assert asked_since(api, before) == ["GET", "GET"]
    # The group's limit does not concern a node of another group, nor a fleet without groups.
    assert slot.acquire(replace(team, labels={"team": "speech"}), 20, "team", closely=False).held


def test_group_that_cannot_be_counted_has_one_tainted_node(api: ApiStandIn, cluster: Cluster, team: NodeState) -> None:
    slot = OwnSlot(cluster)
    slot.reconcile(team)
    api.fail_with(500, path_part=f"/{NAMESPACE}/leases")
    assert slot.acquire(team, 20, "team").why == "1 of at most 1 nodes with team=vision are tainted already"
    api.recover()

    assert slot.acquire(team, 20, "team").held
