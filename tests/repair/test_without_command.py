"""A reset whose command is dead: before the reset it takes everything back; afterwards it finishes."""

from __future__ import annotations

import json
import time

import pytest

from gpu_healthcheck.healthcheck.deep.reset_command import ResetCommand, render
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND
from gpu_healthcheck.sim.api_objects import PODS
from tests.quarantine.world import NODE, Ended, end_of
from tests.repair.world import JOB, ResetWorld
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

NOBODY = ("", "", False)
DCGM, PLUGIN = "nvidia.com/gpu.deploy.dcgm", "nvidia.com/gpu.deploy.device-plugin"
SWITCHED_OFF = {DCGM: "true"}


@pytest.fixture
def deserted(world: ResetWorld) -> ResetWorld:
    world.operands = SWITCHED_OFF
    world.stand_in.edit_node(NODE, {"metadata": {"labels": {DCGM: "false", PLUGIN: "false"}}})
    return world


def run(world: ResetWorld, *words: str) -> Ended:
    return world.run(*words or ("--gpu=0",), program="tests.repair.impatient", SILENT="1")


def left(world: ResetWorld) -> tuple[object, ...]:
    """Return what is left of a reset: marks, annotation of the command, and labels of operands."""
    labels = world.node["metadata"]["labels"]
    return world.marks, RESET_COMMAND in world.annotations, labels[DCGM], labels[PLUGIN]


RETURNED = (NOBODY, False, "true", "false")
"""The label that an administrator has switched off stays off."""


def test_a_reset_that_needs_no_person_is_finished(deserted: ResetWorld) -> None:
    ended = run(deserted)
    assert (ended.code, deserted.record["status"], "running" in deserted.record) == (0, "pass", False)
    assert (left(deserted), deserted.record["reasons"]) == (RETURNED, [])


@pytest.mark.parametrize(("file", "code", "status"), [("unknown-error", 1, "fail"), ("in-use", 1, "fail")])
def test_a_reset_that_fails_is_returned_too(deserted: ResetWorld, file: str, code: int, status: str) -> None:
    deserted.host.write_value(f"nvidia-smi/{file}", "")
    ended = run(deserted)
    assert (ended.code, deserted.record["status"], left(deserted)) == (code, status, RETURNED)


def test_pods_that_hold_the_gpus_are_left_and_nothing_is_reset(deserted: ResetWorld) -> None:
    deserted.add_pod(1, "train-0", gpus=1)

    ended = run(deserted)

    (reason,) = deserted.record["reasons"]
    assert (ended.code, deserted.record["status"], left(deserted)) == (2, "unknown", RETURNED)
    assert "step 'free the GPUs': the command has given no sign of life for 1 s, and the GPUs are in use by" in reason
    assert "default/train-0" in reason
    assert reason.endswith(f"it continues with: gpu-healthcheck reset {NODE}")
    assert [line for line in deserted.asked if "gpu-reset" in line] == []


def test_a_node_that_is_not_drained_is_not_rebooted(deserted: ResetWorld) -> None:
    ended = run(deserted, f"--reboot={deserted.host.boot_id}")
    (reason,) = deserted.record["reasons"]
    assert (ended.code, deserted.record["status"], left(deserted), deserted.asked) == (2, "unknown", RETURNED, [])
    assert "step 'drain the node': the command has given no sign of life" in reason


def test_a_plugin_that_does_not_offer_the_gpus_is_left_to_a_person(deserted: ResetWorld) -> None:
    status = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"}}
    deserted.stand_in.edit_node(NODE, {"status": status})

    assert run(deserted).code == 0

    (reason,) = deserted.record["reasons"]
    assert "pods can request 7 nvidia.com/gpu of 8 nvidia.com/gpu; gpu-healthcheck reset" in reason
    assert (deserted.record["status"], left(deserted)) == ("pass", RETURNED)


def test_a_command_that_is_slow_is_waited_for(deserted: ResetWorld) -> None:
    deserted.add_pod(1, "train-0", gpus=1)
    with deserted.started("--gpu=0", program="tests.repair.impatient", SILENT="4") as process:
        eventually(lambda: deserted.record.get("pods"))
        for number in range(8):  # longer than the silence
            deserted.annotate(reset_command=render(ResetCommand(JOB, SWITCHED_OFF, f"another clock {number}")))
            time.sleep(0.6)
            assert process.poll() is None
        deserted.stand_in.store.delete(PODS, "default", "train-0")
        ended = end_of(process)
    assert (ended.code, deserted.record["status"], left(deserted)) == (0, "pass", RETURNED)


@pytest.mark.parametrize("forged", ["", json.dumps({"holder": JOB, "running": "reset", "operands": {PLUGIN: "true"}})])
def test_without_the_annotation_nothing_is_reset(deserted: ResetWorld, forged: str) -> None:
    deserted.annotate(reset_result=forged or None)
    with deserted.started("--gpu=0", program="tests.repair.impatient", SILENT="1") as process:
        deserted.annotate(reset_command=None)
        ended = end_of(process)
    said = ended.said("refused: nothing was reset")
    assert (ended.code, "gpu-healthcheck reset has ended" in said[0]["why"], deserted.asked) == (2, True, [])
    assert deserted.node["metadata"]["labels"][PLUGIN] == "false"
