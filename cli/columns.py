"""A table for programs and pagers: a line for each row, its cells one below the other. Pure.

rich lays out a thousand rows in a second, this a hundred thousand; it knows neither styles nor how wide a terminal is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from healthcheck.text.printable import printable

_LONGEST = 1 << 14
_WIDEST = 120
"""What no other row makes room for: one node's long words would blow up the lines of all."""
_BETWEEN = "  "


def text(rows: Iterable[Sequence[str]]) -> str:
    lines = [[printable(cell, _LONGEST) for cell in row] for row in rows]
    widths = [min(_WIDEST, max(map(_width, column))) for column in zip(*lines, strict=True)]
    return "".join(_line(cells, widths) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True))
    return _BETWEEN.join(padded).rstrip() + "\n"


def _width(cell: str) -> int:
    """On a screen: some letters take two columns, and some marks none."""
    return len(cell) if cell.isascii() else cell_len(cell)
