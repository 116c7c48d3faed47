"""The one door to a terminal: nothing that is shown is taken for markup, and nothing in it steers the terminal.

What a table or a line is made of comes from nodes, pods, logs and processes. So no text is markup here, not even ours:
a style stands beside its text (`Text("fail", "red")`). The door stands behind all others: text that came in without
being made printable is made so as it is drawn, but for the ends of our own lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from healthcheck.text.printable import printable

_LONGEST_LINE = 1 << 16
_UNBROKEN = 1 << 14
"""Columns."""


class Screen(Console):
    """A console as all our programs use it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, highlight=False, markup=False, emoji=False)

    @classmethod
    def of_rows(cls) -> Screen:
        """For what has rows: where a program reads them, each stands on one line."""
        screen = cls()
        if not screen.is_terminal:
            screen.width = _UNBROKEN
        return screen

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, str):
            renderable = Text(renderable)
        if isinstance(renderable, Text):
            renderable = _seen(renderable)
        return super().render(renderable, options)


def _seen(text: Text) -> Text:
    """The same where all of it can be shown, as it should be: else without the styles of its parts."""
    plain = "\n".join(printable(line, _LONGEST_LINE) for line in text.plain.split("\n"))
    if plain == text.plain:
        return text
    return text.blank_copy(plain)
