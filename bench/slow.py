"""Comparison of siblings on synthetic fleets: false findings in healthy fleets, and time until a slow GPU is found.

The assumptions are in `busy_node`. The simulation judges with the functions of the check, without NVML and kubelet.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from bench.busy_node import WINDOW_SECONDS, BusyNode, Fault, Work
from bench.outcome import Outcome, Row, percentile
from bench.stage import Stage
from healthcheck.checks.siblings import WINDOWS, is_slow, slower

AIM_MINUTES, AIM_SHARE, SLOWER, LONGEST_MINUTES = 60, 0.99, 0.15, 30
_PER_HOUR = round(3600 / WINDOW_SECONDS)
_HOURS = 100
"""Hours that each healthy node is simulated."""
_STEADY = (Work.TRAINING,)
_AIM_FAULTS = tuple(fault for fault in Fault if fault is not Fault.CHIP)
_NOTES = (
    "slow: synthetic nodes, by a model of power and clocks (bench/busy_node.py has its assumptions); no real GPU",
    "      the functions of the check judge the figures of each window; NVML and the kubelet take no part",
    "      a chip that needs more power for the same clock looks like one that works harder: not part of the aim",
)


@dataclass
class Healthy:
    """Result of healthy nodes."""

    node_hours: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    """Judged windows of a pod, by work."""
    outliers: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)


def measure(stage: Stage) -> Outcome:
    began = time.monotonic()
    nodes = -(-stage.length.slow_node_hours // _HOURS)
    each = -(-stage.length.slow_gpus // len(Fault))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(_healthy, range(nodes), chunksize=4))
        found = {
            fault: list(pool.map(partial(_minutes_until_found, fault, _STEADY), range(each), chunksize=64))
            for fault in Fault
        }
        other = {
            work: list(pool.map(partial(_minutes_until_found, None, (work,)), range(each), chunksize=64))
            for work in Work
        }
    minutes = (time.monotonic() - began) / 60
    healthy = _together(parts)
    judged, findings = sum(healthy.judged.values()), sum(healthy.findings.values())
    aimed = [waited for fault in _AIM_FAULTS for waited in found[fault]]
    share = _share(aimed)
    known = [waited for waited in aimed if waited is not None]
    met = stage.length.met
    rows = (
        Row(
            f"false findings in {healthy.node_hours:,} node-hours, {judged:,} judged windows of a pod",
            "0",
            str(findings),
            met(findings == 0),
        ),
        Row(
            f"{len(aimed):,} GPUs {SLOWER:.0%} slower in steady training: found within {AIM_MINUTES} min",
            f"≥ {AIM_SHARE:.0%}",
            f"{100 * share:.2f} %",
            met(share >= AIM_SHARE),
        ),
        Row("their time until found, median and 99 %", "-", _times(known)),
        Row("duration of the simulation", f"≤ {LONGEST_MINUTES} min", f"{minutes:.1f} min", met(minutes <= 30)),
        *(Row(f"found: {fault}", "-", f"{100 * _share(waited):.1f} %") for fault, waited in found.items()),
        *(Row(f"found: {work}", "-", f"{100 * _share(waited):.1f} %") for work, waited in other.items()),
    )
    raw = {
        "judged_windows": dict(healthy.judged),
        "windows_with_outliers": dict(healthy.outliers),
        "false_findings": dict(healthy.findings),
        "processes": os.cpu_count(),
    }
    return Outcome(rows, raw, _NOTES)


def _healthy(seed: int) -> Healthy:
    """Simulate one healthy node."""
    node, result = BusyNode(random.Random(f"healthy {seed}")), Healthy(_HOURS)
    last: dict[int, deque[bool]] = {}
    active: set[int] = set()
    for _ in range(_HOURS * _PER_HOUR):
        for first, work, figures in node.window():
            if figures is None:
                continue
            result.judged[work] += 1
            for at, deviations in enumerate(slower(figures), start=first):
                windows = last.setdefault(at, deque(maxlen=WINDOWS))
                windows.append(bool(deviations))
                result.outliers[work] += bool(deviations)
                if is_slow(windows) and at not in active:
                    active.add(at)
                    result.findings[work] += 1
                elif is_slow(windows) is False:
                    active.discard(at)
    return result


def _minutes_until_found(fault: Fault | None, works: tuple[Work, ...], seed: int) -> float | None:
    """Return the minutes of work after which a slow GPU is found; None: not within the aim."""
    chance = random.Random(f"slow {fault} {works} {seed}")
    node = BusyNode(chance, chance.choice(works), fault or chance.choice(_AIM_FAULTS), SLOWER)
    windows: deque[bool] = deque(maxlen=WINDOWS)
    for number in range(1, _PER_HOUR + 1):
        figures = node.window()[0][2]
        if figures is not None:
            windows.append(bool(slower(figures)[node.slow]))
        if is_slow(windows):
            return number * WINDOW_SECONDS / 60
    return None


def _together(parts: Iterable[Healthy]) -> Healthy:
    result = Healthy()
    for part in parts:
        result.node_hours += part.node_hours
        result.judged += part.judged
        result.outliers += part.outliers
        result.findings += part.findings
    return result


def _share(waited: list[float | None]) -> float:
    return sum(one is not None for one in waited) / len(waited)


def _times(known: list[float]) -> str:
    return f"{percentile(known, 0.5):.0f} and {percentile(known, 0.99):.0f} min" if known else "-"
