"""`--prometheus URL` as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.diagnosis.snapshot.gpu_use import AN_HOUR_AGO, EXPORTED, IDLE, SERIES, USE
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.console import typed
from tests.prometheus import PrometheusStandIn, Series, series

GPUS = [series(ratio, node="gpu-node-1", gpu=str(n), UUID=f"GPU-{n}") for n, ratio in enumerate((1, 0.5))]
NOT_LOADED = (
    "scrapes the DCGM exporter but has no series gpu_healthcheck:gpu_utilization:ratio: could not check. Load the"
    " recording rules in kubernetes/overlays/monitoring/prometheus-rule.yaml into it (Prometheus operator:"
    " kubectl apply -k kubernetes/overlays/monitoring), and try again after two minutes"
)
NOT_SCRAPED = (
    "has no series gpu_healthcheck:gpu_utilization:ratio, and none of whole GPUs by the DCGM exporter: could not check."
    " Does it scrape the DCGM exporter?"
)
TOO_NEW = "has recorded gpu_healthcheck:gpu_utilization:ratio for less than an hour: could not check. Try again later"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ApiStandIn() as api:
        yield api.kubeconfig(tmp_path_factory.mktemp("stand-in") / "kubeconfig")


def run(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return typed(words, {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "COLUMNS": "200"})


def test_status_shows_the_utilization_of_each_node(kubeconfig: Path) -> None:
    with PrometheusStandIn({SERIES: GPUS}) as world:
        table = run(kubeconfig, "status", "--allocation", "--prometheus", world.url)
        document = run(kubeconfig, "status", "--allocation", "--prometheus", world.url + "/", "-o", "json")
    assert world.asked == [SERIES, SERIES]
    assert (table.returncode, document.returncode, table.stderr) == (0, 0, b"")
    assert b"Used" in table.stdout
    assert b"75 %" in table.stdout
    (node,) = json.loads(document.stdout)["nodes"]
    assert (node["utilization_percent"], [entry["percent"] for entry in node["utilization"]]) == (75, [100, 50])


def test_status_without_prometheus_has_no_utilization(kubeconfig: Path) -> None:
    process = run(kubeconfig, "status", "--allocation")
    assert (process.returncode, b"Used" in process.stdout) == (0, False)


@pytest.mark.parametrize(
    ("vectors", "why"), [({}, NOT_SCRAPED), ({EXPORTED: [series(8)]}, NOT_LOADED)], ids=["not scraped", "no rules"]
)
def test_status_names_the_reason_of_missing_utilization(
    kubeconfig: Path, vectors: dict[str, list[Series]], why: str
) -> None:
    with PrometheusStandIn(vectors) as world:
        process = run(kubeconfig, "status", "--allocation", "--prometheus", world.url)
    assert (process.returncode, b"gpu-node-1" in process.stdout, b"Used" in process.stdout) == (2, True, False)
    assert process.stderr.decode() == f"gpu-healthcheck status: {world.url} {why}\n"


def test_diagnose_queries_the_recorded_utilization_and_idle_cards(kubeconfig: Path) -> None:
    vectors = {IDLE: [], AN_HOUR_AGO: [series(8)], SERIES: GPUS}
    with PrometheusStandIn(vectors) as world:
        result = json.loads(run(kubeconfig, "diagnose", "--json", "--prometheus", world.url).stdout)
    assert world.asked == [SERIES, AN_HOUR_AGO, IDLE]
    assert [entry["kind"] for entry in result["unobserved"] if entry["hides"] == "GpusHeldIdle"] == []
    gone = run(kubeconfig, "diagnose", "--json", "--prometheus", world.url)
    (entry,) = unobserved(gone)
    assert entry["hides"] == "GpusHeldIdle"
    assert entry["why"].startswith(f"{world.url} does not answer as a Prometheus: ")
    assert gone.returncode in (1, 2)


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        ({}, NOT_SCRAPED),
        ({EXPORTED: [series(8)]}, NOT_LOADED),
        ({AN_HOUR_AGO: [], SERIES: GPUS}, TOO_NEW),
    ],
    ids=["not scraped", "no rules", "new rules"],
)
def test_diagnose_names_the_reason_of_unknown_idle_cards(
    kubeconfig: Path, vectors: dict[str, list[Series]], why: str
) -> None:
    with PrometheusStandIn(vectors) as world:
        process = run(kubeconfig, "diagnose", "--json", "--prometheus", world.url)
    (entry,) = unobserved(process)
    assert (entry["hides"], entry["why"]) == ("GpusHeldIdle", f"{world.url} {why}")
    assert process.returncode in (1, 2)


def unobserved(process: subprocess.CompletedProcess[bytes]) -> list[dict[str, str]]:
    return [entry for entry in json.loads(process.stdout)["unobserved"] if entry["kind"] == USE]


@pytest.mark.parametrize(
    ("words", "raw"),
    [
        (("status", "--allocation", "--prometheus", "host:9090"), b"must start with http"),
        (("status", "--prometheus", "http://host:9090"), b"--prometheus needs --allocation"),
        (("diagnose", "--prometheus", "file:///etc/passwd"), b"must start with http"),
        (("diagnose", "--prometheus", "http://host", "--from", "state.json"), b"--prometheus reads current values"),
    ],
)
def test_prometheus_options_are_refused_in_wrong_combinations(
    kubeconfig: Path, words: tuple[str, ...], raw: bytes
) -> None:
    process = run(kubeconfig, *words)
    assert (process.returncode, raw in process.stderr) == (3, True)
