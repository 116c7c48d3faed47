"""Cost of an idle agent: processor time over some minutes, including one scheduled cycle."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from bench.outcome import Outcome, Row
from bench.stage import Stage
from bench.window import PROBES, Moment, Window, observe

AIM_MILLICORES = 1.0
_NOTES = (
    "idle-cpu: begins 10 s after the first verdict; the interval and all else is the default of our ConfigMap",
    "idle-cpu: probed = " + ", ".join(f"{path} every {seconds:g} s" for path, seconds in PROBES.items()),
)


def measure(stage: Stage) -> Outcome:
    window = observe(stage)
    rows = tuple(
        _row(stage, window, what, agent)
        for what, agent in (("steady CPU of agent and child", "bare"), ("the same, with probes and scrapes", "probed"))
    )
    raw = {
        "seconds": round(window.seconds, 3),
        "cycles": {agent: window.cycles(agent) for agent in ("bare", "probed")},
        "interval_seconds": stage.length.interval_seconds,
        "millicores": {agent: round(_millicores(window, agent), 4) for agent in ("bare", "probed")},
        "timeline": [_step(before, after) for before, after in pairwise([Moment(0, {}, {}), *window.timeline])],
    }
    return Outcome(rows, raw, _NOTES)


def _row(stage: Stage, window: Window, what: str, agent: str) -> Row:
    millicores = _millicores(window, agent)
    figure = f"{millicores:.2f} millicores ({window.seconds:.0f} s, scheduled cycles: {window.cycles(agent)})"
    return Row(what, f"≤ {AIM_MILLICORES:g} millicore", figure, stage.length.met(millicores <= AIM_MILLICORES))


def _millicores(window: Window, agent: str) -> float:
    return window.cpu[agent] / window.seconds * 1000


def _step(before: Moment, after: Moment) -> dict[str, Any]:
    """Return milliseconds of processor time between two samples."""
    used = {
        f"{agent}_ms": round((after.cpu[agent] - before.cpu.get(agent, 0)) * 1000, 3) for agent in ("bare", "probed")
    }
    return {"until_seconds": round(after.seconds, 2), **used, "bare_connections": after.connections}
