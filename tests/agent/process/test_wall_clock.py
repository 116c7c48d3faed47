"""The wall clock is set while the agent runs: cycles, heartbeats and active findings continue."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from gpu_healthcheck.sim.wall_clock import WallClock
from tests.agent.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

HOUR, DAY = 3600, 86400
SCHEDULE = """
import sys, threading, time
from functools import partial
from pathlib import Path
from gpu_healthcheck.agent.process.schedule import Schedule
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings

def say(what, seconds):
    def work():
        print(what, int(time.time()), flush=True)
        return seconds
    return work

state = AgentState("n")
state.configure(Settings(NodeSettings(check_interval_seconds=1)), state.memory)
Schedule(state, Path(sys.argv[1])).start(say("light", None), say("requests", None), say("deep", 0.5))
threading.Event().wait()
"""
"""A schedule of its own process, of which each job tells the wall clock's time."""


@pytest.fixture
def wall_clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "wall-clock")


@pytest.fixture
def path(tmp_path: Path, wall_clock: WallClock) -> Iterator[Path]:
    path = tmp_path / "said"
    with path.open("wb") as out:
        schedule = subprocess.Popen(
            [sys.executable, "-c", SCHEDULE, str(tmp_path)], stdout=out, env={"PATH": "", **wall_clock.environment}
        )
    yield path
    schedule.kill()
    schedule.wait()


def came(path: Path, job: str) -> list[int]:
    """The wall clock's times at which it came."""
    lines = path.read_text().split("\n")[:-1]
    return [int(line.split()[1]) for line in lines if line.startswith(job)]


def came_at(path: Path, job: str, now: float) -> bool:
    return len([at for at in came(path, job) if abs(at - now) < HOUR / 2]) >= 3


@pytest.mark.parametrize("seconds", [-HOUR, HOUR, -DAY, DAY])
def test_every_job_goes_on(path: Path, wall_clock: WallClock, seconds: int) -> None:
    eventually(lambda: all(came(path, job) for job in ("light", "requests", "deep")))
    wall_clock.step(seconds)
    now = time.time() + seconds

    for job in ("light", "requests", "deep"):
        eventually(partial(came_at, path, job, now), path.read_text)


def test_what_stands_and_the_heartbeat_go_on(world: World, wall_clock: WallClock) -> None:
    world.hurry()
    world.start(**wall_clock.environment)
    world.wait_for_status("pass")
    world.host.xid(3, 79, "GPU has fallen off the bus.")
    world.wait_for_taint()
    for seconds in (-HOUR, HOUR, -DAY, DAY):
        wall_clock.step(seconds)
        world.agent.wait_for_looks()
        eventually(lambda: _is_now((world.cluster.lease() or {})["spec"]["renewTime"], wall_clock))
        node = world.wait(lambda node: _is_now(node.record["timestamp"], wall_clock))
        assert (node.status, node.tainted, set(node.findings)) == ("fail", True, {"Xid79"})


def _is_now(stated: str, wall_clock: WallClock) -> bool:
    return abs(datetime.fromisoformat(stated).timestamp() - time.time() - wall_clock.ahead) < HOUR / 2
