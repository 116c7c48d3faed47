"""Memory of agent and child after some idle minutes, undisturbed and with the requests of probes and a Prometheus."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bench.accounting import memory_mib
from bench.node_watch import is_well
from bench.outcome import CouldNotMeasure, Outcome, Row
from bench.program import Program
from bench.stage import Seat, Stage
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE

AIM_MIB = 64.0
_REQUESTS = {"/readyz": 15.0, "/healthz": 60.0, "/metrics": 30.0}
"""Seconds between requests of our DaemonSet's probes, and of a Prometheus as configured by its operator."""
_AFTER_CYCLE_SECONDS = 5.0
_HEARTBEATS = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_NOTES = (
    "memory: 'alone' counts each page of the two once, even if others map it. PSS is lower only because the bench",
    "        runs the same Python, so the aim applies to 'alone' (which only root can read)",
)


def measure(stage: Stage) -> Outcome:
    sizes: dict[str, dict[str, float]] = {}
    with ExitStack() as bare_only, ExitStack() as others:
        (bare_seat, bare), (probed_seat, probed) = _agent(stage, bare_only), _agent(stage, others)
        began = time.monotonic()
        with _probing(probed_seat.metrics_port):
            before = [_heartbeat(stage, seat) for seat in (bare_seat, probed_seat)]
            time.sleep(stage.length.window_seconds)
            for seat, heartbeat in zip((bare_seat, probed_seat), before, strict=True):
                _await_cycle(stage, seat, heartbeat)
            time.sleep(_AFTER_CYCLE_SECONDS)
        seconds = time.monotonic() - began
        sizes["probed"] = memory_mib(probed.pid)
        others.close()  # otherwise it shares pages with the measured agent
        sizes["bare"] = memory_mib(bare.pid)
    rows = (
        _row(stage, "memory of agent and child", sizes["bare"]),
        _row(stage, "the same, after probes and scrapes", sizes["probed"]),
    )
    return Outcome(rows, {"mib": sizes, "after_seconds": round(seconds, 1)}, _NOTES)


def _row(stage: Stage, what: str, mib: Mapping[str, float]) -> Row:
    figure = f"PSS {mib['pss']:.1f}, alone {mib['alone']:.1f}, RSS {mib['rss']:.1f} MiB"
    return stage.at_most(what, AIM_MIB, "MiB alone", mib["alone"], figure)


def _agent(stage: Stage, exits: ExitStack) -> tuple[Seat, Program]:
    """Start an agent on a machine and a Node of its own, and wait for its first verdict."""
    seat = stage.seat(stage.make_node(), interval_seconds=stage.length.interval_seconds)
    with stage.watch(seat) as watch:
        program = exits.enter_context(seat.run("-m", "agent"))
        try:
            watch.wait_for(is_well, "a healthy agent's first verdict")
        except CouldNotMeasure as error:
            raise CouldNotMeasure(f"{error}\n{program.tail()}") from error
    return seat, program


def _heartbeat(stage: Stage, seat: Seat) -> str:
    """Return the time of the agent's last heartbeat, which ends a check cycle."""
    return str(stage.plane.request("GET", f"{_HEARTBEATS}/{seat.name}").body["spec"]["renewTime"])


def _await_cycle(stage: Stage, seat: Seat, heartbeat: str) -> None:
    deadline = time.monotonic() + 2 * stage.length.interval_seconds
    while _heartbeat(stage, seat) == heartbeat:
        if time.monotonic() > deadline:
            raise CouldNotMeasure(f"{seat.name} had no scheduled check cycle")
        time.sleep(1)


@contextmanager
def _probing(port: int) -> Iterator[None]:
    """Send requests like a kubelet and a Prometheus, each over a new connection."""
    over = threading.Event()

    def ask(path: str, seconds: float) -> None:
        while not over.wait(seconds):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                answer.read()

    threads = [threading.Thread(target=ask, args=request, daemon=True) for request in _REQUESTS.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(timeout=5)
