"""An agent that cordons GPUs in HAMi's list instead of tainting its node."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.node.hami import CARDS, CORDON
from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON
from gpu_healthcheck.sim.api_objects import DEPLOYMENTS, WEBHOOKS
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.control_plane.install import DEVICE_TAINTS
from tests.agent.conftest import MakeWorld
from tests.agent.world import NodeView, RealCluster, World
from tests.hami_cluster import NAMESPACE, SCHEDULER, deployment, registration, webhook
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."
THEIRS = "GPU-11111111-2222-4333-8444-555555555555"


def share(world: World, cordoned: str | None = None) -> None:
    """Run HAMi on the node, and register its GPUs as HAMi's device plugin does."""
    world.host.install_hami()
    cards = registration(gpu.uuid for gpu in world.host.gpus)
    world.cluster.edit({"metadata": {"annotations": {CARDS: cards, CORDON: cordoned}}})
    world.cluster.edit({"status": {"capacity": {"nvidia.com/gpu": "80"}, "allocatable": {"nvidia.com/gpu": "80"}}})


def cordons(node: NodeView) -> tuple[str, str]:
    annotations = node.object["metadata"].get("annotations") or {}
    return annotations.get(CORDON, ""), annotations.get(DEVICE_CORDON, "")


def wait_for(world: World, word: str, *, tainted: bool, cordoned: str, ours: str) -> NodeView:
    expected = (word, tainted, cordoned, ours)
    return world.wait(lambda node: (node.record.get("taint", ""), node.tainted, *cordons(node)) == expected)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    world = make_world()
    world.hurry()
    world.configure(MAX_UNHEALTHY_PERCENT="100", DEVICE_TAINTS="true")
    install(world)
    share(world, THEIRS)
    world.start()
    world.wait_for_status("pass")
    return world


def install(world: World, version: str = "v2.10.0") -> None:
    world.api.store.create(WEBHOOKS, "", webhook())
    world.api.store.create(DEPLOYMENTS, NAMESPACE, deployment(version))


def test_one_bad_gpu_is_cordoned_instead_of_its_node(world: World) -> None:
    three, five = world.host.gpus[3].uuid, world.host.gpus[5].uuid

    world.host.xid(3, 79, ERROR)
    wait_for(world, "devices", tainted=False, cordoned=f"{THEIRS},{three}", ours=three)
    assert world.host.gpus[3].address in world.wait_for_event("DeviceTainted")["message"]
    assert world.wait_for_status("fail").severity == "REBOOT"
    eventually(lambda: world.agent.metric("device_taints") == 1)

    # A removed entry is written again; an entry of a person is not.
    world.cluster.edit({"metadata": {"annotations": {CORDON: None}}})
    wait_for(world, "devices", tainted=False, cordoned=three, ours=three)
    world.host.xid(5, 79, ERROR)
    wait_for(world, "devices", tainted=False, cordoned=f"{three},{five}", ours=f"{three},{five}")

    # A fault of the node is the node's; a restart changes nothing.
    world.configure(DEVICE_TAINTS="false")
    wait_for(world, "set", tainted=True, cordoned="", ours="")
    world.configure(DEVICE_TAINTS="true")
    wait_for(world, "devices", tainted=False, cordoned=f"{three},{five}", ours=f"{three},{five}")
    world.restart()
    world.agent.wait_for_looks(2)
    wait_for(world, "devices", tainted=False, cordoned=f"{three},{five}", ours=f"{three},{five}")

    # At no moment was a GPU of a known fault neither cordoned nor on a tainted node.
    faulty = itertools.dropwhile(lambda node: node.status != "fail", world.stand_in.past())
    words = [(node.record["taint"], node.tainted, bool(cordons(node)[1])) for node in faulty]
    assert set(words) == {("devices", False, True), ("set", True, False)}

    world.host.reboot()
    world.restart()
    world.wait_for_status("pass")
    wait_for(world, "", tainted=False, cordoned="", ours="")
    assert not world.events("DeviceTaintFailed")


def test_an_entry_of_a_person_for_the_same_gpu_stays(world: World) -> None:
    three = world.host.gpus[3].uuid
    world.cluster.edit({"metadata": {"annotations": {CORDON: three}}})
    world.host.xid(3, 79, ERROR)
    wait_for(world, "devices", tainted=False, cordoned=three, ours="")
    world.host.reboot()
    world.restart()
    world.wait_for_status("pass")
    wait_for(world, "", tainted=False, cordoned=three, ours="")


def test_a_hami_that_ignores_cordons_leaves_the_taint_to_the_node(world: World) -> None:
    def set_version(version: str) -> None:
        world.api.store.replace(DEPLOYMENTS, NAMESPACE, SCHEDULER, deployment(version))

    three = world.host.gpus[3].uuid
    set_version("v2.9.0")
    world.host.xid(3, 79, ERROR)
    wait_for(world, "set", tainted=True, cordoned=THEIRS, ours="")
    assert "is older than 2.10" in world.wait_for_event("DeviceTaintFailed")["message"]
    assert world.agent.metric("device_taints_failed") == 1

    set_version("v2.10.0")  # an upgrade
    wait_for(world, "devices", tainted=False, cordoned=f"{THEIRS},{three}", ours=three)
    set_version("v2.9.0")  # and back
    wait_for(world, "set", tainted=True, cordoned=THEIRS, ours="")
    set_version("v2.10.0")
    wait_for(world, "devices", tainted=False, cordoned=f"{THEIRS},{three}", ours=three)
    world.api.store.delete(WEBHOOKS, "", "hami-webhook")  # HAMi is uninstalled; its registration stays
    world.api.store.delete(DEPLOYMENTS, NAMESPACE, SCHEDULER)
    wait_for(world, "set", tainted=True, cordoned=THEIRS, ours="")
    eventually(lambda: any("no webhook" in event["message"] for event in world.events("DeviceTaintFailed")))


def test_a_fault_of_the_node_beside_a_cordon_taints_the_node(world: World) -> None:
    three = world.host.gpus[3].uuid
    world.host.xid(3, 79, ERROR)
    wait_for(world, "devices", tainted=False, cordoned=f"{THEIRS},{three}", ours=three)
    world.host.remove_gpu(4)
    wait_for(world, "set", tainted=True, cordoned=THEIRS, ours="")


def test_the_overlay_grants_what_a_cordon_needs(installed: ControlPlane, tmp_path: Path) -> None:
    with World(tmp_path / "world", RealCluster(installed, "cordons")) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100", DEVICE_TAINTS="true")
        share(world, THEIRS)
        installed.kubectl("apply", "-k", str(DEVICE_TAINTS))
        group = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        scheduler = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
        try:
            assert installed.request("POST", group, webhook()).status == 201
            assert installed.request("POST", scheduler, deployment()).status == 201
            status = {"status": deployment()["status"]}
            assert installed.request("PATCH", f"{scheduler}/{SCHEDULER}/status", status).status == 200
            world.start()
            world.wait_for_status("pass")
            world.host.xid(3, 79, ERROR)
            three = world.host.gpus[3].uuid
            wait_for(world, "devices", tainted=False, cordoned=f"{THEIRS},{three}", ours=three)
            world.host.reboot()
            world.restart()
            world.wait_for_status("pass")
            wait_for(world, "", tainted=False, cordoned=THEIRS, ours="")
        finally:
            installed.request("DELETE", f"{group}/hami-webhook")
            installed.request("DELETE", f"{scheduler}/{SCHEDULER}")
