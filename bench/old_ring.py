"""Start with a kernel log full of old, already evaluated Xids of this boot: none may count again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.flood import await_count, metrics, remembered, xids_in
from bench.flood_program import CODES
from bench.node_watch import status
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import Seat, Stage
from sim.kernel_log import KernelRecord
from sim.node import SimulatedNode

RECORDS, AIM_SECONDS = 4_000, 2.0
_AFTERWARDS_SECONDS = 1.5
"""Seconds for reading the log to its end twice: a file is reopened every second."""
_NOTES = (
    "old-ring: a file of raw records instead of /dev/kmsg, read like the device: the ring of 128 KiB that this",
    "          machine may have holds fewer than 4,000 Xids. 'nothing evaluated yet': a start without a memory file",
)


@dataclass(frozen=True)
class _Start:
    seconds: float
    counted: int
    """Number of Xids in the metrics."""
    new_findings: int
    """Findings in the memory file after the start that are new or have another count."""


def measure(stage: Stage) -> Outcome:
    node = stage.make_node()
    _fill(node)
    first, state = _start(stage, node, None)
    again = [_start(stage, node, state)[0] for _ in range(stage.length.starts)]
    seconds = [start.seconds for start in again]
    new, counted = sum(start.new_findings for start in again), sum(start.counted for start in again)
    rows = (
        Row(
            f"start with a ring of {RECORDS:,} evaluated Xids: findings, Xids counted again",
            "0, 0",
            f"{new}, {counted} ({len(again)} starts)",
            stage.length.met((new, counted) == (0, 0)),
        ),
        Row(
            "in it: first verdict on a new Node",
            f"≤ {AIM_SECONDS:g} s",
            f"p50 {percentile(seconds, 0.5):.2f}, max {max(seconds):.2f} s",
            stage.length.met(max(seconds) <= AIM_SECONDS),
        ),
        Row("the same with nothing evaluated yet", "", f"{first.seconds:.2f} s, {first.counted:,} Xids counted"),
    )
    return Outcome(rows, {"seconds": summary(seconds), "nothing_judged": vars(first)}, _NOTES)


def _fill(node: SimulatedNode) -> None:
    node.kernel_log.close()
    log = node.root / "dev/kmsg"
    log.unlink()
    kinds = [(code, gpu.kernel_address) for code in CODES for gpu in node.gpus]
    with log.open("wb") as file:
        for number in range(RECORDS):
            code, address = kinds[number % len(kinds)]
            text = f"NVRM: Xid (PCI:{address}): {code}, pid={number}, name=python3, gpu-healthcheck bench, invented"
            file.write(KernelRecord(4, number, 1_000_000 + number, text.encode()).line)


def _start(stage: Stage, node: SimulatedNode, state: Path | None) -> tuple[_Start, Path]:
    """Start an agent on a fresh Node with the state of an earlier agent, and return its state."""
    seat = stage.seat(node)
    if state is not None:
        shutil.copytree(state, seat.state_dir)
    before = _counts(seat)
    with stage.watch(seat) as watch, seat.run("-m", "agent") as program:
        try:
            sighting = watch.wait_for(lambda node: bool(status(node)), "a first verdict")
        except CouldNotMeasure as error:
            raise CouldNotMeasure(f"{error}\n{program.tail()}") from error
        if status(sighting.node) != "fail":
            raise CouldNotMeasure(f"the first verdict was {status(sighting.node)!r}\n{program.tail()}")
        seconds = (sighting.at_ns - program.started_ns) / 1e9
        if state is None:
            await_count(seat, RECORDS)
        time.sleep(_AFTERWARDS_SECONDS)
        counted = sum(xids_in(metrics(seat)).values())
    after = _counts(seat)
    new = sum(before.get(key) != count for key, count in after.items())
    return _Start(seconds, counted, new), seat.state_dir


def _counts(seat: Seat) -> Mapping[str, int]:
    return remembered(seat) if seat.state_dir.exists() else {}
