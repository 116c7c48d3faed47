"""Print lines for users: wrapped at words and indented on a terminal, otherwise unwrapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rich.text import Text

from gpu_healthcheck.cli.output import columns
from gpu_healthcheck.healthcheck.host.console import Cell, Screen, TableColumn, fitted_table
from gpu_healthcheck.healthcheck.host.streams import write_document
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.text.printable import printable

COMMAND = "$ "
"""Prefix of a command that the user can copy."""
MOST_ROWS, MOST_NAMED = 500, 20
"""Most rows of a table on a terminal, and most names or sentences of one kind."""


def print_line(console: Screen, head: Text, body: Text, *, whole: bool = False) -> None:
    """Print `head`, a space and `body`. `whole`: never wrap, for a command that users copy."""
    line = Text.assemble(head, " ", body)
    line.rstrip()
    if whole:
        console.print(line, soft_wrap=True)
    else:
        console.print_words(line, indent=head.cell_len + 1)


def print_rows(console: Screen, rows: Sequence[Sequence[Text]]) -> None:
    """Print rows with aligned cells. On a terminal, the last cell is wrapped between words, below itself."""
    widths = [max(row[column].cell_len for row in rows) for column in range(len(rows[0]) - 1)]
    for *cells, last in rows:
        head = Text()
        for cell, width in zip(cells, widths, strict=True):
            head.append_text(cell).append(" " * (width - cell.cell_len + 2))
        print_line(console, head[:-1], last)


def print_table(
    titled: Sequence[TableColumn], rows: Iterator[Iterable[Cell]], command: str, *, wide: bool, headers: bool
) -> None:
    """Print the table of this command. On a terminal, a row has one line; in a pipe, every cell has a value."""
    screen = Screen()
    if screen.is_terminal:
        first = map(list, islice(rows, MOST_ROWS))
        table = fitted_table(titled, first, None if wide else screen.width, headers=headers)
        for line in table.lines:
            screen.print(line, soft_wrap=True)
        for note in (*table.notes, *more_rows(sum(1 for _ in rows), command)):
            screen.print_words(note)
    else:
        titles = [[column.title for column in titled]] if headers else []
        write_document(
            columns.aligned([*titles, *([" ".join(text.split()) or "-" for text, _ in row] for row in rows)])
        )


def more_rows(number: int, command: str) -> Iterator[Text]:
    """Yield how many rows are left out, if any, and the command that lists all."""
    if number > 0:
        yield Text(f"\N{HORIZONTAL ELLIPSIS} and {number} more: `{command} | less` lists all", "dim")


def skipped(passed_over: Sequence[str]) -> Iterator[Text]:
    """Yield a sentence for each unreadable object."""
    for what in passed_over[:MOST_NAMED]:
        yield Text(f"skipped: {what}", "magenta")
    if (more := len(passed_over) - MOST_NAMED) > 0:
        yield Text(f"skipped: {more} more: `-o json` lists them", "magenta")


def print_step(console: Screen, step: NextStep) -> None:
    """Print the next step: its note, then one command a line."""
    if step.note:
        console.print_words(Text(printable(step.note)))
    for command in step.commands:
        console.print(Text(f"  {COMMAND}{printable(command)}"), soft_wrap=True)
