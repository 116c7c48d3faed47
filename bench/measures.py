"""All measures, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import (
    agent_race,
    api_calls,
    burst,
    commands,
    cycle,
    detection,
    diagnose,
    fleet,
    flood,
    gate,
    huge_fleet,
    idle_cpu,
    memory,
    memory_day,
    metrics_flood,
    node_pod,
    old_ring,
    replay,
    reset,
    slow,
    start,
    sweep_month,
    sweep_plan,
    sweep_preempt,
    sweep_race,
)
from bench.outcome import Outcome
from bench.stage import Stage


@dataclass(frozen=True)
class Measure:
    """One measure: its name and its function."""

    name: str
    run: Callable[[Stage], Outcome]


MEASURES = (
    Measure("detection", detection.measure),
    Measure("cycle", cycle.measure),
    Measure("start", start.measure),
    Measure("gate", gate.measure),
    Measure("commands", commands.measure),
    Measure("replay", replay.measure),
    Measure("idle-cpu", idle_cpu.measure),
    Measure("memory", memory.measure),
    Measure("api-calls", api_calls.measure),
    Measure("fleet", fleet.measure),
    Measure("sweep-plan", sweep_plan.measure),
    Measure("huge-fleet", huge_fleet.measure),
    Measure("diagnose", diagnose.measure),
    Measure("sweep-month", sweep_month.measure),
    Measure("sweep-race", sweep_race.measure),
    Measure("sweep-preempt", sweep_preempt.measure),
    Measure("slow", slow.measure),
    Measure("reset", reset.measure),
    Measure("agent-race", agent_race.measure),
    Measure("node-pod", node_pod.measure),
    Measure("flood", flood.measure),
    Measure("xid-flood", flood.measure_xids),
    Measure("metrics-flood", metrics_flood.measure),
    Measure("burst", burst.measure),
    Measure("old-ring", old_ring.measure),
    Measure("memory-24h", memory_day.measure),
)
