"""From an Xid 79 in the machine's own kernel log to the taint, as somebody else's watch on a real API server sees it."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from bench.node_watch import NodeWatch, is_tainted, is_told
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.program import Program
from bench.stage import Seat, Stage
from healthcheck.probes.kernel_log import KernelLog
from sim.node import SimulatedNode

P50_MS, P99_MS = 20.0, 100.0
_KMSG = Path("/dev/kmsg")
_USER_WARNING = b"<12>"  # facility 1, level 4; the kernel makes 1 of a facility 0 that user space writes
_SETTLED_SECONDS = 3600.0
_REST_SECONDS = (0.3, 0.7)
"""After the agent has told everything: it is idle again, and our writes do not fall in step with its own."""
_NOTES = (
    "detection: the records stay in this machine's kernel log (dmesg), marked 'gpu-healthcheck bench'",
    "detection: 'over a new connection' is the everyday case: the API server closes one that was idle for 90 s",
    "detection: etcd runs without fsync; the API server, the agent and the watch share this machine's cores",
)


def measure(stage: Stage) -> Outcome:
    _must_be_allowed()
    node = stage.make_node()
    node.kernel_log.close()
    log = node.root / "dev/kmsg"
    log.unlink()
    log.symlink_to(_KMSG)
    warm = [_once(stage, node, lambda _: None) for _ in range(stage.length.detections)]
    cold = [_once(stage, node, _reconnect) for _ in range(stage.length.detections_reconnecting)]
    return Outcome(
        (_row(stage, "Xid 79 in /dev/kmsg → taint seen by a watch", warm, f"p50 ≤ {P50_MS:g}, p99 ≤ {P99_MS:g} ms"),
         _row(stage, "the same, over a new connection", cold, "")),
        {"milliseconds": summary(warm), "milliseconds_reconnecting": summary(cold)},
        _NOTES,
    )


def _row(stage: Stage, what: str, samples: list[float], aim: str) -> Row:
    p50, p99 = percentile(samples, 0.50), percentile(samples, 0.99)
    figure = f"p50 {p50:.1f}, p99 {p99:.1f}, max {max(samples):.1f} ms ({len(samples)} times)"
    return Row(what, aim, figure, stage.length.met(p50 <= P50_MS and p99 <= P99_MS) if aim else None)


def _once(stage: Stage, node: SimulatedNode, before: Callable[[Program], None]) -> float:
    """A new Node and a new agent each time: a taint comes only once. Returns milliseconds."""
    seat = stage.seat(node)
    seat.remember(_last_record(), time.monotonic() - _SETTLED_SECONDS)
    with stage.watch(seat) as watch, seat.run("-m", "bench.follow_program") as program:
        try:
            watch.wait_for(is_told, "a healthy agent's first verdict")
            time.sleep(random.uniform(*_REST_SECONDS))
            before(program)
            milliseconds = _fault_to_taint(seat, watch)
        except CouldNotMeasure as error:
            raise CouldNotMeasure(f"{error}\n{program.tail()}") from error
    stage.leave(seat)
    return milliseconds


def _fault_to_taint(seat: Seat, watch: NodeWatch) -> float:
    address = seat.node.gpus[0].kernel_address
    text = f"NVRM: Xid (PCI:{address}): 79, gpu-healthcheck bench: invented, no GPU has fallen off the bus"
    with _KMSG.open("wb", buffering=0) as log:
        began_ns = time.monotonic_ns()
        log.write(_USER_WARNING + text.encode() + b"\n")
    return (watch.wait_for(is_tainted, "the taint").at_ns - began_ns) / 1e6


def _reconnect(program: Program) -> None:
    program.ask("reconnect")
    time.sleep(0.1)


def _last_record() -> int | None:
    """Where the ring ends now: an agent that begins there judges nothing of what earlier runs have left."""
    cursor = None
    with KernelLog(_KMSG) as log:
        while (batch := log.read()).more or batch.cursor != cursor:
            cursor = batch.cursor
    return cursor


def _must_be_allowed() -> None:
    if Path("/sys/module/nvidia").exists():
        raise CouldNotMeasure(
            "this machine has an NVIDIA driver: whoever watches its kernel log would believe the invented Xid 79"
        )
    try:
        os.close(os.open(_KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        why = "only root may write it" if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
        raise CouldNotMeasure(f"needs the real {_KMSG} to read and to write: {why}") from error
