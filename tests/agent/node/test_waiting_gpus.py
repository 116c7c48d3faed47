"""The real agent on a node whose GPUs wait or idle: the record and the metrics name them, and the verdict stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.agent import work_agent
from tests.agent.node.test_pod_events import Pods
from tests.agent.world import NodeView, RealCluster, StandIn, World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

EXPECTED = {"gpu-healthcheck.aws-samples.io/waiting": "expected"}


@pytest.fixture
def pods(short_root: Path) -> Iterator[Pods]:
    """Yield a healthy node whose agent, not started yet, names GPUs after seconds."""
    with ExitStack() as undo:
        world = undo.enter_context(World(short_root / "world", StandIn("node", "p5.48xlarge")))
        world.host.run_kubernetes("docker")
        world.hurry()
        world.program = work_agent.__name__
        yield Pods(world, undo)


def named(node: NodeView) -> dict[str, tuple[str, str | None]]:
    """Return state and pod of each named GPU."""
    return {uuid: (row["state"], row.get("pod")) for uuid, row in node.record.get("work", {}).items()}


def waiting(world: World) -> set[str]:
    """Return the series of GPUs and pods that wait."""
    return {name for name, seconds in world.agent.metrics().items() if "_waiting_seconds" in name and seconds >= 5}


def test_gpu_that_waits_is_named_once_until_it_works_and_the_verdict_stays(pods: Pods) -> None:
    world, wait = pods.world, pods.world.wait
    pods.run({"stalled": pods.uuid(3), "training": pods.uuid(5)})
    world.host.work([3, 5], 1980, 650)
    world.start()
    before = world.wait_for_status("pass")
    assert named(before) == {}

    world.host.poll([3])
    node = wait(named)
    writes = len(world.stand_in.writes("nodes"))
    world.agent.wait_for_looks(3)

    row = {pods.uuid(3): ("waiting", "uid-of-s")}
    assert (named(node), named(world.node())) == (row, row)
    assert node.record["work"] == world.node().record["work"]
    assert len(world.stand_in.writes("nodes")) == writes
    assert waiting(world) == {
        f"gpu_waiting_seconds{{{pods.uuid(3)},3,team,stalled}}",
        "pod_waiting_seconds{team,stalled}",
    }
    assert world.wait_for_status("pass").ours == before.ours
    assert [event for event in world.cluster.events() if event["type"] == "Warning"] == pods.events() == []

    world.host.work([3], 1980, 650)
    after = wait(lambda node: not named(node))
    eventually(lambda: not waiting(world))
    assert (after.ours, "work" in after.record) == (before.ours, False)

    world.host.stop_work([5])
    assert named(wait(named)) == {pods.uuid(5): ("idle", "uid-of-t")}
    assert waiting(world) == set()
    world.wait_for_status("pass")


def test_restarted_agent_names_the_gpu_anew(pods: Pods) -> None:
    world = pods.world
    pods.run({"stalled": pods.uuid(3)})
    world.host.poll([3])
    world.start()
    first = world.wait(named)
    world.restart()
    world.wait(lambda node: not named(node))
    second = world.wait(named)

    assert named(first) == named(second)
    assert second.record["work"][pods.uuid(3)]["since"] > first.record["work"][pods.uuid(3)]["since"]


@pytest.mark.parametrize("of", ["pod", "namespace"])
def test_expected_waiting_is_not_named(pods: Pods, of: str) -> None:
    """Servers that poll for requests. Without the annotation they are named, as the next test shows."""
    world = pods.world
    world.api.add_namespace("team", EXPECTED if of == "namespace" else {})
    world.host.poll([3, 5])
    pods.run({"server": pods.uuid(3)}, {"server": EXPECTED if of == "pod" else {}})
    world.start()

    assert named(world.wait(named)) == {pods.uuid(5): ("waiting", None)}  # no pod holds it
    world.agent.wait_for_looks(2)
    assert named(world.node()) == {pods.uuid(5): ("waiting", None)}
    assert waiting(world) == {f"gpu_waiting_seconds{{{pods.uuid(5)},5,,}}"}


def test_waiting_in_a_namespace_without_the_annotation_is_named(pods: Pods) -> None:
    world = pods.world
    world.api.add_namespace("team", {"gpu-healthcheck.aws-samples.io/waiting": "no"})
    world.host.poll([3, 5])
    pods.run({"server": pods.uuid(3), "half": pods.uuid(5), "other-half": f"{pods.uuid(5)}::2"})
    world.start()

    node = world.wait(lambda node: len(named(node)) == 2)
    assert named(node) == {pods.uuid(3): ("waiting", "uid-of-s"), pods.uuid(5): ("waiting", None)}
    eventually(lambda: "pod_waiting_seconds{team,server}" in waiting(world))


def test_agents_account_reads_the_annotation_of_a_namespace(installed: ControlPlane, short_root: Path) -> None:
    """On a real API server, by the rights of the manifest."""
    namespace = {"metadata": {"name": "team", "annotations": EXPECTED}}
    installed.request("POST", "/api/v1/namespaces", namespace)
    installed.request("PATCH", "/api/v1/namespaces/team", namespace)
    with ExitStack() as undo:
        world = undo.enter_context(World(short_root / "world", RealCluster(installed, "waiting-gpus")))
        world.host.run_kubernetes("docker")
        world.hurry()
        world.program = work_agent.__name__
        pods = Pods(world, undo)
        pods.run({"server": pods.uuid(3)})
        world.host.poll([3, 5])
        world.start()

        assert named(world.wait(named)) == {pods.uuid(5): ("waiting", None)}
        world.wait_for_status("pass")
        assert waiting(world) == {f"gpu_waiting_seconds{{{pods.uuid(5)},5,,}}"}

        # Its twin, without the annotation.
        installed.request("PATCH", "/api/v1/namespaces/team", {"metadata": {"annotations": dict.fromkeys(EXPECTED)}})
        pods.world.restart()
        world.wait(lambda node: named(node).get(pods.uuid(3)) == ("waiting", "uid-of-s"))
        assert not any(name.startswith("forbidden") and value for name, value in world.agent.metrics().items())
