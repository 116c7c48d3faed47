"""`--prometheus URL` as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnosis.snapshot.gpu_use import IDLE, NOW, SERIES, THERE
from sim.api_stand_in import ApiStandIn
from tests.console import typed
from tests.prometheus import PrometheusStandIn, series

GPUS = [series(percent, Hostname="gpu-node-1", gpu=str(n), UUID=f"GPU-{n}") for n, percent in enumerate((100, 50))]


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ApiStandIn() as api:
        yield api.kubeconfig(tmp_path_factory.mktemp("stand-in") / "kubeconfig")


def run(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return typed(words, {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "COLUMNS": "200"})


def test_status_shows_how_much_the_cards_of_each_node_are_used(kubeconfig: Path) -> None:
    with PrometheusStandIn({SERIES: GPUS}) as world:
        table = run(kubeconfig, "status", "--allocation", "--prometheus", world.url)
        document = run(kubeconfig, "status", "--allocation", "--prometheus", world.url + "/", "-o", "json")
    assert world.asked == [NOW, NOW]
    assert (table.returncode, document.returncode, table.stderr) == (0, 0, b"")
    assert b"Used" in table.stdout
    assert b"75 %" in table.stdout
    (node,) = json.loads(document.stdout)["nodes"]
    assert (node["utilization_percent"], [entry["percent"] for entry in node["utilization"]]) == (75, [100, 50])


def test_without_it_the_table_has_no_column_for_it(kubeconfig: Path) -> None:
    process = run(kubeconfig, "status", "--allocation")
    assert (process.returncode, b"Used" in process.stdout) == (0, False)


def test_status_shows_the_rest_where_it_does_not_answer_and_says_so(kubeconfig: Path) -> None:
    with PrometheusStandIn() as world:
        process = run(kubeconfig, "status", "--allocation", "--prometheus", world.url)
    assert (process.returncode, b"gpu-node-1" in process.stdout, b"Used" in process.stdout) == (2, True, False)
    assert process.stderr.decode() == (
        f"gpu-healthcheck status: {world.url} has no series {SERIES}: does it scrape the DCGM exporter?\n"
    )


def test_diagnose_asks_for_the_use_of_cards_and_for_idle_ones_and_tells_what_hides_them(kubeconfig: Path) -> None:
    with PrometheusStandIn({THERE: [series(8)]}) as world:
        result = json.loads(run(kubeconfig, "diagnose", "--json", "--prometheus", world.url).stdout)
    assert world.asked == [THERE, NOW, IDLE]
    assert [entry["kind"] for entry in result["unobserved"] if entry["hides"] == "GpusHeldIdle"] == []
    gone = run(kubeconfig, "diagnose", "--json", "--prometheus", world.url)
    (entry,) = [load for load in json.loads(gone.stdout)["unobserved"] if load["kind"] == "GPU utilization"]
    assert entry["hides"] == "GpusHeldIdle"
    assert entry["why"].startswith(f"{world.url} does not answer as a Prometheus: ")
    assert gone.returncode in (1, 2)


@pytest.mark.parametrize(
    ("words", "raw"),
    [
        (("status", "--allocation", "--prometheus", "host:9090"), b"must start with http"),
        (("status", "--prometheus", "http://host:9090"), b"--prometheus needs --allocation"),
        (("diagnose", "--prometheus", "file:///etc/passwd"), b"must start with http"),
        (("diagnose", "--prometheus", "http://host", "--from", "state.json"), b"--prometheus reads current values"),
    ],
)
def test_wrong_use(kubeconfig: Path, words: tuple[str, ...], raw: bytes) -> None:
    process = run(kubeconfig, *words)
    assert (process.returncode, raw in process.stderr) == (3, True)
