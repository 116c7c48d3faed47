"""`gpu-healthcheck reset --reboot` on a real control plane: drain, reboot of the simulated host, and its return."""

from __future__ import annotations

import pytest

from tests.cli.reset_world import Workshop
from tests.cli.test_reset import asked
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

REBOOT = "systemctl reboot"


def steps(workshop: Workshop) -> list[str]:
    return [row["step"] for row in workshop.record.get("steps", [])]


def break_node(workshop: Workshop) -> None:
    """Let the driver log Xid 79 on a GPU, which only a reboot ends."""
    workshop.node.xid(2, 79, "GPU has fallen off the bus.")
    eventually(lambda: workshop.is_tainted("unhealthy"))


def test_a_reset_that_fails_is_followed_by_a_reboot_that_ends_the_finding(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-5", gpu=5)
    workshop.break_gpu(2)
    workshop.node.write_value("nvidia-smi/unknown-error", "")
    boot_id = workshop.node.boot_id

    code, out = workshop.reset("--reboot")

    assert code == 0, out
    assert "with a reboot" in out
    assert workshop.node.boot_id != boot_id
    assert (workshop.pods(), workshop.allocatable, workshop.findings) == (set(), 8, [])
    assert (workshop.is_tainted("unhealthy"), workshop.is_untouched) == (False, True)
    record = workshop.record
    assert (record["status"], record["boot_id"], len(record["gpus"])) == ("pass", workshop.node.boot_id, 8)
    assert steps(workshop) == [
        *("claim", "plan", "free the GPUs", "reset", "drain the node", "reboot", "verify", "level 2")
    ]
    assert asked(workshop).count(REBOOT) == 1
    events = [event for event in workshop.events if event.startswith("GpuResetStep")]
    assert len(events) == 8
    assert any("reset: failed: nvidia-smi --gpu-reset: failed" in event for event in events)


def test_a_finding_that_no_reset_ends_is_a_target_with_reboot_only(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    break_node(workshop)

    code, out = workshop.reset()
    assert code == 2
    assert "no reset of a GPU ends Xid79 on gpu/" in out
    assert "but a reboot does: add --reboot" in out

    code, out = workshop.reset("--reboot")

    assert (code, workshop.findings, workshop.is_tainted("unhealthy")) == (0, [], False), out
    assert [line for line in asked(workshop) if "gpu-reset" in line] == []
    assert steps(workshop) == ["claim", "drain the node", "reboot", "verify", "level 2"]
