"""Print lines for users: wrapped at words and indented on a terminal, otherwise unwrapped."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from healthcheck.host.console import Screen
from healthcheck.operations.next_step import NextStep
from healthcheck.text.printable import printable

COMMAND = "$ "
"""Prefix of a command that the user can copy."""


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


def print_step(console: Screen, step: NextStep) -> None:
    """Print the next step: its note, then one command a line."""
    if step.note:
        console.print_words(Text(printable(step.note)))
    for command in step.commands:
        console.print(Text(f"  {COMMAND}{printable(command)}"), soft_wrap=True)
