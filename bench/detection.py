"""Time from an Xid 79 in the machine's kernel log to the taint in a raw watch on a real API server."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.node_watch import is_tainted, is_well
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.program import Program
from bench.stage import Stage
from gpu_healthcheck.healthcheck.probes.kernel_log import KernelLog
from gpu_healthcheck.sim.node import SimulatedNode

P50_MS, P99_MS = 20.0, 100.0
_KMSG = Path("/dev/kmsg")
_USER_WARNING = b"<12>"  # facility 1, level 4; the kernel changes a facility 0 of user space to 1
_SETTLED_SECONDS = 3600.0
_REST_SECONDS = (0.3, 0.7)
"""Pause after the agent's reports: it is idle again, and our writes do not coincide with its own."""
_NOTES = (
    "detection: the records stay in this machine's kernel log (dmesg), marked 'gpu-healthcheck bench'",
    "detection: 'over a new connection' is the everyday case: the API server closes one that was idle for 90 s",
    "detection: etcd runs without fsync; the API server, the agent and the watch share this machine's cores",
)


@dataclass(frozen=True)
class Detection:
    """Milliseconds after the record was written. `noticed` is from the agent's log, by the wall clock."""

    seen: float
    noticed: float


def measure(stage: Stage) -> Outcome:
    node = stage.make_node()
    _use_real_log(node)
    warm = [_detect(stage, node, lambda _: None) for _ in range(stage.length.detections)]
    cold = [_detect(stage, node, _reconnected) for _ in range(stage.length.detections_reconnecting)]
    rows = (
        _row(stage, "Xid 79 in /dev/kmsg → taint in a watch", warm, (P50_MS, P99_MS)),
        _row(stage, "the same, over a new connection", cold, None),
    )
    return Outcome(rows, {"connected": _stages(warm), "reconnecting": _stages(cold)}, _NOTES)


def _row(stage: Stage, what: str, detections: list[Detection], aim: tuple[float, float] | None) -> Row:
    """Return the row of the table. `aim`: p50 and p99 in milliseconds."""
    samples = [detection.seen for detection in detections]
    p50, p99 = percentile(samples, 0.50), percentile(samples, 0.99)
    figure = f"p50 {p50:.1f}, p99 {p99:.1f}, max {max(samples):.1f} ms ({len(samples)} times)"
    if aim is None:
        return Row(what, "", figure)
    return Row(
        what, f"p50 ≤ {aim[0]:g}, p99 ≤ {aim[1]:g} ms", figure, stage.length.met(p50 <= aim[0] and p99 <= aim[1])
    )


def _stages(detections: list[Detection]) -> dict[str, Any]:
    """Return the parts of the time: until the agent has read, evaluated and stored the record, and until the write."""
    return {
        "record_to_noticed_ms": summary([detection.noticed for detection in detections]),
        "record_to_watch_ms": summary([detection.seen for detection in detections]),
    }


def _detect(stage: Stage, node: SimulatedNode, prepare: Callable[[Program], None]) -> Detection:
    """Measure one detection. Each uses a new Node and a new agent: a taint is set only once."""
    seat = stage.seat(node)
    seat.remember(_last_record(), time.monotonic() - _SETTLED_SECONDS)
    with stage.watch(seat) as watch, seat.run("-m", "bench.follow_program") as program:
        try:
            watch.wait_for(is_well, "a healthy agent's first verdict")
            time.sleep(random.uniform(*_REST_SECONDS))
            prepare(program)
            began, began_ns = _write_fault(node)
            seen = watch.wait_for(is_tainted, "the taint")
            noticed = program.logged("found") - began
        except CouldNotMeasure as error:
            raise CouldNotMeasure(f"{error}\n{program.tail()}") from error
    stage.leave(seat)
    return Detection((seen.at_ns - began_ns) / 1e6, noticed / timedelta(milliseconds=1))


def _write_fault(node: SimulatedNode) -> tuple[datetime, int]:
    """Write the record, and return the time just before by the wall clock and the monotonic clock."""
    address = node.gpus[0].kernel_address
    text = f"NVRM: Xid (PCI:{address}): 79, gpu-healthcheck bench: invented, no GPU has fallen off the bus"
    with _KMSG.open("wb", buffering=0) as log:
        began, began_ns = datetime.now(UTC), time.monotonic_ns()
        log.write(_USER_WARNING + text.encode() + b"\n")
    return began, began_ns


def _reconnected(program: Program) -> None:
    program.ask("reconnect")
    time.sleep(0.1)


def _use_real_log(node: SimulatedNode) -> None:
    """Replace the simulated device by the machine's own."""
    _check_permission()
    node.kernel_log.close()
    log = node.root / "dev/kmsg"
    log.unlink()
    log.symlink_to(_KMSG)


def _last_record() -> int | None:
    """Return the current end of the ring: an agent that starts there judges nothing of earlier runs."""
    cursor = None
    with KernelLog(_KMSG) as log:
        while (batch := log.read()).more or batch.cursor != cursor:
            cursor = batch.cursor
    return cursor


def _check_permission() -> None:
    if Path("/sys/module/nvidia").exists():
        raise CouldNotMeasure(
            "this machine has an NVIDIA driver: programs that read its kernel log would accept the invented Xids"
        )
    try:
        os.close(os.open(_KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        why = "only root may write to it" if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
        raise CouldNotMeasure(f"needs the real {_KMSG} to read and to write: {why}") from error
