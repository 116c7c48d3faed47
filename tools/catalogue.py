"""Compare a saved copy of NVIDIA's Xid catalogue with healthcheck/catalog/xid.csv: `python -m tools.catalogue FILE`.

FILE is the workbook `Xid-Catalog.xlsx` or the page `analyzing-xid-catalog.html` of docs.nvidia.com/deploy/xid-errors.
With an earlier copy as second file, the two copies are compared. Their descriptions and trigger conditions are compared
too: xid.csv has those in other words. Exit code 0: nothing differs, 1: something differs, 3: a file is unreadable.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from healthcheck.catalog.csv_rows import read_rows
from healthcheck.catalog.xid import actions
from healthcheck.text.printable import printable

Table = list[list[str]]

MOST_BYTES = 16 << 20
"""Limit of a file, and of all parts of a workbook together. The published workbook has less than 100 KiB."""
MOST_ROWS, MOST_COLUMNS, MOST_OPEN = 10_000, 64, 16
"""Limits of a table, and of tables inside each other."""
COLUMNS = {
    "type (xid)": "type",
    "code": "code",
    "mnemonic": "mnemonic",
    "description": "description",
    "applies to a100": "a100",
    "applies to h100": "h100",
    "applies to b100": "b100",
    "applies to gb200": "gb200",
    "resolution bucket (immediate action)": "immediate_action",
    "resolution bucket (investigatory action)": "investigatory_action",
    "xid 154 linkage": "xid_154_linkage",
    "trigger conditions": "trigger_conditions",
}
"""Column of xid.csv by NVIDIA's heading (workbook of 2025-09-30, page of 2026-09)."""
REQUIRED = frozenset({"code", "mnemonic", "immediate_action"})
OURS = ("mnemonic", "a100", "h100", "b100", "gb200", "immediate_action", "investigatory_action", "xid_154_linkage")
TEXTS = frozenset({"description", "trigger_conditions"})
"""Columns that xid.csv has in other words, as `meaning`."""
_BUCKETS = ("immediate_action", "investigatory_action")
_BUCKET = re.compile(r"\b(?:IGNORE|[A-Z][A-Z0-9]+(?:[_/][A-Z0-9]+)+)\b")
_CODE = re.compile(r"(\d{1,5})(?:\.0)?\Z", re.ASCII)
_REFERENCE = re.compile(r"[A-Z]{1,3}", re.ASCII)
_OF_THE_CATALOGUE = "NVIDIA Xid catalogue"
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, expat.ExpatError),
    *(EOFError, LookupError, NotImplementedError, OSError, OverflowError, RuntimeError, ValueError),
)
"""Errors of zipfile, its decompressors and expat for damaged, encrypted or unsupported input."""


class UnreadableError(Exception):
    """Reason why a file could not be read as a catalogue."""


@dataclass(frozen=True)
class Catalogue:
    """Cells by code and column.

    `others` are codes from other sources, which NVIDIA's catalogue need not have.
    """

    rows: Mapping[int, Mapping[str, str]]
    columns: frozenset[str]
    others: frozenset[int] = frozenset()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.catalogue", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="saved workbook (.xlsx) or page (.html)")
    parser.add_argument("earlier", type=Path, nargs="?", help="earlier copy to compare with; default: xid.csv")
    options = parser.parse_args(arguments)
    try:
        theirs = read(options.file)
        before = read(options.earlier) if options.earlier else ours()
    except UnreadableError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    found = list(differences(before, theirs))
    summary = f"{len(found)} differences" if found else f"nothing differs in {len(theirs.rows)} codes"
    sys.stdout.write("".join(f"{line}\n" for line in (*found, summary)))
    return 1 if found else 0


def differences(before: Catalogue, after: Catalogue) -> Iterator[str]:
    """Yield one line per column, code and cell that differs."""
    for column in sorted(before.columns - after.columns):
        yield f"column {column}: gone"
    for column in sorted(after.columns - before.columns - TEXTS):
        yield f"column {column}: new"
    shared = [column for column in (*OURS, *sorted(after.columns)) if column in before.columns & after.columns]
    for code in sorted(before.rows.keys() | after.rows.keys()):
        old, new = before.rows.get(code), after.rows.get(code)
        if new is None:
            if code not in before.others:
                yield f"Xid {code}: gone"
        elif old is None:
            text = new.get("description", "")
            yield f"Xid {code}: new, {new['mnemonic']}, action {new['immediate_action'] or 'none'}: {text}"
        else:
            for column in dict.fromkeys(shared):
                if old[column] != new[column]:
                    yield f"Xid {code}: {column} was {old[column] or 'empty'}, is {new[column] or 'empty'}"
    for action in sorted({row["immediate_action"] for row in after.rows.values()} - actions().keys()):
        yield f"action {action}: not in xid_actions.csv"


def ours() -> Catalogue:
    """Return xid.csv, with the columns that it takes from NVIDIA."""
    rows = {int(row["code"]): row for _, row in read_rows("xid.csv")}
    others = frozenset(code for code, row in rows.items() if not row["source"].startswith(_OF_THE_CATALOGUE))
    return Catalogue(rows, frozenset((*OURS, "unused")), others)


def read(path: Path) -> Catalogue:
    """Read a saved workbook or page. Raises UnreadableError."""
    try:
        with path.open("rb") as file:
            return _read(file.read(MOST_BYTES + 1))
    except UnreadableError as error:
        raise UnreadableError(f"{path}: {error}") from error
    except _DAMAGE as error:
        raise UnreadableError(f"{path}: {printable(str(error) or type(error).__name__)}") from error


def _read(content: bytes) -> Catalogue:
    if len(content) > MOST_BYTES:
        raise UnreadableError(f"more than {MOST_BYTES >> 20} MiB")
    is_workbook = content.startswith(b"PK\x03\x04")
    for table in workbook_tables(content) if is_workbook else page_tables(content):
        for number, row in enumerate(table):
            names = [COLUMNS.get(heading.lower(), heading) for heading in row]
            if names.count("code") == 1 and set(names) >= REQUIRED:
                return _catalogue(names, table[number + 1 :], is_padded=is_workbook)
    raise UnreadableError("no table with the columns Code, Mnemonic and Resolution Bucket (Immediate Action)")


def _catalogue(names: Sequence[str], rows: Table, *, is_padded: bool) -> Catalogue:
    """Return the rows of the table below its headings. A workbook omits empty cells at the end of a row."""
    known: dict[int, dict[str, str]] = {}
    for row in rows:
        cells = [*row, *[""] * (len(names) - len(row))] if is_padded else row
        if not any(cells):
            continue
        if len(cells) < len(names):
            raise UnreadableError(f"a row has {len(cells)} cells instead of {len(names)}: {cells[:2]}")
        fields = {name: _normal(name, cell) for name, cell in zip(names, cells, strict=False) if name}
        if fields.pop("type", "XID").upper() != "XID":
            continue
        code = _CODE.match(fields.pop("code"))
        if code is None or int(code[1]) in known:
            raise UnreadableError(f"a row has no code, or that of another row: {cells[:3]}")
        if "description" in fields:
            fields["unused"] = "yes" if fields["description"].lower() == "unused" else "no"
        known[int(code[1])] = fields
    if not known:
        raise UnreadableError("the table has no rows")
    columns = {name for name in names if name} - {"type", "code"}
    return Catalogue(known, frozenset({*columns, "unused"} if "description" in columns else columns))


def _normal(name: str, cell: str) -> str:
    """Return the cell without what is no change: a bucket has remarks beside it in some cells."""
    return "; ".join(_BUCKET.findall(cell)) if name in _BUCKETS else cell


def workbook_tables(content: bytes) -> Iterator[Table]:
    """Yield the sheets of an .xlsx file (ECMA-376, part 1, 18.3): a zip archive of XML files."""
    left = MOST_BYTES
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts: dict[str, Element] = {}
        for name in archive.namelist():
            if name != "xl/sharedStrings.xml" and not re.fullmatch(r"xl/worksheets/[^/]{1,64}\.xml", name):
                continue
            with archive.open(name) as file:
                part = file.read(left + 1)
            left -= len(part)
            if left < 0:
                raise UnreadableError(f"its parts have more than {MOST_BYTES >> 20} MiB")
            parts[name] = _xml(part)
    strings = parts.pop("xl/sharedStrings.xml", None)
    shared = [_text(item) for item in strings if item.tag == "si"] if strings is not None else []
    for name in sorted(parts, key=lambda name: (len(name), name)):
        yield _sheet(parts[name], shared)


def _xml(content: bytes) -> Element:
    """Parse an XML file without a document type, which could define endless entities. Namespaces are dropped."""
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=" ")

    def refuse(*_: object) -> None:
        raise UnreadableError("an XML part has a document type")

    def start(name: str, attributes: dict[str, str]) -> None:
        builder.start(name.rpartition(" ")[2], attributes)

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: builder.end(name.rpartition(" ")[2])
    parser.CharacterDataHandler = builder.data
    parser.Parse(content, True)
    return builder.close()


def _text(item: Element) -> str:
    """Return the text of a string: of its runs, not of the phonetic hints beside them."""
    runs = (part if part.tag == "t" else part.find("t") for part in item if part.tag in ("t", "r"))
    return _one_line("".join(run.text or "" for run in runs if run is not None))


def _sheet(sheet: Element, shared: Sequence[str]) -> Table:
    """Return the rows of a sheet. A cell names its column, because empty cells may be missing."""
    table: Table = []
    for row in sheet.iterfind("sheetData/row"):
        cells: list[str] = []
        for cell in row.iterfind("c"):
            reference = _REFERENCE.match(cell.get("r", ""))
            column = _column(reference[0]) if reference else len(cells)
            if column >= MOST_COLUMNS:
                break
            cells += [""] * (column + 1 - len(cells))
            cells[column] = _cell(cell, shared)
        table.append(cells)
        if len(table) > MOST_ROWS:
            raise UnreadableError(f"a sheet has more than {MOST_ROWS} rows")
    return table


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1


def _cell(cell: Element, shared: Sequence[str]) -> str:
    if (inline := cell.find("is")) is not None:
        return _text(inline)
    value = cell.findtext("v") or ""
    if cell.get("t") != "s":
        return _one_line(value)
    index = int(value)
    if index < 0:
        raise UnreadableError(f"a cell refers to the string {index}")
    return shared[index]


def page_tables(content: bytes) -> list[Table]:
    """Return the tables of a page. Raises UnreadableError for a page that ends inside a table."""
    page = _Page()
    page.feed(content.decode("utf-8", "replace"))
    page.close()
    if page.is_open:
        raise UnreadableError("it ends inside a table")
    return page.tables


@dataclass
class _OpenTable:
    """Table of a page until its end tag. A cell is the list of its texts."""

    rows: list[list[list[str]]] = field(default_factory=list)
    in_cell: bool = False


class _Page(HTMLParser):
    """Reader of the tables of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Table] = []
        self._open: list[_OpenTable] = []

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - HTMLParser's
        if tag == "table":
            self._open.append(_OpenTable())
        if not self._open:
            return
        table = self._open[-1]
        if tag == "tr":
            table.rows.append([])
            table.in_cell = False
        elif tag in ("td", "th") and table.rows:
            table.rows[-1].append([])
            table.in_cell = True
        else:
            self.handle_data(" ")
        columns = len(table.rows[-1]) if table.rows else 0
        if len(self._open) > MOST_OPEN or len(table.rows) > MOST_ROWS or columns > MOST_COLUMNS:
            raise UnreadableError("a table is too large")

    def handle_endtag(self, tag: str) -> None:
        if not self._open:
            return
        if tag == "table":
            rows = self._open.pop().rows
            self.tables.append([[_one_line("".join(cell)) for cell in row] for row in rows])
        elif tag in ("td", "th", "tr"):
            self._open[-1].in_cell = False

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1].in_cell:
            self._open[-1].rows[-1][-1].append(data)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


if __name__ == "__main__":
    sys.exit(main())
