"""Some idle minutes of agents, observed once for the measures of CPU, memory and API calls.

Three agents on three simulated machines, each with its own Node, token and connection to the real API server:
`bare` is undisturbed; `probed` also gets requests of a kubelet and a Prometheus; `busy` has the shortest interval.
"""

from __future__ import annotations

import functools
import http.client
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import psutil

from bench.accounting import cpu_seconds, memory_mib
from bench.node_watch import NodeWatch, is_well
from bench.outcome import CouldNotMeasure
from bench.program import Program
from bench.stage import Seat, Stage
from healthcheck.node.state import RESULTS
from sim.control_plane import ControlPlane

BUSY_INTERVAL_SECONDS = 10
PROBES = {"/readyz": 15.0, "/healthz": 60.0, "/metrics": 30.0}
"""Seconds between requests of our DaemonSet's probes, and of a Prometheus as configured by its operator."""
_AFTER_VERDICT_SECONDS = 10.0
_SAMPLE_SECONDS = 10.0
_AFTER_BEAT_SECONDS = 5.0
_NODE_NAME = "authentication.kubernetes.io/node-name"


@dataclass(frozen=True)
class Request:
    """One request that the API server answered to an agent."""

    at: datetime
    verb: str
    resource: str
    uri: str
    code: int

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list", "watch")


@dataclass(frozen=True)
class Moment:
    """Sample at a time after the start: CPU time of each agent, and the TCP connections of `bare`."""

    seconds: float
    cpu: dict[str, float]
    connections: dict[str, int]


@dataclass
class Window:
    """Requests of agents within a window of time."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU time in seconds, by agent."""
    timeline: list[Moment] = field(default_factory=list)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    """Memory in MiB, by agent."""
    requests: dict[str, list[Request]] = field(default_factory=dict)
    """Requests in the window, by agent."""
    watches: list[Request] = field(default_factory=list)
    """Watches of `bare`."""
    busy_cycles: int = 0
    rewrite: list[Request] = field(default_factory=list)
    """Requests of `busy` after its record on the Node was an hour old."""

    def cycles(self, agent: str) -> int:
        """Return the number of cycles, each of which renews the heartbeat once."""
        return sum(request.is_write and request.resource == "leases" for request in self.requests[agent])


@dataclass(frozen=True)
class _Actor:
    seat: Seat
    program: Program
    watch: NodeWatch


@functools.cache
def observe(stage: Stage) -> Window:
    intervals = {
        "bare": stage.length.interval_seconds,
        "probed": stage.length.interval_seconds,
        "busy": BUSY_INTERVAL_SECONDS,
    }
    with ExitStack() as bare_only, ExitStack() as others:
        actors = {
            name: _enter(stage, seconds, bare_only if name == "bare" else others) for name, seconds in intervals.items()
        }
        for actor in actors.values():
            _await_verdict(actor)
        time.sleep(_AFTER_VERDICT_SECONDS)
        window = _idle(stage, actors)
        window.rewrite = _age_record(stage, actors["busy"])
        window.memory["probed"] = memory_mib(actors["probed"].program.pid)
        others.close()  # otherwise they share pages with the measured agent
        window.memory["bare"] = memory_mib(actors["bare"].program.pid)
    return window


def _enter(stage: Stage, interval_seconds: int, exits: ExitStack) -> _Actor:
    seat = stage.seat(stage.make_node(), interval_seconds=interval_seconds)
    watch = exits.enter_context(stage.watch(seat))
    return _Actor(seat, exits.enter_context(seat.run("-m", "agent")), watch)


def _await_verdict(actor: _Actor) -> None:
    try:
        actor.watch.wait_for(is_well, "a healthy agent's first verdict")
    except CouldNotMeasure as error:
        raise CouldNotMeasure(f"{error}\n{actor.program.tail()}") from error


def _idle(stage: Stage, actors: dict[str, _Actor]) -> Window:
    """Wait until the time is over and each agent has had a scheduled cycle, which jitter may delay."""
    length, plane = stage.length, stage.plane
    pids = {name: actor.program.pid for name, actor in actors.items()}
    latest_seconds = length.window_seconds + 2 * length.interval_seconds
    with _probing(actors["probed"].seat.metrics_port):
        since, began, looks = datetime.now(UTC), time.monotonic(), _looks(actors["busy"].seat)
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        window = Window()
        while window.seconds < length.window_seconds or not _all_beat(plane, actors, since):
            if window.seconds > latest_seconds:
                raise CouldNotMeasure(f"no scheduled cycle in {latest_seconds:g} s\n{actors['bare'].program.tail()}")
            time.sleep(min(_SAMPLE_SECONDS, length.window_seconds))
            window.cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
            window.seconds = time.monotonic() - began
            window.timeline.append(Moment(window.seconds, window.cpu, _connections(pids["bare"])))
        window.busy_cycles = _looks(actors["busy"].seat) - looks
    until = datetime.now(UTC)
    for name, actor in actors.items():
        asked = list(requests_of(plane, actor.seat.name))
        window.requests[name] = [request for request in asked if since <= request.at < until]
        if name == "bare":
            window.watches = [request for request in asked if request.verb == "watch"]
    return window


def _all_beat(plane: ControlPlane, actors: Mapping[str, _Actor], since: datetime) -> bool:
    """Whether each agent renewed its heartbeat long enough ago that its cycle has ended."""
    until = datetime.now(UTC) - timedelta(seconds=_AFTER_BEAT_SECONDS)
    return all(
        any(
            request.is_write and request.resource == "leases" and since <= request.at < until
            for request in requests_of(plane, actor.seat.name)
        )
        for actor in actors.values()
    )


def requests_of(plane: ControlPlane, node_name: str) -> Iterator[Request]:
    """Yield the requests of the token bound to this node, from the audit log."""
    return (request for name, request in requests_of_all(plane) if name == node_name)


def requests_of_all(plane: ControlPlane, since: datetime | None = None) -> Iterator[tuple[str, Request]]:
    """Yield the requests of every agent with its node's name."""
    for event in plane.audit(since):
        for name in event["user"].get("extra", {}).get(_NODE_NAME, []):
            about = event.get("objectRef", {})
            resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
            at = datetime.fromisoformat(event["requestReceivedTimestamp"])
            code = int(event.get("responseStatus", {}).get("code", 0))
            yield name, Request(at, event["verb"], resource, event["requestURI"], code)


def _age_record(stage: Stage, actor: _Actor) -> list[Request]:
    """Set the age of the record on the Node to an hour and a minute, and return the agent's requests."""
    path = f"/api/v1/nodes/{actor.seat.name}"
    record = json.loads(stage.plane.request("GET", path).body["metadata"]["annotations"][RESULTS])
    old = datetime.fromisoformat(record["timestamp"]) - timedelta(seconds=3660)
    record["timestamp"] = old.strftime("%Y-%m-%dT%H:%M:%SZ")
    since = datetime.now(UTC)
    stage.plane.request("PATCH", path, {"metadata": {"annotations": {RESULTS: json.dumps(record)}}})
    time.sleep(3)
    return [
        request
        for request in requests_of(stage.plane, actor.seat.name)
        if request.at >= since and request.resource != "leases"
    ]


def _connections(pid: int) -> dict[str, int]:
    return dict(Counter(str(connection.status) for connection in psutil.Process(pid).net_connections(kind="tcp")))


def _looks(seat: Seat) -> int:
    found = re.search(r"^gpu_healthcheck_looks_total (\S+)$", _get(seat.metrics_port, "/metrics"), re.MULTILINE)
    if found is None:
        raise CouldNotMeasure("/metrics has no gpu_healthcheck_looks_total")
    return int(float(found[1]))


@contextmanager
def _probing(port: int) -> Iterator[None]:
    """Send requests like a kubelet and a Prometheus, each over a new connection."""
    over = threading.Event()

    def ask(path: str, seconds: float) -> None:
        while not over.wait(seconds):
            _get(port, path)

    threads = [threading.Thread(target=ask, args=probe, daemon=True) for probe in PROBES.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(timeout=5)


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
