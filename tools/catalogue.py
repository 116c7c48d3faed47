"""Compare NVIDIA's Xid catalogue, saved as CSV, with healthcheck/catalog/xid.csv: `python -m tools.catalogue FILE`.

FILE is the table of `Xid-Catalog.xlsx` or of the page `analyzing-xid-catalog.html` of docs.nvidia.com/deploy/xid-errors
as a spreadsheet program saves it as CSV. With an earlier copy as second file, the two copies are compared. Their
descriptions and trigger conditions are compared too: xid.csv has those in other words. Exit code 0: nothing differs,
1: something differs, 3: a file is unreadable.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from healthcheck.catalog.csv_rows import read_rows
from healthcheck.catalog.xid import actions
from healthcheck.text.printable import printable

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
_OF_THE_CATALOGUE = "NVIDIA Xid catalogue"


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
    parser.add_argument("file", type=Path, help="saved table, as CSV")
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
    """Read a saved table. Raises UnreadableError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _catalogue([[_one_line(cell) for cell in row] for row in csv.reader(file)])
    except (UnreadableError, OSError, ValueError, csv.Error) as error:
        raise UnreadableError(f"{path}: {error}") from error


def _catalogue(table: Sequence[Sequence[str]]) -> Catalogue:
    """Return the rows below the headings, which may be below a title."""
    rows = iter(table)
    for row in rows:
        names = [COLUMNS.get(heading.lower(), heading) for heading in row]
        if names.count("code") == 1 and set(names) >= REQUIRED:
            break
    else:
        raise UnreadableError("no table with the columns Code, Mnemonic and Resolution Bucket (Immediate Action)")
    known: dict[int, dict[str, str]] = {}
    for cells in rows:
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


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


if __name__ == "__main__":
    sys.exit(main())
