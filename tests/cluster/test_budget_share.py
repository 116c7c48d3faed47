"""A client with every allowed slot of the fleet budget takes none from others: real tokens on the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count

import pytest

from agent.node.slot_requests import OwnSlot
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import Conflict, NotFound
from healthcheck.node.state import NodeState
from healthcheck.verdict.budget import allowed
from sim.control_plane import ControlPlane
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
NODES = [f"share-{number}" for number in range(12)]
GREEDY, *HONEST = NODES
PERCENT = 50


class Member:
    """The slot requests of one node's agent, with its own pod-bound token."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        plane.create_node(name)
        kubeconfig = plane.agent_kubeconfig(name)
        self.cluster = Cluster(lambda: plane.api(kubeconfig))
        self.node: NodeState = self.cluster.nodes.read(name)
        self.cluster.leases.renew_heartbeat(self.node, datetime.now(UTC), 900)
        self.slot = OwnSlot(self.cluster)

    def take(self) -> bool:
        return self.slot.acquire(self.node, PERCENT).held


@pytest.fixture
def members(installed: ControlPlane) -> Iterator[dict[str, Member]]:
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda name: Member(installed, name), NODES)
    yield dict(zip(NODES, made, strict=True))
    for name in NODES:
        installed.request("DELETE", f"/api/v1/nodes/{name}")
        installed.request("DELETE", f"{LEASES}/gpu-healthcheck/leases/{name}")
        installed.request("DELETE", f"/api/v1/namespaces/gpu-healthcheck/pods/agent-on-{name}?gracePeriodSeconds=0")
    installed.request("DELETE", f"{LEASES}/gpu-healthcheck-budget/leases")


def test_one_holder_of_every_place_leaves_each_other_node_its_share(members: dict[str, Member]) -> None:
    greedy = members[GREEDY]
    places = allowed(greedy.cluster.leases.count_heartbeats(), PERCENT)
    for number in range(3 * places):
        greedy.cluster.leases.create_slot(f"slot-{number}", greedy.node)

    with ThreadPoolExecutor(len(HONEST)) as threads:
        held = dict(zip(HONEST, threads.map(lambda name: members[name].take(), HONEST), strict=True))

    def again() -> bool:
        """Let each node try again, as in its next check cycle. Return whether all slots but one are theirs."""
        held.update({name: members[name].take() for name in HONEST})
        return sum(held.values()) == places - 1

    eventually(again)
    holders = {slot.holder for slot in greedy.cluster.leases.slots()}
    assert holders == {GREEDY, *(name for name, has in held.items() if has)}
    assert len(holders) == places
    assert not any(members[name].take() for name, has in held.items() if not has)
    # A sweep leaves one slot per owner: no owner loses its slot, and no new one gets in.
    taken = sorted(greedy.cluster.leases.slots(GREEDY), key=lambda slot: slot.made)
    for slot in taken[1:]:
        greedy.cluster.leases.delete_slot(slot)
    assert [members[name].take() for name in HONEST] == [held[name] for name in HONEST]


def test_slots_never_exceed_the_limit_while_nodes_acquire_and_release_them(members: dict[str, Member]) -> None:
    greedy = members[GREEDY]
    places = allowed(greedy.cluster.leases.count_heartbeats(), PERCENT)
    for number in range(places + 2 * len(HONEST)):
        greedy.cluster.leases.create_slot(f"slot-{number}", greedy.node)
    turns = count()

    def stir(name: str) -> None:
        if next(turns) % 2:
            for slot in list(greedy.cluster.leases.slots(GREEDY))[1:3]:
                with suppress(NotFound, Conflict):  # another step was first, or the slot was acquired meanwhile
                    greedy.cluster.leases.delete_slot(slot)
        members[name].take()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(stir, HONEST * 2))

    assert len({slot.holder for slot in greedy.cluster.leases.slots()}) <= places
