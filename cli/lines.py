"""Lines for a person: on a terminal wrapped at words and below themselves, elsewhere whole."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from healthcheck.host.console import Screen

COMMAND = "$ "
"""So begins what is there to be copied."""


def print_line(console: Screen, head: Text, body: Text, *, whole: bool = False) -> None:
    """`body` one space behind `head`. `whole`: not wrapped on a terminal either, as a command that is copied there."""
    if whole or not console.is_terminal:
        console.print(Text.assemble(head, " ", body), soft_wrap=True)
        return
    line = Table.grid(padding=(0, 1))
    line.add_column(no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(head, body)
    console.print(line)
