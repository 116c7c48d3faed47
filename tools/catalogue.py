"""Compare NVIDIA's Xid catalogue, saved as CSV, with healthcheck/catalog/xid.csv: `python -m tools.catalogue FILE`.

FILE is the table of `Xid-Catalog.xlsx` or of the page `analyzing-xid-catalog.html` of docs.nvidia.com/deploy/xid-errors
as a spreadsheet program saves it as CSV. Exit code 0: nothing differs, 1: something differs, 3: the file is unreadable.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from gpu_healthcheck.healthcheck.catalog.xid import actions
from gpu_healthcheck.healthcheck.text.printable import printable

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
}
"""Column of xid.csv by NVIDIA's heading (workbook of 2025-09-30, page of 2026-09)."""
_COMPARED = (*(column for column in COLUMNS.values() if column not in ("type", "code", "description")), "unused")
_BUCKETS = ("immediate_action", "investigatory_action")
_BUCKET = re.compile(r"\b(?:IGNORE|[A-Z][A-Z0-9]+(?:[_/][A-Z0-9]+)+)\b")
_CODE = re.compile(r"(\d{1,5})(?:\.0)?\Z", re.ASCII)
_SOURCE = "NVIDIA Xid catalogue"

Row = Mapping[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.catalogue", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="saved table, as CSV")
    options = parser.parse_args(arguments)
    try:
        published = read(options.file)
    except (OSError, ValueError, csv.Error) as error:
        sys.stderr.write(f"{options.file}: {error}\n")
        return 3
    found = list(differences(published))
    summary = f"{len(found)} differences" if found else f"nothing differs in {len(published)} codes"
    sys.stdout.write("".join(f"{line}\n" for line in (*found, summary)))
    return 1 if found else 0


def differences(published: Mapping[int, Row]) -> Iterator[str]:
    """Yield one line per code, cell and action in which xid.csv differs."""
    rows = {int(row["code"]): row for _, row in read_rows("xid.csv")}
    for code in sorted(rows.keys() | published.keys()):
        ours, theirs = rows.get(code), published.get(code)
        if theirs is None:
            if ours is not None and ours["source"].startswith(_SOURCE):
                yield f"Xid {code}: gone"
        elif ours is None:
            action = theirs["immediate_action"] or "none"
            yield f"Xid {code}: new, {theirs['mnemonic']}, action {action}: {theirs['description']}"
        else:
            for column in _COMPARED:
                if ours[column] != theirs[column]:
                    yield f"Xid {code}: {column} was {ours[column] or 'empty'}, is {theirs[column] or 'empty'}"
    for action in sorted({row["immediate_action"] for row in published.values()} - actions().keys()):
        yield f"action {action}: not in xid_actions.csv"


def read(path: Path) -> dict[int, Row]:
    """Return the rows of a saved table by code; a title may precede the headings. Raises ValueError."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = [[printable(" ".join(cell.split())) for cell in line] for line in csv.reader(file)]
    while lines and not set(COLUMNS) <= {heading.lower() for heading in lines[0]}:
        del lines[0]
    if not lines:
        raise ValueError(f"no table with the columns {', '.join(COLUMNS)}")
    names = [COLUMNS.get(heading.lower(), heading) for heading in lines[0]]
    published: dict[int, Row] = {}
    for line in lines[1:]:
        row = dict(zip(names, line, strict=False))
        if row.get("type", "").upper() != "XID":
            continue
        code = _CODE.match(row.get("code", ""))
        if code is None or int(code[1]) in published or len(line) < len(names):
            raise ValueError(f"a row is cut, has no code or the code of another row: {line[:3]}")
        published[int(code[1])] = _as_in_ours(row)
    if not published:
        raise ValueError("the table has no rows")
    return published


def _as_in_ours(row: Row) -> Row:
    """Return the row as xid.csv has it: buckets without remarks, and whether the code is unused."""
    buckets = {column: "; ".join(_BUCKET.findall(row[column])) for column in _BUCKETS}
    return {**row, **buckets, "unused": "yes" if row["description"].lower() == "unused" else "no"}


if __name__ == "__main__":
    sys.exit(main())
