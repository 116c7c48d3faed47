"""A table for a terminal: one line for each row from 80 columns on.

Where the terminal is too narrow, columns are left out by priority, the common ending of the names of nodes is printed
once below the table, longer names lose their middle, and texts lose their end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from os.path import commonprefix

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from healthcheck.model import counted
from healthcheck.text.printable import printable

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


class _Field(Struct, frozen=True):
    """One column with its cells, the width of its widest text, and its chosen width."""

    column: TableColumn
    cells: list[Cell]
    widest: int
    width: int

    @property
    def least(self) -> int:
        return min(self.widest, self.column.least or (_NARROWEST_NAME if self.column.is_name else self.widest))

    def cut(self) -> list[Cell]:
        """Return the cells in the chosen width."""
        if self.width >= self.widest:
            return self.cells
        texts = [text for text, _ in self.cells]
        words = shortened(texts, self.width) if self.column.is_name else [_cut(text, self.width) for text in texts]
        return [(word, style) for word, (_, style) in zip(words, self.cells, strict=True)]


def fitted_table(
    columns: Sequence[TableColumn], rows: Iterable[Sequence[Cell]], width: int | None, *, headers: bool = True
) -> FittedTable:
    """Return the table in lines of at most `width` columns; None: no limit, and nothing is shortened."""
    texts = [[(printable(text), style) for text, style in row] for row in rows]
    fields = [_field(column, [row[place] for row in texts], headers) for place, column in enumerate(columns)]
    names, notes = [text for text, _ in fields[0].cells], []
    if width is not None and _total(fields) > width:
        saved = fields[0].widest - fields[0].least
        if saved and _total(fields, least=True) + saved > width and (ending := common_ending(names)):
            cells = [(text.removesuffix(ending), style) for text, style in fields[0].cells]
            fields[0] = _field(fields[0].column, cells, headers)
            notes.append(Text(f"All names of nodes end in {ending}", "dim"))
        fields = _narrowed(fields, width)
        notes += [note for field in fields if field.column.is_repeated for note in _cut_texts(field)]
    return FittedTable(list(_lines(fields, headers)), notes)


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
    words = iter(best)
    return [name if len(name) <= width else next(words) for name in names]


def _without_middle(name: str, head: int, tail: int) -> str:
    return name[:head] + _CUT + name[len(name) - tail :]


def _field(column: TableColumn, cells: list[Cell], headers: bool) -> _Field:
    widest = max([cell_len(column.title) if headers else 0, *(cell_len(text) for text, _ in cells)])
    return _Field(column, cells, widest, widest)


def _total(fields: Sequence[_Field], *, least: bool = False) -> int:
    return sum(field.least if least else field.width for field in fields) + len(_BETWEEN) * (len(fields) - 1)


def _narrowed(fields: Sequence[_Field], width: int) -> list[_Field]:
    """Leave out columns until the least widths fit, then give the free width to names first, and then to texts."""
    kept = list(fields)
    for field in sorted((field for field in fields if field.column.leaves), key=lambda field: field.column.leaves):
        if _total(kept, least=True) <= width:
            break
        kept.remove(field)
    free = width - _total(kept, least=True)
    widths = {field.column: field.least for field in kept}
    for field in sorted(kept, key=lambda field: field.column.is_name == (free < 0)):
        if field.column.is_name or field.column.least:
            change = max(min(free, field.widest - field.least), min(_NARROWEST - field.least, 0))
            widths[field.column] += change
            free -= change
    return [replace(field, width=widths[field.column]) for field in kept]


def _lines(fields: Sequence[_Field], headers: bool) -> Iterator[Text]:
    titles = [[(field.column.title, "bold") for field in fields]] if headers else []
    for row in (*titles, *zip(*(field.cut() for field in fields), strict=True)):
        *before, (last, style) = row
        line = Text()
        for (text, word_style), field in zip(before, fields, strict=False):
            line.append(text, word_style).append(" " * (field.width - cell_len(text)) + _BETWEEN)
        line.append(last, style).rstrip()
        yield line


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + _CUT


def _cut_texts(field: _Field) -> Iterator[Text]:
    cut = Counter(text for text, _ in field.cells if cell_len(text) > field.width)
    for text, count in cut.items():
        yield Text(f"{counted(count, 'row')}: {text}")
