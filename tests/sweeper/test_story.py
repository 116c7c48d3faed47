"""A sweep from end to end: sweeper, scheduler, the Job's own program with a stand-in for dcgmi, the node's agent."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.sim.kubelet import Kubelets
from tests.agent.world import RealCluster, World
from tests.probes.dcgm.documents import FAULTY
from tests.sweeper.pod import ALREADY_RUNNING, SWEEP, Pod
from tests.sweeper.world import Fleet
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
RESULTS = f"{PREFIX}/results"
MEMORY = "DcgmDiagMemory"


@dataclass
class Story(Pod):
    kubelets: Kubelets


@pytest.fixture
def story(fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A GPU node with an agent that has reported `pass`, and kubelets that run a sweep's pods."""
    name = f"story-{zlib.crc32(request.node.name.encode())}"
    cluster = RealCluster(fleet.plane, name, devices={"nvidia.com/gpu": "8"})
    with World(tmp_path / "world", cluster) as world:
        world.host.install_dcgmi()
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        fleet.names.append(name)
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "CONFIG_DIR": str(world.config)}
        folder = tmp_path / "pods"
        folder.mkdir()
        with Kubelets(fleet.plane, folder, {name: world.host.root}, environment) as kubelets:
            world.start()
            world.wait_for_status("pass")
            eventually(cluster.lease)
            yield Story(world, kubelets)


def swept(fleet: Fleet) -> str:
    """Run one sweep to its end, check that nothing is left, and return its log."""
    code, _, message = fleet.sweep()
    assert (code, fleet.residue(), fleet.working()) == (0, {}, []), message
    return message


def outcome(fleet: Fleet) -> str:
    """How the last Job ended."""
    conditions = fleet.jobs()[-1]["status"].get("conditions", [])
    return next(str(condition["type"]) for condition in conditions if condition["type"] in ("Complete", "Failed"))


def is_adopted(pod: Pod) -> bool:
    """Whether the agent's record says that it has the sweep's."""
    taken = json.loads(pod.annotations.get(RESULTS, "{}")).get("taken", {})
    return SWEEP in pod.annotations and taken.get("sweep-result") == pod.record["timestamp"]


def test_a_node_that_passes_stays_in_service_and_is_not_due_again(fleet: Fleet, story: Story) -> None:
    swept(fleet)

    eventually(lambda: is_adopted(story))
    node = story.world.node()
    assert (story.record["status"], story.record["by"], outcome(fleet)) == ("pass", "sweep", "Complete")
    assert (node.status, node.severity, node.tainted, story.asked) == ("pass", "PASS", False, ["2"])
    _, printed, _ = fleet.sweep("--dry-run")
    assert ("tested at" in printed, "TAKEN" in printed) == (True, False)


def test_1_finding_of_a_sweep_is_tainted_by_the_agent_and_kept_by_light_cycles(fleet: Fleet, story: Story) -> None:
    """Defect 1 of the scripts: the next light pass took the taint of a failed level 2 away."""
    story.dcgm(answer=story.answer(("memory", 1, FAULTY)), code="205")
    swept(fleet)

    node = story.world.wait_for_taint()
    gpu = story.world.host.gpus[1]
    assert (node.severity, node.tainted, node.condition["reason"]) == ("ISOLATE", True, MEMORY)
    assert node.findings[MEMORY]["subject"] == f"gpu/{gpu.address}"
    assert outcome(fleet) == "Complete"

    story.world.agent.wait_for_looks(2)
    story.world.restart()
    story.world.agent.wait_for_looks(1)
    node = story.world.node()
    assert (node.status, node.severity, node.tainted) == ("fail", "ISOLATE", True)
    # And a faulty node is not swept.
    _, printed, _ = fleet.sweep("--dry-run")
    assert "TAKEN" not in printed


def test_a_test_that_could_not_run_is_neither_fault_nor_pass(fleet: Fleet, story: Story) -> None:
    story.dcgm(answer=ALREADY_RUNNING, code="217")
    swept(fleet)

    eventually(lambda: is_adopted(story))
    node = story.world.node()
    assert (story.record["status"], story.causes, outcome(fleet)) == ("unknown", {"DcgmAlreadyRunning"}, "Failed")
    assert (node.status, node.tainted, fleet.tested()) == ("pass", False, {})
    _, printed, _ = fleet.sweep("--dry-run")
    assert "tried without a result at" in printed


def test_work_that_comes_ends_the_diagnostic_and_has_the_gpus(fleet: Fleet, story: Story) -> None:
    story.dcgm(hang="")
    sweeper = fleet.sweeper()
    eventually(lambda: story.asked)

    fleet.gpu_pod("work", story.world.cluster.name)

    eventually(lambda: fleet.work() == {"Running"})
    _, message = sweeper.communicate()
    assert (sweeper.returncode, fleet.residue()) == (0, {}), message
    assert (story.record["status"], story.causes) == ("unknown", {"DcgmStopped"})
    assert story.world.node().status == "pass"


def test_the_next_sweep_cleans_up_after_a_killed_sweeper_and_pod(fleet: Fleet, story: Story) -> None:
    story.hold()
    sweeper = fleet.sweeper()
    eventually(lambda: story.asked)
    sweeper.kill()
    sweeper.wait()
    story.kubelets.kill(story.world.cluster.name)
    story.let_go()  # the diagnostic outlives its parent, and reports nothing
    story.well()
    assert list(fleet.residue()) == [story.world.cluster.name]
    eventually(lambda: not fleet.working())

    swept(fleet)

    node = story.world.node()
    assert (node.status, node.tainted, fleet.tested()) == ("pass", False, {})


def test_a_result_survives_an_api_server_that_is_away(fleet: Fleet, story: Story) -> None:
    story.dcgm(code="205")
    story.hold()
    sweeper = fleet.sweeper()
    eventually(lambda: story.asked)
    fleet.plane.stop_api()
    story.let_go(story.answer(("memory", 1, FAULTY)))
    log = "retrying the request"
    eventually(lambda: any(log in path.read_text() for path in story.kubelets.folder.glob("*.log")))

    fleet.plane.start_api()

    story.world.wait_for_taint()
    _, message = sweeper.communicate()
    assert (sweeper.returncode, fleet.residue()) == (0, {}), message
