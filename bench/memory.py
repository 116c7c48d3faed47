"""Memory of agent and child after some minutes."""

from __future__ import annotations

from bench.outcome import Outcome, Row
from bench.stage import Stage
from bench.window import observe

AIM_MIB = 64.0
_NOTES = (
    "memory: 'alone' counts each page of the two once, even if others map it. PSS is lower only because the bench",
    "        runs the same Python, so the aim applies to 'alone' (which only root can read)",
)


def measure(stage: Stage) -> Outcome:
    window = observe(stage)
    rows = []
    for what, agent in (("memory of agent and child", "bare"), ("the same, after probes and scrapes", "probed")):
        sizes = window.memory[agent]
        figure = f"PSS {sizes['pss']:.1f}, alone {sizes['alone']:.1f}, RSS {sizes['rss']:.1f} MiB"
        met = stage.length.met(sizes["alone"] <= AIM_MIB)
        rows.append(Row(what, f"alone ≤ {AIM_MIB:g} MiB", figure, met))
    return Outcome(tuple(rows), {"mib": window.memory, "after_seconds": round(window.seconds, 1)}, _NOTES)
