"""The defects of the quarantine script that this program replaces, by their number in the list; each is shown fixed."""

from __future__ import annotations

import signal

import pytest
import yaml

from gpu_healthcheck.sim.control_plane import MANIFESTS
from tests.agent.deep.test_deep import answer
from tests.probes.dcgm.documents import FAULTY
from tests.quarantine.world import MAINTENANCE, NODE, SPOT, P, World, end_of
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
JOB = (MANIFESTS / "quarantine/05-job-quarantine.yaml").read_text()


def test_3_sigterm_takes_no_taint_away_but_the_runs_own(world: World) -> None:
    world.stand_in.edit_node(NODE, {"spec": {"taints": [SPOT, UNHEALTHY]}})
    world.dcgm(hang="")
    with world.started() as process:
        eventually(world.tests_running)
        assert world.node["spec"]["taints"] == [SPOT, UNHEALTHY, MAINTENANCE]
        process.send_signal(signal.SIGTERM)
        end_of(process)

    assert world.node["spec"]["taints"] == [SPOT, UNHEALTHY]


def test_13_a_test_that_fails_fails_the_job(world: World) -> None:
    """It was `|| true`."""
    world.dcgm(answer=answer(("memory", 1), FAULTY))
    assert world.run().code == 1


def test_13_the_recommendation_of_a_pass_is_no_investigation(world: World) -> None:
    assert (world.run().code, world.record["recommendation"]) == (0, "return-to-service")


def test_13_no_mode_is_left_behind(world: World) -> None:
    """A killed run can't remove its marks: they expire within minutes."""
    world.dcgm(hang="")
    with world.started() as process:
        eventually(world.tests_running)
        process.kill()
        process.wait()
    assert world.marks == ("quarantine", "quarantine", True)

    world.well()
    world.run()
    assert (world.marks, f"{P}/mode" in world.node["metadata"]["labels"]) == (("", "", False), False)


def test_13_the_node_is_named_by_its_name_and_not_by_a_label() -> None:
    pod = yaml.safe_load(JOB)["spec"]["template"]["spec"]
    assert "nodeSelector" not in pod
    assert "metadata.name" in str(pod["affinity"])


def test_13_no_image_is_called_latest_and_each_privilege_has_its_reason() -> None:
    container = yaml.safe_load(JOB)["spec"]["template"]["spec"]["containers"][0]
    assert not container["image"].endswith("latest")
    assert ":" in container["image"]
    reasons = (MANIFESTS / "10-quarantine.yaml").read_text().splitlines()
    for line in ("privileged: true", "runAsUser: 0", "- name: host", "- name: devices", "- name: reports"):
        place = next(index for index, text in enumerate(reasons) if text.strip() == line)
        assert reasons[place - 1].strip().startswith("#"), line
