"""Print lines for users: wrapped at words and indented on a terminal, otherwise unwrapped."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from healthcheck.host.console import Screen

COMMAND = "$ "
"""Prefix of a command that the user can copy."""


def print_line(console: Screen, head: Text, body: Text, *, whole: bool = False) -> None:
    """Print `head`, a space and `body`. `whole`: never wrap, for a command that users copy."""
    if whole or not console.is_terminal:
        console.print(Text.assemble(head, " ", body), soft_wrap=True)
        return
    line = Table.grid(padding=(0, 1))
    line.add_column(no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(head, body)
    console.print(line)
