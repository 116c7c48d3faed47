"""`gpu-healthcheck reset-run --reboot`: drain, request to systemd, and verification in the next boot."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.probes.nvml.pause import is_paused
from tests.quarantine.world import NODE, Ended, end_of
from tests.repair.world import JOB, ResetWorld
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

REBOOT, OTHER = "systemctl reboot", "b0074d00-0000-4000-8000-000000000001"


def steps(world: ResetWorld) -> list[str]:
    return [row["step"] for row in world.record.get("steps", [])]


def drain(world: ResetWorld) -> None:
    """Record the drain, as the command does."""
    row = {"step": "drain the node", "at": "2026-11-21T01:02:03Z", "detail": "2 pods evicted"}
    record = world.record
    world.annotate(reset_result=json.dumps({**record, "steps": [*record.get("steps", []), row]}))


def requested(world: ResetWorld) -> bool:
    return (world.host.root / "systemd/reboot").exists()


def rebooted(world: ResetWorld, *words: str, program: str = "repair", **variables: str) -> Ended:
    """Run until the node is drained and systemd is asked, and end the program as the shutdown does."""
    with world.started(f"--reboot={world.host.boot_id}", *words, program=program, **variables) as process:
        eventually(lambda: world.record.get("running") == "drain the node" or process.poll() is not None)
        if process.poll() is None:
            drain(world)
            eventually(lambda: requested(world) or process.poll() is not None)
            process.send_signal(signal.SIGTERM)
        return end_of(process)


def test_without_gpus_the_drained_node_is_rebooted_at_once(world: ResetWorld) -> None:
    ended = rebooted(world)

    record = world.record
    assert (ended.code, requested(world), world.asked) == (0, True, [REBOOT])
    assert (record["running"], record["status"], record["boot_id"]) == ("reboot", "unknown", world.host.boot_id)
    assert (steps(world), len(record["gpus"])) == (["drain the node"], 8)
    assert world.marks == ("reset", "reset", True)
    assert is_paused(world.state_dir, world.host.root)  # no verdict of the shutdown


def test_a_reset_that_fails_is_followed_by_the_reboot_and_keeps_its_report(world: ResetWorld) -> None:
    world.host.write_value("nvidia-smi/not-supported", "")

    ended = rebooted(world, f"--gpu={world.host.gpus[2].uuid}")

    assert (ended.code, requested(world)) == (0, True)
    assert steps(world) == ["plan", "free the GPUs", "reset", "drain the node"]
    assert "failed: nvidia-smi --gpu-reset: not supported" in world.record["steps"][2]["detail"]


def test_a_reset_that_succeeds_reboots_nothing(world: ResetWorld) -> None:
    ended = world.reset(f"--reboot={world.host.boot_id}")
    assert (ended.code, world.record["status"], REBOOT in world.asked) == (0, "pass", False)


def test_the_next_boot_verifies_all_gpus(world: ResetWorld) -> None:
    before = world.host.boot_id
    world.host.write_value("nvidia-smi/unknown-error", "")
    rebooted(world, f"--gpu={world.host.gpus[2].address}")
    world.host.reboot()
    (world.host.root / "systemd/reboot").unlink()

    # A kubelet that has lost its containers starts the same pod again.
    ended = world.reset(f"--reboot={before}", gpu=2)

    record = world.record
    assert (ended.code, record["status"], record["boot_id"]) == (0, "pass", world.host.boot_id)
    assert ("running" in record, "reset_at" in record, len(record["gpus"])) == (False, False, 8)
    assert steps(world)[-5:] == ["drain the node", "reboot", "verify", "level 2", "load"]
    assert not requested(world)


def test_another_boot_is_never_ended(world: ResetWorld) -> None:
    ended = world.run(f"--reboot={OTHER}", program="repair")
    assert (ended.code, steps(world)[0], world.asked) == (0, "reboot", [])


@pytest.mark.parametrize("words", [[], ["--reboot=now"], ["--reboot="], ["--gpu=0", "--reboot=$(reboot)"]])
def test_other_words_are_refused(world: ResetWorld, words: list[str]) -> None:
    assert (world.run(*words, program="repair").code, world.record, world.asked) == (3, {}, [])


def refused(world: ResetWorld) -> None:
    world.host.write_value("systemd/refused", "Access denied")


def ignored(world: ResetWorld) -> None:
    world.host.write_value("systemd/ignored", "")


def hanging(world: ResetWorld) -> None:
    world.host.write_value("systemd/hangs", "")


def gone(world: ResetWorld) -> None:
    """Let the program begin a host's root without the interpreter of systemctl, as after a broken upgrade."""
    (world.host.root / "usr/bin/systemctl").write_text("#!/no/such/interpreter\n")


def taken_for_a_chroot(world: ResetWorld) -> None:
    """Let systemctl refuse to talk to systemd, with exit code 0."""
    systemctl = world.host.root / "usr/bin/systemctl"
    systemctl.write_text("#!/bin/sh\necho \"Running in chroot, ignoring command '$1'\" >&2\n")


NO_ANSWER = (
    "systemd has not accepted the reboot: systemctl: no end within 2 s; its process was ended: set REPAIR_CONDITIONS="
)


@pytest.mark.parametrize(
    ("set_up", "reason"),
    [
        (refused, "systemd has not accepted the reboot: Access denied: set REPAIR_CONDITIONS=GpuRebootRequired"),
        (ignored, "the host has not shut down within 2 s"),
        (hanging, NO_ANSWER),
        (gone, "systemd has not accepted the reboot: "),
        (taken_for_a_chroot, "systemd has not accepted the reboot: Running in chroot, ignoring command 'reboot'"),
    ],
)
def test_a_reboot_that_does_not_happen_is_a_failure(
    world: ResetWorld, set_up: Callable[[ResetWorld], None], reason: str
) -> None:
    set_up(world)
    with world.started(f"--reboot={world.host.boot_id}", program="tests.repair.impatient") as process:
        eventually(lambda: world.record.get("running") == "drain the node")
        drain(world)
        ended = end_of(process)
    record = world.record
    assert (ended.code, record["status"], "running" in record) == (1, "fail", False)
    assert f"step 'reboot': {reason}" in record["reasons"][0]
    assert not is_paused(world.state_dir, world.host.root)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("run/systemd/system", "the host does not run systemd, so this command can't reboot it: set REPAIR_CONDITIONS"),
        ("usr/bin/systemctl", "the host has no systemctl in "),
    ],
)
def test_a_host_that_can_not_be_asked_is_not_drained(world: ResetWorld, missing: str, reason: str) -> None:
    (world.host.root / missing).rename(world.host.root / "elsewhere")
    ended = world.run(f"--reboot={world.host.boot_id}", program="repair")
    assert (ended.code, world.record["status"], steps(world)) == (2, "unknown", [])
    assert reason in world.record["reasons"][0]


def test_a_stop_while_the_node_is_drained_reboots_nothing(world: ResetWorld) -> None:
    with world.started(f"--reboot={world.host.boot_id}", program="repair") as process:
        eventually(lambda: world.record.get("running") == "drain the node")
        process.send_signal(signal.SIGTERM)
        assert end_of(process).code == 2
    assert (world.record["status"], world.asked) == ("unknown", [])
    assert "stopped before the reboot" in world.record["reasons"][0]


def test_with_the_agents_condition_systemd_is_not_asked(world: ResetWorld) -> None:
    condition: dict[str, Any] = {"type": "GpuRebootRequired", "status": "False", "message": "gpu-healthcheck: no"}
    world.stand_in.edit_node(NODE, {"status": {"conditions": [condition]}})
    (world.host.root / "run/systemd/system").rmdir()

    ended = rebooted(world)

    assert (ended.code, world.record["running"], world.asked) == (0, "reboot", [])


def test_kill_9_at_each_write_ends_in_one_reboot_that_the_next_boot_verifies(world: ResetWorld) -> None:
    number = rebooted(world, program="tests.repair.dying", KILL_AT="never").out.count("WRITE patch nodes")
    assert (number, world.asked) == (4, [REBOOT])

    for kill_at in (*(f"{value} before" for value in range(1, number + 1)), f"{number} after"):
        world.annotate(reset_result=None, run=None)
        (world.host.root / "nvidia-smi/asked").unlink(missing_ok=True)
        (world.host.root / "systemd/reboot").unlink(missing_ok=True)
        before = world.host.boot_id
        assert rebooted(world, program="tests.repair.dying", KILL_AT=kill_at).code == -signal.SIGKILL, kill_at
        assert world.asked == [], kill_at

        world.annotate(reset_result=None)  # a new run of the command begins a new record
        assert (rebooted(world).code, world.asked) == (0, [REBOOT]), kill_at
        world.host.reboot()
        assert world.run(f"--reboot={before}", program="repair").code == 0, kill_at
        assert (world.record["status"], world.record["holder"]) == ("pass", JOB), kill_at
