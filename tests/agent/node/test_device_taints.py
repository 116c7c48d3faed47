"""An agent that taints GPUs instead of its node: on the real API server, and on one without such rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import DEVICE_TAINT_RULES, ControlPlane, install, install_device_taints
from tests.agent.conftest import MakeWorld
from tests.agent.world import RealCluster, World
from tests.device_taints import WORK, devices_in_use, install_driver, publish, rules_of
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."


@pytest.fixture
def world(device_taints: ControlPlane, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "world", RealCluster(device_taints, "device-taints")) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100", DEVICE_TAINTS="true")
        publish(device_taints, world.cluster.name, addresses(world))
        world.start()
        world.wait_for_status("pass")
        yield world


def addresses(world: World) -> list[str]:
    return [gpu.address for gpu in world.host.gpus]


def wait_for(world: World, word: str, *, tainted: bool) -> None:
    world.wait(lambda node: (node.record.get("taint", ""), node.tainted) == (word, tainted))


def test_one_bad_gpu_is_tainted_instead_of_its_node(world: World, device_taints: ControlPlane) -> None:
    cluster, name = world.cluster, world.cluster.name
    assert isinstance(cluster, RealCluster)

    def rules() -> dict[str, str]:
        return rules_of(device_taints, name)

    world.host.xid(3, 79, ERROR)
    wait_for(world, "devices", tainted=False)
    assert rules() == {"gpu-3": "REBOOT"}
    node = world.wait_for_status("fail")
    assert (node.severity, node.condition["reason"], len(cluster.slots())) == ("REBOOT", "Xid79", 1)
    eventually(lambda: world.agent.metric("device_taints") == 1)
    assert addresses(world)[3] in world.wait_for_event("DeviceTainted")["message"]

    # A deleted rule is created again; a worse fault is a worse taint.
    device_taints.request("DELETE", f"{DEVICE_TAINT_RULES}/gpu-healthcheck.{name}.gpu-3")
    eventually(lambda: rules() == {"gpu-3": "REBOOT"})
    world.host.xid(5, 79, ERROR)
    eventually(lambda: rules() == {"gpu-3": "REBOOT", "gpu-5": "REBOOT"})

    # A GPU that the driver publishes no more taints the node, until it is there again.
    publish(device_taints, name, addresses(world)[:5])
    wait_for(world, "set", tainted=True)
    assert addresses(world)[5] in world.wait_for_event("DeviceTaintFailed")["message"]
    publish(device_taints, name, addresses(world))
    wait_for(world, "devices", tainted=False)

    # When device taints are switched off, the Node is tainted before the rules are deleted. When they are switched on,
    # the rules are created before the Node's taint is removed.
    world.configure(DEVICE_TAINTS="false")
    wait_for(world, "set", tainted=True)
    eventually(lambda: rules() == {})
    world.configure(DEVICE_TAINTS="true")
    wait_for(world, "devices", tainted=False)

    world.host.reboot()
    world.restart()
    world.wait_for_status("pass")
    eventually(lambda: (rules(), cluster.slots()) == ({}, []))


@pytest.fixture
def own_plane(device_taints: ControlPlane) -> Iterator[ControlPlane]:
    """Other tests shall not feel that its gates go off, nor its scheduler."""
    with ControlPlane(controllers=True, scheduler=True) as plane:
        install(plane)
        install_device_taints(plane)
        yield plane


def test_one_bad_gpu_of_eight_gets_no_pod_and_the_other_seven_do(own_plane: ControlPlane, tmp_path: Path) -> None:
    install_driver(own_plane)
    with World(tmp_path / "world", RealCluster(own_plane, "eight")) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100", DEVICE_TAINTS="true")
        publish(own_plane, world.cluster.name, addresses(world))
        world.start()
        world.wait_for_status("pass")
        world.host.xid(3, 79, ERROR)
        wait_for(world, "devices", tainted=False)

        pods = "/api/v1/namespaces/default/pods"
        for number in range(8):
            answer = own_plane.request("POST", pods, {"metadata": {"name": f"work-{number}"}, "spec": WORK})
            assert answer.status == 201, answer.message

        def waiting() -> list[str]:
            """Return why pods wait for a node."""
            conditions = [
                condition
                for pod in own_plane.request("GET", pods).body["items"]
                for condition in pod["status"].get("conditions", ())
            ]
            return [condition["message"] for condition in conditions if condition.get("reason") == "Unschedulable"]

        seven = [f"gpu-{number}" for number in range(8) if number != 3]
        eventually(lambda: (devices_in_use(own_plane), len(waiting())) == (seven, 1))
        assert "cannot allocate all claims" in waiting()[0]

        world.host.reboot()
        world.restart()
        world.wait_for_status("pass")
        eventually(lambda: (len(devices_in_use(own_plane)), waiting()) == (8, []))


def test_node_is_tainted_again_when_no_controller_processes_rules(own_plane: ControlPlane, tmp_path: Path) -> None:
    with World(tmp_path / "world", RealCluster(own_plane, "withdrawn")) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100", DEVICE_TAINTS="true")
        publish(own_plane, world.cluster.name, addresses(world))
        world.start()
        world.wait_for_status("pass")
        world.host.xid(3, 79, ERROR)
        wait_for(world, "devices", tainted=False)

        own_plane.serve_device_taints(served=False)
        wait_for(world, "set", tainted=True)
        # The Event is delayed: a restarted API server has not read its roles yet, and refuses requests for a moment.
        eventually(
            lambda: any("serves no DeviceTaintRules" in event["message"] for event in world.events("DeviceTaintFailed"))
        )
        own_plane.serve_device_taints(served=True)
        wait_for(world, "devices", tainted=False)

        # The rules are served and were acted on once. A start asks again, as each hour does.
        own_plane.control_device_taints(controlled=False)
        world.restart()
        wait_for(world, "set", tainted=True)
        eventually(lambda: rules_of(own_plane, world.cluster.name) == {})
        unheeded = "accepts DeviceTaintRules without effect"
        eventually(lambda: any(unheeded in event["message"] for event in world.cluster.events()))


def test_where_no_rules_are_served_the_node_is_tainted(make_world: MakeWorld) -> None:
    world = make_world()
    world.configure(DEVICE_TAINTS="true")
    world.start()
    world.wait_for_status("pass")
    assert "serves no DeviceTaintRules" in world.wait_for_event("DeviceTaintFailed")["message"]

    world.host.xid(3, 79, ERROR)
    assert world.wait_for_taint().record["taint"] == "set"
    eventually(lambda: world.agent.metric("device_taints_failed") == 1)
