"""The fleet as a table with one line per node, and sentences below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec.structs import astuple
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.fleet import Fleet, FleetRow, ago, looked
from cli.output import columns
from cli.words import SEVERITY_STYLES, STATUS_STYLES
from healthcheck.host.console import Screen
from healthcheck.host.streams import write_document
from healthcheck.model import Status, counted
from healthcheck.text.moments import moment
from healthcheck.text.naming import named
from healthcheck.verdict.taint_decision import DEVICES

Cell = tuple[str, str]
"""Text of a cell and its style."""
_MOST_ROWS, _MOST_NAMED = 500, 20
"""Most named nodes: on a terminal, and in one sentence."""
_STATUS_STYLES = {status.value: style for status, style in STATUS_STYLES.items()}
_SEVERITY_STYLES = {severity.name: style for severity, style in SEVERITY_STYLES.items()}
_COLUMNS = ("node", "status", "severity", "taint", "type", "looked", "tested", "reason", "message")
_WIDE_COLUMNS = (*_COLUMNS, "since", "findings", "next step")
_UNBROKEN = ("status", "severity", "taint", "looked", "tested", "since")


def print_fleet(fleet: Fleet, *, wide: bool, headers: bool) -> None:
    """Print a table on a terminal, otherwise one line per node."""
    screen = Screen()
    if screen.is_terminal:
        screen.print(page(fleet, _MOST_ROWS, wide=wide, headers=headers))
        return
    head = [_WIDE_COLUMNS if wide else _COLUMNS] if headers else []
    write_document(columns.text([*head, *([words for words, _ in _cells(row, wide=wide)] for row in fleet.nodes)]))
    if headers:
        screen.print(Text.assemble("\n", *_words(fleet)), soft_wrap=True)


def page(fleet: Fleet, most: int, *, wide: bool, headers: bool) -> Group:
    """Print the worst nodes, and the number of the others."""
    parts: list[RenderableType] = [_table(fleet.nodes[:most], wide=wide, headers=headers)]
    if (more := len(fleet.nodes) - most) > 0:
        parts.append(Text(f"\nand {more} more: `gpu-healthcheck status | less` lists all", "dim"))
    if headers:
        parts.append(Text.assemble("\n", *_words(fleet)))
    return Group(*parts)


def _words(fleet: Fleet) -> Iterator[Text]:
    """Yield the number of nodes by status, worst first, the fleet budget, and nodes that need attention."""
    if fleet.nodes:
        numbers = Counter(row.status or "no verdict" for row in fleet.nodes)
        by_status = ", ".join(f"{number} {status}" for status, number in numbers.items())
        yield Text(f"{counted(len(fleet.nodes), 'node')}: {by_status}\n")
    used, places, size = ("?" if entry is None else str(entry) for entry in astuple(fleet.budget))
    have = "node has" if size == "1" else "nodes have"
    yield Text(f"{used} of {places} slots for tainted nodes are in use; {size} {have} an agent")
    withheld = [row.node for row in fleet.nodes if row.taint == "withheld"]
    if withheld:
        yield Text(f"\nnot tainted although their verdicts require it: {named(withheld, _MOST_NAMED)}", "bold red")
    if fleet.refused:
        pods = [f"{each.node} ({each.reason}, {counted(each.pods, 'pod')})" for each in fleet.refused]
        yield Text(f"\nthe gate refused pods: {named(pods, _MOST_NAMED)}", "magenta")
    overdue: dict[str, list[str]] = {}
    for row in fleet.nodes:
        if row.overdue:
            overdue.setdefault(row.overdue, []).append(row.node)
    for why in sorted(overdue, key=lambda why: (-len(overdue[why]), why))[:_MOST_NAMED]:
        yield Text(f"\noverdue for a deep test: {named(overdue[why], _MOST_NAMED)}: {why}", "magenta")
    if (more := len(overdue) - _MOST_NAMED) > 0:
        yield Text(f"\noverdue for a deep test for {more} other reasons: `-o json` lists them", "magenta")
    for what in fleet.passed_over[:_MOST_NAMED]:
        yield Text(f"\nskipped: {what}", "magenta")
    if (more := len(fleet.passed_over) - _MOST_NAMED) > 0:
        yield Text(f"\nskipped: {more} more: `-o json` lists them", "magenta")


def _table(rows: list[FleetRow], *, wide: bool, headers: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=headers)
    for name in _WIDE_COLUMNS if wide else _COLUMNS:
        table.add_column(name, no_wrap=name in _UNBROKEN, overflow="fold")
    for row in rows:
        table.add_row(*(Text(words, style) for words, style in _cells(row, wide=wide)))
    return table


def _cells(row: FleetRow, *, wide: bool) -> Iterator[Cell]:
    is_pass = row.status == Status.PASS
    yield row.node, ""
    yield row.status or "-", _STATUS_STYLES.get(row.status, "")
    yield row.severity or "-", _SEVERITY_STYLES.get(row.severity, "")
    yield _taint(row)
    yield row.instance_type, ""
    yield looked(row), "magenta" if row.silent or row.heartbeat_age_seconds is None else ""
    yield _tested(row)
    yield "" if is_pass else row.reason, ""
    yield (row.released and f"released {row.released}") if is_pass else row.message, ""
    if wide:
        yield row.since, ""
        yield ", ".join(dict.fromkeys(f"{finding.reason} {finding.subject}" for finding in row.findings)), ""
        yield " ".join(filter(None, (row.next_step.note, *row.next_step.commands))), ""


def _taint(row: FleetRow) -> Cell:
    if row.tainted:
        return "yes", ""
    return ("withheld", "bold red") if row.taint == "withheld" else ("GPUs" if row.taint == DEVICES else "", "")


def _tested(row: FleetRow) -> Cell:
    """Return the age and result of the last DCGM diagnostic."""
    if not row.tested_at:
        return ("overdue", "magenta") if row.overdue else ("never", "")
    age = (datetime.now(UTC) - moment(row.tested_at)).total_seconds()
    words = [f"{row.test_result} {ago(age)}", *(["overdue"] if row.overdue else [])]
    return ", ".join(words), "magenta" if row.overdue else _STATUS_STYLES.get(row.test_result, "")
