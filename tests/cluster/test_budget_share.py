"""Limits of the fleet and of its groups under simultaneous requests: real tokens on the real API server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from random import Random
from threading import Lock

import pytest
from msgspec.structs import replace

from gpu_healthcheck.agent.node.slot_requests import OwnSlot
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import Conflict, NotFound
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.verdict.budget import allowed
from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
NODES = [f"share-{number}" for number in range(12)]
GREEDY, *HONEST = NODES
TEAM = "example.com/team"
PERCENT = 50


class Member:
    """The slot requests of one node's agent, with its own pod-bound token."""

    def __init__(self, plane: ControlPlane, name: str, team: str = "") -> None:
        plane.create_node(name, labels={TEAM: team} if team else {})
        kubeconfig = plane.agent_kubeconfig(name)
        self.cluster = Cluster(lambda: plane.api(kubeconfig))
        self.node: NodeState = self.cluster.nodes.read(name)
        self.cluster.leases.renew_heartbeat(self.node, datetime.now(UTC), 900, team)
        self.team = team
        self.slot = OwnSlot(self.cluster)

    def take(self, percent: int = PERCENT, label: str = "") -> bool:
        return self.slot.acquire(self.node, percent, label).held


@pytest.fixture
def members(installed: ControlPlane) -> Iterator[dict[str, Member]]:
    yield from _members(installed, dict.fromkeys(NODES, ""))


@pytest.fixture
def teams(installed: ControlPlane) -> Iterator[dict[str, Member]]:
    """Yield 40 agents of four teams."""
    sizes = {"a": 25, "b": 5, "c": 5, "d": 5}
    yield from _members(installed, {f"{team}-{i}": team for team, size in sizes.items() for i in range(size)})


def _members(plane: ControlPlane, team_of: Mapping[str, str]) -> Iterator[dict[str, Member]]:
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda name: Member(plane, name, team_of[name]), team_of)
    yield dict(zip(team_of, made, strict=True))
    for name in team_of:
        plane.request("DELETE", f"/api/v1/nodes/{name}")
        plane.request("DELETE", f"{LEASES}/gpu-healthcheck/leases/{name}")
        plane.request("DELETE", f"/api/v1/namespaces/gpu-healthcheck/pods/agent-on-{name}?gracePeriodSeconds=0")
    plane.request("DELETE", f"{LEASES}/gpu-healthcheck-budget/leases")


class Tainted:
    """The nodes with a granted slot, and the largest number of them, in all and for each team."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.nodes: dict[str, str] = {}
        self.most: Counter[str] = Counter()

    @property
    def now(self) -> Counter[str]:
        with self._lock:
            return Counter([*self.nodes.values(), *("fleet" for _ in self.nodes)])

    def add(self, member: Member) -> None:
        with self._lock:
            self.nodes[member.node.name] = member.team
        self.most |= self.now

    def drop(self, member: Member) -> None:
        with self._lock:
            self.nodes.pop(member.node.name, None)


def _contend(teams: dict[str, Member], percent: int, label: str, rounds: int) -> Tainted:
    """Let all nodes acquire slots at once; a third of those with a slot release it again."""
    tainted, source = Tainted(), Random(7)

    def turn(member: Member) -> None:
        if member.node.name in tainted.nodes and source.random() < 0.33:
            tainted.drop(member)
            member.slot.release(member.node)
        elif member.take(percent, label):
            tainted.add(member)

    with ThreadPoolExecutor(len(teams)) as threads:
        for _ in range(rounds):
            list(threads.map(turn, teams.values()))
    return tainted


@pytest.mark.parametrize(
    ("percent", "most"),
    [(10, {"fleet": 4, "a": 2, "b": 1, "c": 1, "d": 1}), (40, {"fleet": 16, "a": 10, "b": 2, "c": 2, "d": 2})],
)
def test_40_nodes_of_4_teams_exceed_neither_limit(teams: dict[str, Member], percent: int, most: dict[str, int]) -> None:
    tainted = _contend(teams, percent, TEAM, rounds=5)
    assert tainted.most <= Counter(most)

    def is_full() -> bool:
        for member in teams.values():
            if member.take(percent, TEAM):
                tainted.add(member)
        return tainted.now["fleet"] == most["fleet"]

    eventually(is_full)
    assert tainted.most <= Counter(most)


def test_40_nodes_without_a_group_label_exceed_the_limit_of_the_fleet_alone_never(teams: dict[str, Member]) -> None:
    assert _contend(teams, 10, "", rounds=3).most["fleet"] <= 4
    assert _contend({name: teams[name] for name in teams if name[0] == "b"}, 10, "", rounds=1).most["fleet"] <= 4


def test_a_team_that_fails_as_a_whole_leaves_another_its_share(teams: dict[str, Member]) -> None:
    failed = [member for member in teams.values() if member.team == "b"]
    assert [member.take(20, TEAM) for member in failed] == [True, False, False, False, False]
    assert teams["c-0"].take(20, TEAM)
    grant = failed[1].slot.acquire(failed[1].node, 20, TEAM)
    assert grant.why == f"1 of at most 1 nodes with {TEAM}=b are tainted already"
    # A change of the label does not free the slot; it counts for the new team, even beyond its limit.
    moved = replace(failed[0].node, labels={TEAM: "c"})
    assert failed[0].slot.acquire(moved, 20, TEAM, tainted=True).held
    slots = list(failed[0].cluster.leases.slots())
    assert sorted((slot.holder, slot.group) for slot in slots) == [("b-0", "c"), ("c-0", "c")]
    assert failed[1].take(20, TEAM)
    assert not teams["c-1"].take(20, TEAM)


def test_a_holder_of_a_slot_in_each_team_takes_the_share_of_one(teams: dict[str, Member]) -> None:
    greedy = teams["a-0"]
    for number, team in enumerate("bcd"):
        greedy.cluster.leases.create_slot(f"slot-{number}", greedy.node, team)
    assert [teams[f"{team}-1"].take(20, TEAM) for team in "bcd"] == [False, True, True]


def test_a_stolen_token_that_names_another_group_takes_one_slot_of_it(teams: dict[str, Member]) -> None:
    stolen = teams["a-0"]
    stolen.cluster.leases.renew_heartbeat(stolen.node, datetime.now(UTC), 900, "c")
    stolen.cluster.leases.create_slot("slot-7", stolen.node, "b")

    assert stolen.cluster.leases.count_group("c", 100) == 6
    # Five nodes of each team: one of b and one of c may be tainted.
    assert [teams[name].take(20, TEAM) for name in ("b-1", "c-1", "c-2", "d-1")] == [False, True, False, True]
    stolen.cluster.leases.delete_slot(next(stolen.cluster.leases.slots(stolen.node.name)))
    assert teams["b-1"].take(20, TEAM)


def test_a_slot_of_a_crash_before_the_group_was_checked_is_checked_by_the_next_process(
    teams: dict[str, Member],
) -> None:
    assert teams["b-0"].take(20, TEAM)
    crashed = teams["b-1"]
    crashed.cluster.leases.create_slot(crashed.node.name, crashed.node, "b")

    assert not OwnSlot(crashed.cluster).acquire(crashed.node, 20, TEAM).held
    assert [slot.holder for slot in crashed.cluster.leases.slots()] == ["b-0"]
    assert OwnSlot(crashed.cluster).acquire(teams["b-0"].node, 20, TEAM).held


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
