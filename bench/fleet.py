"""Simultaneous faults in a fleet: the number of taints that the budget grants, and the load on the API server.

Each agent consists of the product's own Ledger, NodeWriter and Cluster with a token of its own node. They are threads
of a few processes: a thousand processes would measure this machine, and three thousand threads in one starve each
other. Hardware probes are left out.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import structlog

from bench.outcome import CouldNotMeasure, Outcome, summary
from bench.stage import INSTANCE_TYPE, Stage
from gpu_healthcheck.agent.node.api_server import ApiServer, Outage, Permissions
from gpu_healthcheck.agent.process.wiring import ClusterSide
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Finding, KernelEvent, Severity
from gpu_healthcheck.healthcheck.model import Outcome as Looked
from gpu_healthcheck.healthcheck.node.state import TAINT
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.healthcheck.verdict import budget
from gpu_healthcheck.sim.control_plane import ControlPlane

AIM_REQUESTS, AIM_SECONDS = 10_000, 30.0
PERCENT = 20
SETTINGS = Settings(NodeSettings(max_unhealthy_percent=PERCENT))
_PROCESSES = 8
_SETTING_UP = 4
"""Threads per process that create nodes and tokens and start the agents, which also start in turn in a cluster."""
_GIVE_UP_SECONDS = 300.0
_POLL_SECONDS = 0.05
_BOOT = "0b0a6c5e-0000-4000-8000-00000000000a"
_NOTE = (
    "fleet: the agents are threads of eight processes on the API server's own machine, so that the time is theirs",
    "       and its, together; a request is what the API server's audit log says that one of these nodes' tokens asked",
)


_NO_KUBELET = Path("/nonexistent")


class Member:
    """Agent without hardware probes."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        plane.create_node(name, instance_type=INSTANCE_TYPE)
        kubeconfig = plane.agent_kubeconfig(name)
        telemetry = Telemetry()
        self.state = state = AgentState(name, Memory(boot_id=_BOOT))
        self.ledger = Ledger(state, None, telemetry)
        self.ledger.configure(SETTINGS)
        cluster = Cluster(lambda: connect(Access(kubeconfig=str(kubeconfig))))
        api = ApiServer(cluster, Permissions(telemetry), Outage())
        self.node_writer = ClusterSide(api, state, self.ledger, telemetry, _NO_KUBELET).node_writer
        self.failed_at = self.written_at = 0.0

    def pass_first(self) -> None:
        """End the first cycle without a fault and report it with the heartbeat; this opens the connection."""
        known = self.state.known
        self.ledger.kernel_log_judged(_well(known.event_checks), 1)
        self.ledger.cycle_ended(JudgedCycle(_well(known.level_checks)))
        self.node_writer.start()
        self.node_writer.cycle_ended()
        _until_written([self])

    def fail(self) -> None:
        """Let a GPU fall off the bus."""
        self.node_writer.verdict_stands.clear()
        self.failed_at = time.monotonic()
        finding = Finding("Xid79", Severity.REBOOT, "gpu/0000:53:00.0", "GPU has fallen off the bus.", seq=2)
        seen = KernelEvent(finding.reason, finding.subject, 2, clock.now().monotonic, finding)
        (check,) = (check for check in self.state.known.event_checks if check.name == "xid")
        self.ledger.kernel_log_judged([Looked(check.name, check.group, events=(seen,))], 2)


def _until_written(members: Iterable[Member]) -> None:
    """Wait in one thread: a thousand waiting threads would slow the agents of this process."""
    waiting, give_up_at = list(members), time.monotonic() + _GIVE_UP_SECONDS
    while waiting:
        for member in [member for member in waiting if member.node_writer.is_done]:
            member.written_at = time.monotonic()
            waiting.remove(member)
        if time.monotonic() > give_up_at:
            raise CouldNotMeasure(f"{len(waiting)} agents have not reported everything in {_GIVE_UP_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


def measure(stage: Stage) -> Outcome:
    """Measure on a control plane of its own: Nodes of other measures would count as tainted."""
    with stage.separate_plane() as plane:
        return _measure(stage, plane)


def _measure(stage: Stage, plane: ControlPlane) -> Outcome:
    size = stage.length.fleet
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    names = [f"fleet-{number}" for number in range(size)]
    with _processes(plane, names) as (all_at_once, queue):
        _together(all_at_once)
        beats = Cluster(lambda: plane.api(plane.kubeconfig)).leases.count_heartbeats()
        places = budget.allowed(beats, PERCENT)
        since = datetime.now(UTC)
        _together(all_at_once)
        waited = [seconds for _ in range(all_at_once.parties - 1) for seconds in queue.get()]
    answered = _answered(plane, set(names), since)
    written = [_at(event) for event in answered if _is_written_node(event)]
    seconds = (max(written) - min(map(_at, answered))).total_seconds()
    nodes = plane.request("GET", "/api/v1/nodes").body["items"]
    granted = sum(TAINT in node["spec"].get("taints", []) for node in nodes)
    taints = [event for event in answered if _is_for_the_taint(event)]
    rows = (
        stage.at_most(f"taints granted to {size} agents that fail at once", places, "", granted, f"{granted}"),
        stage.at_most("requests for it", AIM_REQUESTS, "", len(taints), f"{len(taints)}"),
        stage.at_most("until the last of them was on its Node, the taint set or withheld", AIM_SECONDS, "s", seconds),
    )
    raw = {"places": places, "granted": granted, "seconds": round(seconds, 2), "waited_seconds": summary(waited)}
    return Outcome(rows, raw | {"requests": len(answered)}, _NOTE)


@contextmanager
def _processes(plane: ControlPlane, names: Sequence[str]) -> Iterator[tuple[Barrier, SimpleQueue[list[float]]]]:
    """Run the agents in processes that wait at the barrier until all agents have passed, and again before they fail.

    The queue yields one list per process: the seconds until each of its agents has reported everything.
    """
    fork = multiprocessing.get_context("fork")
    parts = [names[start::_PROCESSES] for start in range(min(_PROCESSES, len(names)))]
    all_at_once: Barrier = fork.Barrier(len(parts) + 1)
    queue: SimpleQueue[list[float]] = fork.SimpleQueue()
    processes = [fork.Process(target=_live, args=(plane, part, all_at_once, queue), daemon=True) for part in parts]
    for process in processes:
        process.start()
    try:
        yield all_at_once, queue
    finally:
        for process in processes:
            process.kill()
            process.join()


def _live(plane: ControlPlane, names: Sequence[str], all_at_once: Barrier, queue: SimpleQueue[list[float]]) -> None:
    try:
        members = _assembled(plane, names)
        all_at_once.wait()
        all_at_once.wait()
        for member in members:
            member.fail()
        _until_written(members)
        queue.put([member.written_at - member.failed_at for member in members])
    except BaseException:
        all_at_once.abort()
        queue.put([])
        raise


def _together(all_at_once: Barrier) -> None:
    try:
        all_at_once.wait(_GIVE_UP_SECONDS)
    except BrokenBarrierError:
        raise CouldNotMeasure("not all agents passed their first check cycle") from None


def _assembled(plane: ControlPlane, names: Sequence[str]) -> list[Member]:
    with ThreadPoolExecutor(_SETTING_UP) as threads:
        members = list(threads.map(partial(Member, plane), names))
        list(threads.map(Member.pass_first, members))
    return members


def _well(checks: Iterable[Any]) -> list[Looked]:
    return [Looked(check.name, check.group) for check in checks]


def _answered(plane: ControlPlane, names: set[str], since: datetime) -> list[dict[str, Any]]:
    """Return the events of the audit log about requests with the tokens of these nodes."""
    node_name = "authentication.kubernetes.io/node-name"
    return [
        event for event in plane.audit(since) if names.intersection(event["user"].get("extra", {}).get(node_name, ()))
    ]


def _at(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(event["requestReceivedTimestamp"])


def _is_written_node(event: Mapping[str, Any]) -> bool:
    code = event.get("responseStatus", {}).get("code")
    return _is_for_a_node(event) and (event["verb"], code) == ("patch", HTTPStatus.OK)


def _is_for_a_node(event: Mapping[str, Any]) -> bool:
    about = event.get("objectRef", {})
    return about.get("resource") == "nodes" and "subresource" not in about


def _is_for_the_taint(event: Mapping[str, Any]) -> bool:
    """Whether a request is for the Node or the budget; others are sent with or without a taint."""
    if event.get("objectRef", {}).get("resource") == "leases":
        return "gpu-healthcheck-budget" in event["requestURI"] or event["verb"] == "list"
    return _is_for_a_node(event)
