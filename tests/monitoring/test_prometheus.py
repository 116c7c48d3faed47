"""A simulated node, its real agent, and a real Prometheus with our rules that scrapes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.agent.world import StandIn, World
from tests.monitoring.prometheus_server import PrometheusServer
from tests.waiting import eventually

FIRING = 'ALERTS{alertname="GpuNodeFault", alertstate="firing"}'


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[tuple[World, PrometheusServer]]:
    """A healthy node with its agent, of which Prometheus has had a first look."""
    with ExitStack() as undo:
        prometheus = undo.enter_context(PrometheusServer(tmp_path / "prometheus"))
        world = undo.enter_context(World(tmp_path / "world", StandIn("gpu-node-1", "p5.48xlarge")))
        _scrape(prometheus, world)
        yield world, prometheus


@pytest.mark.cluster
def test_a_fault_is_an_alert_until_it_is_mended(scraped: tuple[World, PrometheusServer]) -> None:
    world, prometheus = scraped
    world.host.xid(3, 79, "GPU has fallen off the bus.")
    (alert,) = prometheus.wait_for(FIRING)
    assert (alert["node"], alert["severity"]) == ("gpu-node-1", "critical")
    (found,) = prometheus.wait_for("gpu_healthcheck_finding")
    assert (found["gpu"], found["UUID"]) == ("3", world.host.gpus[3].uuid)

    assert world.agent.terminate() == 0
    world.host.reboot()
    _scrape(prometheus, world)
    prometheus.wait_for(FIRING, count=0)
    prometheus.wait_for("gpu_healthcheck_finding", count=0)
    eventually(lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"}, prometheus.rules)


def _scrape(prometheus: PrometheusServer, world: World) -> None:
    """A new agent, until Prometheus has its `pass` from it."""
    agent = world.start()
    world.wait_for_status("pass")
    prometheus.scrape("gpu-node-1", agent.port)
    prometheus.wait_for(f'gpu_healthcheck_node_status{{status="pass", instance="127.0.0.1:{agent.port}"}} == 1')
