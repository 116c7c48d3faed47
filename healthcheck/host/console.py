"""Output to a terminal: no text is treated as markup, and no text can control the terminal.

The texts of tables and lines come from nodes, pods, logs and processes. Therefore no text is markup, not even this
project's own: a style is passed separately from its text (`Text("fail", "red")`). As the last safeguard, text that is
not printable is made printable when it is drawn, except for line ends.
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
"""Width, in columns, at which no row is wrapped."""


class Screen(Console):
    """Console of all our programs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, highlight=False, markup=False, emoji=False)

    @classmethod
    def of_rows(cls) -> Screen:
        """Return a screen for rows. If the output is not a terminal, each row is one line."""
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
    """Return the text unchanged if it is printable, else its printable form without partial styles."""
    plain = "\n".join(printable(line, _LONGEST_LINE) for line in text.plain.split("\n"))
    if plain == text.plain:
        return text
    return text.blank_copy(plain)
