"""kill -9 at every call that the agent makes on its memory file: nothing is lost, nothing counted twice."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from gpu_healthcheck.sim import kill_at
from tests.agent.world import StandIn, World
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_healthcheck.sim.kill_at import When

pytestmark = pytest.mark.cluster

KNOWN = ("memory.json", "memory.new", "lock", "gate.sock", "gate.sock.new")
CALLS = 16
"""Two to lock, two for the socket of `gate --local`, and at least two whole writes of six: open, write, flush, close,
rename, flush of the folder."""
AT_ONCE = 4
"""Agents that are killed beside each other."""


def lived(world: World) -> None:
    """Wait until the Node shows the two faults that were in the kernel's ring when the agent started."""
    world.wait(lambda node: {"Xid79", "Xid95"} <= set(node.findings) and node.tainted)
    eventually(world.cluster.lease)


def begin(folder: Path, name: str) -> World:
    world = World(folder / name, StandIn(name, "p5.48xlarge"))
    world.memory_file.parent.mkdir()
    for _ in range(3):
        world.host.xid(3, 79, "GPU has fallen off the bus.")
    world.host.xid(4, 95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")
    return world


def calls_of_a_start(folder: Path) -> int:
    log = folder / "calls"
    with begin(folder, "counted") as world:
        world.start(**kill_at.environment(world.memory_file.parent, log=log))
        lived(world)
        assert world.agent.terminate() == 0
    return len(kill_at.calls_in(log))


def counts(world: World) -> dict[str, int]:
    return {reason: row["count"] for reason, row in world.node().findings.items()}


def killed_at(folder: Path, call: int, when: When) -> str:
    """Return the fault afterwards, '' without one."""
    log = folder / f"calls-{call}-{when}"
    with begin(folder, f"node-{call}-{when}") as world:
        directory = world.memory_file.parent
        world.start(**kill_at.environment(directory, call=call, when=when, log=log))
        if world.agent.exit_code() != -signal.SIGKILL:
            return f"{call} {when}: it was not killed"
        world.host.xid(5, 62, "0cb5(2d50) 8503d428 ffffff87")  # while no agent runs
        world.host.kernel_log.replay()
        world.start()
        lived(world)
        node = world.wait(lambda node: "Xid62" in node.findings)
        found = counts(world)
        killer = kill_at.calls_in(log)[-1]
        remembered = json.loads(world.memory_file.read_text().splitlines()[1])
        in_the_file = {row["reason"]: row["count"] for row in remembered["findings"]}
        expected = {"Xid79": 3, "Xid95": 1, "Xid62": 1}
        asides = [path.name for path in directory.iterdir() if path.name not in KNOWN]
        if (found, in_the_file, node.tainted, asides) != (expected, expected, True, []):
            return f"{call} {when} ({killer}): {found} on the Node, {in_the_file} in the file, beside it {asides}"
    return ""


def test_nothing_is_lost_and_nothing_doubled(tmp_path: Path) -> None:
    """The agent is killed before each call, and also after the last call.

    After any other call, the folder is in the same state as before the next call.
    """
    assert calls_of_a_start(tmp_path) >= CALLS
    moments: list[tuple[int, When]] = [*((call, "before") for call in range(1, CALLS + 1)), (CALLS, "after")]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        wrong = list(threads.map(lambda moment: killed_at(tmp_path, *moment), moments))

    assert [text for text in wrong if text] == []
