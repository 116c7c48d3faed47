"""Print lines for users: wrapped at words and indented on a terminal, otherwise unwrapped."""

from __future__ import annotations

from rich.text import Text

from healthcheck.host.console import Screen

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
