"""Parameters of the alerts: values of the chart, and their places in the text of the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tools.chart.manifest import Document, Edit, Steps
from tools.rules import plain_rules

PLACES: Mapping[str, str] = {
    ".Values.prometheusRule.runbookUrl": r"runbook_url: (\S+)#",
    ".Values.prometheusRule.namespace": r'namespace="(gpu-healthcheck)(?:-budget)?"',
    ".Values.prometheusRule.job": r'job=~"([^"]+)"',
    ".Values.prometheusRule.fleetFaults": r"offset 15m\)\s+\) >= (3)\n",
    ".Values.prometheusRule.fleetBlind": r"unobserved_nodes:count(?:\{cluster=%q\})? >= (3)\b",
    ".Values.prometheusRule.budgetUsed": r"slots_allowed:max >= (0\.8)\n",
    ".Values.prometheusRule.temperatureMargin": r'UUID!=""\}\) - (5)\)',
    ".Values.prometheusRule.memoryUsed": r"gpu_memory_used:ratio > (0\.95)\n",
    ".Values.prometheusRule.utilization": r"\* 100 < (10)\n",
    ".Values.prometheusRule.sweeperSeconds": r"\) > (7200)\n",
    ".Values.prometheusRule.throttledAboveType": r"\) > (0\.1)\n",
    ".Values.prometheusRule.typeSlow": r"nodes:count > (0\.2)\n",
    'mul 12 (int64 (index .Values.settings "CHECK_INTERVAL"))': r"\[(3600)s\]",
    'mul 3 (int64 (index .Values.settings "CHECK_INTERVAL"))': r"[<>]=? (900)\b",
    'int64 (index .Values.settings "MAX_UNHEALTHY_PERCENT")': r"\* (20) / 100",
}
"""The first group of each pattern is the default in the overlay monitoring."""
_ALL = [rule for group in yaml.safe_load(plain_rules())["groups"] for rule in group["rules"]]
ALERTS: Mapping[str, str | None] = {rule["alert"]: rule.get("for") for rule in _ALL if "alert" in rule}
"""Waiting time of each alert; None if it fires at once."""


def edits(rules: Document) -> Iterator[Edit]:
    """Yield the edits that replace each default of the rules by the chart's value."""
    for value, pattern in PLACES.items():
        found = list(re.finditer(pattern, rules.text))
        assert found, pattern
        yield from (Edit(*match.span(1), f"{{{{ {value} }}}}") for match in found)
    for path, rule in _rules(rules):
        if "alert" in rule:
            yield from _of_alert(rules, path, rule)


def _rules(rules: Document) -> Iterator[tuple[Steps, Mapping[str, Any]]]:
    for at, group in enumerate(rules.content["spec"]["groups"]):
        for number, rule in enumerate(group["rules"]):
            yield ("spec", "groups", at, "rules", number), rule


def _of_alert(rules: Document, path: Steps, rule: Mapping[str, Any]) -> Iterator[Edit]:
    name, severity = rule["alert"], rule["labels"]["severity"]
    chosen = f'index .Values.prometheusRule.severities "{name}" | default "{severity}"'
    yield rules.replaced((*path, "labels", "severity"), f"{{{{ {chosen} }}}}")
    if "for" in rule:
        waits = f'index .Values.prometheusRule.for "{name}" | default "{rule["for"]}"'
        yield rules.replaced((*path, "for"), f"{{{{ {waits} }}}}")
    whole, _ = rules.entry(path)
    start = rules.text.rindex("\n", 0, whole.start) + 1
    yield Edit(start, start, f'{{{{- if ne ({chosen}) "none" }}}}\n')
    yield Edit(whole.end, whole.end, "\n{{- end }}")
