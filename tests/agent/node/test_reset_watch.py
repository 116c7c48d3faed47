"""The agent and a reset: an Event for each step, and the return of the node unless the command or the Job lives."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.agent.node.reporter import MOST_PER_HOUR
from gpu_healthcheck.healthcheck.deep.reset_command import LOCK, ResetCommand, render
from gpu_healthcheck.healthcheck.deep.reset_plan import Step
from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, MODE, RESET_COMMAND, RESET_RESULT, RUN
from gpu_healthcheck.healthcheck.node.state import TAINT as UNHEALTHY
from gpu_healthcheck.healthcheck.text.moments import timestamp
from tests.agent.world import World
from tests.waiting import eventually

DCGM, PLUGIN = "nvidia.com/gpu.deploy.dcgm", "nvidia.com/gpu.deploy.device-plugin"
JOB = "gpu-reset-x"
TAINT = {"key": MAINTENANCE, "value": "reset", "effect": "NoSchedule"}


def command(renewed: str = "0") -> str:
    return render(ResetCommand(JOB, {DCGM: "true"}, renewed))


def begin(world: World, running: str | None = "claim", **record: Any) -> None:
    """Mark the Node as a reset's; an administrator has switched off the device plugin before."""
    until = timestamp(datetime.now(UTC) + timedelta(minutes=30))
    texts = {
        RUN: json.dumps({"kind": "reset", "holder": JOB, "until": until}),
        RESET_RESULT: json.dumps({"holder": JOB, "running": running, **record}),
        RESET_COMMAND: command(),
    }
    labels = {MODE: "reset", DCGM: "false", PLUGIN: "false"}
    world.cluster.edit({"metadata": {"annotations": texts, "labels": labels}, "spec": {"taints": [TAINT]}})


def is_held(world: World) -> bool:
    node = world.node()
    annotations = node.object["metadata"]["annotations"]
    marks = (RUN in annotations, MODE in node.labels, TAINT in node.taints)
    assert len(set(marks)) == 1
    return marks[0] and (RESET_COMMAND in annotations, node.labels[DCGM]) == (True, "false")


def is_returned(world: World) -> bool:
    node = world.node()
    annotations = node.object["metadata"]["annotations"]
    marks = (RUN in annotations, RESET_COMMAND in annotations, MODE in node.labels, TAINT in node.taints)
    return not any(marks) and (node.labels[DCGM], node.labels[PLUGIN]) == ("true", "false")


@pytest.mark.parametrize("running", ["claim", "reset", None])
def test_an_abandoned_reset_is_returned_and_reported(quick: World, running: str | None) -> None:
    begin(quick, running)
    assert is_held(quick)
    eventually(lambda: is_returned(quick))
    message = quick.wait_for_event("GpuResetAbandoned")["message"]
    assert message.startswith(f"step '{running or 'end'}': neither its command nor its Job is left")
    assert message.endswith(f"the GPU operator's pods switched on again: {DCGM}")


def test_gpus_that_the_tainted_node_does_not_offer_again_are_named(quick: World) -> None:
    quick.host.xid(0, 62, "Internal micro-controller halt")
    eventually(lambda: UNHEALTHY in quick.node().taints)
    quick.cluster.edit({"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "0"}}})
    begin(quick)
    message = quick.wait_for_event("GpuResetAbandoned")["message"]
    assert "; pods can request no GPU of 8 nvidia.com/gpu: without a toleration, a device plugin starts" in message


def record(**more: Any) -> str:
    at = timestamp(datetime.now(UTC))
    return json.dumps({"holder": JOB, "started": at, "timestamp": at, **more})


def steps(world: World) -> list[str]:
    return [event["message"] for event in world.events("GpuResetStep")]


def test_step_is_reported_once_by_any_program(quick: World) -> None:
    at = timestamp(datetime.now(UTC))
    rows = [{"step": step, "at": at, "detail": "done"} for step in ("claim", "reset")]
    begin(quick, "reset")
    text = record(running="reset", steps=rows)
    quick.cluster.edit({"metadata": {"annotations": {RESET_RESULT: text}}})
    eventually(lambda: sorted(steps(quick)) == ["claim: done", "reset: done"])
    quick.restart()  # the next agent does not report them again
    texts = {RESET_RESULT: record(started=json.loads(text)["started"], status="pass", steps=rows)}
    quick.cluster.edit({"metadata": {"annotations": {**texts, RESET_COMMAND: None}}})
    assert quick.wait_for_event("GpuResetDone")["message"] == "the GPUs work again"
    assert sorted(steps(quick)) == ["claim: done", "reset: done"]


def test_a_forged_record_makes_few_events(quick: World) -> None:
    now = datetime.now(UTC)
    for number in range(12):
        rows = [{"step": step, "at": timestamp(now - timedelta(seconds=number))} for step in Step]
        quick.cluster.edit({"metadata": {"annotations": {RESET_RESULT: record(running="reset", steps=rows)}}})
        eventually(lambda: len(steps(quick)) >= min(len(Step) * (number + 1), MOST_PER_HOUR))  # noqa: B023
    quick.agent.wait_for_looks(2)
    assert len(steps(quick)) == MOST_PER_HOUR


def test_a_command_that_lives_keeps_its_node(quick: World) -> None:
    begin(quick)
    looks, number = quick.agent.metric("looks_total"), 0
    while quick.agent.metric("looks_total") < looks + 3:  # longer than the silence
        number += 1
        quick.cluster.edit({"metadata": {"annotations": {RESET_COMMAND: command(f"{number}")}}})
    assert is_held(quick)


def test_a_job_that_runs_keeps_its_node(quick: World, tmp_path: Path) -> None:
    lock = node_file.lock(quick.folder / "state" / LOCK)
    assert lock is not None
    begin(quick, "level 2")
    quick.agent.wait_for_looks(3)
    assert is_held(quick)

    node_file.unlock(lock)
    eventually(lambda: is_returned(quick))


def test_after_a_restart_the_agent_still_returns_the_node(quick: World) -> None:
    begin(quick)
    quick.restart()
    eventually(lambda: is_returned(quick))


def test_a_drained_node_waits_for_its_reboot(quick: World) -> None:
    begin(quick, "reboot", boot_id=quick.host.boot_id)
    quick.agent.wait_for_looks(3)
    assert is_held(quick)

    begin(quick, "reboot", boot_id="b0074d00-0000-4000-8000-000000000001")
    eventually(lambda: is_returned(quick))
