"""`node-overrides` on running agents: by the labels of each agent's own Node, at once when they change."""

from __future__ import annotations

import json

import pytest

from tests.agent.conftest import MakeWorld
from tests.agent.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

KEY = "node-overrides"
RESEARCH = "team=research"


def label(world: World, **labels: str | None) -> None:
    world.cluster.edit({"metadata": {"labels": labels}})


def lose_gpu(world: World) -> None:
    world.host.xid(3, 79, "GPU has fallen off the bus.")


def test_of_two_nodes_with_one_fault_only_the_selected_one_stays_without_a_taint(make_world: MakeWorld) -> None:
    research, other = make_world("gpu-node-1"), make_world("gpu-node-2")
    label(research, team="research")
    label(other, team="vision")
    for world in (research, other):
        world.configure(**{KEY: f"{RESEARCH}: TAINT_SEVERITY=ISOLATE"})
        lose_gpu(world)
        world.start()

    assert other.wait_for_taint().severity == "REBOOT"
    node = research.wait_for_status("fail")
    assert (node.severity, node.tainted) == ("REBOOT", False)
    assert not research.agent.logged("acquired a slot of the fleet budget")


@pytest.mark.parametrize("line", ["ENABLE_TAINT=false", "TAINT_SEVERITY=ISOLATE ENABLE_TAINT=0"])
def test_a_changed_label_acts_without_waiting_for_a_cycle(world: World, line: str) -> None:
    world.configure(CHECK_INTERVAL="86400", **{KEY: f"{RESEARCH}: {line}"})
    lose_gpu(world)
    world.start()
    world.wait_for_taint()

    label(world, team="research")
    world.wait(lambda node: not node.tainted)
    label(world, team=None)
    world.wait_for_taint()


def test_a_check_of_the_node_group_alone_follows_the_label(world: World) -> None:
    world.configure(CHECK_INTERVAL="86400", CHECKS_LIGHTWEIGHT="2", **{KEY: f"{RESEARCH}: CHECKS_LIGHTWEIGHT=0,2"})
    world.start()
    world.wait_for_status("pass")
    records = world.agent.metric("kernel_log_records_total")
    lose_gpu(world)
    eventually(lambda: world.agent.metric("kernel_log_records_total") > records)
    label(world, team="research")

    # Its verdict does not wait for a record, and only later records are judged.
    eventually(lambda: '"0-nvidia-smi"' in json.dumps(world.node().record.get("checks")))
    assert world.wait_for_status("pass").findings == {}
    world.host.xid(4, 79, "GPU has fallen off the bus.")
    assert [*world.wait_for_taint().findings] == ["Xid79"]


def test_an_invalid_line_keeps_the_last_valid_ones_also_over_a_restart(world: World) -> None:
    world.hurry()
    label(world, team="research")
    world.configure(**{KEY: f"{RESEARCH}: ENABLE_TAINT=false"})
    world.start()
    world.wait_for_status("pass")

    world.configure(**{KEY: f"# why\n{RESEARCH}: ENABLE_TAINT=flase"})
    message = world.wait_for_event("BadSetting")["message"]
    assert message.endswith("line 2: ENABLE_TAINT = 'flase': allowed are true and false, or 1 and 0")
    assert world.agent.metric(f"bad_settings{{{KEY}}}") == 1
    lose_gpu(world)
    assert not world.wait_for_status("fail").tainted

    world.restart()
    eventually(lambda: world.agent.metrics().get(f"bad_settings{{{KEY}}}") == 1)
    world.agent.wait_for_looks()
    assert (world.node().status, world.node().tainted) == ("fail", False)

    world.configure(**{KEY: "team=vision: ENABLE_TAINT=false"})
    world.wait_for_taint()
    assert world.agent.metric(f"bad_settings{{{KEY}}}") == 0


@pytest.mark.parametrize(("last", "found"), [("research", ["Xid79"]), ("vision", [])])
def test_a_restart_without_the_api_server_uses_the_last_labels(world: World, last: str, found: list[str]) -> None:
    label(world, team="research")
    world.configure(CHECKS_LIGHTWEIGHT="2", **{KEY: f"{RESEARCH}: CHECKS_LIGHTWEIGHT=0,2"})
    world.start()
    world.wait_for_status("pass")
    assert world.agent.terminate() == 0
    labels = world.memory_file.parent / "node-labels.json"
    assert json.loads(labels.read_text()) == {"team": "research"}
    labels.write_text(json.dumps({"team": last}))

    world.api.refuse()
    lose_gpu(world)
    world.start()
    eventually(lambda: world.agent.metric("kernel_log_records_total"))
    eventually(lambda: world.agent.metric("looks_total"))
    assert [entry["reason"] for entry in world.agent.logged("found")] == found

    world.api.accept()
    if found:
        world.wait_for_taint()
