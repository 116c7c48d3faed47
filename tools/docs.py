"""Write the generated documentation: docs/checks.md and causes.md, and tables in other pages.

`--check` only lists outdated files.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from msgspec import to_builtins

from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.diagnosis.causes import OF_WORKLOADS
from gpu_healthcheck.diagnosis.model import Cause
from gpu_healthcheck.evict.metrics import METRICS
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.profiles import FORM, PROFILES_FILE
from gpu_healthcheck.healthcheck.catalog.sxid import CLASSES, sxid_table
from gpu_healthcheck.healthcheck.catalog.xid import severity_of, xid_table
from gpu_healthcheck.healthcheck.checks import CHECKS, DEEP_CHECKS
from gpu_healthcheck.healthcheck.memory.cycles import CYCLES_TO_CONFIRM
from gpu_healthcheck.healthcheck.memory.exit_table import EXITS
from gpu_healthcheck.healthcheck.memory.reason_names import SLOW
from gpu_healthcheck.healthcheck.model import Check, Reason, Severity
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, settings_of
from gpu_healthcheck.quarantine.recommendation import TABLE
from tools import cast, explain_index, man_page
from tools.chart import CHART, values
from tools.explain_index import CAUSES
from tools.manifests import DASHBOARD
from tools.rules import plain_rules

ALL_CHECKS = (*CHECKS, *DEEP_CHECKS)
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = ROOT / "cli" / "index.json"


def groups_table() -> str:
    """Return one line per group: its checks, and their sources."""
    groups: dict[str, list[Check]] = defaultdict(list)
    for check in ALL_CHECKS:
        groups[check.group].append(check)
    lines = ["| group | checks | reads |", "|---|---|---|"]
    for group, checks in groups.items():
        sources = dict.fromkeys(probe.name for check in checks for probe in check.needs)
        names = ", ".join(f"`{check.name}`" for check in checks)
        lines.append(f"| `{group}` | {names} | {', '.join(sources)} |")
    return "\n".join(lines)


def findings_table() -> str:
    """Return one line per check: its reasons, each with its severity unless the data decide it."""
    lines = ["| check | reasons |", "|---|---|"]
    for check in ALL_CHECKS:
        fixed = check.name not in _SEVERITIES_THAT_VARY
        links = (
            f"[{reason.name}](#{reason.name.lower()}){f' {reason.severity.name}' if fixed else ''}"
            for reason in check.reasons
        )
        lines.append(f"| `{check.name}` | {', '.join(links)} |")
    return "\n".join(lines)


def exit_table() -> str:
    """Return the ways in which a finding ends, one line each."""
    lines = ["| exit | of | when |", "|---|---|---|"]
    lines += [f"| {way.words} | {way.of} | {way.when} |" for way in EXITS]
    return "\n".join(lines)


def recommendation_table() -> str:
    """Return the recommendations of a quarantine run, one line per row, worst first."""
    lines = ["| recommendation | when | why |", "|---|---|---|"]
    lines += [f"| `{row.recommendation.value}` | {row.when} | {row.why} |" for row in TABLE]
    return "\n".join(lines)


def causes_table() -> str:
    """Return one line per action, with the causes why a check could not run that it fixes."""
    by_action: dict[str, list[str]] = defaultdict(list)
    for cause in CAUSES:
        by_action[cause.action].append(f"`{cause.name}`: {cause.meaning}")
    lines = ["| cause | what to do |", "|---|---|"]
    for action, causes in by_action.items():
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in ("<br>".join(causes), action)) + " |")
    return "\n".join(lines)


def checks_page() -> str:
    """Return the whole of docs/checks.md."""
    parts = [
        "# Checks\n",
        "Generated from the code by `make docs`; a test fails when it is stale.\n",
    ]
    parts += ["## Groups\n", groups_table() + "\n"]
    parts += [_section(check) for check in ALL_CHECKS]
    parts += [_xid_section(), _sxid_section()]
    return re.sub(r"docs/(rules\.md) (\d+)", r"[rule \2](\1)", "\n".join(parts))


def _section(check: Check) -> str:
    lines = [
        f"## {check.name} (group `{check.group}`)\n",
        f"{(sys.modules[check.judge.__module__].__doc__ or '').strip()}\n",
        f"Reads: {', '.join(probe.name for probe in check.needs)}. {_nature(check)}\n",
        "| reason | severity | what it means | counts | what to do | source |",
        "|---|---|---|---|---|---|",
    ]
    for reason in check.reasons:
        link = f"[`{reason.name}`](findings.md#{reason.name.lower()})"
        severity = _severity(check, reason.severity)
        row = (link, severity, reason.meaning, _counts(reason), reason.action, reason.source or "-")
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |")
    return "\n".join(lines) + "\n"


def _counts(reason: Reason) -> str:
    """Return the threshold of a reason, and when it is judged."""
    grace, again = reason.grace, CYCLES_TO_CONFIRM - 1
    words = (
        reason.threshold,
        f"not in the first {grace.seconds:g} s after {grace.since}" if grace else "",
        f"once {again} more check cycles, 10 s apart, show it too" if reason.flickers else "",
    )
    return "; ".join(word for word in words if word) or "at once"


_NATURES = {
    "level": "A finding ends when a check cycle no longer shows the fault.",
    "event": "A finding stands until its written exit: MONITOR a day or a reboot, RESET and REBOOT a reboot.",
}


def _nature(check: Check) -> str:
    slow = [reason.name for reason in check.reasons if reason.name in SLOW]
    ends = f" {' and '.join(slow)} end only by a later measurement or a release." if slow else ""
    return _NATURES[check.nature.value] + ends


_SEVERITIES_THAT_VARY = {
    "xid": "by its code",
    "sxid": "by its line",
    "recovery-action": "by the action",
} | dict.fromkeys(("dcgm-diag-l2", "dcgm-diag-l4"), "by the error")
"""Checks whose findings get their severity from the data; for xid and sxid, one reason covers all numbers."""


def _severity(check: Check, severity: Severity) -> str:
    return _SEVERITIES_THAT_VARY.get(check.name, severity.name)


def _xid_section() -> str:
    codes: dict[Severity, list[str]] = defaultdict(list)
    for code in xid_table():
        codes[severity_of(code, "", Policy())].append(str(code))
    lines = [
        "## Xid codes\n",
        "Default severities; a code that is not in the catalogue is MONITOR. 154 follows the recovery action that its",
        "line names. 144-150 and 74 are decoded from the words that their lines end with; `NVLINK5_DEFAULT` and",
        "`NVLINK_DEFAULT` stand for what NVIDIA's tables do not say. `gpu-healthcheck explain CODE` says more.\n",
        "| severity | codes |",
        "|---|---|",
    ]
    names = {Severity.PASS: "no finding (NVIDIA: IGNORE)"}
    lines += [
        f"| {names.get(severity, severity.name)} | {', '.join(codes[severity])} |"
        for severity in sorted(codes, reverse=True)
    ]
    return "\n".join(lines) + "\n"


def _sxid_section() -> str:
    codes: dict[str, list[str]] = defaultdict(list)
    for row in sxid_table().values():
        codes[row.kind].append(str(row.code))
    lines = [
        "## SXid numbers\n",
        "`Fatal` in the line is RESET, `Non-fatal` and `Correctable` are MONITOR, whatever the number: numbers moved",
        "between drivers. Only a line without such a word goes by its number.\n",
        "| by the driver's source | without a word | numbers |",
        "|---|---|---|",
    ]
    lines += [f"| {CLASSES[kind][1]} | {CLASSES[kind][0].name} | {', '.join(codes[kind])} |" for kind in CLASSES]
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    """Return one line per metric, with the alerts, recorded series and panels that use it."""
    lines = ["| metric | type | labels | meaning | used in |", "|---|---|---|---|---|"]
    uses = uses_by_metric()
    for metric in sorted((*Telemetry().metrics, *METRICS), key=lambda metric: metric.name):
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        used = ", ".join(uses[metric.name]) or "-"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} | {used} |")
    return "\n".join(lines)


def settings_table() -> str:
    """Return the keys of the ConfigMap, one line each."""
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key, setting in settings_of(NodeSettings).items():
        if setting.has_effect:
            default = f"`{setting.written_default}`" if setting.written_default else "empty"
            allowed = setting.allowed.removeprefix("allowed are ") or "-"
            lines.append(f"| `{key}` | {default} | {allowed} | {setting.meaning} |")
    form = FORM.replace("|", r"\|")
    lines.append(f"| `{PROFILES_FILE}` | empty | `{form}` | {_PROFILES_MEANING} |")
    return "\n".join(lines)


_PROFILES_MEANING = (
    "Expected hardware by instance type, one line each: adds rows to "
    "[the table of this version](../healthcheck/instance-profiles.conf), or replaces them."
)


def uses_by_metric() -> dict[str, list[str]]:
    """Return, by metric name, the alerts (as links), recorded series and panels that use it."""
    uses: dict[str, list[str]] = defaultdict(list)
    for group in yaml.safe_load(plain_rules())["groups"]:
        for rule in group["rules"]:
            alert = rule.get("alert")
            message = f"[`{alert}`](alerts.md#{alert.lower()})" if alert else f"`{rule['record']}`"
            for name in _metrics_in(rule["expr"]):
                uses[name].append(message)
    for panel in _panels():
        for name in _metrics_in(" ".join(entry["expr"] for entry in panel["targets"])):
            if (message := f"*{panel['title']}*") not in uses[name]:
                uses[name].append(message)
    return uses


def _metrics_in(expression: str) -> dict[str, None]:
    names = re.findall(r"(?<![\w:])gpu_healthcheck_\w+(?![\w:])", expression)
    return dict.fromkeys(name.removesuffix("_bucket") for name in names)


def _panels() -> list[Any]:
    """Return the panels of the fleet, then those of one node."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [entry for panel in panels for entry in (panel["panels"] if panel["type"] == "row" else [panel])]


def diagnoses_page() -> str:
    """Return the whole of docs/causes.md."""
    lines = [
        "# Causes\n",
        "Causes that `gpu-healthcheck diagnose` can find. `gpu-healthcheck explain CAUSE` prints the same text.",
        "Generated from the code by `make docs`; a test fails when it is stale.\n",
    ]
    family = ""
    for cause, module in _diagnoses():
        if module != family:
            lines.append(f"## {_family(module)}\n")
            family = module
        lines += [
            f"### {cause.name}\n",
            f"{cause.means}\n",
            f"- severity: {cause.severity.name.lower()}",
            *([f"- broken link: {cause.link.value}"] if cause.link is not None else []),
            f"- remedy: {cause.remedy}",
            *([f"- source: {cause.source}"] if cause.source else []),
            "",
        ]
    return "\n".join(lines)


def _family(module: str) -> str:
    """Return the heading of a family, and the rest of its module's docstring."""
    first, *rest = (sys.modules[module].__doc__ or "").strip().splitlines()
    heading = first.removeprefix("Find ").removesuffix(".")
    return "\n".join((f"{heading[:1].upper()}{heading[1:]}", *rest))


def _diagnoses() -> Iterator[tuple[Cause, str]]:
    """Yield each cause once, with the module of its family."""
    messages = set[str]()
    for search in OF_WORKLOADS:
        for cause in search.causes:
            if cause.name not in messages:
                messages.add(cause.name)
                yield cause, _function_of(search.find).__module__


def _function_of(find: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself of one that some arguments are bound to."""
    return find.func if isinstance(find, partial) else find


def rendered() -> dict[Path, str]:
    """Return every generated file with its content."""
    return {
        INDEX: index(),
        man_page.PAGE: man_page.page(),
        DOCS / "checks.md": checks_page(),
        DOCS / "causes.md": diagnoses_page(),
        **_with_table("metrics.md", "metrics", metrics_table()),
        **_with_table("settings.md", "settings", settings_table()),
        **_with_table("record.md", "exits", exit_table()),
        **_with_table("findings.md", "checks", findings_table()),
        **_with_table("could-not-check.md", "causes", causes_table()),
        **_with_table("quarantine.md", "recommendation", recommendation_table()),
        **_with_table(CHART / "README.md", "values", values.table()),
        DOCS / "images/terminal.svg": cast.svg(cast.read((DOCS / "images/terminal.cast").read_text())),
    }


def index() -> str:
    """Return the terms that `explain` knows, one line each: cli/index.json."""
    reasons = [{**to_builtins(reason), "reason": _reason(reason.reason)} for reason in explain_index.all_reasons()]
    parts = {
        "words": to_builtins(list(explain_index.index_entries())),
        "reasons": reasons,
        "texts": to_builtins(list(explain_index.known_texts())),
    }
    lines = [f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for name, rows in parts.items()]
    return "{\n" + ",\n".join([*lines, f'"defaults": {json.dumps(explain_index.defaults())}']) + "\n}\n"


def _reason(reason: Reason) -> dict[str, Any]:
    return {**to_builtins(reason), "severity": reason.severity.name}


def _with_table(page: str | Path, name: str, table: str) -> dict[Path, str]:
    """Return a page of docs/, or at an absolute path, with the table between its marks."""
    begin, end = f"<!-- {name}: begin (make docs) -->", f"<!-- {name}: end -->"
    before, _, rest = (DOCS / page).read_text().partition(begin)
    _, _, after = rest.partition(end)
    return {DOCS / page: f"{before}{begin}\n{table}\n{end}{after}"}


def main() -> int:
    stale = {path: text for path, text in rendered().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is stale: run make docs\n")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
