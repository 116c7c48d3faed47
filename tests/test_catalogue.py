"""Comparison of a saved copy of NVIDIA's Xid catalogue with xid.csv.

The copies have the structure of the published workbook and page: headings, shared strings, missing empty cells.
"""

from __future__ import annotations

import html
import io
import random
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from healthcheck.catalog.csv_rows import read_rows
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


def page(rows: Sequence[Row], headings: Sequence[str] = HEADINGS, end: str = "</table></body></html>") -> bytes:
    """A page as Sphinx writes it, with another table before."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}><p>{html.escape(cell)}</p></{tag}>" for cell in cells) + "</tr>\n"

    table = line("th", headings) + "".join(line("td", row) for row in rows)
    return f"<html><body><table><tr><td>Menu</td></tr></table><table class='docutils'>{table}{end}".encode()


def workbook(rows: Sequence[Row], headings: Sequence[str] = HEADINGS, start: str = "") -> bytes:
    """A workbook whose first sheet is about another subject, with shared strings, some of them in runs."""
    strings: list[str] = []

    def cell(column: int, text: str) -> str:
        place = f'r="{chr(ord("A") + column)}1"'
        if text.isdecimal():
            return f"<c {place}><v>{text}</v></c>"
        strings.append(text)
        return f'<c {place} t="s"><v>{len(strings) - 1}</v></c>'

    def line(cells: Sequence[str]) -> str:
        return "<row>" + "".join(cell(number, text) for number, text in enumerate(cells) if text) + "</row>"

    def sheet(*table: Sequence[str]) -> str:
        data = "".join(map(line, table))
        return f'{start}<worksheet xmlns="{MAIN}"><sheetData>{data}</sheetData></worksheet>'

    parts = {
        "[Content_Types].xml": "<Types/>",
        "xl/workbook.xml": "<workbook/>",
        "xl/worksheets/sheet1.xml": sheet(("Read me",), ()),
        "xl/worksheets/sheet2.xml": sheet(("Xid Catalog",), headings, *rows),
    }
    runs = "".join(
        f"<si><r><t>{html.escape(text[:3])}</t></r><r><rPr/><t>{html.escape(text[3:])}</t></r><rPh><t>x</t></rPh></si>"
        for text in strings
    )
    parts["xl/sharedStrings.xml"] = f'<sst xmlns="{MAIN}">{runs}</sst>'
    saved = io.BytesIO()
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return saved.getvalue()


MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
FORMS = [workbook, page]


def compared(capsys: pytest.CaptureFixture[str], folder: Path, *copies: bytes) -> tuple[int, list[str]]:
    paths = [folder / f"copy-{number}" for number in range(len(copies))]
    for path, copy in zip(paths, copies, strict=True):
        path.write_bytes(copy)
    code = catalogue.main([str(path) for path in paths])
    output = capsys.readouterr()
    return code, (output.out + output.err).splitlines()


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_of_the_catalogue_that_xid_csv_has_differs_in_nothing(
    form: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(capsys, tmp_path, form(published())) == (0, ["nothing differs in 172 codes"])
    assert compared(capsys, tmp_path, form(published()), form(published()))[0] == 0


@pytest.mark.parametrize("form", FORMS)
def test_what_differs_is_listed_by_code_and_column(
    form: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [list(row) for row in published()]
    rows[62][8], rows[62][9] = "RESET_GPU", ""
    rows[78][2] = "GPU_GONE"
    rows[89][3], rows[89][7] = "In use again", "YES"
    del rows[4]
    rows.append(["XID", "175", "MEMORY_SUBSYSTEM_ERROR", "A timeout", *["YES"] * 4, "RESET_GPU", "", "", ""])
    rows.append(["XID", "200", "NEW_ERROR", "Something\nnew", *["YES"] * 4, "BURN_IT", "", "", ""])
    rows.append(["SXID", "20034", "DLPL_LTSSM_FAULT_UP", "Of a switch", *[""] * 8])

    code, lines = compared(capsys, tmp_path, form([tuple(row) for row in rows]))

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


@pytest.mark.parametrize("form", FORMS)
def test_texts_are_compared_between_two_copies(
    form: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = published()
    rows[30] = (*rows[30][:3], "Another text", *rows[30][4:11], "another condition")

    code, lines = compared(capsys, tmp_path, form(rows), form(published()))

    assert code == 1
    assert lines == [
        "Xid 31: description was A description <of> it, is Another text",
        "Xid 31: trigger_conditions was a condition, is another condition",
        "2 differences",
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_column_that_is_renamed_is_a_difference(
    form: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    headings = [heading.replace("B100", "B300") for heading in HEADINGS]

    code, lines = compared(capsys, tmp_path, form(published(), headings))

    assert (code, lines) == (
        1,
        [
            "column b100: gone",
            "column Applies to B300: new",
            "2 differences",
        ],
    )


ROWS = published()
DAMAGED = {
    "empty": (b"", "no table"),
    "text": (b"not a catalogue", "no table"),
    "another page": (b"<table><tr><th>Code</th></tr></table>", "no table"),
    "a page that was cut": (page(ROWS)[:-40_000], "ends inside a table"),
    "a page without its end": (page(ROWS, end=""), "ends inside a table"),
    "a row that was cut": (page([*ROWS, ("XID", "200")]), "a row has 2 cells instead of 12"),
    "no code": (page([*ROWS, ("XID", "144-150", *[""] * 10)]), "has no code"),
    "a code twice": (workbook([*ROWS, ROWS[3]]), "that of another row"),
    "only headings": (workbook([]), "no rows"),
    "tables in tables": (b"<table>" * 1000, "too large"),
    "a row without end": (b"<table><tr>" + b"<td>" * 100_000, "too large"),
    "rows without end": (b"<table>" + b"<tr>" * 20_000, "too large"),
    "too large": (b"<" * (catalogue.MOST_BYTES + 1), "more than 16 MiB"),
    "a cut workbook": (workbook(ROWS)[:-500], "not a zip file"),
    "a document type": (workbook(ROWS, start='<!DOCTYPE a [<!ENTITY b "c">]>'), "document type"),
    "a part that unpacks to much": (workbook(ROWS, start=" " * catalogue.MOST_BYTES), "more than 16 MiB"),
    "broken XML": (workbook(ROWS, start="<a>"), "no element found|mismatched|junk"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_unreadable(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, why = DAMAGED[name]

    code, lines = compared(capsys, tmp_path, copy)

    assert (code, len(lines)) == (3, 1)
    assert any(words in lines[0] for words in why.split("|"))


def test_a_missing_file_is_unreadable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert catalogue.main([str(tmp_path / "none")]) == 3
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_any_damaged_byte_ends_with_a_code(
    form: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, chance = form(published()[:9]), random.Random(1)
    for _ in range(300):
        copy = bytearray(good)
        for _ in range(chance.choice((1, 1, 4))):
            copy[chance.randrange(len(copy))] = chance.randrange(256)
        code, lines = compared(capsys, tmp_path, bytes(copy[: chance.choice((len(copy), chance.randrange(len(copy))))]))
        assert code in (0, 1, 3)
        assert all(line.isprintable() for line in lines)
