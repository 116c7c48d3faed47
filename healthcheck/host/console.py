"""Output to a terminal: no text is treated as markup, and no text can control the terminal.

The texts of tables and lines come from nodes, pods, logs and processes. Therefore no text is markup, not even this
project's own: a style is passed separately from its text (`Text("fail", "red")`). As the last safeguard, text that is
not printable is made printable when it is drawn, except for line ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from healthcheck.text.printable import printable

_LONGEST_LINE = 1 << 16
_WORD = re.compile(r"\S+")
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

    def print_words(self, text: Text, indent: int = 0) -> None:
        """Print the text, on a terminal in lines that are broken between words. No name is broken.

        Further lines are indented.
        """
        for line in wrapped(text, self.width, indent) if self.is_terminal else (text,):
            self.print(line, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, str):
            renderable = Text(renderable)
        if isinstance(renderable, Text):
            renderable = _seen(renderable)
        return super().render(renderable, options)


def wrapped(text: Text, width: int, indent: int = 0) -> Iterator[Text]:
    """Yield the text in lines of at most `width` columns. A word that is longer has a line of its own."""
    start = end = line_indent = 0
    for word in _WORD.finditer(text.plain):
        if end > start and cell_len(text.plain[start : word.end()]) > width - line_indent:
            yield Text(" " * line_indent).append(text[start:end])
            start, line_indent = word.start(), indent
        end = word.end()
    yield Text(" " * line_indent).append(text[start:end])


def _seen(text: Text) -> Text:
    """Return the text unchanged if it is printable, else its printable form without partial styles."""
    plain = "\n".join(printable(line, _LONGEST_LINE) for line in text.plain.split("\n"))
    if plain == text.plain:
        return text
    return text.blank_copy(plain)
