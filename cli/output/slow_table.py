"""The slow GPUs as a table with one line per GPU, and sentences below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.text import Text

from cli.fleet import ago
from cli.output import columns
from cli.slow_gpus import SlowGpu, SlowGpus, loss_text
from cli.words import SEVERITY_STYLES
from healthcheck.host.console import Screen
from healthcheck.host.fitted_table import Cell, TableColumn, fitted_table
from healthcheck.host.streams import write_document
from healthcheck.model import counted
from healthcheck.text.moments import moment_or_none
from healthcheck.text.naming import named

_MOST_ROWS, _MOST_NAMED = 500, 20
_SEVERITY_STYLES = {severity.name: style for severity, style in SEVERITY_STYLES.items()}
_COLUMNS = (
    TableColumn("node", is_name=True),
    TableColumn("gpu"),
    TableColumn("loss"),
    TableColumn("reason", least=21),
    TableColumn("since", leaves=2),
    TableColumn("type", least=12, leaves=1),
    TableColumn("detail", least=16, leaves=3),
)


def print_slow(slow: SlowGpus, *, wide: bool, headers: bool) -> None:
    """Print the table and the totals. On a terminal, a row has one line; in a pipe, every cell has a value."""
    screen, rows = Screen(), [list(_cells(gpu)) for gpu in slow.gpus]
    if screen.is_terminal and rows:
        width = None if wide else screen.width
        table = fitted_table(_COLUMNS, rows[:_MOST_ROWS], width, headers=headers)
        for line in table.lines:
            screen.print(line, soft_wrap=True)
        for note in table.notes:
            screen.print_words(note)
        if (more := len(rows) - _MOST_ROWS) > 0:
            screen.print_words(
                Text(
                    f"\N{HORIZONTAL ELLIPSIS} and {more} more: `gpu-healthcheck status --slow | less` lists all", "dim"
                )
            )
    elif rows:
        titles = [[column.title for column in _COLUMNS]] if headers else []
        write_document(columns.text([*titles, *([" ".join(text.split()) or "-" for text, _ in row] for row in rows)]))
    if headers:
        if rows:
            screen.print()
        for sentence in _totals(slow):
            screen.print_words(Text(" ".join(sentence.plain.split()), sentence.style), indent=2)


def _cells(gpu: SlowGpu) -> Iterator[Cell]:
    yield gpu.node, ""
    yield gpu.gpu, ""
    yield loss_text(gpu), ""
    yield ", ".join(gpu.reasons), _SEVERITY_STYLES.get(gpu.severity, "")
    since = moment_or_none(gpu.since)
    yield ago(max((datetime.now(UTC) - since).total_seconds(), 0.0)) if since else "", ""
    yield gpu.instance_type, ""
    yield gpu.detail, ""


def _totals(slow: SlowGpus) -> Iterator[Text]:
    """Yield the number of slow GPUs, the nodes with several, and the nodes that could not be compared, by reason."""
    nodes = Counter(gpu.node for gpu in slow.gpus)
    records = f"by the records of {counted(slow.known, 'node')}; idle GPUs are not compared"
    if slow.gpus:
        yield Text(f"{counted(len(slow.gpus), 'slow GPU')} on {counted(len(nodes), 'node')}, {records}")
        several = [f"{node} ({number})" for node, number in nodes.most_common() if number > 1]
        if several:
            yield Text(f"nodes with several: {named(several, _MOST_NAMED)}", "yellow")
    elif slow.known:
        yield Text(f"no GPU is slower than others, {records}", "green")
    elif not slow.not_compared:
        yield Text("there is no GPU node", "magenta")
    else:
        yield Text("no node could be compared, so it is unknown whether a GPU is slow", "magenta")
    for reason, _ in Counter(entry.reason for entry in slow.not_compared).most_common(_MOST_NAMED):
        unknown = [entry.node for entry in slow.not_compared if entry.reason == reason]
        yield Text(f"not compared: {named(unknown, _MOST_NAMED)}: {reason}", "magenta")
    for what in slow.passed_over[:_MOST_NAMED]:
        yield Text(f"skipped: {what}", "magenta")
    if (more := len(slow.passed_over) - _MOST_NAMED) > 0:
        yield Text(f"skipped: {more} more: `-o json` lists them", "magenta")
