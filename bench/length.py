"""Duration of the measures: as the aims require, shortened for a smoke test, or a whole hour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Length:
    """Number of runs and samples of each measure, and the size of its load."""

    detections: int = 200
    detections_reconnecting: int = 50
    detections_flooded: int = 20
    cycles: int = 100
    starts: int = 20
    commands: int = 10
    replay_megabytes: int = 100
    replays: int = 5
    window_seconds: float = 300.0
    interval_seconds: int = 300
    """CHECK_INTERVAL of the idle agent; 300 is the default."""
    fleet: int = 1000
    """Agents that fail at once."""
    node_starts: int = 5
    flood_seconds: float = 60.0
    burst_seconds: float = 3.0
    memory_hours: int = 24
    sweep_nodes: int = 5000
    huge_nodes: int = 50_000
    races: int = 200
    preemptions: int = 20
    sweep_month_nodes: int = 1000
    sweep_month_days: int = 30
    slow_node_hours: int = 300_000
    slow_gpus: int = 20_000
    """Simulated slow GPUs, each for an hour."""
    quick: bool = False
    hour: bool = False

    def met(self, claim: bool) -> bool | None:
        """Whether aims are checked: a shortened run checks none."""
        return None if self.quick else claim


FULL = Length()
HOUR = Length(window_seconds=3600.0, hour=True)
QUICK = Length(
    detections=8,
    detections_reconnecting=4,
    detections_flooded=3,
    cycles=10,
    starts=3,
    commands=2,
    replay_megabytes=10,
    replays=2,
    window_seconds=30.0,
    interval_seconds=20,
    fleet=50,
    node_starts=1,
    flood_seconds=5.0,
    burst_seconds=0.5,
    memory_hours=2,
    sweep_nodes=100,
    huge_nodes=1000,
    races=20,
    preemptions=2,
    sweep_month_nodes=100,
    sweep_month_days=3,
    slow_node_hours=3000,
    slow_gpus=500,
    quick=True,
)
