"""Latency of the gate: one request of a pod that is new to the agent, and many requests at once of known pods."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench.accounting import cpu_seconds, rss_mib
from bench.node_watch import status
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import Seat, Stage
from cli.gate import ask
from sim.local_pods import serving_local_pods

REQUESTS, AT_ONCE = 1000, 50
COLD_MS, WARM_P99_MS, MOST_MIB = 500.0, 50.0, 0.5
_PATIENCE_SECONDS = 30.0
_OLD_CYCLE_SECONDS = 10.5
"""Age of a check cycle from which the gate starts another one."""
_POD = "11111111-2222-3333-4444-555555555555"


def measure(stage: Stage) -> Outcome:
    node = stage.make_node()
    cold: list[float] = []
    warm: list[float] = []
    grown: list[float] = []
    cpu: list[float] = []
    with serving_local_pods(node.root, {_POD: node.gpus[3].uuid}):
        for _ in range(stage.length.node_starts):
            seat = stage.seat(node)
            with stage.watch(seat) as watch, seat.run("-m", "agent") as program:
                watch.wait_for(lambda node: status(node) == "pass", "a pass")
                time.sleep(_OLD_CYCLE_SECONDS)
                before, used = rss_mib(program.pid), cpu_seconds(program.pid)
                cold.append(_ask(seat))
                with ThreadPoolExecutor(AT_ONCE) as pods:
                    warm += pods.map(_ask, [seat] * REQUESTS)
                cpu.append(1000 * (cpu_seconds(program.pid) - used) / (REQUESTS + 1))
                grown.append(rss_mib(program.pid) - before)
            stage.leave(seat)
    rows = _rows(stage, cold, warm, grown, cpu)
    return Outcome(rows, {"cold_ms": summary(cold), "warm_ms": summary(warm), "grown_mib": grown, "cpu_ms": cpu})


def _ask(seat: Seat) -> float:
    """Ask over a new connection until the answer is about the pod's own GPUs. Returns milliseconds.

    Raises NoAnswerError.
    """
    began = time.monotonic()
    while ask("127.0.0.1", seat.metrics_port, f"pod={_POD}&tolerates=false", _PATIENCE_SECONDS)["scope"] != "pod":
        if time.monotonic() - began > _PATIENCE_SECONDS:
            raise CouldNotMeasure("the agent does not know the pod")
    return 1000 * (time.monotonic() - began)


def _rows(stage: Stage, cold: list[float], warm: list[float], grown: list[float], cpu: list[float]) -> tuple[Row, ...]:
    met, p99 = stage.length.met, percentile(warm, 0.99)
    return (
        Row(
            "gate, a pod that is not known yet, with a check cycle",
            f"≤ {COLD_MS:g} ms",
            f"at most {max(cold):.0f} ms ({len(cold)} agents)",
            met(max(cold) <= COLD_MS),
        ),
        Row(
            f"gate, {REQUESTS:,} requests, {AT_ONCE} at once",
            f"p99 ≤ {WARM_P99_MS:g} ms",
            f"p50 {percentile(warm, 0.5):.1f}, p99 {p99:.1f} ms",
            met(p99 <= WARM_P99_MS),
        ),
        Row(
            "agent's memory for it, and CPU of a request",
            f"≤ {MOST_MIB:g} MiB",
            f"at most {max(grown):.2f} MiB, {max(cpu):.2f} ms",
            met(max(grown) <= MOST_MIB),
        ),
    )
