"""The fleet as a table with one line per node, and sentences below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec.structs import astuple
from rich.console import Group
from rich.text import Text

from cli.fleet import Fleet, FleetRow, ago, looked
from cli.output import columns
from cli.output.lines import COMMAND
from cli.words import SEVERITY_STYLES, STATUS_STYLES
from healthcheck.host.console import Screen
from healthcheck.host.fitted_table import Cell, FittedTable, TableColumn, fitted_table
from healthcheck.host.streams import write_document
from healthcheck.model import Status, counted
from healthcheck.text.moments import moment
from healthcheck.text.naming import named
from healthcheck.text.printable import printable
from healthcheck.verdict.taint_decision import DEVICES, WITHHELD

_MOST_ROWS, _MOST_NAMED = 500, 20
"""Most named nodes: on a terminal, and in one sentence."""
_STATUS_STYLES = {status.value: style for status, style in STATUS_STYLES.items()}
_SEVERITY_STYLES = {severity.name: style for severity, style in SEVERITY_STYLES.items()}
_COLUMNS = (
    TableColumn("node", is_name=True),
    TableColumn("status", least=8),
    TableColumn("severity", least=8, leaves=6),
    TableColumn("taint", leaves=5),
    TableColumn("type", least=16, leaves=1),
    TableColumn("checked", leaves=4),
    TableColumn("tested", leaves=2),
    TableColumn("reason", least=36),
    TableColumn("message", least=20, leaves=3),
)
_WIDE_COLUMNS = (*_COLUMNS, *map(TableColumn, ("since", "findings", "next step")))


def print_fleet(fleet: Fleet, *, wide: bool, headers: bool) -> None:
    """Print the table and the totals. On a terminal, a row has one line; in a pipe, every cell has a value."""
    screen = Screen()
    if screen.is_terminal:
        table = _table(fleet.nodes[:_MOST_ROWS], screen, wide=wide, headers=headers)
        for line in table.lines:
            screen.print(line, soft_wrap=True)
        for note in (*table.notes, *_more(fleet, _MOST_ROWS)):
            screen.print_words(note)
    else:
        titles = [column.title for column in (_WIDE_COLUMNS if wide else _COLUMNS)]
        rows = ([" ".join(text.split()) or "-" for text, _ in _cells(row, wide=wide)] for row in fleet.nodes)
        write_document(columns.text([*([titles] if headers else []), *rows]))
    if headers:
        screen.print()
        for sentence in _totals(fleet):
            screen.print_words(sentence, indent=2)


def watched(fleet: Fleet, screen: Screen, *, wide: bool, headers: bool) -> Group:
    """Return the worst nodes, and below them the totals: as many lines as the terminal shows, each in its width."""
    totals = list(_totals(fleet))[: screen.height // 2] if headers else []
    room = max(screen.height - 1 - len(totals), 1)
    table = _table(fleet.nodes[:room], screen, wide=wide, headers=headers)
    more: list[Text] = []
    if len(table.lines) + len(table.notes) > room or len(fleet.nodes) > room:
        most = max(room - len(table.notes) - headers - 1, 1)
        table, more = _table(fleet.nodes[:most], screen, wide=wide, headers=headers), [*_more(fleet, most)]
    lines = [*table.lines, *table.notes, *more, *totals]
    for line in lines:
        line.truncate(screen.width, overflow="ellipsis")
    return Group(*lines)


def _table(rows: list[FleetRow], screen: Screen, *, wide: bool, headers: bool) -> FittedTable:
    cells = (list(_cells(row, wide=wide)) for row in rows)
    return fitted_table(_WIDE_COLUMNS if wide else _COLUMNS, cells, None if wide else screen.width, headers=headers)


def _more(fleet: Fleet, most: int) -> Iterator[Text]:
    if (more := len(fleet.nodes) - most) > 0:
        yield Text(f"\N{HORIZONTAL ELLIPSIS} and {more} more: `gpu-healthcheck status | less` lists all", "dim")


def _totals(fleet: Fleet) -> Iterator[Text]:
    """Yield the number of nodes by status, worst first, the fleet budget, and nodes that need attention."""
    if fleet.nodes:
        numbers = Counter(row.status or "no verdict" for row in fleet.nodes)
        by_status = ", ".join(f"{number} {status}" for status, number in numbers.items())
        yield Text(f"{counted(len(fleet.nodes), 'node')}: {by_status}")
    used, places, size = ("?" if entry is None else str(entry) for entry in astuple(fleet.budget))
    have = "node has" if size == "1" else "nodes have"
    yield Text(f"{used} of {places} slots for tainted nodes are in use; {size} {have} an agent")
    withheld = [row.node for row in fleet.nodes if row.taint == WITHHELD]
    if withheld:
        yield Text(f"not tainted although their verdicts require it: {named(withheld, _MOST_NAMED)}", "bold red")
    if fleet.unused_settings:
        keys = named(map(printable, fleet.unused_settings), _MOST_NAMED)
        yield Text(f"settings that are not used: {keys}; `gpu-healthcheck verify` has the reasons", "bold red")
    if fleet.refused:
        pods = [f"{each.node} ({each.reason}, {counted(each.pods, 'pod')})" for each in fleet.refused]
        yield Text(f"the gate refused pods: {named(pods, _MOST_NAMED)}", "magenta")
    stopped = [row.node for row in fleet.nodes if row.stops_pods]
    if stopped:
        yield Text(f"GPU pods can't start on: {named(stopped, _MOST_NAMED)}", "bold red")
    reasons = Counter(row.overdue for row in fleet.nodes if row.overdue)
    for why, _ in reasons.most_common(_MOST_NAMED):
        overdue = [row.node for row in fleet.nodes if row.overdue == why]
        yield Text(f"overdue for a deep test: {named(overdue, _MOST_NAMED)}: {why}", "magenta")
    if (more := len(reasons) - _MOST_NAMED) > 0:
        yield Text(f"overdue for a deep test for {more} other reasons: `-o json` lists them", "magenta")
    for what in fleet.passed_over[:_MOST_NAMED]:
        yield Text(f"skipped: {what}", "magenta")
    if (more := len(fleet.passed_over) - _MOST_NAMED) > 0:
        yield Text(f"skipped: {more} more: `-o json` lists them", "magenta")


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
    message = row.message.removeprefix(f"{row.reason} on ")
    yield (row.released and f"released {row.released}") if is_pass else message, ""
    if wide:
        yield row.since, ""
        yield ", ".join(dict.fromkeys(f"{finding.reason} {finding.subject}" for finding in row.findings)), ""
        commands = " && ".join(row.next_step.commands)
        yield " ".join(filter(None, (row.next_step.note, commands and f"{COMMAND}{commands}"))), ""


def _taint(row: FleetRow) -> Cell:
    if row.tainted:
        return "yes", ""
    return ("withheld", "bold red") if row.taint == WITHHELD else ("GPUs" if row.taint == DEVICES else "", "")


def _tested(row: FleetRow) -> Cell:
    """Return the age and result of the last DCGM diagnostic."""
    if not row.tested_at:
        return ("overdue", "magenta") if row.overdue else ("never", "")
    age = (datetime.now(UTC) - moment(row.tested_at)).total_seconds()
    words = [f"{row.test_result} {ago(age)}", *(["overdue"] if row.overdue else [])]
    return ", ".join(words), "magenta" if row.overdue else _STATUS_STYLES.get(row.test_result, "")
