"""Comparison of siblings on synthetic fleets: false findings in healthy fleets, and time until a slow GPU is found.

The assumptions are in `busy_node`. The simulation judges with the functions of the check, without NVML and kubelet.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from bench.busy_node import WINDOW_SECONDS, BusyNode, Fault, Work
from bench.outcome import Outcome, Row, percentile
from bench.stage import Stage
from gpu_healthcheck.healthcheck.checks.siblings import WINDOWS, is_slow, slower

AIM_MINUTES, AIM_SHARE, SLOWER, LONGEST_MINUTES = 60, 0.99, 0.15, 30
_PER_HOUR = round(3600 / WINDOW_SECONDS)
_HOURS = 100
"""Hours that each healthy node is simulated."""
_AIM_FAULTS = tuple(fault for fault in Fault if fault is not Fault.CHIP)
_NOTES = (
    "slow: synthetic nodes, by a model of power and clocks (bench/busy_node.py has its assumptions); no real GPU",
    "      the functions of the check judge the figures of each window; NVML and the kubelet take no part",
    "      a chip that needs more power for the same clock looks like one that works harder: not part of the aim",
)


def measure(stage: Stage) -> Outcome:
    began = time.monotonic()
    nodes = -(-stage.length.slow_node_hours // _HOURS)
    each = -(-stage.length.slow_gpus // len(Fault))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(_healthy, range(nodes), chunksize=4))
        found = {
            fault: list(pool.map(partial(_minutes_until_found, fault), range(each), chunksize=64)) for fault in Fault
        }
    minutes = (time.monotonic() - began) / 60
    judged, findings = (sum(numbers) for numbers in zip(*parts, strict=True))
    aimed = [waited for fault in _AIM_FAULTS for waited in found[fault]]
    share = _share(aimed)
    known = [waited for waited in aimed if waited is not None]
    met = stage.length.met
    rows = (
        stage.at_most(f"false findings in {nodes * _HOURS:,} node-hours, {judged:,} judged windows", 0, "", findings),
        Row(
            f"{len(aimed):,} GPUs {SLOWER:.0%} slower in steady training: found within {AIM_MINUTES} min",
            f"≥ {AIM_SHARE:.0%}",
            f"{100 * share:.2f} %",
            met(share >= AIM_SHARE),
        ),
        Row("their time until found, median and 99 %", "-", _times(known)),
        stage.at_most("duration of the simulation", LONGEST_MINUTES, "min", minutes),
        *(Row(f"found: {fault}", "-", f"{100 * _share(waited):.1f} %") for fault, waited in found.items()),
    )
    raw = {"judged_windows": judged, "false_findings": findings, "processes": os.cpu_count()}
    return Outcome(rows, raw, _NOTES)


def _healthy(seed: int) -> tuple[int, int]:
    """Simulate one healthy node. Returns the judged windows and the findings."""
    node, judged, findings = BusyNode(random.Random(f"healthy {seed}")), 0, 0
    last: dict[int, deque[bool]] = {}
    active: set[int] = set()
    for _ in range(_HOURS * _PER_HOUR):
        for first, figures in node.window():
            if figures is None:
                continue
            judged += 1
            for at, deviations in enumerate(slower(figures), start=first):
                windows = last.setdefault(at, deque(maxlen=WINDOWS))
                windows.append(bool(deviations))
                if is_slow(windows) and at not in active:
                    active.add(at)
                    findings += 1
                elif is_slow(windows) is False:
                    active.discard(at)
    return judged, findings


def _minutes_until_found(fault: Fault, seed: int) -> float | None:
    """Return the minutes of work after which a slow GPU is found; None: not within the aim."""
    node = BusyNode(random.Random(f"slow {fault} {seed}"), Work.TRAINING, fault, SLOWER)
    windows: deque[bool] = deque(maxlen=WINDOWS)
    for number in range(1, _PER_HOUR + 1):
        figures = node.window()[0][1]
        if figures is not None:
            windows.append(bool(slower(figures)[node.slow]))
        if is_slow(windows):
            return number * WINDOW_SECONDS / 60
    return None


def _share(waited: list[float | None]) -> float:
    return sum(one is not None for one in waited) / len(waited)


def _times(known: list[float]) -> str:
    return f"{percentile(known, 0.5):.0f} and {percentile(known, 0.99):.0f} min" if known else "-"
