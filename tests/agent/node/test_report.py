"""The thread of heartbeat and Events: an unwritable Event ends neither the thread nor other writes."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import force_setattr, replace

from gpu_healthcheck.agent.node.reporter import MOST_PER_HOUR, Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster import kubeconfig
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.errors import Unavailable
from gpu_healthcheck.healthcheck.cluster.nodes import Nodes
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent
from gpu_healthcheck.sim.api_objects import EVENTS
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.agent.parts import api_server
from tests.waiting import eventually

GOOD = NodeEvent("gpu-node-1.one", "Warning", "Xid79", "GPU has fallen off the bus.")


def test_an_event_that_cannot_be_written_is_dropped_alone(tmp_path: Path) -> None:
    api, telemetry = ApiStandIn("gpu-node-1"), Telemetry()
    cluster = Cluster(lambda: connect(kubeconfig.Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
    reporter = Reporter(api_server(cluster, telemetry), AgentState("gpu-node-1"), telemetry)
    broken = replace(GOOD)
    force_setattr(broken, "message", object())  # not representable in JSON, and in no Event of ours
    reporter.queue(broken)
    reporter.queue(GOOD)
    reporter.renew_heartbeat()
    reporter.start()
    eventually(lambda: reporter.is_done)
    reporter.end()

    assert [entry["message"] for entry in api.store.find_all(EVENTS, "default")[0]] == [GOOD.message]
    assert telemetry.registry.get_sample_value("gpu_healthcheck_set_aside_total", {"what": "event"}) == 1
    api.close()


def test_newer_event_is_not_dropped_for_an_older_one(tmp_path: Path) -> None:
    """A person's release queues such an Event first, and the node writer waits for it."""
    api, telemetry = ApiStandIn("gpu-node-1"), Telemetry()
    released: list[threading.Event] = []

    class Releasing(Nodes):
        def read(self, name: str) -> NodeState:
            if not released:
                released.append(reporter.queue(GOOD, first=True))
            return super().read(name)

    cluster = Cluster(lambda: connect(kubeconfig.Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
    cluster.nodes = Releasing(cluster.connection)
    reporter = Reporter(api_server(cluster, telemetry), AgentState("gpu-node-1"), telemetry)
    broken = replace(GOOD)
    force_setattr(broken, "message", object())
    written = reporter.queue(broken)
    reporter.start()
    eventually(lambda: reporter.is_done)
    reporter.end()

    assert [entry["message"] for entry in api.store.find_all(EVENTS, "default")[0]] == [GOOD.message]
    assert released[0].is_set()
    assert written.is_set()
    api.close()


def test_an_answer_that_asks_for_no_number_of_seconds_asks_for_none(tmp_path: Path) -> None:
    """Else nothing would be waited for at all: no wait is longer than it."""
    api = ApiStandIn("gpu-node-1")
    cluster = Cluster(lambda: connect(kubeconfig.Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
    api.fail_with(429, retry_after=math.nan)  # type: ignore[arg-type]

    with pytest.raises(Unavailable) as refused:
        cluster.nodes.read("gpu-node-1")

    assert refused.value.retry_after_seconds is None
    api.close()


def test_events_are_bounded_by_reason_and_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that may write the Node changes annotations 500 times. Events of other reasons are written as before."""
    api, telemetry = ApiStandIn("gpu-node-1"), Telemetry()
    cluster = Cluster(lambda: connect(kubeconfig.Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
    reporter = Reporter(api_server(cluster, telemetry), AgentState("gpu-node-1"), telemetry)
    reporter.start()

    def change(times: int, begin: int = 0) -> None:
        for number in range(begin, begin + times):
            reporter.complain((f"annotation results: no JSON: {number}",))
            reporter.queue(NodeEvent(f"gpu-node-1.old{number}", "Normal", "OldRecord", f"{number}"))
            eventually(lambda: reporter.is_done)

    def messages(reason: str) -> list[str]:
        return [entry["message"] for entry in api.store.find_all(EVENTS, "default")[0] if entry["reason"] == reason]

    change(500)
    for reason in ("BadAnnotation", "OldRecord"):
        assert len(messages(reason)) == MOST_PER_HOUR
        assert sum("only in the agent's log" in message for message in messages(reason)) == 1

    for number in range(16):
        eventually(reporter.queue(replace(GOOD, name=f"gpu-node-1.{number}")).is_set)
    assert len(messages("Xid79")) == 16

    later = time.monotonic() + 3600
    monkeypatch.setattr("gpu_healthcheck.agent.node.reporter.time.monotonic", lambda: later)
    change(1, begin=500)
    assert len(messages("BadAnnotation")) == MOST_PER_HOUR + 1
    reporter.end()
    api.close()
