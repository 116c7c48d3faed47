"""`gpu-healthcheck status NODE`: one node on one screen, with findings and their exits, deep results and next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import to_builtins
from rich.console import Group
from rich.text import Text

from gpu_healthcheck.cli import index
from gpu_healthcheck.cli.fleet import NO_VERDICT, SILENT, NodeReport, ago, heartbeat_text
from gpu_healthcheck.cli.output.lines import COMMAND
from gpu_healthcheck.cli.words import SEVERITY_STYLES, STYLES, severity_words
from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.host.console import Screen, wrapped
from gpu_healthcheck.healthcheck.memory.reason_names import STOPS_PODS
from gpu_healthcheck.healthcheck.model import Severity, Status
from gpu_healthcheck.healthcheck.node.state import RESULTS, is_our_taint
from gpu_healthcheck.healthcheck.operations.drain import cordoned_by
from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.healthcheck.text.moments import moment_or_none, timestamp
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.text.printable import LONGEST, printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import Fault, faults_on
from gpu_healthcheck.healthcheck.verdict.record import DEEP, AgentRecord, CheckRow, HistoryRow, RunRecord
from gpu_healthcheck.healthcheck.verdict.taint_decision import DEVICES, WITHHELD

_LABEL = 12
"""Width of the first column."""
_ON_A_SCREEN, _MOST = 5, 100
"""Most entries of one kind on a terminal, and elsewhere."""
_LONGEST_ON_A_SCREEN = 5
"""Longest entry on a terminal, in lines."""
_LONGEST_TIME = 40
_TAINTS = {
    WITHHELD: "none, although its fault requires one: the limit of tainted nodes is reached",
    DEVICES: "on single GPUs instead of the node: kubectl get devicetaintrules",
    "off": "none: ENABLE_TAINT is false",
}
Entry = tuple[str, str, str]
"""Label, text, and style of the label."""


def node_lines(report: NodeReport, screen: Screen, now: datetime) -> Iterator[Text]:
    """Yield the lines of the page. On a terminal they are broken between words; a command never is."""
    row, most, longest = report.row, _MOST, LONGEST
    if screen.is_terminal:
        most, longest = _ON_A_SCREEN, _LONGEST_ON_A_SCREEN * screen.width
    yield Text.assemble((row.node, "bold"), f"  {printable(row.instance_type)}")
    for label, text, style in (*_entries(report, most, now), ("next step", row.next_step.note or "none", "bold")):
        line = Text.assemble((label.ljust(_LABEL), style), printable(text, longest))
        yield from wrapped(line, screen.width, _LABEL) if screen.is_terminal else (line,)
    for command in row.next_step.commands:
        yield Text(f"{' ' * _LABEL}{COMMAND}{command}")


def node_in_place(report: NodeReport, screen: Screen) -> Group:
    """Return the page for a display that is repeated, in no more lines than the terminal shows, with the next step."""
    lines, height = list(node_lines(report, screen, datetime.now(UTC))), max(screen.height - 1, 1)
    if len(lines) > height:
        lines[height // 2 : len(lines) - height + height // 2 + 1] = [Text("\N{HORIZONTAL ELLIPSIS}", "dim")]
    for line in lines:
        line.truncate(screen.width, overflow="ellipsis")
    return Group(*lines)


def node_document(report: NodeReport) -> dict[str, Any]:
    """Return the node for programs: its row of the fleet, its slots, and the records on it."""
    there: dict[str, Any] = {key: records.on_node(RunRecord, report.node, key) for key in DEEP}
    there[RESULTS] = records.on_node(AgentRecord, report.node, RESULTS)
    return {
        "node": to_builtins(report.row),
        "slots": report.slots,
        "settings": to_builtins(report.settings),
        "records": {key.partition("/")[2]: as_json(there[key]) for key in there if key in report.node.annotations},
    }


def _entries(report: NodeReport, most: int, now: datetime) -> Iterator[Entry]:
    row, node = report.row, report.node
    record = records.on_node(AgentRecord, node, RESULTS)
    version = f"version {record.agent_version}" if record.agent_version else ""
    since = f"since {row.since}{_age(row.since, now)}" if row.since else ""
    old = "silent, last report: " if row.silent else ""
    yield (
        "status",
        f"{old}{_joined(row.status or NO_VERDICT, severity_words(row.status, row.severity, ''), since)}",
        "magenta" if row.shown_status == SILENT else STYLES.get(row.status, "bold"),
    )
    yield "checked", _joined(heartbeat_text(row), version), "magenta" if row.silent else "dim"
    yield "taint", _taint(report), "bold red" if row.taint == WITHHELD else "dim"
    if others := [str(taint.get("key")) for taint in node.taints if not is_our_taint(taint)]:
        yield "others", f"taints of other programs: {named(others, most)}", "dim"
    if node.cordoned:
        yield "cordon", f"by {cordoned_by(node) or 'a person or another program'}", "bold"
    if run := claim_on(node, now):
        yield "running", f"{run.kind.value} {run.holder} until {timestamp(run.until)}", "magenta"
    evictions = [
        [("eviction", _joined(f"{pod.pod}: {pod.state}", pod.due and f"due {pod.due}", pod.why), "magenta")]
        for pod in row.evictions
    ]
    for entries in _limited(evictions, most):
        yield from entries
    for entries in _limited([list(_finding(fault, now)) for fault in faults_on(node)], most):
        yield from entries
    unobserved = [
        [("no result", f"{row.check}: {row.cause}: {row.detail}", "magenta")] for row in record.unobserved or ()
    ]
    for entries in _limited(unobserved, most):
        yield from entries
    yield "checks", _by_status(record.checks or ()), "dim"
    if row.overdue:
        yield "overdue", f"deep test: {row.overdue}", "magenta"
    for annotation, kind in DEEP.items():
        if annotation in node.annotations:
            yield from _deep_result(
                kind.removesuffix("-result"), records.on_node(RunRecord, node, annotation), most, now
            )
    if row.released:
        yield "released", row.released, "dim"
    for setting in report.settings:
        source = f"node-overrides:{setting.line}  {setting.selector}" if setting.line else "whole cluster"
        yield "setting", f"{setting.key}={setting.value}  {source}", "dim"


def _finding(fault: Fault, now: datetime) -> Iterator[Entry]:
    row = fault.row
    names = "".join(f", {name} {text}" for name, text in (row.about or {}).items())
    stops = "GPU pods can't start. " if fault.reason in STOPS_PODS else ""
    words = index.in_plain_words(fault.reason, fault.subject, row.about or {})
    message = f"{stops}{words} ({fault.reason} on {fault.subject}{names}): {row.detail or ''}"
    yield fault.severity.name, message, SEVERITY_STYLES[fault.severity]
    observed = (("first", fault.row.first_seen), ("last", fault.seen))
    first, last = (f"{word} {timestamp(time)}{_age(timestamp(time), now)}" if time else "" for word, time in observed)
    times = f"{row.count} times" if (row.count or 0) > 1 else ""
    ends = f"ends by: {row.exit.replace(', ', ' or ')}" if row.exit else "the node's agent has not read it yet"
    yield "", _joined(first, last, times, ends), "dim"


def _deep_result(kind: str, record: RunRecord, most: int, now: datetime) -> Iterator[Entry]:
    at = printable(record.timestamp or "at an unknown time", _LONGEST_TIME)
    advice = f"recommends {record.recommendation}" if record.recommendation else ""
    by = f"by {record.by}" if record.by and record.by != kind else ""
    result = _joined(f"{at}{_age(at, now)}", *_outcome(kind, record), advice, by)
    checks = _by_status(record.checks) if record.checks else ""
    yield kind, "; ".join(filter(None, (result, checks, *(record.reasons or ())[:most]))), "dim"
    past = [[("history", _past(entry), "dim")] for entry in record.history or ()]
    for entries in _limited(past, most):
        yield from entries


def _outcome(kind: str, record: RunRecord) -> tuple[str, ...]:
    """Return the result of a run, with the severity of its findings if it has any."""
    if record.running:
        return (f"not ended, at the step '{record.running}'",)
    severity = record.severity if record.severity not in (None, Severity.PASS.name) else ""
    if record.status == Status.UNKNOWN:
        return ("no GPU was reset" if kind == "reset" else "without a result", severity or "")
    return (record.status or "no status", severity or "")


def _past(entry: HistoryRow) -> str:
    returned = "returned to service" if entry.returned else ""
    return _joined(f"{entry.at}: {entry.recommendation} for {named(entry.findings or (), _ON_A_SCREEN)}", returned)


def _taint(report: NodeReport) -> str:
    used, allowed = ("?" if number is None else number for number in (report.budget.used, report.budget.allowed))
    own = f"with {', '.join(report.slots)}" if report.slots else ""
    state = "set" if report.row.tainted else _TAINTS.get(report.row.taint, "none")
    return _joined(state, own, f"{used} of at most {allowed} nodes are tainted")


def _by_status(checks: Iterable[CheckRow]) -> str:
    """Return the checks by status, in the order of their first check."""
    names: dict[str, list[str]] = {}
    for row in checks:
        names.setdefault(row.status or "", []).append(row.check or "")
    return "; ".join(f"{status}: {', '.join(some)}" for status, some in names.items()) or "none"


def _limited(entries: Sequence[list[Entry]], most: int) -> Iterator[list[Entry]]:
    yield from entries[:most]
    if (more := len(entries) - most) > 0:
        yield [("", f"\N{HORIZONTAL ELLIPSIS} and {more} more: `-o json` lists them", "dim")]


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _age(text: str, now: datetime) -> str:
    at = moment_or_none(text)
    return f" ({ago((now - at).total_seconds())})" if at is not None and at <= now else ""
