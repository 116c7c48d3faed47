"""A fleet fails at once: how many taints the budget grants, and what it costs the API server.

Each agent is the product's own Ledger, Teller and Cluster with a token of its own node, on threads of this process: a
thousand processes would measure this machine. What looks at hardware is left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import structlog

from agent.ledger import Ledger, event_checks, level_checks
from agent.tell import Plan, Teller
from bench.outcome import CouldNotMeasure, Outcome, Row, summary
from bench.stage import INSTANCE_TYPE, Stage
from bench.window import Request, requests_of_all
from healthcheck import budget, clock
from healthcheck.change import Rules
from healthcheck.cluster import Cluster
from healthcheck.memory import Memory
from healthcheck.model import Finding, Severity, Sighting
from healthcheck.model import Outcome as Looked
from healthcheck.node import TAINT
from healthcheck.settings import Settings
from healthcheck.telemetry import Telemetry
from sim.control_plane import ControlPlane

AIM_REQUESTS, AIM_SECONDS = 10_000, 30.0
PERCENT = 20
_SETTING_UP = 16
"""Threads that make nodes and tokens, and that begin the agents, which in a cluster begin one after the other too."""
_GIVE_UP_SECONDS = 300.0
_POLL_SECONDS = 0.01
_BOOT = "0b0a6c5e-0000-4000-8000-00000000000a"
_NOTE = (
    "fleet: the agents are threads of one Python process on the API server's own machine, so that the time is theirs",
    "       and its, together; a request is what the API server's audit log says that one of these nodes' tokens asked",
)


class Member:
    """One agent without its eyes."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        plane.create_node(name, instance_type=INSTANCE_TYPE)
        kubeconfig = plane.agent_kubeconfig(name)
        telemetry = Telemetry()
        self.ledger = Ledger(Memory(boot_id=_BOOT), None, telemetry, clock.now, self._hurry)
        how = Plan(name, lambda: Rules(max_unhealthy_percent=PERCENT), lambda: INSTANCE_TYPE, lambda: 300.0)
        self.teller = Teller(Cluster(lambda: plane.api(kubeconfig)), self.ledger, telemetry, clock.now, how)
        self.failed_at = self.told_at = 0.0

    def pass_first(self) -> None:
        """The first look ends well and is told, with the heartbeat; from here on its connection stands."""
        settings = Settings()
        self.ledger.noticed(_well(event_checks(settings)), 1)
        self.ledger.looked(_well(level_checks(settings)))
        self.teller.start()
        self.teller.beat()
        self._wait()

    def fail(self, at_once: threading.Barrier) -> None:
        """A GPU falls off the bus here and everywhere."""
        self.teller.told.clear()
        at_once.wait()
        self.failed_at = time.monotonic()
        finding = Finding("Xid79", Severity.REBOOT, "gpu/0000:53:00.0", "GPU has fallen off the bus.", seq=2)
        seen = Sighting(finding.reason, finding.subject, 2, clock.now().monotonic, finding)
        (check,) = (check for check in event_checks(Settings()) if check.name == "xid")
        self.ledger.noticed([Looked(check.name, check.group, sightings=(seen,))], 2)
        self._wait()
        self.told_at = time.monotonic()

    def _hurry(self) -> None:
        self.teller.hurry()

    def _wait(self) -> None:
        give_up_at = time.monotonic() + _GIVE_UP_SECONDS
        while not self.teller.is_all_told:
            if time.monotonic() > give_up_at:
                raise CouldNotMeasure(f"{self.name} told nothing in {_GIVE_UP_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)


def measure(stage: Stage) -> Outcome:
    plane, size = stage.plane, stage.length.fleet
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    members = _assembled(plane, size)
    beats = Cluster(lambda: plane.api(plane.kubeconfig)).count_heartbeats()
    places = budget.allowed(beats, PERCENT)
    since = datetime.now(UTC)
    at_once = threading.Barrier(size)
    with ThreadPoolExecutor(size) as threads:
        _all(threads.submit(member.fail, at_once).result for member in members)
    for member in members:
        member.teller.end()
    asked = _asked(plane, {member.name for member in members}, since)
    written = [one.at for one in asked if (one.verb, one.resource, one.code) == ("patch", "nodes", HTTPStatus.OK)]
    seconds = (max(written) - min(one.at for one in asked)).total_seconds()
    granted = sum(
        TAINT in node["spec"].get("taints", []) for node in plane.request("GET", "/api/v1/nodes").body["items"]
    )
    taints = [one for one in asked if _is_for_the_taint(one)]
    rows = (
        Row(
            f"taints granted to {size} agents that fail at once",
            f"≤ {places}",
            f"{granted}",
            stage.length.met(granted <= places),
        ),
        Row("requests for it", f"≤ {AIM_REQUESTS}", f"{len(taints)}", stage.length.met(len(taints) <= AIM_REQUESTS)),
        Row(
            "until the last of them stood on its Node, the taint set or withheld",
            f"≤ {AIM_SECONDS:g} s",
            f"{seconds:.1f} s",
            stage.length.met(seconds <= AIM_SECONDS),
        ),
    )
    raw: dict[str, Any] = {
        "agents": size,
        "heartbeats": beats,
        "places": places,
        "granted": granted,
        "seconds": round(seconds, 2),
        "all_told_after_seconds": summary([one.told_at - one.failed_at for one in members]),
        "requests": dict(Counter(f"{one.verb} {one.resource} {one.code}" for one in asked).most_common()),
        "requests_in_all": len(asked),
    }
    return Outcome(rows, raw, _NOTE)


def _assembled(plane: ControlPlane, size: int) -> list[Member]:
    with ThreadPoolExecutor(_SETTING_UP) as threads:
        members = list(threads.map(lambda number: Member(plane, f"fleet-{number}"), range(size)))
        _all(threads.submit(member.pass_first).result for member in members)
    return members


def _all(results: Iterable[Callable[[], None]]) -> None:
    """Begin all of them, and then wait for each."""
    for result in list(results):
        result()


def _well(checks: Iterable[Any]) -> list[Looked]:
    return [Looked(check.name, check.group) for check in checks]


def _asked(plane: ControlPlane, names: set[str], since: datetime) -> list[Request]:
    return [one for name, one in requests_of_all(plane, since) if name in names]


def _is_for_the_taint(request: Request) -> bool:
    """The Node and the budget; an Event, the condition and the heartbeat are told with or without a taint."""
    if request.resource == "leases":
        return "gpu-healthcheck-budget" in request.uri or request.verb == "list"
    return request.resource == "nodes"
