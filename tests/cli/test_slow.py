"""`gpu-healthcheck status --slow`: slow GPUs of the fleet, slowest first, and the nodes that could not be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.fleet import Fleet, FleetBudget, FleetRow, row_of_node
from gpu_healthcheck.cli.fleet_faults import rank
from gpu_healthcheck.cli.output import fleet_page
from gpu_healthcheck.cli.output.fleet_table import print_slow
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.leases import Heartbeat
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE, NodeState
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.cli.cluster import P, run_here
from tests.cli.test_terminal_width import WIDTHS, must_be_one_row_each, names, shown
from tests.hostile import HOSTILE
from tests.markup import parsed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FIGURES = "SM clock 1410 MHz, {} % below the median of its 7 siblings (1620 MHz), in 4 of 6 windows; power 450 W (62 %)"


def slow(index: int, reason: str = "GpuSlowerThanSiblings", loss: float | None = None, **more: Any) -> dict[str, Any]:
    finding: dict[str, Any] = {"reason": reason, "severity": "MONITOR", "subject": f"gpu/0000:{index:02x}:00.0"}
    finding |= {"about": {"index": str(index), "serial": "165"}, "first_seen": "2026-11-21T09:00:00Z"}
    return finding | {"detail": "1410 MHz" if loss is None else FIGURES.format(loss)} | more


def marks(*findings: dict[str, Any], unobserved: list[dict[str, str]] | None = None) -> dict[str, Any]:
    record = {"schema": 1, "findings": list(findings), "unobserved": unobserved or []}
    labels = {f"{P}/status": "warn" if findings else "pass", f"{P}/severity": "MONITOR", INSTANCE_TYPE: "p5.48xlarge"}
    return {"labels": labels, "annotations": {f"{P}/results": json.dumps(record)}}


def row(name: str, *findings: dict[str, Any], age: float = 30, **more: Any) -> FleetRow:
    beat = Heartbeat(NOW - timedelta(seconds=age), 900)
    return row_of_node(NodeState(name, **marks(*findings, **more)), beat, timedelta(0), NOW)


def fleet(*rows: FleetRow) -> Fleet:
    return Fleet(FleetBudget(1, 2, len(rows)), list(rows), [])


def ranked(*rows: FleetRow) -> list[tuple[str, str, int | None]]:
    return [(gpu.node, gpu.gpu, gpu.loss_percent) for gpu in rank(fleet(*rows)).gpus]


def test_rank_sorts_by_loss_then_severity() -> None:
    rows = (
        row("a", slow(1, loss=13), slow(2), slow(3, severity="RESET")),
        row("b", slow(0, "GpuComputeSlow", 73), slow(7, "Xid79")),
    )

    assert ranked(*rows) == [("b", "0", 73), ("a", "1", 13), ("a", "3", None), ("a", "2", None)]


def test_rank_has_one_row_for_a_gpu() -> None:
    early = slow(1, "PowerBrake", 6, first_seen="2026-11-20T09:00:00Z", detail="power brake for 6 % of the time")
    (gpu,) = rank(fleet(row("a", early, slow(1, loss=13)))).gpus

    assert (gpu.reasons, gpu.loss_percent) == (("GpuSlowerThanSiblings", "PowerBrake"), 13)
    assert (gpu.since, gpu.detail) == ("2026-11-20T09:00:00Z", FIGURES.format(13))


@pytest.mark.parametrize(
    ("detail", "loss"),
    [
        ("power brake 45 % of the time, siblings 0 %, in 3 of 6 windows", 45),
        ("memory clock 1593 MHz, 39.5 % below the median", 39),
        ("over 50% of the time: clocks slowed down by heat (event reason 0x40)", 50),
        # Details that a long record cuts.
        (FIGURES.format(13)[:40], 13),
        ("45 % of the time in hardware thermal slowdown or power brake"[:40], 45),
        ("over 5% of the time: clocks slowed down by the power supply"[:40], 5),
        ("clocks slowed down by heat (event reason 0x40)", None),
        ("100 % of the time", 100),
        ("101 % of the time", None),
        (f"{'9' * 200} %", None),
        ("17,657 corrected errors/s, its siblings 0/s", None),
        ("", None),
    ],
)
def test_rank_reads_the_loss_from_the_detail(detail: str, loss: int | None) -> None:
    assert ranked(row("a", slow(1, detail=detail))) == [("a", "1", loss)]


def test_rank_names_a_gpu_without_an_index_by_address() -> None:
    assert ranked(row("a", slow(1, about={}))) == [("a", "0000:01:00.0", None)]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (row("a"), ""),
        (row("a", unobserved=[{"check": "2-efa-enumeration", "cause": "EfaNotRead"}]), ""),
        (row("a", unobserved=[{"check": "0-nvidia-smi", "cause": "DriverNotLoaded"}] * 2), "DriverNotLoaded"),
        (row("a", age=9999), "the agent is silent"),
        (row_of_node(NodeState("a"), None, timedelta(0), NOW), "no agent has reported"),
        (
            row_of_node(NodeState("a", labels={f"{P}/status": "pass"}), Heartbeat(NOW, 900), timedelta(0), NOW),
            "the agent's record is missing or unreadable",
        ),
    ],
)
def test_rank_names_why_a_node_was_not_compared(entry: FleetRow, why: str) -> None:
    ranking = rank(fleet(entry))

    assert [one.reason for one in ranking.not_compared] == ([why] if why else [])
    assert ranking.known == (0 if why else 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ApiStandIn, Path]]:
    with ApiStandIn("n1", "n2", "n3") as api:
        api.edit_node("n1", {"metadata": marks()})
        api.edit_node("n2", {"metadata": marks()})
        kubeconfig = api.kubeconfig(tmp_path / "config")
        leases = cluster_of(Access(str(kubeconfig))).leases
        for name in ("n1", "n2"):
            leases.renew_heartbeat(NodeState(name, uid=name), datetime.now(UTC), 900)
        yield api, kubeconfig


def printed(kubeconfig: Path, *words: str) -> str:
    done = run_here(kubeconfig, "status", "--slow", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_status_slow_without_slow_gpus_names_unknown_nodes(cluster: tuple[ApiStandIn, Path]) -> None:
    _, kubeconfig = cluster

    assert printed(kubeconfig).splitlines() == [
        "no GPU is slower than others, by the records of 2 nodes; idle GPUs are not compared",
        "not compared: n3: no agent has reported",
    ]
    assert printed(kubeconfig, "-l", f"!{P}/status").splitlines() == [
        "no node could be compared, so it is unknown whether a GPU is slow",
        "not compared: n3: no agent has reported",
    ]
    assert printed(kubeconfig, "-o", "name") == ""


def test_status_slow_lists_gpus_in_each_form(cluster: tuple[ApiStandIn, Path]) -> None:
    api, kubeconfig = cluster
    api.edit_node("n2", {"metadata": marks(slow(3, loss=13), slow(5, loss=20))})
    by_form = [yaml.safe_load(printed(kubeconfig, "-o", form)) for form in ("json", "yaml")]
    table = printed(kubeconfig).splitlines()

    assert by_form[0] == by_form[1]
    assert [(gpu["node"], gpu["gpu"], gpu["loss_percent"]) for gpu in by_form[0]["gpus"]] == [
        ("n2", "5", 20),
        ("n2", "3", 13),
    ]
    assert by_form[0]["not_compared"] == [{"node": "n3", "reason": "no agent has reported"}]
    assert table[0].split() == ["node", "gpu", "loss", "reason", "since", "type", "detail"]
    assert table[1].split()[:5] == ["n2", "5", "20", "%", "GpuSlowerThanSiblings"]
    assert table[-3:] == [
        "2 slow GPUs on 1 node, by the records of 2 nodes; idle GPUs are not compared",
        "nodes with several: n2 (2)",
        "not compared: n3: no agent has reported",
    ]
    assert len(printed(kubeconfig, "--no-headers").splitlines()) == 2
    assert printed(kubeconfig, "-o", "name") == "node/n2\n"


@pytest.mark.parametrize("length", [45, 63])
def test_status_slow_has_a_row_for_each_gpu_on_a_terminal(tmp_path: Path, length: int) -> None:
    nodes = names(length, 30)
    with ApiStandIn(*nodes) as api:
        for place, name in enumerate(nodes):
            finding = slow(place % 8, ("GpuSlowerThanSiblings", "PowerBrake")[place % 2], place)
            api.edit_node(name, {"metadata": marks(finding)})
        kubeconfig = api.kubeconfig(tmp_path / "config")
        for width in WIDTHS:
            lines = shown(kubeconfig, width, "status", "--slow")
            must_be_one_row_each(lines[1:31], nodes, width, lines)
            assert max(map(len, lines)) <= width
            assert all("GpuSlowerThanSiblings" in line or "PowerBrake" in line for line in lines[1:31])
            assert all(f" {29 - place} %" in line for place, line in enumerate(lines[1:31]))


def test_status_slow_of_an_empty_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    print_slow(rank(fleet()), wide=False, headers=True)
    assert capsys.readouterr().out.splitlines() == ["there is no GPU node"]


@pytest.mark.parametrize("name", HOSTILE)
def test_status_slow_row_is_printable(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bit = slow(2, "PowerBrake", detail=f"clocks slowed down by the power supply (event reason 0x80){name}")
    print_slow(rank(fleet(row(name, slow(1, loss=9), bit))), wide=False, headers=True)

    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [" 9 % " in lines[1], " unknown " in lines[2]] == [True, True]
    assert len(lines) == 6


def test_page_has_the_ranking_of_slow_gpus() -> None:
    hostile = slow(3, loss=13, detail="<script>x</script>", about={"index": "<b>"})
    page = fleet_page.text(fleet(row("a.b", slow(2, loss=20), hostile), row("c", age=9999)), NOW)
    without = fleet_page.text(fleet(row("a")), NOW)

    cells = " ".join(parsed(page.partition("Slow GPUs")[2].partition("Facts")[0]).words).split()
    assert cells[cells.index("a") :][:5] == ["a", "GPU", "2", "serial", "165"]
    assert "<script>x" not in page
    assert "1 node could not be compared." in page
    assert "Slow GPUs" not in without
