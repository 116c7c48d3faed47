"""What one light cycle costs: processor time of the agent and of the child that asks NVML."""

from __future__ import annotations

import json
import statistics
import time

from bench.accounting import cpu_seconds
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.program import Program
from bench.stage import Stage

AIM_MS = 30.0
_REST_SECONDS = 0.05
_NOTES = (
    "cycle: settings, NVML through the child, PCI, EFA, judging and the memory file with its fsync; no telling",
    "cycle: run back to back, with warm caches; a scheduled one after idle minutes costs more: see the steady CPU",
)


def measure(stage: Stage) -> Outcome:
    seat = stage.seat(stage.make_node(), in_cluster=False)
    seat.remember(None, time.monotonic() - 3600)
    with seat.run("-m", "bench.cycle_program") as program:
        first = _cycle_ms(program)
        samples = [_cycle_ms(program) for _ in range(stage.length.cycles)]
    mean = statistics.fmean(samples)
    figure = f"mean {mean:.1f}, p99 {percentile(samples, 0.99):.1f} ms ({len(samples)} times)"
    row = Row(
        "CPU of a light cycle, 8 GPUs and 32 EFA devices", f"≤ {AIM_MS:g} ms", figure, stage.length.met(mean <= AIM_MS)
    )
    return Outcome((row,), {"cpu_milliseconds": summary(samples), "first_cycle_ms": round(first, 3)}, _NOTES)


def _cycle_ms(program: Program) -> float:
    """Includes the pipe that asks for it and the answer; and the start of the child in the first one."""
    before = cpu_seconds(program.pid)
    saw = json.loads(program.ask("cycle"))
    milliseconds = (cpu_seconds(program.pid) - before) * 1000
    # The kernel log is followed, not looked at: nobody follows it here.
    if saw["standing"] or saw["again"] is not None or set(saw["unobserved"]) - {"0-nvidia-smi"}:
        raise CouldNotMeasure(f"the cycle did not see a healthy node: {saw}\n{program.tail()}")
    time.sleep(_REST_SECONDS)
    return milliseconds
