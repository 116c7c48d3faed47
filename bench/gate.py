"""Latency of the gate: one request of a pod that is new to the agent, and many requests at once of known pods."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench.node_watch import status
from bench.outcome import CouldNotMeasure, Outcome, percentile, summary
from bench.stage import Seat, Stage
from gpu_healthcheck.cli.gate import ask
from gpu_healthcheck.sim.local_pods import serving_local_pods

REQUESTS, AT_ONCE = 1000, 50
COLD_MS, WARM_P99_MS = 500.0, 50.0
_TIMEOUT_SECONDS = 30.0
_OLD_CYCLE_SECONDS = 10.5
"""Age of a check cycle from which the gate starts another one."""
_POD = "11111111-2222-3333-4444-555555555555"


def measure(stage: Stage) -> Outcome:
    node = stage.make_node()
    cold: list[float] = []
    warm: list[float] = []
    with serving_local_pods(node.root, {_POD: node.gpus[3].uuid}):
        for _ in range(stage.length.gates):
            seat = stage.seat(node)
            with stage.watch(seat) as watch, seat.run("-m", "agent"):
                watch.wait_for(lambda node: status(node) == "pass", "a pass")
                time.sleep(_OLD_CYCLE_SECONDS)
                cold.append(_ask(seat))
                with ThreadPoolExecutor(AT_ONCE) as pods:
                    warm += pods.map(_ask, [seat] * REQUESTS)
            stage.leave(seat)
    p99 = percentile(warm, 0.99)
    unknown, figure = "gate, a pod that is not known yet, with a check cycle", f"at most {max(cold):.0f} ms"
    known = f"gate, {REQUESTS:,} requests, {AT_ONCE} at once, p99"
    rows = (
        stage.at_most(unknown, COLD_MS, "ms", max(cold), f"{figure} ({len(cold)} agents)"),
        stage.at_most(known, WARM_P99_MS, "ms", p99, f"p50 {percentile(warm, 0.5):.1f}, p99 {p99:.1f} ms"),
    )
    return Outcome(rows, {"cold_ms": summary(cold), "warm_ms": summary(warm)})


def _ask(seat: Seat) -> float:
    """Ask over a new connection until the answer is about the pod's own GPUs. Returns milliseconds.

    Raises NoAnswerError.
    """
    began = time.monotonic()
    while ask("127.0.0.1", seat.metrics_port, f"pod={_POD}&tolerates=false", _TIMEOUT_SECONDS)["scope"] != "pod":
        if time.monotonic() - began > _TIMEOUT_SECONDS:
            raise CouldNotMeasure("the agent does not know the pod")
    return 1000 * (time.monotonic() - began)
