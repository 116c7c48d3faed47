"""Number of runs and samples of each measure, and the size of its load: as the aims require, or shortened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Length:
    detections: int = 200
    detections_reconnecting: int = 50
    cycles: int = 100
    starts: int = 20
    commands: int = 10
    replay_megabytes: int = 100
    replays: int = 5
    window_seconds: float = 300.0
    """Idle time of the agents before their memory is read."""
    interval_seconds: int = 300
    """CHECK_INTERVAL of the idle agents; 300 is the default."""
    fleet: int = 1000
    """Agents that fail at once."""
    gates: int = 5
    resets: int = 20
    nodes: int = 5000
    """Nodes of the cluster that a sweep and a diagnosis read."""
    slow_node_hours: int = 300_000
    slow_gpus: int = 20_000
    """Simulated slow GPUs, each for an hour."""
    quick: bool = False

    def met(self, claim: bool) -> bool | None:
        """Whether aims are checked: a shortened run checks none."""
        return None if self.quick else claim


FULL = Length()
QUICK = Length(
    detections=8,
    detections_reconnecting=4,
    cycles=10,
    starts=3,
    commands=2,
    replay_megabytes=10,
    replays=2,
    window_seconds=30.0,
    interval_seconds=20,
    fleet=50,
    gates=1,
    resets=2,
    nodes=100,
    slow_node_hours=3000,
    slow_gpus=500,
    quick=True,
)
