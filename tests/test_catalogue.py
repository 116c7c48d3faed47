"""Comparison of a saved copy of NVIDIA's Xid catalogue with xid.csv.

The copies have the headings of the published workbook and page.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from tools import catalogue

HEADINGS = (
    *("Type \n(XID)", "Code", "Mnemonic", "Description"),
    *("Applies to A100", "Applies to H100", "Applies to B100", "Applies to GB200"),
    *("Resolution Bucket \n(Immediate Action)", "Resolution Bucket \n(Investigatory Action)"),
    *("Xid 154 linkage", "Trigger Conditions"),
)
REMARKS = {
    "45": "Solo: RESTART_FM\nNot Solo: IGNORE (follow other Xid)",
    "94": "IGNORE (sympathetic)",
    "154": "N/A\nInformational only",
}
Row = tuple[str, ...]


def published() -> list[Row]:
    """Rows as NVIDIA publishes them, from xid.csv."""
    rows: list[Row] = []
    for _, row in read_rows("xid.csv"):
        if row["source"].startswith("NVIDIA Xid catalogue"):
            described = "Unused" if row["unused"] == "yes" else "A description <of> it"
            applies = (row["a100"], row["h100"], row["b100"], row["gb200"])
            cause = REMARKS.get(row["code"], row["investigatory_action"])
            actions = (row["immediate_action"], cause, row["xid_154_linkage"])
            rows.append(("XID", row["code"], row["mnemonic"], described, *applies, *actions, "a condition"))
    return rows


def table(rows: Sequence[Row], headings: Sequence[str] = HEADINGS) -> bytes:
    """Return the table as a spreadsheet program saves it, with a title above."""
    text = io.StringIO()
    csv.writer(text).writerows([("Xid Catalog", *[""] * 11), headings, *rows])
    return text.getvalue().encode("utf-8-sig")


def compared(capsys: pytest.CaptureFixture[str], folder: Path, copy: bytes) -> tuple[int, list[str]]:
    """Return the exit code and the printed lines of a comparison."""
    (folder / "copy").write_bytes(copy)
    code = catalogue.main([str(folder / "copy")])
    output = capsys.readouterr()
    return code, (output.out + output.err).splitlines()


def test_catalogue_of_xid_csv_differs_in_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(capsys, tmp_path, table(published())) == (0, ["nothing differs in 172 codes"])


def test_catalogue_differences_are_listed_by_code_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [list(row) for row in published()]
    rows[62][8], rows[62][9] = "RESET_GPU", ""
    rows[78][2] = "GPU_GONE"
    rows[89][3], rows[89][7] = "In use again", "YES"
    del rows[4]
    rows.append(["XID", "175", "MEMORY_SUBSYSTEM_ERROR", "A timeout", *["YES"] * 4, "RESET_GPU", "", "", ""])
    rows.append(["XID", "200", "NEW_ERROR", "Something\nnew", *["YES"] * 4, "BURN_IT", "", "", ""])
    rows.append(["SXID", "20034", "DLPL_LTSSM_FAULT_UP", "Of a switch", *[""] * 8])

    code, lines = compared(capsys, tmp_path, table([tuple(row) for row in rows]))

    assert code == 1
    assert lines == [
        "Xid 5: gone",
        "Xid 63: immediate_action was IGNORE, is RESET_GPU",
        "Xid 63: investigatory_action was IGNORE, is empty",
        "Xid 79: mnemonic was ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS, is GPU_GONE",
        "Xid 90: gb200 was NO, is YES",
        "Xid 90: unused was yes, is no",
        *(f"Xid 175: {gpu} was empty, is YES" for gpu in ("a100", "h100", "b100", "gb200")),
        "Xid 175: immediate_action was empty, is RESET_GPU",
        "Xid 200: new, NEW_ERROR, action BURN_IT: Something new",
        "action BURN_IT: not in xid_actions.csv",
        "13 differences",
    ]


ROWS = published()
DAMAGED = {
    "empty": (b"", "no table"),
    "text": (b"not a catalogue", "no table"),
    "a workbook": (b"PK\x03\x04\xff\x00", "can't decode"),
    "a row that was cut": (table([*ROWS, ("XID", "200")]), "a row is cut"),
    "no code": (table([*ROWS, ("XID", "144-150", *[""] * 10)]), "has no code"),
    "a code twice": (table([*ROWS, ROWS[3]]), "the code of another row"),
    "a renamed column": (table(ROWS, [name.replace("B100", "B300") for name in HEADINGS]), "applies to b100"),
    "only headings": (table([]), "no rows"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_catalogue_file_that_is_damaged_is_unreadable(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, why = DAMAGED[name]

    code, lines = compared(capsys, tmp_path, copy)

    assert (code, len(lines)) == (3, 1)
    assert why in lines[0]


def test_catalogue_file_that_is_missing_is_unreadable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert catalogue.main([str(tmp_path / "none")]) == 3
    assert "No such file" in capsys.readouterr().err
