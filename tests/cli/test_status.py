"""`gpu-healthcheck status`: each node once, the worst first, and no more than a person reads on a terminal."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from rich.text import Text

from cli import columns, fleet_table
from cli.fleet import Budget, Fleet, Row
from cli.status import Output, StatusWish
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.leases import Heartbeat
from healthcheck.host.console import Screen
from healthcheck.operations.next_step import NextStep
from sim.api_stand_in import ApiStandIn
from tests.cli.cluster import P, run_here

WANTED = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    f"{P}/enabled": "true",
}

WISH = StatusWish(Access(), Output.TABLE, "", watch=False, headers=True, by_node=False, prometheus="")


def row(number: int, word: str = "pass", **said: Any) -> Row:
    facts: dict[str, Any] = dict.fromkeys(Row.__dataclass_fields__, "")
    facts |= {"node": f"n{number}", "status": word, "tainted": False, "silent": False, "heartbeat_age_seconds": 30.0}
    facts |= {"findings": (), "unobserved": (), "next_step": NextStep(), **said}
    return Row(**facts)


def fleet(*rows: Row, passed_over: int = 0) -> Fleet:
    return Fleet(Budget(1, 2, len(rows)), list(rows), [f"nodes x{number}" for number in range(passed_over)])


def shown(told: Fleet, most: int) -> str:
    screen = Screen(file=StringIO(), force_terminal=True, width=300, no_color=True)
    with screen.capture() as said:
        screen.print(fleet_table._page(told, WISH, most))
    return Text.from_ansi(said.get()).plain


def test_a_node_is_listed_once_whatever_labels_it_has(tmp_path: Path) -> None:
    with ApiStandIn("judged", "new") as api:
        api.edit_node("judged", {"metadata": {"labels": {**WANTED, f"{P}/status": "pass"}}})
        api.edit_node("new", {"metadata": {"labels": WANTED}})
        said = run_here(api.kubeconfig(tmp_path / "kubeconfig"), "status").stdout
        asked = [
            parse_qs(urlsplit(one.path).query) for one in api.requests if urlsplit(one.path).path.endswith("/nodes")
        ]

    selectors = [query["labelSelector"][0] for query in asked]
    nodes = {"judged": {**WANTED, f"{P}/status": "pass"}, "new": WANTED}
    found = Counter(name for name, labels in nodes.items() for one in selectors if wants(one, labels))
    assert found == {"judged": 1, "new": 1}
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["node", "new", "judged"]
    assert "2 nodes: 1 not judged, 1 pass" in said


def wants(selector: str, labels: dict[str, str]) -> bool:
    for term in selector.split(","):
        name, _, value = term.partition("!=" if "!=" in term else "=")
        holds = labels.get(name) == value if value else term.removeprefix("!") in labels
        if holds == ("!" in term):
            return False
    return True


def test_an_agent_that_began_while_the_nodes_were_listed_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeat came after the others had been listed: no timing of ours brings that about."""
    heartbeats = iter(({}, {"a": Heartbeat(datetime.now(UTC), 900)}))
    monkeypatch.setattr(Cluster, "list_heartbeats", lambda *_: next(heartbeats))
    with ApiStandIn("a") as api:
        api.edit_node("a", {"metadata": {"labels": {f"{P}/status": "pass"}}})
        said = run_here(api.kubeconfig(tmp_path / "kubeconfig"), "status").stdout

    assert "silent" not in said


def test_a_terminal_shows_the_worst_and_counts_the_others() -> None:
    rows = [row(0, "fail", reason="Xid79"), *(row(number) for number in range(1, 900))]

    said = shown(fleet(*rows), 3).splitlines()

    assert [line.split()[0] for line in said[1:4]] == ["n0", "n1", "n2"]
    assert "and 897 more: `gpu-healthcheck status | less` shows all" in said
    assert "900 nodes: 1 fail, 899 pass" in said


def test_a_sentence_names_twenty_and_counts_the_others() -> None:
    withheld = [row(number, "fail", taint="withheld") for number in range(30)]
    overdue = [row(number, overdue=f"reason {number % 25}") for number in range(100, 150)]

    said = shown(fleet(*withheld, *overdue, passed_over=21), 1)

    assert "n18, n19 and 10 more" in said
    assert said.count("overdue for a deep test: ") == 20
    assert "for 5 other reasons" in said
    assert "passed over: 1 more" in said


def test_a_program_reads_each_row_on_one_line_with_its_cells_below_each_other() -> None:
    said = columns.text([("node", "why"), ("日本", "a\nb"), ("n", "\x1b[2J"), ("longer", "")])

    assert said == "node    why\n日本    a\\nb\nn       \\x1b[2J\nlonger\n"
