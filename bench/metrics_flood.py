"""Time from an Xid to the taint while other clients occupy the metrics port, and the agent's cost."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field

from bench.accounting import cpu_seconds, rss_mib
from bench.detection import detect, row
from bench.flood import start_command
from bench.kmsg import use_real_log
from bench.outcome import Outcome, Row, summary
from bench.program import Program
from bench.stage import Seat, Stage

IDLE, FAT = 2000, 50
"""Numbers of connections that send nothing, and of those that send a header of up to 1 MiB."""
MOST_GROWTH_MIB, MOST_CORES, MOST_PROBE_SECONDS = 8.0, 0.5, 5.0
P50_MS, P99_MS = 60.0, 200.0
_SETTLES_SECONDS = 60.0
_PROBES, _BETWEEN_SECONDS = 5, 0.5
_NOTES = (
    f"metrics-flood: {IDLE:,} idle and {FAT} fat connections, each reopened when it is closed,",
    "               from a process on the same cores; CPU and memory are the agent's and its child's",
)


@dataclass
class _Costs:
    """Figures of all agents, one entry per agent, and all probes."""

    before_mib: list[float] = field(default_factory=list)
    during_mib: list[float] = field(default_factory=list)
    after_mib: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    probe_seconds: list[float] = field(default_factory=list)

    @property
    def growth_mib(self) -> float:
        return max(during - before for before, during in zip(self.before_mib, self.during_mib, strict=True))


def measure(stage: Stage) -> Outcome:
    node = stage.make_node()
    use_real_log(node)
    costs = _Costs()

    @contextmanager
    def flooded(seat: Seat, program: Program) -> Iterator[None]:
        costs.before_mib.append(rss_mib(program.pid))
        with start_command(stage, "bench.metrics_flood_program", str(seat.metrics_port), str(IDLE), str(FAT)) as peers:
            peers.ask("are all there?", _SETTLES_SECONDS)
            yield
            began, used = time.monotonic(), cpu_seconds(program.pid)
            costs.probe_seconds += [_probe(seat) for _ in range(_PROBES)]
            costs.cores.append((cpu_seconds(program.pid) - used) / (time.monotonic() - began))
            costs.during_mib.append(rss_mib(program.pid))
        time.sleep(_BETWEEN_SECONDS)
        costs.after_mib.append(rss_mib(program.pid))

    times = range(stage.length.detections_flooded)
    quiet = [detect(stage, node, lambda *_: nullcontext()) for _ in times]
    loud = [detect(stage, node, flooded) for _ in times]
    rows = (
        row(stage, "Xid 79 → taint, metrics port unused", quiet, None),
        row(stage, f"the same, {IDLE + FAT:,} peers there", loud, (P50_MS, P99_MS)),
        *_rows(stage, costs),
    )
    raw = {
        "quiet_ms": summary([detection.seen for detection in quiet]),
        "flooded_ms": summary([detection.seen for detection in loud]),
        **asdict(costs),
    }
    return Outcome(rows, raw, _NOTES)


def _rows(stage: Stage, costs: _Costs) -> tuple[Row, ...]:
    slowest, cores = max(costs.probe_seconds), max(costs.cores)
    met = stage.length.met
    return (
        Row(
            "memory of agent and child before, during and after it",
            f"{MOST_GROWTH_MIB:g} MiB more at most",
            f"{max(costs.before_mib):.1f}, {max(costs.during_mib):.1f}, {max(costs.after_mib):.1f} MiB RSS",
            met(costs.growth_mib <= MOST_GROWTH_MIB),
        ),
        Row("CPU under it", f"≤ {MOST_CORES:g} core", f"at most {cores:.2f} core", met(cores <= MOST_CORES)),
        Row(
            "/healthz during it, the slowest answer",
            f"≤ {MOST_PROBE_SECONDS:g} s, none lost",
            f"{slowest:.2f} s ({len(costs.probe_seconds)} times)",
            met(slowest <= MOST_PROBE_SECONDS),
        ),
    )


def _probe(seat: Seat) -> float:
    """Probe as the kubelet does, over a new connection. Returns seconds; infinity without an answer."""
    time.sleep(_BETWEEN_SECONDS)
    began = time.monotonic()
    asking = http.client.HTTPConnection("127.0.0.1", seat.metrics_port, timeout=2 * MOST_PROBE_SECONDS)
    try:
        asking.request("GET", "/healthz")
        answered = asking.getresponse().status == http.client.OK
    except OSError:
        answered = False
    finally:
        asking.close()
    return time.monotonic() - began if answered else float("inf")
