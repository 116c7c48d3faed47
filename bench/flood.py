"""Floods of the machine's own kernel log while the agent follows it: lost and duplicate records, and the cost."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.accounting import cpu_seconds, rss_mib
from bench.kmsg import RATE_LIMIT_NOTE, last_record, use_real_log, without_rate_limit
from bench.node_watch import is_well
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.program import Program
from bench.stage import Seat, Stage
from bench.window import Request, requests_of
from healthcheck.memory.file import MemoryFile
from healthcheck.node.state import RESULTS
from healthcheck.verdict.record import LONGEST
from sim.node import SimulatedNode

RATE, XIDS, TIMED = 10_000, 600, 600
AIM_P99_MS, AIM_CORES, AIM_GROWTH_MIB, AIM_NODE_WRITES = 1000.0, 0.1, 8.0, 5
_SETTLED_SECONDS = 3600.0
_AFTER_VERDICT_SECONDS = 3.0
_CATCH_UP_SECONDS, _AFTERWARDS_SECONDS = 20.0, 2.0
"""Wait after a flood until the agent has counted everything, and longer to detect double counts."""
_NOTES = (
    *RATE_LIMIT_NOTE,
    "floods: counted per code and GPU, in the agent's metrics and in its memory file, against what the writer wrote;",
    "        written → noticed: from the time in the line until the ledger has released its lock and written the file",
    "floods: writer, agent, API server and etcd share this machine's cores",
)


@dataclass(frozen=True)
class Wrote:
    """Records that the writer wrote. `xids` by `CODE ADDRESS`."""

    records: int
    seconds: float
    xids: Mapping[str, int]

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def count(self) -> int:
        return sum(self.xids.values())


@dataclass(frozen=True)
class Flood:
    """Flood and the agent's result."""

    wrote: Wrote
    in_metrics: Mapping[str, int]
    """Number of Xids by code."""
    in_memory: Mapping[str, int]
    """Number of Xids by code and address, in the agent's memory file after its end."""
    overwritten: int
    """Records that the agent reported as lost."""
    noticed_ms: list[float]
    cores: float
    rss_mib: list[float]
    requests: list[Request]
    record_bytes: int

    @property
    def lost(self) -> int:
        return max(_missing(self.wrote.xids, self.in_memory), _missing(_by_code(self.wrote.xids), self.in_metrics))

    @property
    def doubled(self) -> int:
        return max(_missing(self.in_memory, self.wrote.xids), _missing(self.in_metrics, _by_code(self.wrote.xids)))

    @property
    def growth_mib(self) -> float:
        return max(self.rss_mib) - self.rss_mib[0]

    @property
    def node_writes(self) -> int:
        return sum(request.is_write and request.resource.startswith("nodes") for request in self.requests)

    def raw(self) -> dict[str, Any]:
        asked = Counter(f"{request.verb} {request.resource} {request.code}" for request in self.requests)
        return {
            "wrote": {"records": self.wrote.records, "seconds": round(self.wrote.seconds, 3), "xids": self.wrote.xids},
            "in_metrics": self.in_metrics,
            "in_memory": self.in_memory,
            "overwritten": self.overwritten,
            "noticed_ms": summary(self.noticed_ms) if self.noticed_ms else None,
            "cores": round(self.cores, 4),
            "rss_mib": [round(seconds, 2) for seconds in self.rss_mib],
            "requests": dict(asked),
            "node_writes_at": [
                f"{request.at.isoformat(timespec='milliseconds')} {request.resource}"
                for request in self.requests
                if request.is_write and request.resource.startswith("nodes")
            ],
            "record_bytes": self.record_bytes,
        }


def measure(stage: Stage) -> Outcome:
    seconds = stage.length.flood_seconds
    xids = round(XIDS * seconds / 60)
    flood = pour(stage, RATE, seconds, xids, xids)
    p99 = percentile(flood.noticed_ms, 0.99)
    rows = (
        Row(
            f"flood of {RATE:,} kernel records/s with {xids} Xids: lost, doubled",
            "0, 0",
            f"{flood.lost}, {flood.doubled} ({flood.wrote.records:,} in {flood.wrote.seconds:.0f} s)",
            stage.length.met((flood.lost, flood.doubled) == (0, 0)),
        ),
        Row(
            "in it: Xid written → noticed",
            f"p99 < {AIM_P99_MS / 1000:g} s",
            f"p50 {percentile(flood.noticed_ms, 0.5):.1f}, p99 {p99:.1f}, max {max(flood.noticed_ms):.1f} ms",
            stage.length.met(p99 < AIM_P99_MS),
        ),
        Row(
            "in it: CPU", f"≤ {AIM_CORES:g} core", f"{flood.cores:.3f} core", stage.length.met(flood.cores <= AIM_CORES)
        ),
        _memory_row(stage, "in it: memory", flood),
    )
    return Outcome(rows, flood.raw(), _NOTES)


def measure_xids(stage: Stage) -> Outcome:
    seconds = stage.length.flood_seconds
    total = round(RATE * seconds)
    flood = pour(stage, RATE, seconds, total, TIMED)
    whole = (flood.lost, flood.doubled, flood.overwritten) == (0, 0, 0)
    rows = (
        Row(
            f"flood of {RATE:,} Xids/s on 8 GPUs: lost, doubled",
            "0, 0",
            f"{flood.lost}, {flood.doubled} ({flood.wrote.count:,}; {flood.cores:.2f} core)",
            stage.length.met(whole),
        ),
        Row(
            "in it: record on the Node",
            f"≤ {LONGEST} bytes",
            f"{flood.record_bytes} bytes",
            stage.length.met(flood.record_bytes <= LONGEST),
        ),
        _memory_row(stage, "in it: memory", flood),
        Row(
            "in it: writes of the Node",
            f"≤ {AIM_NODE_WRITES}",
            f"{flood.node_writes}",
            stage.length.met(flood.node_writes <= AIM_NODE_WRITES),
        ),
    )
    return Outcome(rows, flood.raw(), _NOTES)


def _memory_row(stage: Stage, what: str, flood: Flood) -> Row:
    figure = f"RSS {flood.rss_mib[0]:.1f} before, max {max(flood.rss_mib):.1f}, last {flood.rss_mib[-1]:.1f} MiB"
    return Row(what, f"flat (+{AIM_GROWTH_MIB:g} MiB)", figure, stage.length.met(flood.growth_mib <= AIM_GROWTH_MIB))


def pour(stage: Stage, rate: int, seconds: float, xids: int, timed: int) -> Flood:
    """Run one flood after a healthy agent has reported its first verdict."""
    node = stage.make_node()
    use_real_log(node)
    seat = stage.seat(node)
    with following(stage, seat) as program, writer(stage, node, rate, seconds, xids, timed) as pen:
        since, before, began = datetime.now(UTC), cpu_seconds(program.pid), time.monotonic()
        with _sampling(program) as sizes, without_rate_limit():
            wrote = write(pen, seconds)
            await_count(seat, wrote.count)
        cores = (cpu_seconds(program.pid) - before) / (time.monotonic() - began)
        time.sleep(_AFTERWARDS_SECONDS)
        seen, noticed_ms = metrics(seat), json.loads(program.ask("noticed"))
        record = stage.plane.request("GET", f"/api/v1/nodes/{seat.name}").body["metadata"]["annotations"][RESULTS]
        asked = [request for request in requests_of(stage.plane, seat.name) if request.at >= since]
    return Flood(
        wrote,
        xids_in(seen),
        remembered(seat),
        int(seen["gpu_healthcheck_kernel_log_lost_records_total"]),
        noticed_ms,
        cores,
        sizes,
        asked,
        len(record.encode()),
    )


@contextmanager
def following(stage: Stage, seat: Seat) -> Iterator[Program]:
    """Yield an agent on the real device that has read the log and reported its first verdict.

    It ends with the context.
    """
    seat.remember(last_record(), time.monotonic() - _SETTLED_SECONDS)
    with stage.watch(seat) as watch, seat.run("-m", "bench.follow_program") as program:
        try:
            watch.wait_for(is_well, "a healthy agent's first verdict")
            time.sleep(_AFTER_VERDICT_SECONDS)
            yield program
        except CouldNotMeasure as error:
            raise CouldNotMeasure(f"{error}\n{program.tail()}") from error


def writer(stage: Stage, node: SimulatedNode, rate: int, seconds: float, xids: int, timed: int) -> Program:
    """Return the writer program, which starts at the input `write`."""
    numbers = [str(value) for value in (rate, seconds, xids, timed)]
    return start_command(stage, "bench.flood_program", *numbers, *(gpu.kernel_address for gpu in node.gpus))


def write(pen: Program, seconds: float) -> Wrote:
    return Wrote(**json.loads(pen.ask("write", 10 * seconds + 30)))


def start_command(stage: Stage, *words: str) -> Program:
    """Start a program of the bench in its own folder."""
    folder = stage.folder / words[0]
    folder.mkdir(exist_ok=True)
    return Program(("-m", *words), stage.bare_environment, folder)


def await_count(seat: Seat, xids: int) -> None:
    """Wait until the agent has counted this number; give up if it has lost some."""
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while time.monotonic() < deadline and sum(xids_in(metrics(seat)).values()) < xids:
        time.sleep(0.2)


def metrics(seat: Seat) -> dict[str, float]:
    """Return the counters by name; an Xid's with its code appended, of all GPUs."""
    connection = http.client.HTTPConnection("127.0.0.1", seat.metrics_port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    counts: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            counts[f"{sample.name} {sample.labels['code']}" if "code" in sample.labels else sample.name] += sample.value
    return counts


def xids_in(seen: Mapping[str, float]) -> dict[str, int]:
    name = "gpu_healthcheck_xids_total "
    return {key.removeprefix(name): int(value) for key, value in seen.items() if key.startswith(name)}


def remembered(seat: Seat) -> dict[str, int]:
    """Return the count of each Xid in the memory file of an ended agent; other findings are ignored."""
    memory = MemoryFile(seat.state_dir).read()
    if memory is None:
        raise CouldNotMeasure("the agent has left no memory file")
    xids = [finding for finding in memory.standing if finding.finding.reason.removeprefix("Xid").isdigit()]
    return {
        f"{xid.finding.reason.removeprefix('Xid')} {xid.finding.subject.removeprefix('gpu/').rpartition('.')[0]}": (
            xid.count
        )
        for xid in xids
    }


def _by_code(xids: Mapping[str, int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for key, count in xids.items():
        counts[key.partition(" ")[0]] += count
    return counts


def _missing(expected: Mapping[str, int], found: Mapping[str, int]) -> int:
    return sum(max(count - found.get(key, 0), 0) for key, count in expected.items())


@contextmanager
def _sampling(program: Program) -> Iterator[list[float]]:
    """Record the RSS once a second from before to after."""
    sizes, over = [rss_mib(program.pid)], threading.Event()

    def sample() -> None:
        while not over.wait(1.0):
            sizes.append(rss_mib(program.pid))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()
        sizes.append(rss_mib(program.pid))
