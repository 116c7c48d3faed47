"""A real Prometheus with our rules, or without, that scrapes DCGM exporters of several releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.snapshot.gpu_use import AN_HOUR_AGO, EXPORTED, IDLE, SERIES, USE, GpuUse
from gpu_healthcheck.diagnosis.sources.measured_use import with_use
from gpu_healthcheck.healthcheck.cluster.prometheus import PrometheusError, instant
from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer
from tests.diagnosis.states import snapshot
from tests.monitoring.prometheus_server import PrometheusServer
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
PAGES = {path.stem: path.read_text() for path in (Path(__file__).parent / "exporters").iterdir()}
PAGES["4.8.2"] = PAGES["4.8.3"].replace("hostname=", "Hostname=")
RECORDS = '{__name__=~"gpu_healthcheck:.+"}'
KEPT = ("__name__", "gpu", "GPU_I_ID", "namespace", "pod")
VALUES = {
    ("gpu_utilization:ratio", "0", "", "ml", "train-0"): 0.98,
    ("gpu_utilization:ratio", "1", "", "", ""): 0.01,
    ("gpu_memory_busy:ratio", "0", "", "", ""): 0.37,
    ("gpu_memory_busy:ratio", "1", "", "", ""): 0,
    ("gpu_memory_used:ratio", "0", "", "", ""): 72927 / 81030,
    ("gpu_memory_used:ratio", "1", "", "", ""): 2 / 81030,
    ("gpu_memory_used:ratio", "2", "7", "", ""): 0.25,
    ("gpu_memory_used:ratio", "2", "8", "", ""): 0.75,
    ("gpu_temperature:celsius", "0", "", "", ""): 58,
    ("gpu_temperature:celsius", "1", "", "", ""): 33,
    ("gpu_temperature:celsius", "2", "", "", ""): 39,
    ("gpu_power:watts", "0", "", "", ""): 612.437,
    ("gpu_power:watts", "1", "", "", ""): 71.25,
    ("gpu_power:watts", "2", "", "", ""): 118.5,
}
"""Of each exporter in tests/monitoring/exporters, by the record and its labels."""
TARGET = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p", "container": "nvidia-dcgm-exporter"}
SCRAPES: dict[str, dict[str, dict[str, str]]] = {
    "4.8.2 alone": {"4.8.2": {}},
    "4.8.3 alone": {"4.8.3": {}},
    "4.9.0 alone": {"4.9.0": {}},
    "three releases on three nodes": {"4.8.2": {}, "4.8.3": {}, "4.9.0": {}},
    "labels that Prometheus keeps for itself": {
        release: TARGET | {"hostname": "elsewhere", "Hostname": "elsewhere"} for release in ("4.8.2", "4.8.3", "4.9.0")
    },
    "the label node of a scrape configuration": {"4.8.2": {"node": "gpu-node-1"} | TARGET},
}


class Exporter(LoopbackAnswers):
    def __init__(self, page: str, *connection: Any) -> None:
        self._page = page
        super().__init__(*connection)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server looks for
        self.answer(200, self._page.encode(), {"Content-Type": "text/plain; version=0.0.4"})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    with PrometheusServer(tmp_path_factory.mktemp("exporters") / "prometheus") as server:
        yield server


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(undo: ExitStack, release: str, number: int = 1) -> int:
    """Return the port of an exporter on gpu-node-NUMBER."""
    page = PAGES[release].replace("gpu-node-1", f"gpu-node-{number}").replace("GPU-1a7c", f"GPU-{number}a7c")
    server = LoopbackServer(partial(Exporter, page))
    undo.callback(server.close)
    return int(server.endpoint.rpartition(":")[2])


def recorded(url: str) -> dict[str, dict[tuple[str, ...], Any]]:
    """Return the records by node. Two series of one node with the same labels but the UUID fail."""
    nodes: dict[str, dict[tuple[str, ...], Any]] = {}
    try:
        series = instant(url, RECORDS)
    except PrometheusError:
        return {}
    for entry in series:
        labels = entry["metric"]
        record, *others = (labels.get(name, "") for name in KEPT)
        key = (record.partition(":")[2], *others)
        node = nodes.setdefault(labels.get("node", ""), {})
        assert key not in node, series
        assert set(labels) <= {*KEPT, "UUID", "node"}
        node[key] = pytest.approx(float(entry["value"][1]))
    return nodes


@pytest.mark.parametrize("targets", SCRAPES.values(), ids=SCRAPES)
def test_each_release_gives_the_same_records(
    prometheus: PrometheusServer, undo: ExitStack, targets: dict[str, dict[str, str]]
) -> None:
    ports = [(serve(undo, release, number), labels) for number, (release, labels) in enumerate(targets.items(), 1)]
    prometheus.set_targets(*ports)

    nodes = {f"gpu-node-{number}": VALUES for number in range(1, len(targets) + 1)}
    eventually(lambda: recorded(prometheus.url) == nodes, lambda: recorded(prometheus.url))
    assert {rule["health"] for rule in prometheus.rules() if "gpu_healthcheck:" in str(rule)} == {"ok"}


def test_an_upgraded_exporter_beside_the_earlier_one_makes_no_second_series(
    prometheus: PrometheusServer, undo: ExitStack
) -> None:
    ports = {release: serve(undo, release) for release in PAGES}
    for releases in (("4.8.2",), ("4.8.2", "4.8.3"), ("4.8.2", "4.8.3", "4.9.0"), ("4.9.0",)):
        prometheus.set_targets(*((ports[release], {}) for release in releases))
        prometheus.wait_for(f"count(up == 1) == {len(releases)}")
        eventually(lambda: recorded(prometheus.url) == {"gpu-node-1": VALUES}, lambda: recorded(prometheus.url))
    eventually(lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"}, prometheus.rules)


def test_diagnose_reads_the_utilization_of_each_release(prometheus: PrometheusServer, undo: ExitStack) -> None:
    releases = ("4.8.2", "4.8.3", "4.9.0")
    prometheus.set_targets(*((serve(undo, release, number), {}) for number, release in enumerate(releases, 1)))
    prometheus.wait_for(SERIES, count=6)

    seen = with_use(snapshot(), prometheus.url)
    assert seen.missing == {}
    uses = sorted(seen.gpu_use, key=lambda use: (use.node, use.index))
    assert uses == [
        GpuUse(
            f"GPU-{number}a7c93b{gpu}-6f0e-4d55-9c1b-0a4e6b2f8d1{gpu}", str(gpu), percent, f"gpu-node-{number}", pods
        )
        for number in (1, 2, 3)
        for gpu, percent, pods in ((0, 98, (("ml", "train-0"),)), (1, 1, ()))
    ]
    assert (
        with_use(snapshot(), prometheus.url, idle=True)
        .missing[USE]
        .endswith("for less than an hour: could not check. Try again later")
    )
    assert [instant(prometheus.url, query) for query in (IDLE, AN_HOUR_AGO)] == [[], []]


@pytest.mark.parametrize("release", ["4.8.2", "4.9.0"])
def test_without_the_rules_diagnose_names_their_file(tmp_path: Path, undo: ExitStack, release: str) -> None:
    prometheus = undo.enter_context(PrometheusServer(tmp_path / "prometheus", "groups: []"))
    assert "Does it scrape the DCGM exporter?" in with_use(snapshot(), prometheus.url, idle=True).missing[USE]
    prometheus.set_targets((serve(undo, release), {}))
    prometheus.wait_for(EXPORTED)

    for idle in (False, True):
        assert (
            "could not check. Load the recording rules in kubernetes/overlays/monitoring/prometheus-rule.yaml"
            in with_use(snapshot(), prometheus.url, idle=idle).missing[USE]
        )
