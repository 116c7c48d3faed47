"""A reset whose command is killed, with a real control plane, agent and Job: the node comes back without a person."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from sim.device_plugin import DEPLOY
from tests.cli.reset_world import JOBS, Workshop
from tests.cli.test_reset import asked
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("workshop", ["tests.cli.hurried"], indirect=True)]


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=GIVE_UP_SECONDS)


def is_returned(workshop: Workshop) -> bool:
    return workshop.is_untouched and workshop.allocatable == 8


def has_reset(workshop: Workshop) -> bool:
    return any("gpu-reset" in line for line in asked(workshop))


AFTER: dict[str, Callable[[Workshop], bool]] = {
    "reset": lambda workshop: workshop.record.get("running") == "reset",
    "verification": lambda workshop: workshop.record.get("running") in ("verify", "level 2", "load"),
    "last record": lambda workshop: workshop.record.get("status") == "pass",
}


@pytest.mark.parametrize("reached", AFTER.values(), ids=AFTER)
def test_after_the_reset_the_job_finishes(workshop: Workshop, reached: Callable[[Workshop], bool]) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    workshop.node.write_value("nvidia-smi/seconds", 2)
    process = workshop.start(workshop.name)
    eventually(lambda: reached(workshop))
    kill(process)

    eventually(lambda: is_returned(workshop) and not workshop.findings)

    record = workshop.record
    assert (record["status"], "running" in record, record.get("reasons", [])) == ("pass", False, [])
    assert not workshop.is_tainted("unhealthy")
    eventually(workshop.has_ended_job)  # until then, another run would follow it
    assert workshop.reset()[0] == 2  # nothing is left to do


def test_before_the_reset_the_job_takes_everything_back_and_names_what_is_left(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-2", gpu=2, labels={"app": "train"})
    workshop.add_budget("train")
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    eventually(lambda: workshop.record.get("pods"))
    assert workshop.labels[DEPLOY] == "false"
    kill(process)

    # The operator's device plugin does not tolerate the taint of the finding.
    eventually(lambda: workshop.is_untouched)

    why, left = workshop.record["reasons"]
    assert "the command has given no sign of life" in why
    assert "default/train-2" in why
    assert "pods can request no GPU of 8 nvidia.com/gpu while the taint of its findings stays" in left
    assert (workshop.record["status"], workshop.findings, workshop.pods()) == ("unknown", ["Xid62"], {"train-2"})
    assert not has_reset(workshop)


def test_before_its_job_the_agent_takes_everything_back(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    process = workshop.start(workshop.name, KILL_AT="1 after")
    assert process.wait(GIVE_UP_SECONDS) == -signal.SIGKILL
    assert (workshop.labels[DEPLOY], workshop.has_job()) == ("false", False)

    eventually(lambda: workshop.is_untouched)

    event = eventually(lambda: [event for event in workshop.events if event.startswith("GpuResetAbandoned")])
    assert event == [
        "GpuResetAbandoned step 'claim': neither its command nor its Job is left; operands switched on: " + DEPLOY
    ]
    assert workshop.reset()[0] == 0


def test_a_command_that_lives_keeps_the_node(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-2", gpu=2, labels={"app": "train"})
    workshop.add_budget("train")
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    signs = set[str]()

    def is_longer_alive_than_the_silence() -> bool:
        signs.add(workshop.annotation("reset-command"))
        return len(signs) > 20  # one in half a second

    eventually(is_longer_alive_than_the_silence)
    assert (workshop.labels[DEPLOY], workshop.record["running"]) == ("false", "free the GPUs")
    code, out = workshop.interrupt(process)
    assert (code, workshop.is_untouched) == (130, True), out


def test_without_its_job_and_after_a_restart_the_agent_restores_the_operands(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-2", gpu=2, labels={"app": "train"})
    workshop.add_budget("train")
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    eventually(lambda: workshop.record.get("pods"))
    workshop.kubelets.kill_on(workshop.name, "reset-run")
    kill(process)
    workshop.kubelets.kill_on(workshop.name, "agent")

    eventually(lambda: workshop.is_untouched)

    assert (workshop.record["running"], workshop.pods()) == ("free the GPUs", {"train-2"})
    assert workshop.plane.request("GET", JOBS).status == 200


def test_a_label_that_an_administrator_switched_off_stays_off(workshop: Workshop) -> None:
    dcgm = "nvidia.com/gpu.deploy.dcgm"
    workshop.patch({"metadata": {"labels": {dcgm: "false"}}})
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    eventually(lambda: workshop.record.get("running"))
    kill(process)

    eventually(lambda: workshop.is_untouched)  # with or without a reset: its Job may not have been created yet
    assert workshop.labels[dcgm] == "false"


def test_after_a_reboot_the_agent_returns_the_node_and_anyone_verifies_it(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    workshop.node.write_value("nvidia-smi/unknown-error", "")
    boot_id = workshop.node.boot_id
    process = workshop.start(workshop.name, "--reboot")
    eventually(lambda: workshop.record.get("running") == "reboot")
    assert workshop.labels[DEPLOY] == "false"
    kill(process)

    eventually(lambda: is_returned(workshop))
    assert workshop.node.boot_id != boot_id

    code, out = workshop.reset("--reboot")
    assert (code, workshop.record["status"], workshop.is_untouched) == (0, "pass", True), out
    assert asked(workshop).count("systemctl reboot") == 1
