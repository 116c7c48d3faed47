"""A reset whose command is killed, with a real control plane, agent and Job: the node comes back without a person."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from gpu_healthcheck.sim.device_plugin import DEPLOY
from tests.cli.reset_world import JOBS, Workshop
from tests.cli.test_reset import WITHOUT_TOLERATION, asked
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
def test_abandoned_after_the_reset_is_finished_by_the_job(
    workshop: Workshop, reached: Callable[[Workshop], bool]
) -> None:
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
    eventually(lambda: workshop.reported == [*workshop.steps, "GpuResetDone"])
    eventually(workshop.has_ended_job)  # until then, another run would follow it
    assert workshop.reset()[0] == 2  # nothing is left to do


def test_abandoned_before_the_reset_is_undone_by_the_job(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-2", gpu=2, labels={"app": "train"})
    workshop.add_budget("train")
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    eventually(lambda: workshop.record.get("pods"))
    plugin = workshop.plugin_pod()
    kill(process)

    eventually(lambda: workshop.is_untouched)

    (why,) = workshop.record["reasons"]
    assert "the command has given no sign of life" in why
    assert "default/train-2" in why
    assert (workshop.record["status"], workshop.findings, workshop.pods()) == ("unknown", ["Xid62"], {"train-2"})
    assert (workshop.plugin_pod(), workshop.allocatable, has_reset(workshop)) == (plugin, 7, False)
    eventually(lambda: workshop.reported == [*workshop.steps, "GpuResetFailed"])


def test_abandoned_with_operands_off_names_the_gpus_that_are_left(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_exporter(gpu=2)
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    eventually(lambda: workshop.labels[DEPLOY] == "false" and workshop.allocatable == 0)
    kill(process)

    eventually(lambda: workshop.is_untouched)

    why, left = workshop.record["reasons"]
    assert "step 'operands': the command has given no sign of life" in why
    assert f"pods can request no GPU of 8 nvidia.com/gpu: {WITHOUT_TOLERATION}" in left
    eventually(lambda: any(left in event for event in workshop.events if event.startswith("GpuResetFailed")))


def test_abandoned_before_its_job_is_undone_by_the_agent(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    process = workshop.start(workshop.name, KILL_AT="1 after")
    assert process.wait(GIVE_UP_SECONDS) == -signal.SIGKILL
    assert (workshop.labels[DEPLOY], workshop.has_job()) == ("true", False)

    eventually(lambda: workshop.is_untouched)

    event = eventually(lambda: [event for event in workshop.events if event.startswith("GpuResetAbandoned")])
    assert event == ["GpuResetAbandoned step 'claim': neither its command nor its Job is left; its claim is released"]
    assert workshop.reset()[0] == 0


def test_living_command_keeps_the_node(workshop: Workshop) -> None:
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
    assert (workshop.labels[DEPLOY], workshop.record["running"]) == ("true", "free the GPUs")
    code, out = workshop.interrupt(process)
    assert (code, workshop.is_untouched) == (130, True), out


def test_abandoned_without_its_job_is_undone_after_an_agents_restart(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_exporter(gpu=2)
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    eventually(lambda: workshop.labels[DEPLOY] == "false" and workshop.allocatable == 0)
    workshop.kubelets.kill_on(workshop.name, "reset-run")
    kill(process)
    workshop.kubelets.kill_on(workshop.name, "agent")

    eventually(lambda: workshop.is_untouched)

    event = eventually(lambda: [event for event in workshop.events if event.startswith("GpuResetAbandoned")])
    left = f"pods can request no GPU of 8 nvidia.com/gpu: {WITHOUT_TOLERATION}"
    assert f"the GPU operator's pods switched on again: {DEPLOY}; {left}" in event[0]
    assert (workshop.record["running"], workshop.pods()) == ("operands", {"exporter"})
    assert workshop.plane.request("GET", JOBS).status == 200


def test_abandoned_keeps_a_label_that_an_administrator_switched_off(workshop: Workshop) -> None:
    dcgm = "nvidia.com/gpu.deploy.dcgm"
    workshop.patch({"metadata": {"labels": {dcgm: "false"}}})
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    process = workshop.start(workshop.name)
    eventually(lambda: workshop.record.get("running"))
    kill(process)

    eventually(lambda: workshop.is_untouched)  # with or without a reset: its Job may not have been created yet
    assert workshop.labels[dcgm] == "false"


def test_abandoned_after_a_reboot_is_returned_by_the_agent(workshop: Workshop) -> None:
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
