"""The fleet budget: a taint needs a slot, and no slot is lost or doubled, whichever program dies at any moment."""

from __future__ import annotations

import uuid

import pytest

from gpu_healthcheck.healthcheck.verdict.budget import holder_label
from gpu_healthcheck.sim.api_objects import LEASES
from tests.agent.conftest import MakeWorld
from tests.agent.node.test_release import by_command, resume
from tests.agent.stories import BUDGET, beat, hold, slots
from tests.agent.world import P, World
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."
FORBIDDEN = "the cluster forbids a request that the agent needs"
RESOURCE = (LEASES, BUDGET)
OTHER_MACHINE = "ec2fffff-0000-4000-8000-000000000001"


def fail(world: World) -> None:
    world.host.xid(3, 79, ERROR)


def holders(world: World) -> list[str]:
    return [slot["spec"]["holderIdentity"] for slot in slots(world)]


def heartbeat_labels(world: World) -> dict[str, str]:
    lease = world.cluster.lease() or {"metadata": {}}
    return dict(lease["metadata"].get("labels") or {})


def wake(world: World) -> None:
    """Mark the Node, and wait until the agent has read the mark."""
    world.cluster.edit({"metadata": {"labels": {f"{P}/enabled": uuid.uuid4().hex}}})


@pytest.fixture
def patient(world: World) -> World:
    """Return the world with an agent that reports why a slot was refused, however late the answer arrives."""
    world.be_patient()
    world.start()
    world.wait_for_status("pass")
    eventually(world.cluster.lease)
    return world


@pytest.fixture
def tainted(watched: World) -> World:
    fail(watched)
    watched.wait_for_taint()
    assert holders(watched) == [watched.cluster.name]
    return watched


class TestAPlace:
    def test_belongs_to_the_node_that_it_lets_taint(self, tainted: World) -> None:
        (slot,) = slots(tainted)
        node = tainted.node()

        assert (node.tainted, node.record["taint"]) == (True, "set")
        assert slot["metadata"]["name"] == "slot-0"
        assert slot["metadata"]["labels"] == {f"{P}/holder": holder_label(node.object["metadata"]["name"])}
        assert [(entry["kind"], entry["uid"]) for entry in slot["metadata"]["ownerReferences"]] == [("Node", node.uid)]

    def test_slot_is_released_once_the_taint_is_removed(self, tainted: World) -> None:
        by_command(tainted)
        tainted.wait_for_status("pass")
        eventually(lambda: holders(tainted) == [])

        order = [
            (write.method, "leases" if BUDGET in write.path else "nodes")
            for write in tainted.api.writes
            if BUDGET in write.path or (write.method == "PATCH" and "taints" in write.body.get("spec", {}))
        ]
        assert order == [("POST", "leases"), ("PATCH", "nodes"), ("PATCH", "nodes"), ("DELETE", "leases")]

    def test_is_not_asked_for_by_a_healthy_node(self, watched: World) -> None:
        assert [write for write in watched.stand_in.writes() if BUDGET in write] == []

    def test_is_kept_over_a_restart(self, tainted: World) -> None:
        before = slots(tainted)
        tainted.restart()
        eventually(lambda: tainted.agent.metric("cluster_writes_total{leases,ok}") >= 1)

        assert slots(tainted) == before

    def test_lies_below_the_allowed_number(self, watched: World) -> None:
        beat(watched, 24)  # with ours 25 nodes, of which five
        hold(watched, *range(4))
        fail(watched)
        watched.wait_for_taint()
        assert {slot["metadata"]["name"] for slot in slots(watched)} == {f"slot-{number}" for number in range(5)}

    def test_deleted_slot_is_acquired_again(self, tainted: World) -> None:
        tainted.api.store.delete(*RESOURCE, "slot-0")
        wake(tainted)
        eventually(lambda: holders(tainted) == [tainted.cluster.name])

        assert tainted.node().tainted

    def test_that_another_holds_since_is_left_to_him_and_the_taint_stays(self, tainted: World) -> None:
        tainted.api.store.delete(*RESOURCE, "slot-0")
        hold(tainted, 0)
        wake(tainted)
        eventually(lambda: [request for request in tainted.api.requests if request.path.endswith("/leases/slot-0")])
        assert tainted.node().tainted

        by_command(tainted)
        tainted.wait_for_status("pass")
        assert holders(tainted) == ["another-0"]

    def test_slot_is_dropped_with_the_node_and_acquired_again_for_its_successor(self, tainted: World) -> None:
        before = tainted.node().uid
        tainted.api.delete_node(tainted.cluster.name)
        tainted.api.add_node(tainted.cluster.name)
        node = tainted.wait_for_taint()
        (slot,) = slots(tainted)

        assert (node.uid != before, node.tainted) == (True, True)
        assert slot["metadata"]["ownerReferences"][0]["uid"] == node.uid

    def test_of_a_node_of_before_on_other_hardware_goes(self, tainted: World) -> None:
        assert tainted.agent.terminate() == 0
        tainted.api.delete_node(tainted.cluster.name)
        tainted.api.add_node(tainted.cluster.name)
        tainted.host.write_value("sys/class/dmi/id/product_uuid", OTHER_MACHINE)
        tainted.host.kernel_log.clear()
        tainted.start()
        tainted.wait_for_status("pass")

        eventually(lambda: holders(tainted) == [])

    def test_of_which_another_is_left_is_kept_once(self, tainted: World) -> None:
        """A slot doubled by a crash: the sweeper deleted the one that the agent knew."""
        (slot,) = slots(tainted)
        tainted.api.store.create(*RESOURCE, slot | {"metadata": {**slot["metadata"], "name": "slot-7"}})
        tainted.api.store.delete(*RESOURCE, "slot-0")
        wake(tainted)
        eventually(lambda: [request for request in tainted.api.requests if "holder" in str(request)])

        assert [entry["metadata"]["name"] for entry in slots(tainted)] == ["slot-7"]

    def test_is_not_held_where_taints_are_switched_off(self, world: World) -> None:
        world.configure(ENABLE_TAINT="false")
        world.start()
        fail(world)
        node = world.wait_for_status("fail")

        assert (node.tainted, node.record["taint"], slots(world)) == (False, "off", [])


class TestACrash:
    @pytest.mark.parametrize("done", [False, True], ids=["not done", "not answered"])
    @pytest.mark.parametrize(("method", "part"), [("POST", BUDGET), ("PATCH", "/nodes/gpu-node-1")])
    def test_on_the_way_to_the_taint_leaves_one_place(self, watched: World, method: str, part: str, done: bool) -> None:
        reached = watched.api.stop_at(method, part, done=done)
        fail(watched)
        assert reached.wait(GIVE_UP_SECONDS)
        watched.agent.kill()
        watched.api.recover()
        resume(watched)
        watched.wait_for_taint()
        eventually(lambda: watched.agent.metric("cluster_writes_total{leases,ok}") >= 1)

        assert watched.node().tainted
        assert holders(watched) == [watched.cluster.name]

    @pytest.mark.parametrize("done", [False, True], ids=["not done", "not answered"])
    @pytest.mark.parametrize(("method", "part"), [("PATCH", "/nodes/gpu-node-1"), ("DELETE", BUDGET)])
    def test_on_the_way_back_leaves_none(self, tainted: World, method: str, part: str, done: bool) -> None:
        reached = tainted.api.stop_at(method, part, done=done)
        by_command(tainted)
        assert reached.wait(GIVE_UP_SECONDS)
        tainted.agent.kill()
        tainted.api.recover()
        resume(tainted)
        tainted.wait_for_status("pass")

        eventually(lambda: holders(tainted) == [])
        assert not tainted.node().tainted

    def test_that_ends_before_the_node_is_well_again_leaves_none(self, watched: World) -> None:
        """The slot was acquired, the taint was never set, and a reboot ended the fault."""
        reached = watched.api.stop_at("PATCH", "/nodes/gpu-node-1")
        fail(watched)
        assert reached.wait(GIVE_UP_SECONDS)
        watched.agent.kill()
        watched.api.recover()
        assert holders(watched) == [watched.cluster.name]
        watched.host.reboot()
        watched.start()

        eventually(lambda: holders(watched) == [])

    @pytest.mark.parametrize("done", [False, True], ids=["not done", "not answered"])
    def test_of_the_connection_alone_leaves_one_place(self, watched: World, done: bool) -> None:
        reached = watched.api.stop_at("POST", BUDGET, done=done)
        fail(watched)
        assert reached.wait(GIVE_UP_SECONDS)
        watched.api.recover()
        watched.wait_for_taint()

        assert watched.node().tainted
        assert holders(watched) == [watched.cluster.name]


class TestAHolderOfMany:
    """A client with a stolen token acquires every allowed slot: it counts once."""

    def test_leaves_the_others_their_share(self, watched: World) -> None:
        beat(watched, 19)  # with ours 20 nodes, of which four
        hold(watched, *range(4), holder="greedy")
        hold(watched, 4, 5)
        fail(watched)

        eventually(lambda: watched.node().tainted)
        assert [slot["metadata"]["name"] for slot in slots(watched)] == [f"slot-{number}" for number in range(7)]

    def test_gets_no_more_nodes_out_of_service_than_allowed(self, patient: World) -> None:
        beat(patient, 19)
        hold(patient, *range(4), holder="greedy")
        hold(patient, 4, 5, 6)
        fail(patient)
        node = patient.wait_for_status("fail")

        assert (node.tainted, node.record["taint"]) == (False, "withheld")
        message = patient.wait_for_event("TaintWithheld")["message"]
        assert "of at most 4 nodes are tainted already" in message
        # After a refusal from the count alone, the agent soon lists all slots, and still acquires none.
        eventually(
            lambda: [
                request for request in patient.api.requests if BUDGET in request.path and "limit=500" in str(request)
            ]
        )
        assert len(holders(patient)) == 7

    def test_does_not_make_one_too_many_while_others_take_places(self, watched: World) -> None:
        """Between our list of slots and our request, another node got a released slot."""
        beat(watched, 9)  # with ours 10 nodes, of which two
        hold(watched, 0, 1, holder="greedy")
        reached = watched.api.stop_at("POST", BUDGET)
        fail(watched)
        assert reached.wait(GIVE_UP_SECONDS)
        watched.api.store.delete(*RESOURCE, "slot-1")
        hold(watched, 1)
        watched.api.recover()
        node = watched.wait(lambda node: node.record.get("taint") == "withheld")

        assert not node.tainted
        eventually(lambda: sorted(holders(watched)) == ["another-1", "greedy"])


class TestAGroup:
    """The budget also holds for the nodes with one value of BUDGET_LABEL."""

    @pytest.fixture
    def member(self, world: World) -> World:
        """Return the world with an agent of a fleet of 30 nodes, of which six; 10 in its team, of which two."""
        beat(world, 20)
        beat(world, 9, group="vision")
        world.cluster.edit({"metadata": {"labels": {"example.com/team": "vision"}}})
        world.configure(BUDGET_LABEL="example.com/team")
        world.be_patient()
        world.start()
        world.wait_for_status("pass")
        eventually(lambda: heartbeat_labels(world))
        return world

    def test_with_its_share_tainted_withholds_the_taint_and_names_the_group(self, member: World) -> None:
        hold(member, 20, 21, group="vision")
        fail(member)
        node = member.wait_for_status("fail")
        message = member.wait_for_event("TaintWithheld")["message"]

        assert (node.tainted, node.record["taint"]) == (False, "withheld")
        assert "2 of at most 2 nodes with example.com/team=vision are tainted already" in message
        assert len(holders(member)) == 2

        member.api.store.delete(*RESOURCE, "slot-20")
        member.hurry()
        member.restart()
        eventually(lambda: member.node().tainted)

    @pytest.mark.parametrize("group", ["speech", ""], ids=["another", "none"])
    def test_is_not_affected_by_the_taints_of_other_nodes(self, member: World, group: str) -> None:
        hold(member, 20, group="vision")
        hold(member, 21, 22, group=group)
        fail(member)
        member.wait_for_taint()

        (slot,) = (slot for slot in slots(member) if slot["spec"]["holderIdentity"] == member.cluster.name)
        assert slot["metadata"]["labels"][f"{P}/group"] == "vision"
        assert heartbeat_labels(member) == {f"{P}/group": "vision"}

    def test_does_not_limit_a_node_without_the_label(self, member: World) -> None:
        hold(member, 20, 21, group="vision")
        member.cluster.edit({"metadata": {"labels": {"example.com/team": None}}})
        member.restart()
        fail(member)
        member.wait_for_taint()

        eventually(lambda: heartbeat_labels(member) == {})


class TestAFullBudget:
    def test_of_a_fleet_that_shrank_gives_no_place(self, patient: World) -> None:
        beat(patient, 9)  # with ours 10 nodes, of which two; three are held from better days
        hold(patient, 5, 6, 7)
        patient.restart()
        fail(patient)
        node = patient.wait_for_status("fail")

        assert (node.tainted, node.record["taint"]) == (False, "withheld")
        message = patient.wait_for_event("TaintWithheld")["message"]
        assert "3 of at most 2 nodes are tainted already" in message

    def test_a_fleet_of_unknown_size_has_one_slot(self, make_world: MakeWorld) -> None:
        world = make_world()
        world.api.fail_with(403, path_part="/namespaces/gpu-healthcheck/leases")
        world.start()
        world.wait_for_status("pass")
        fail(world)
        world.wait_for_taint()

        assert world.node().tainted
        assert [slot["metadata"]["name"] for slot in slots(world)] == ["slot-0"]

    def test_that_nobody_answers_for_does_not_hold_the_verdict_back(self, watched: World) -> None:
        watched.api.fail_with(500, path_part=BUDGET)
        fail(watched)
        node = watched.wait_for_status("fail")

        assert (node.tainted, node.record["taint"]) == (False, "withheld")
        assert "it is unknown how many nodes are tainted already" in watched.wait_for_event("TaintWithheld")["message"]
        watched.api.recover()
        assert watched.wait(lambda node: node.tainted).record["taint"] == "set"  # long before the next check cycle

    def test_is_what_it_is_while_the_cluster_forbids_to_take_a_place(self, world: World) -> None:
        world.hurry()
        world.start()
        world.wait_for_status("pass")
        world.api.fail_with(403, path_part=BUDGET)
        fail(world)
        node = world.wait_for_status("fail")

        assert (node.tainted, node.record["taint"]) == (False, "withheld")
        fields = world.agent.wait_for_log(FORBIDDEN, answer='in the namespace "gpu-healthcheck-budget"')
        assert (fields["level"], world.agent.metric("forbidden{slots}")) == ("error", 1)
        world.api.recover()
        assert world.wait(lambda node: node.tainted).record["taint"] == "set"
        eventually(lambda: world.agent.metric("forbidden{slots}") == 0)

    def test_keeps_no_single_look_from_its_end_where_none_may_be_taken(self, world: World) -> None:
        world.api.fail_with(403, path_part=BUDGET)
        fail(world)

        assert world.start("--once").exit_code() == 0
        assert (world.node().status, world.node().tainted) == ("fail", False)
