"""Cost of one check cycle: processor time of the agent and of the child that reads NVML."""

from __future__ import annotations

import json
import statistics
import time

from bench.accounting import cpu_seconds
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.program import Program
from bench.stage import Stage

AIM_MS, WALL_AIM_MS, JUDGE_AIM_MS = 30.0, 250.0, 5.0
_REST_SECONDS = 0.05
_NOTES = (
    "cycle: settings, NVML through the child, PCI, EFA, evaluation and the memory file with its fsync; no reports",
    "cycle: run back to back, with warm caches; a scheduled one after idle minutes costs more: see the steady CPU",
)
_OF_THE_KERNEL_LOG = {"0-nvidia-smi", "9-roce"}
"""Groups with checks of the kernel log, which this bench does not follow."""


def measure(stage: Stage) -> Outcome:
    seat = stage.seat(stage.make_node(), in_cluster=False)
    seat.remember(None, time.monotonic() - 3600)
    with seat.run("-m", "bench.cycle_program") as program:
        first, _ = _cycle_ms(program, is_first=True)
        cycles = [_cycle_ms(program) for _ in range(stage.length.cycles)]
        judged = [_judge_ms(program) for _ in range(stage.length.cycles)]
    cpu, wall = [seconds for seconds, _ in cycles], [seconds for _, seconds in cycles]
    rows = (
        _row(stage, "CPU of a light cycle, all groups, 8 GPUs and 32 EFA devices", AIM_MS, cpu),
        _row(stage, "wall time of the same", WALL_AIM_MS, wall),
        _row(stage, "CPU of evaluating the readings of one cycle", JUDGE_AIM_MS, judged),
    )
    raw = {"cpu_milliseconds": summary(cpu), "wall_milliseconds": summary(wall), "judge_milliseconds": summary(judged)}
    return Outcome(rows, {**raw, "first_cycle_ms": round(first, 3)}, _NOTES)


def _row(stage: Stage, what: str, aim: float, samples: list[float]) -> Row:
    mean = statistics.fmean(samples)
    figure = f"mean {mean:.3g}, p99 {percentile(samples, 0.99):.3g} ms ({len(samples)} times)"
    return stage.at_most(what, aim, "ms", mean, figure)


def _cycle_ms(program: Program, *, is_first: bool = False) -> tuple[float, float]:
    """Return processor and wall time of a cycle; the first cycle includes the start of the child.

    After the first cycle the agent may repeat soon, because the container runtime has not answered yet.
    """
    before = cpu_seconds(program.pid)
    saw = json.loads(program.ask("cycle"))
    milliseconds = (cpu_seconds(program.pid) - before) * 1000
    # The thread that follows the kernel log does not run here.
    repeats = saw["again"] is not None and not is_first
    if saw["active"] or repeats or set(saw["unobserved"]) - _OF_THE_KERNEL_LOG:
        raise CouldNotMeasure(f"the cycle did not report a healthy node: {saw}\n{program.tail()}")
    time.sleep(_REST_SECONDS)
    return milliseconds, saw["wall_ms"]


def _judge_ms(program: Program) -> float:
    saw = json.loads(program.ask("judge"))
    if saw["unobserved"]:
        raise CouldNotMeasure(f"checks that could not run: {saw['unobserved']}\n{program.tail()}")
    return float(saw["ms"])
