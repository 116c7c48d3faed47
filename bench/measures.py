"""All measures by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench import (
    commands,
    cycle,
    detection,
    diagnose,
    fleet,
    gate,
    memory,
    replay,
    reset,
    slow,
    start,
    sweep_plan,
)
from bench.outcome import Outcome
from bench.stage import Stage

MEASURES: Mapping[str, Callable[[Stage], Outcome]] = {
    "detection": detection.measure,
    "cycle": cycle.measure,
    "start": start.measure,
    "gate": gate.measure,
    "commands": commands.measure,
    "replay": replay.measure,
    "memory": memory.measure,
    "fleet": fleet.measure,
    "sweep-plan": sweep_plan.measure,
    "diagnose": diagnose.measure,
    "slow": slow.measure,
    "reset": reset.measure,
}
