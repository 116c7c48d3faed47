"""Output to a terminal: no text is treated as markup, and no text can control the terminal.

The texts of tables and lines come from nodes, pods, logs and processes. Therefore no text is markup, not even this
project's own: a style is passed separately from its text (`Text("fail", "red")`). As the last safeguard, text that is
not printable is made printable when it is drawn, except for line ends.

A table has one line for each row from 80 columns on. Where the terminal is too narrow, columns are left out by
priority, the common ending of the names of nodes is printed once below the table, longer names lose their middle, and
texts lose their end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from os.path import commonprefix
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from gpu_healthcheck.healthcheck.model import counted
from gpu_healthcheck.healthcheck.text.printable import printable

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


Cell = tuple[str, str]
"""Text of a cell and its style."""
_CUT = "\N{HORIZONTAL ELLIPSIS}"
_BETWEEN = "  "
_NARROWEST_NAME, _NARROWEST = 24, 8
"""Least width of shortened names while other columns can be left out, and of any shortened column."""


class TableColumn(Struct, frozen=True):
    """One column of a fitted table."""

    title: str
    leaves: int = 0
    """Order in which columns are left out, lowest first; 0: the column always stays."""
    is_name: bool = False
    """Texts are names of nodes. If shortened, they still differ from each other."""
    least: int = 0
    """Least width of texts that may lose their end; 0: texts are never cut."""
    is_repeated: bool = False
    """Whether cut texts are printed completely below the table, each once with the number of its rows."""


class FittedTable(Struct, frozen=True):
    """Lines of a table, and notes to print below it."""

    lines: list[Text]
    notes: list[Text]


class _FilledColumn(Struct, frozen=True):
    """One column with its cells, the width of its widest text, and its chosen width."""

    declared: TableColumn
    cells: list[Cell]
    widest: int
    width: int

    @property
    def least(self) -> int:
        return min(self.widest, self.declared.least or (_NARROWEST_NAME if self.declared.is_name else self.widest))

    def cut(self) -> list[Cell]:
        """Return the cells in the chosen width."""
        if self.width >= self.widest:
            return self.cells
        texts = [text for text, _ in self.cells]
        words = shortened(texts, self.width) if self.declared.is_name else [_cut(text, self.width) for text in texts]
        return [(word, style) for word, (_, style) in zip(words, self.cells, strict=True)]


def fitted_table(
    columns: Sequence[TableColumn], rows: Iterable[Sequence[Cell]], width: int | None, *, headers: bool = True
) -> FittedTable:
    """Return the table in lines of at most `width` columns; None: no limit, and nothing is shortened."""
    texts = [[(printable(text), style) for text, style in row] for row in rows]
    filled = [_filled(column, [row[index] for row in texts], headers) for index, column in enumerate(columns)]
    names, notes = [text for text, _ in filled[0].cells], []
    if width is not None and _total(filled) > width:
        saved = filled[0].widest - filled[0].least
        if saved and _total(filled, least=True) + saved > width and (ending := common_ending(names)):
            cells = [(text.removesuffix(ending), style) for text, style in filled[0].cells]
            filled[0] = _filled(filled[0].declared, cells, headers)
            notes.append(Text(f"All names of nodes end in {ending}", "dim"))
        filled = _narrowed(filled, width)
        notes += [note for column in filled if column.declared.is_repeated for note in _cut_texts(column)]
    return FittedTable(list(_lines(filled, headers)), notes)


def common_ending(names: Sequence[str]) -> str:
    """Return the longest ending of whole domain labels that all names share, with its dot; '' if there is none."""
    shared = ""
    for labels in zip(*(reversed(name.split(".")[1:]) for name in names), strict=False):
        if len(set(labels)) > 1:
            break
        shared = f".{labels[0]}{shared}"
    return shared


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Return the names in `width` columns, without their middle, and still different from each other.

    If only the middle differs, the parts before and after it are shortened instead.
    """
    long = [name for name in names if len(name) > width]
    different, best = len(set(long)), list[str]()
    for head in sorted(range(width), key=lambda head: abs(head - width // 2)):
        best = [_without_middle(name, head, width - 1 - head) for name in long]
        if len(set(best)) == different:
            break
    else:
        before, after = (len(commonprefix(some)) for some in (long, [name[::-1] for name in long]))  # noqa: RUF071
        spare = width - len(_CUT) * 2 - max(len(name) - before - after for name in long)
        if spare >= 0:
            best = [
                f"{name[: spare // 2]}{_CUT}{name[before : len(name) - after]}{_CUT}{name[len(name) - spare // 2 :]}"
                for name in long
            ]
    short_names = iter(best)
    return [name if len(name) <= width else next(short_names) for name in names]


def _without_middle(name: str, head: int, tail: int) -> str:
    return name[:head] + _CUT + name[len(name) - tail :]


def _filled(column: TableColumn, cells: list[Cell], headers: bool) -> _FilledColumn:
    widest = max([cell_len(column.title) if headers else 0, *(cell_len(text) for text, _ in cells)])
    return _FilledColumn(column, cells, widest, widest)


def _total(filled: Sequence[_FilledColumn], *, least: bool = False) -> int:
    return sum(column.least if least else column.width for column in filled) + len(_BETWEEN) * (len(filled) - 1)


def _narrowed(filled: Sequence[_FilledColumn], width: int) -> list[_FilledColumn]:
    """Leave out columns until the least widths fit, then give the free width to names first, and then to texts."""
    kept = list(filled)
    for column in sorted(
        (column for column in filled if column.declared.leaves), key=lambda column: column.declared.leaves
    ):
        if _total(kept, least=True) <= width:
            break
        kept.remove(column)
    free = width - _total(kept, least=True)
    widths = {column.declared: column.least for column in kept}
    for column in sorted(kept, key=lambda column: column.declared.is_name == (free < 0)):
        if column.declared.is_name or column.declared.least:
            change = max(min(free, column.widest - column.least), min(_NARROWEST - column.least, 0))
            widths[column.declared] += change
            free -= change
    return [replace(column, width=widths[column.declared]) for column in kept]


def _lines(filled: Sequence[_FilledColumn], headers: bool) -> Iterator[Text]:
    titles = [[(column.declared.title, "bold") for column in filled]] if headers else []
    for row in (*titles, *zip(*(column.cut() for column in filled), strict=True)):
        *before, (last, style) = row
        line = Text()
        for (text, word_style), column in zip(before, filled, strict=False):
            line.append(text, word_style).append(" " * (column.width - cell_len(text)) + _BETWEEN)
        line.append(last, style).rstrip()
        yield line


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + _CUT


def _cut_texts(column: _FilledColumn) -> Iterator[Text]:
    cut = Counter(text for text, _ in column.cells if cell_len(text) > column.width)
    for text, number in cut.items():
        yield Text(f"{counted(number, 'row')}: {text}")
