"""Requests of an agent about the fleet's slots before it needs one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from agent.node.own_slot import OwnSlot
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.connection import connect
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.names import BUDGET_NAMESPACE
from sim.api_stand_in import ApiStandIn

LOOK_SECONDS = 300


def test_looks_that_follow_each_other_ask_once_in_a_while_how_many_places_are_taken(tmp_path: Path) -> None:
    now = [1000.0]
    with ApiStandIn("a") as api:
        cluster = Cluster(partial(connect, Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
        slot, node = OwnSlot(cluster, lambda: now[0]), cluster.nodes.read("a")
        asked = []
        for _ in range(9):
            before = len(api.requests)
            slot.reconcile(node)
            paths = [urlsplit(request.path) for request in api.requests[before:]]
            asked.append(any(BUDGET_NAMESPACE in path.path and path.query == "limit=1" for path in paths))
            now[0] += LOOK_SECONDS

    assert asked == [True, False, False, False, False, False, True, False, False]
