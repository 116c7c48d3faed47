"""Requests of an agent about the fleet's slots before it needs one, and for its first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent.node.slot_requests import OwnSlot, SlotRequests
from agent.state.agent_state import AgentState
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.connection import connect
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.names import BUDGET_NAMESPACE
from sim.api_stand_in import ApiStandIn
from tests.agent.parts import Reports, api_server
from tests.waiting import eventually

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
