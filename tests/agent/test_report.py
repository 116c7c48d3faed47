"""The thread of heartbeat and Events: one that can't be written ends neither it nor the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent.access import Access
from agent.outage import Outage
from agent.report import Reporter
from healthcheck import clock, kubeconfig
from healthcheck.cluster import Cluster, connect
from healthcheck.events import Event
from healthcheck.telemetry import Telemetry
from sim.api_objects import EVENTS
from sim.api_stand_in import ApiStandIn
from tests.waiting import eventually

GOOD = Event("gpu-node-1.one", "Warning", "Xid79", "GPU has fallen off the bus.")


def test_an_event_that_cannot_be_written_is_dropped_alone(tmp_path: Path) -> None:
    api, telemetry = ApiStandIn("gpu-node-1"), Telemetry()
    cluster = Cluster(lambda: connect(kubeconfig.Access(str(api.kubeconfig(tmp_path / "kubeconfig")))))
    reporter = Reporter(
        cluster,
        Access(telemetry),
        Outage(),
        lambda: cluster.read_node("gpu-node-1"),
        clock.now,
        lambda: 300.0,
    )
    broken = replace(GOOD)
    object.__setattr__(broken, "message", object())  # what no JSON can hold, and no Event of ours says
    reporter.say(broken)
    reporter.say(GOOD)
    reporter.beat()
    reporter.start()
    eventually(lambda: reporter.is_done)
    reporter.end()

    assert [one["message"] for one in api.store.find_all(EVENTS, "default")[0]] == [GOOD.message]
    assert telemetry.registry.get_sample_value("gpu_healthcheck_set_aside_total", {"what": "event"}) == 1
    api.close()
