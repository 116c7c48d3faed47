"""A reset killed at each write: nothing stays switched off for good, and the next run finishes."""

from __future__ import annotations

import signal

import pytest

from gpu_healthcheck.healthcheck.probes.nvml.pause import LONGEST_SECONDS, is_paused
from tests.quarantine.world import end_of
from tests.repair.world import ResetWorld
from tests.waiting import GIVE_UP_SECONDS

pytestmark = pytest.mark.cluster

NOBODY = ("", "", False)


def persistence(world: ResetWorld) -> str:
    return (world.host.root / "nvml/gpu0/persistence_mode").read_text().strip()


def test_kill_9_at_each_write_leaves_a_node_that_the_next_run_finishes(
    world: ResetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.started("--gpu=0", program="tests.repair.dying", KILL_AT="never") as process:
        number = end_of(process).out.count("WRITE patch nodes")
    assert (number, world.record["status"]) == (9, "pass")

    for kill_at in (*(f"{value} before" for value in range(1, number + 1)), f"{number} after"):
        world.annotate(reset_result=None, run=None)
        with world.started("--gpu=0", program="tests.repair.dying", KILL_AT=kill_at) as process:
            assert process.wait(GIVE_UP_SECONDS) == -signal.SIGKILL
        record = world.record
        assert world.marks[0] in ("", "reset"), kill_at
        assert record.get("status", "unknown") == ("pass" if kill_at == f"{number} after" else "unknown"), kill_at
        assert ("reset_at" in record) <= ("verify" in [row["step"] for row in record.get("steps", [])]), kill_at

        assert world.reset().code == 0, kill_at
        assert (world.record["status"], world.marks, persistence(world)) == ("pass", NOBODY, "1"), kill_at
        assert not is_paused(world.state_dir, world.host.root)
    assert LONGEST_SECONDS <= 300  # a pause that a dead run left ends by itself
