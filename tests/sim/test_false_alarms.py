"""False alarms on healthy captures: docs/rules.md quotes the measure, and the measure counts findings."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.false_alarms import SEVERITIES, Figures, Judged, Source, captures, healthy_nodes, judge_node, total
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.sim.scenarios import FOLDER, Scenario

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "docs/rules.md").read_text()


def expected(scenario: Scenario) -> Judged:
    """Return the scenario's expected result, which tests/e2e/test_scenarios.py holds."""
    severities = (Severity[scenario.expect.severity] for _ in scenario.expect.findings)
    return Judged(Counter(severities), bool(scenario.expect.unobserved))


def row(source: Source, figures: Figures) -> str:
    alarms = " | ".join(str(figures.alarms[severity]) for severity in SEVERITIES)
    return f"| {source} | {figures.captures} | {figures.hours:g} | {alarms} | {figures.unknown} |"


def test_rules_quote_the_false_alarms_of_every_source() -> None:
    all_captures = list(captures())
    nodes = {scenario.name: expected(scenario) for scenario in healthy_nodes()}
    rows = []
    for source in Source:
        ours = [one for one in all_captures if one.source is source]
        judged = [(one.seconds, nodes[one.name] if source is Source.NODES else one.judge()) for one in ours]
        rows.append(row(source, total(judged)))

    assert [line for line in RULES.splitlines() if line.startswith(tuple(f"| {source} |" for source in Source))] == rows


def test_rules_quote_the_comparison_of_siblings() -> None:
    """Its figures are those of the last full run."""
    measure = json.loads((ROOT / "bench/results.json").read_text())["measures"]["slow"]
    (figure,) = (row for row in measure["rows"] if row["what"].startswith("false findings in 300,000 node-hours"))

    assert (figure["figure"], measure["quick"]) == ("0", False)
    assert "300,000 simulated node-hours of busy healthy GPUs: no finding" in " ".join(RULES.split())


@pytest.mark.parametrize(
    ("name", "alarms"),
    [
        ("xid-79", {Severity.REBOOT: 1}),
        ("xid-quoted", {}),
        ("nvlink-error-rate", {Severity.MONITOR: 1}),
        ("nvlink-error-now-and-then", {}),
    ],
)
def test_finding_of_a_node_counts_as_an_alarm(name: str, alarms: dict[Severity, int]) -> None:
    assert judge_node(Scenario.load(FOLDER / name)) == Judged(Counter(alarms), is_unknown=False)
