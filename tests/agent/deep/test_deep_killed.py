"""The agent's level 2 on a real kube-apiserver: `kill -9` at each of its steps, and outages of the API server.

The next agent leaves no mark of the run, loses no verdict, and changes nothing of other clients.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, MODE, RUN
from gpu_healthcheck.sim.control_plane import ControlPlane, install
from gpu_healthcheck.sim.pod_resources import serving_pod_resources
from tests.agent.deep.test_deep import SWEEP, answer, swept
from tests.agent.world import RealCluster, World
from tests.probes.dcgm.documents import FAULTY
from tests.waiting import eventually, hand_over

pytestmark = pytest.mark.cluster
TEAMS = {"key": "example.com/team", "value": "a", "effect": "NoSchedule"}
FOUND = "DcgmDiagMemory"
UNTESTED = ("1 before", "1 after", "in the test")
STEPS = (*UNTESTED, "2 before", "2 after", "3 before", "3 after")
"""Of the writes of a run that finds a fault: the node is taken, the result told, the node given back."""


@pytest.fixture(scope="module")
def troubled(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a separate control plane, so that its outages do not affect other tests."""
    with ControlPlane() as plane:
        install(plane)
        yield plane


@pytest.fixture
def world(troubled: ControlPlane, short_root: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield a node with a faulty GPU that only a deep test detects.

    Its agent has reported `pass` and has ended, to be replaced by another agent.
    """
    name = f"deep-{abs(hash(request.node.name)) % 10**8}"
    cluster = RealCluster(troubled, name, devices={"nvidia.com/gpu": "8"}, taints=[TEAMS])
    with World(short_root / "world", cluster) as world:
        world.host.install_dcgmi()
        for file, text in {"answer": answer(("memory", 1), FAULTY), "code": "205", "seconds": "1"}.items():
            world.host.write_value(f"dcgm/{file}", text)
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        world.start()
        world.wait_for_status("pass")
        eventually(cluster.lease)
        assert world.agent.terminate() == 0
        cluster.edit({"metadata": {"annotations": {SWEEP: swept(24)}}})
        with serving_pod_resources(world.host.root, list):
            yield world


def level_2(world: World, kill_at: str = "") -> subprocess.Popen[bytes]:
    """Start one attempt at a level 2, as the agent does. It kills itself at the moment `kill_at`."""
    root = world.host.root
    words = [str(root), str(world.kubeconfig), world.cluster.name, str(world.folder / "state")]
    environment = {**os.environ, "PATH": f"{root}/usr/bin:/usr/bin:/bin", "KILL_AT": kill_at}
    return subprocess.Popen([sys.executable, "-m", "tests.agent.level_2", *words], env=environment)


def begun(world: World) -> str:
    """The number of the process that the diagnostic waits for, once it does."""
    sleeper = world.host.root / "dcgm/sleeper"
    return sleeper.read_text().strip() if sleeper.exists() else ""


def marks(world: World) -> list[str]:
    """Return the marks of a deep run on the Node."""
    node = world.node()
    taints = [taint["key"] for taint in node.taints if taint["key"] == MAINTENANCE]
    return [key for key in (RUN, MODE) if key in node.labels | node.object["metadata"]["annotations"]] + taints


def cleared(world: World, *, found: bool) -> None:
    """The next agent has come to its end with all that the last one left."""
    world.wait(lambda _: not marks(world))
    if found:
        node = world.wait(lambda node: node.severity == "ISOLATE" and node.tainted)
        assert node.findings[FOUND]["count"] == 1
    else:
        assert (world.wait_for_status("pass").findings, world.node().tainted) == ({}, False)
    node = world.node()
    assert TEAMS in node.taints
    assert node.object["spec"].get("unschedulable") is True


@pytest.mark.parametrize(
    ("step", "outage"),
    [*((step, False) for step in STEPS if step != "1 after"), ("1 after", True), ("2 before", True)],
    ids=lambda text: text if isinstance(text, str) else "without an API server at first" if text else "",
)
def test_a_killed_agent_leaves_nothing_that_the_next_one_does_not_clear(world: World, step: str, outage: bool) -> None:
    if step == "in the test":
        world.host.write_value("dcgm/hang", "")
    process = level_2(world, step)
    if step == "in the test":
        sleeper = int(eventually(lambda: begun(world)))
        process.kill()
        os.kill(sleeper, signal.SIGKILL)  # no other process would
    assert process.wait() == -9
    world.cluster.edit({"spec": {"unschedulable": True}})  # a person's, meanwhile
    assert isinstance(world.cluster, RealCluster)

    if outage:
        world.cluster.plane.stop_api()
    world.start()
    world.agent.wait_for_looks(1)
    if outage:
        world.cluster.plane.start_api()

    cleared(world, found=step not in UNTESTED)


def test_an_api_server_that_goes_in_the_test_and_comes_back_has_its_result(world: World) -> None:
    assert isinstance(world.cluster, RealCluster)
    path = world.host.root / "dcgm/answer"
    path.unlink()
    os.mkfifo(path)
    process = level_2(world)
    eventually(lambda: begun(world))
    world.cluster.plane.stop_api()
    hand_over(path, answer(("memory", 1), FAULTY))
    eventually((world.folder / "state/sweep-result.json").exists)

    world.cluster.plane.start_api()

    assert process.wait() == 0
    world.cluster.edit({"spec": {"unschedulable": True}})
    world.start()
    cleared(world, found=True)
