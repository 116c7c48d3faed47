"""Bursts that nearly fill the ring, with a bare reader in parallel to the agent; and a burst that overruns it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.flood import (
    Flood,
    await_count,
    following,
    metrics,
    pour,
    remembered,
    start_command,
    write,
    writer,
    xids_in,
)
from bench.kmsg import RATE_LIMIT_NOTE, last_record, ring, use_real_log, without_rate_limit
from bench.outcome import Outcome, Row, percentile
from bench.program import Program
from bench.stage import Stage

RATES, XIDS = (30_000, 100_000), 100
_OVERRUN_RATE, _OVERRUN_SECONDS, _OVERRUN_XIDS = 50_000, 0.5, 500
_EVENT_SECONDS = 10.0
_LOST = "gpu_healthcheck_kernel_log_lost_records_total"
_NOTES = (
    *RATE_LIMIT_NOTE,
    "burst: the bare reader is a loop of read(2) in Python, at the same time on the same cores: what it lost, the ring",
    "       had no room for. The ring of a kernel with 128 KiB of log holds some 1,500 lines: 15 ms of 100,000/s",
    "burst: the overrun is caused by SIGSTOP while the ring is overwritten more than once",
)


@dataclass(frozen=True)
class _Overrun:
    """`gone` and `left`: records that were overwritten when the agent continued, and Xids still in the ring."""

    gone: int
    left: int
    reported: int
    counted: int
    remembered: int
    event: str

    @property
    def exact(self) -> bool:
        return self.reported == self.gone and f"{self.gone} kernel log records" in self.event

    @property
    def went_on(self) -> bool:
        return self.left == self.counted == self.remembered


def measure(stage: Stage) -> Outcome:
    rows: list[Row] = []
    raw: dict[str, Any] = {}
    for rate in RATES:
        flood, bare = _burst(stage, rate)
        rows.append(_row(stage, rate, flood, bare))
        raw[f"{rate}/s"] = {"agent": flood.raw(), "bare_reader": bare}
    overrun = _overrun(stage)
    rows += [
        Row(
            "a real overrun: records reported as lost",
            "exact, with an Event",
            f"{overrun.reported:,} of {overrun.gone:,}, Event: {'yes' if overrun.event else 'no'}",
            stage.length.met(overrun.exact),
        ),
        Row(
            "after it: Xids still in the ring that it counted",
            "all, once",
            f"{overrun.counted} of {overrun.left}",
            stage.length.met(overrun.went_on),
        ),
    ]
    return Outcome(tuple(rows), raw | {"overrun": vars(overrun)}, _NOTES)


def _row(stage: Stage, rate: int, flood: Flood, bare: dict[str, Any]) -> Row:
    counted = sum(flood.in_memory.values())
    p99 = percentile(flood.noticed_ms, 0.99) if flood.noticed_ms else float("nan")
    return Row(
        f"burst of {rate:,}/s for {flood.wrote.seconds:.1f} s: Xids counted, once",
        f"{XIDS} of {XIDS}",
        f"{counted} of {flood.wrote.count}, {flood.overwritten:,} records lost; bare reader: {bare['xids']}, "
        f"{bare['lost']:,} lost ({flood.wrote.rate:,.0f}/s; p99 {p99:.0f} ms; {flood.cores:.2f} core)",
        stage.length.met((flood.lost, flood.doubled) == (0, 0)),
    )


def _burst(stage: Stage, rate: int) -> tuple[Flood, dict[str, Any]]:
    with start_command(stage, "bench.bare_reader_program") as reader:
        reader.ask("begin")
        flood = pour(stage, rate, stage.length.burst_seconds, XIDS, XIDS)
        return flood, json.loads(reader.ask("end"))


def _overrun(stage: Stage) -> _Overrun:
    node = stage.make_node()
    use_real_log(node)
    seat = stage.seat(node)
    pen = writer(stage, node, _OVERRUN_RATE, _OVERRUN_SECONDS, _OVERRUN_XIDS, 1)
    with following(stage, seat) as program, pen, without_rate_limit():
        with _stopped(program):
            judged = last_record() or 0
            write(pen, _OVERRUN_SECONDS)
            left = ring()
        xids = sum(one.is_ours for one in left if one.seq > judged)
        await_count(seat, xids)
        event = _event(stage, seat.name)
        seen = metrics(seat)
    return _Overrun(
        left[0].seq - judged - 1,
        xids,
        int(seen[_LOST]),
        sum(xids_in(seen).values()),
        sum(remembered(seat).values()),
        event,
    )


@contextmanager
def _stopped(program: Program) -> Iterator[None]:
    os.kill(program.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(program.pid, signal.SIGCONT)


def _event(stage: Stage, node_name: str) -> str:
    """Return the message of the Event on the Node; '' without one."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=reason=KernelLogOverrun,involvedObject.name={node_name}"
    deadline = time.monotonic() + _EVENT_SECONDS
    while time.monotonic() < deadline:
        if items := stage.plane.request("GET", path).body["items"]:
            return str(items[0]["message"])
        time.sleep(0.2)
    return ""
