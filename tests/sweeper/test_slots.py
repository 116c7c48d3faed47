"""Slots of the fleet budget without an owner, and their release by a sweep on the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.verdict.budget import Slot
from gpu_healthcheck.sweeper.leftovers import SlotOwner, kept_without_agent, unowned
from tests.sweeper.world import Fleet, P
from tests.waiting import eventually

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ALIVE = SlotOwner("uid-n", tainted=False, heartbeat_valid_until=NOW + HOUR)
SILENT = SlotOwner("uid-n", tainted=False, heartbeat_valid_until=NOW - HOUR)
NEVER_HEARD = SlotOwner("uid-n", tainted=False, heartbeat_valid_until=None)
TAINTED = SlotOwner("uid-n", tainted=True, heartbeat_valid_until=NOW + HOUR)
LEFT = SlotOwner("uid-n", tainted=True, heartbeat_valid_until=None)
SLOTS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck-budget/leases"
TAINT = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}


def slot(number: int = 0, *, node_uid: str = "uid-n", holder: str = "n", age: timedelta = 2 * HOUR) -> Slot:
    return Slot(f"slot-{number}", holder, node_uid, f"uid-{number}", made=100 - number, created=NOW - age)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (None, ["its node is gone"]),
        (TAINTED, []),
        (LEFT, []),
        (ALIVE, []),
        (SILENT, ["its node has no taint of ours, and no agent with a valid heartbeat"]),
        (NEVER_HEARD, ["its node has no taint of ours, and no agent with a valid heartbeat"]),
        (
            SlotOwner("uid-new", tainted=True, heartbeat_valid_until=NOW + HOUR),
            ["it belongs to an earlier node of this name"],
        ),
    ],
    ids=["gone", "tainted", "tainted, no agent", "not tainted yet", "reset by hand", "never heard", "made anew"],
)
def test_when_a_place_is_nobodys(node: SlotOwner | None, why: list[str]) -> None:
    nodes = {"n": node} if node else {}

    assert [freed.why for freed in unowned([slot()], nodes, NOW)] == why


def test_a_place_that_an_agent_took_before_its_first_heartbeat_is_its_own() -> None:
    assert unowned([slot(age=timedelta(minutes=59))], {"n": NEVER_HEARD}, NOW) == []


def test_owner_of_several_slots_keeps_the_first() -> None:
    slots = [slot(1), slot(4), slot(2), slot(3, holder="m", node_uid="uid-m")]
    nodes = {"n": TAINTED, "m": SlotOwner("uid-m", tainted=True, heartbeat_valid_until=None)}

    found = unowned(slots, nodes, NOW)

    assert [(freed.slot.name, freed.why) for freed in found] == [
        ("slot-2", "its node is counted by another Lease"),
        ("slot-1", "its node is counted by another Lease"),
    ]


def test_owner_with_slots_of_an_earlier_node_keeps_the_new_one() -> None:
    slots = [slot(1), slot(2, node_uid="uid-old")]

    assert [freed.slot.name for freed in unowned(slots, {"n": TAINTED}, NOW)] == ["slot-2"]


def test_a_node_that_keeps_its_taint_without_an_agent_is_named() -> None:
    slots = [slot(1), slot(2, holder="well", node_uid="uid-n"), slot(3, holder="gone")]

    assert kept_without_agent(slots, {"n": LEFT, "well": TAINTED}, NOW) == ["n"]


@pytest.fixture
def budget(fleet: Fleet) -> Iterator[Fleet]:
    yield fleet
    fleet.plane.request("DELETE", SLOTS)


def hold(fleet: Fleet, node: str, *numbers: int, uid: str = "") -> None:
    state = fleet.node(node)
    for number in numbers:
        fleet.cluster.leases.create_slot(f"slot-{number}", state, f"group-{number}")


def held(fleet: Fleet) -> dict[str, str]:
    items: list[dict[str, Any]] = fleet.plane.request("GET", SLOTS).body["items"]
    return {entry["metadata"]["name"]: entry["spec"].get("holderIdentity", "") for entry in items}


@pytest.mark.cluster
def test_sweep_leaves_each_owner_one_slot_and_logs_it(budget: Fleet) -> None:
    for name in ("greedy", "faulty", "left"):
        budget.add(name, healthy=False, taints=[TAINT])
    hold(budget, "greedy", *range(7, 0, -1))
    hold(budget, "faulty", 9)
    hold(budget, "left", 8)
    lease = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases/left"
    assert budget.plane.request("DELETE", lease).status == 200

    code, printed, _ = budget.sweep("--dry-run")
    assert (code, printed.count("its node is counted by another Lease"), len(held(budget))) == (0, 6, 9), printed
    code, _, message = budget.sweep()

    assert code == 0, message
    assert held(budget) == {"slot-7": "greedy", "slot-9": "faulty", "slot-8": "left"}
    assert "deleted Leases of tainted nodes without an owner" in message
    assert "a node without an agent keeps our taint and counts towards the limit of tainted nodes" in message


@pytest.mark.cluster
def test_sweep_releases_slots_of_deleted_nodes(budget: Fleet) -> None:
    """For a slot without an ownerReference, which the garbage collector does not delete."""
    lease = {"metadata": {"name": "slot-3"}, "spec": {"holderIdentity": "gone"}}
    lease["metadata"]["labels"] = {f"{P}/holder": "gone"}  # type: ignore[assignment]
    assert budget.plane.request("POST", SLOTS, lease).status == 201

    code, _, message = budget.sweep()

    assert (code, held(budget)) == (0, {}), message


@pytest.mark.cluster
@pytest.mark.parametrize("spec", [{}, {"holderIdentity": "../nodes"}, {"holderIdentity": "no name!"}])
def test_freeing_a_slot_without_a_node_frees_no_other(budget: Fleet, spec: dict[str, str]) -> None:
    """No agent can make such a one; a person's hand, or another program, can."""
    budget.add("held", taints=[TAINT])
    hold(budget, "held", 1)
    assert budget.plane.request("POST", SLOTS, {"metadata": {"name": "slot-3"}, "spec": spec}).status == 201

    code, _, message = budget.sweep()

    assert (code, held(budget)) == (0, {"slot-1": "held"}), message


@pytest.mark.cluster
def test_sweep_continues_without_permission_for_slots(budget: Fleet) -> None:
    """As with the roles of a release before."""
    budget.add("well")
    role = ("-n", "gpu-healthcheck-budget", "rolebinding/gpu-healthcheck-sweeper")
    saved = budget.plane.kubectl("get", *role, "-o", "json")
    budget.plane.kubectl("delete", *role)
    try:
        eventually(lambda: "cannot list" in budget.sweep("--dry-run")[2])
        code, printed, _ = budget.sweep("--dry-run")
    finally:
        budget.plane.kubectl("apply", "-f", "-", input=saved)
        eventually(lambda: "cannot list" not in budget.sweep("--dry-run")[2])  # or the next test would meet it

    assert (code, "well" in printed) == (0, True)
