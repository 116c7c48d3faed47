"""Every table with names of nodes on terminals of any width: one row for a node, no lost reason, and the totals."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.text import Text

from gpu_healthcheck.cli.output.allocation_table import page
from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.healthcheck.deep.due import DeepTest
from gpu_healthcheck.healthcheck.host.console import fitted_table, shortened, wrapped
from gpu_healthcheck.healthcheck.node.state import UNHEALTHY
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sweeper import __main__ as sweep
from gpu_healthcheck.sweeper.select import Candidate, Decision
from tests.cli.cluster import P
from tests.console import typed
from tests.diagnosis.states import node, pod, snapshot

WIDTHS = (80, 100, 120, 200)
NAMES = {
    45: "ip-10-0-{:03}-1.ap-northeast-1.compute.internal",
    63: "gpu-worker-pool-of-building-seven-{:03}-rack-with-a-long-name-abc",
    253: "node-{:03}."
    + f"{'label-of-a-domain-of-48-characters-at-most-abcde'}." * 4
    + "end-of-the-name-of-48-characters-xyzabcdefghijkl",
}
REASONS = ("RuntimeBinaryOfAnotherArchitecture", "Xid79", "NvidiaRuntimeMissing")
WHYS = (
    "",
    "tested at 2026-11-25T10:00:00Z",
    "its taint gpu-healthcheck.aws-samples.io/unhealthy keeps the sweep away",
    "MPS shares its GPUs, so a test's pod gets a part of one: only an agent of the full image can run level 2",
)
TAINT = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
_ERASED = "\x1b[2K"
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def names(length: int, number: int) -> list[str]:
    assert len(NAMES[length].format(0)) in range(length, length + 3)
    return [NAMES[length].format(place) for place in range(number)]


def must_be_one_row_each(rows: list[str], expected: list[str], width: int, lines: list[str]) -> None:
    """Each row begins with another name, which may lack its middle and the ending that the lines state."""
    stated = re.search(r"All names of nodes end in\s+(\S+)", "\n".join(lines))
    names = [name.removesuffix(stated[1] if stated else "") for name in expected]
    cells = [row.split()[0] for row in rows]

    assert len(rows) == len(expected) == len(set(cells))
    assert max(map(len, rows)) <= width
    patterns = [re.escape(cell).replace("…", ".+") for cell in cells]
    assert [one for one in patterns if not any(re.fullmatch(one, name) for name in names)] == []


@pytest.fixture(scope="module", params=[(length, number) for length in NAMES for number in (1, 200)], ids=str)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path]]:
    """Yield the names of a fleet's nodes, and its kubeconfig. Every third node has another reason."""
    nodes = names(*request.param)
    with ApiStandIn(*nodes) as api:
        for place, name in enumerate(nodes):
            api.edit_node(name, marked(REASONS[place % len(REASONS)]))
        yield nodes, api.kubeconfig(tmp_path_factory.mktemp("fleet") / "kubeconfig")


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first pause."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)


def marked(reason: str) -> dict[str, Any]:
    severity, status = ("REBOOT", "fail") if reason == "Xid79" else ("MONITOR", "warn")
    finding = {"reason": reason, "severity": severity, "subject": "gpu/0000:18:00.0", "detail": "it failed " * 20}
    finding |= {"exit": "reboot, release", "nature": "event", "last_seen": "2026-11-21T01:02:03Z"}
    record = {"schema": 1, "status": status, "severity": severity, "findings": [finding]}
    record |= {"taint": "withheld"} if status == "fail" else {}
    condition = {"type": "GpuHealthy", "status": "False", "reason": reason}
    condition["message"] = f"{reason} on gpu/0000:18:00.0: {finding['detail']}"
    labels = {f"{P}/status": status, f"{P}/severity": severity}
    metadata = {"labels": labels, "annotations": {f"{P}/results": json.dumps(record)}}
    return {"metadata": metadata, "status": {"conditions": [condition]}}


def shown(kubeconfig: Path, width: int, *words: str, lines: int = 24, code: int = 0) -> list[str]:
    """Return the lines of a command on a terminal; of an output that is updated in place, the last one."""
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(width), "LINES": str(lines), "TERM": "xterm"}
    done = typed(words, {**os.environ, **terminal, "KUBECONFIG": str(kubeconfig)})
    assert (done.returncode, done.stderr) == (code, b"")
    return _STYLES.sub("", done.stdout.decode().rpartition(_ERASED)[2]).splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_status_has_a_row_for_each_node(fleet: tuple[list[str], Path], width: int) -> None:
    nodes, kubeconfig = fleet
    lines = shown(kubeconfig, width, "status")

    rows = lines[1 : len(nodes) + 1]
    must_be_one_row_each(rows, nodes, width, lines)
    for place, reason in enumerate(REASONS):
        assert sum(reason in row.split() for row in rows) == len(nodes[place :: len(REASONS)])
    numbers = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}: "
    assert [line for line in lines if line.startswith(numbers)] != []
    assert any(line.startswith("GPU pods can't start on:") for line in lines)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("width", WIDTHS)
def test_status_watch_fits_one_screen(fleet: tuple[list[str], Path], width: int) -> None:
    nodes, kubeconfig = fleet
    lines = shown(kubeconfig, width, "status", "-w", lines=16, code=130)

    assert len(lines) < 16
    assert max(map(len, lines)) <= width
    assert any(re.match(r"\d+ nodes?: ", line) for line in lines)
    assert any(" tainted nodes: " in line for line in lines)
    rows = [line for line in lines if " MONITOR " in line or " REBOOT " in line]
    left_out = [int(line.split()[2]) for line in lines if line.startswith("… and ")]
    assert len(rows) + sum(left_out) == len(nodes)
    assert len(nodes) == 1 or " fail " in rows[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_status_of_a_node_fits_one_screen(fleet: tuple[list[str], Path], width: int) -> None:
    nodes, kubeconfig = fleet
    lines = shown(kubeconfig, width, "status", nodes[0])

    assert lines[0].startswith(f"{nodes[0]}  ")
    assert len(lines) <= 24
    text = " ".join(" ".join(lines).split())
    fault = "MONITOR GPU pods can't start. GPU 0000:18:00.0: an NVIDIA handler's program is for another processor"
    for words in (f"{fault} ({REASONS[0]} on gpu/0000:18:00.0): it failed ", "ends by: reboot or release"):
        assert words in text
    assert re.search(r"next step .*\$ ", text)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("width", WIDTHS)
def test_status_watch_of_a_node_keeps_its_next_step(fleet: tuple[list[str], Path], width: int) -> None:
    nodes, kubeconfig = fleet
    lines = shown(kubeconfig, width, "status", nodes[0], "-w", lines=8, code=130)

    assert len(lines) < 8
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("            $ ")


def test_status_in_a_pipe_and_wide_shortens_nothing(fleet: tuple[list[str], Path]) -> None:
    nodes, kubeconfig = fleet
    piped = typed(["status", "-o", "wide", "--no-headers"], {**os.environ, "KUBECONFIG": str(kubeconfig)})
    rows = [re.split("  +", row) for row in piped.stdout.decode().splitlines()]

    assert sorted(row[0] for row in rows) == sorted(nodes)
    assert {len(row) for row in rows} == {12}
    wide = shown(kubeconfig, 80, "status", "-o", "wide")
    assert sorted(row.split()[0] for row in wide[1 : len(nodes) + 1]) == sorted(nodes)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("number", [1, 200])
@pytest.mark.parametrize("length", NAMES)
def test_sweep_dry_run_keeps_its_reasons(length: int, number: int, width: int) -> None:
    tested = DeepTest(datetime.now(UTC), "pass", "sweep")
    one = Candidate("", "", "p5.48xlarge", {}, tested, None, "", False, True, timedelta(hours=6))
    nodes = [replace(one, name=name) for name in names(length, number)]
    decisions = [Decision(node, WHYS[place % len(WHYS)]) for place, node in enumerate(nodes)]
    table = fitted_table(sweep._COLUMNS, map(sweep._cells, decisions), width)

    rows, text = ["\n".join(line.plain for line in part) for part in (table.lines[1:], [*table.lines, *table.notes])]
    must_be_one_row_each(rows.splitlines(), names(length, number), width, [text])
    assert [why for why in WHYS[:number] if why not in text] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("number", [1, 200])
@pytest.mark.parametrize("length", NAMES)
def test_status_allocation_keeps_pods_and_reasons(length: int, number: int, width: int) -> None:
    nodes, worker = names(length, number), "distributed-training-worker-0-of-64"
    objects = [node(name, taints=[TAINT] if place == 0 else []) for place, name in enumerate(nodes)]
    lines = [line.plain for line in page(allocation(snapshot(*objects, pod(worker, 6, on=nodes[0]))), width)]

    must_be_one_row_each(lines[1 : number + 1], nodes, width, lines)
    text = "\n".join(lines)
    assert f"team/{worker} 6" in text
    assert f"{8 * (number - 1)} of {8 * number} free" in text


@pytest.mark.parametrize(
    ("texts", "width", "short"),
    [
        (["abcdefgh", "abcdefgi"], 5, ["ab…gh", "ab…gi"]),
        (["a1cdefgh", "a2cdefgh"], 5, ["a1…gh", "a2…gh"]),
        (["abcdef1xyz", "abcdef2xyz"], 6, ["a…1xyz", "a…2xyz"]),
        (["abcdef1uvwxyz", "abcdef2uvwxyz"], 6, ["a…1…z", "a…2…z"]),
        (["short", "a-longer-name"], 8, ["short", "a-lo…ame"]),
    ],
)
def test_shortened_names_are_unique(texts: list[str], width: int, short: list[str]) -> None:
    assert shortened(texts, width) == short


def test_sentences_break_between_words_and_keep_names() -> None:
    name = NAMES[63].format(1)

    assert [line.plain for line in wrapped(Text(f"not on {name}, b"), 40, 2)] == ["not on", f"  {name},", "  b"]
