"""`gpu-healthcheck explain`: the meaning of a code or reason, and the settings of this cluster for it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict
from rich.table import Table
from rich.text import Text

from cli import catalogue, index
from cli.catalogue import Explanation
from cli.index import IndexEntry
from cli.local_settings import LocalSettings, read_here
from cli.options import JsonOrYaml, OutputFormat, complete_explained_names
from cli.output import columns
from cli.output.json_documents import write_as
from cli.words import SEVERITY_STYLES, STYLES, end
from healthcheck.catalog.dcgm import dcgm_table
from healthcheck.catalog.policy import Policy
from healthcheck.catalog.sxid import CLASSES, sxid_table
from healthcheck.catalog.xid import xid_table
from healthcheck.host.console import Screen
from healthcheck.host.streams import write_document
from healthcheck.model import Severity

_DCGM_TESTS = "dcgmdiag"
"""The reason, in small letters, that begins the names of DCGM's tests."""
_CODE = re.compile(r"(?P<kind>xid|sxid|dcgm|)[\s:]*(?P<number>\d{1,5})\Z", re.IGNORECASE)
_HEX = re.compile(r"(?:0x[0-9a-f]{1,8}|0)\Z", re.IGNORECASE)
_FIRST_SXID = 10000
_ALL: dict[str, Callable[[Policy], list[Explanation]]] = {
    "reasons": lambda policy: [catalogue.explain_reason(each, policy) for each in index.reasons().values()],
    # Only codes that current GPUs report.
    "xid": lambda policy: [catalogue.explain_xid(code, (), policy) for code, row in xid_table().items() if row.meaning],
    "sxid": lambda policy: [catalogue.explain_sxid(code, policy) for code in sxid_table()],
    "dcgm": lambda policy: [catalogue.explain_dcgm(error_id, policy) for error_id in dcgm_table()],
}
_HEADERS = {"reasons": ("reason", "means"), "xid": ("Xid", "means"), "dcgm": ("DCGM", "name")}
_ALLOWED = (
    "an Xid (79, Xid79), an SXid (SXid20034), a DCGM error (dcgm 52) or a reason (GpuCountLow), as listed by "
    "`gpu-healthcheck explain`; a cause (RunStopped, HamiCardMemoryShort), a severity (reset), a setting "
    "(CHECK_INTERVAL), a check (gpu-count), a metric or an alert"
)
_NO_WORDS = "{}: only Xid 74 and 144 to 150 have data words to decode"


Word = Annotated[
    str,
    typer.Argument(
        metavar="[WORD]",
        show_default=False,
        autocompletion=complete_explained_names,
        help="79, SXid20034, dcgm 52, GpuCountLow; xid, sxid, dcgm or reasons lists all of a kind; default: all.",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[HEX...]", help="Data words at the end of an NVLink Xid's log line, to decode."),
]


def explain(word: Word = "", words: Words = None, output: JsonOrYaml = None) -> None:
    """Explain a code or reason: its meaning, NVIDIA's advice, and the settings of this cluster."""
    here = read_here("explain")
    message, codes = _split([word, *(words or ())])
    if not codes and message.lower() in ("", *_ALL):
        _show_tables([message.lower()] if message else list(_ALL), output, here.policy)
    elif not codes and (meanings := _words_of_ours(message)):
        _show_meanings(meanings, output, here)
    else:
        explanation = _look_up(message, codes, here.policy)
        if output:
            write_as(output, _document(explanation))
        else:
            _print(Screen(), explanation, here.directory)


def _show_tables(names: Sequence[str], form: OutputFormat | None, policy: Policy) -> None:
    if form:
        write_as(form, {name: [_document(explanation) for explanation in _ALL[name](policy)] for name in names})
        return
    for name in names:
        _print_all(Screen(), name, policy)


def _show_meanings(meanings: tuple[IndexEntry, ...], form: OutputFormat | None, here: LocalSettings) -> None:
    if form:
        rows = [{**asdict(meaning), **_here_word(meaning, here)} for meaning in meanings]
        write_as(form, {"name": meanings[0].name, "words": rows})
    else:
        _print_words(Screen(), meanings, here)


def _here_word(entry: IndexEntry, here: LocalSettings) -> dict[str, str]:
    is_set = entry.kind == index.SETTING and entry.name in here.values
    return {"here": here.values[entry.name]} if is_set else {}


def _document(explanation: Explanation) -> dict[str, Any]:
    owner, message = explanation.advice
    return {
        "name": explanation.name,
        "mnemonic": explanation.mnemonic,
        "meaning": explanation.meaning,
        "advice": {"by": owner, "says": message},
        "here": {
            "severity": explanation.here.severity.name,
            "rule": explanation.here.rule,
            "reading": explanation.here.reading,
        },
        "otherwise": explanation.otherwise.name,
        "details": [{"label": label, "text": text} for label, text in explanation.details],
        "source": explanation.source,
    }


def _split(words: Sequence[str]) -> tuple[str, list[int]]:
    """Return the code or name, and the data words after it, copied with commas and brackets."""
    pieces = [piece for word in words[1:] for piece in re.split(r"[\s,()]+", word) if piece]
    hexes = [piece for piece in pieces if _HEX.match(piece)]
    rest = [piece for piece in pieces if not _HEX.match(piece)]
    return " ".join([words[0].strip(), *rest]), [int(piece, 16) for piece in hexes]


def _words_of_ours(message: str) -> tuple[IndexEntry, ...]:
    """Return the meanings of a term; none for the reason of a finding of that name, which explains more."""
    is_reason = message.lower() in index.reasons()
    return () if is_reason else index.words().get(index.without_prefix(message), ())


def _look_up(message: str, codes: list[int], policy: Policy) -> Explanation:
    found = _CODE.match(message)
    if found:
        number = int(found["number"])
        kind = found["kind"].lower() or ("sxid" if number >= _FIRST_SXID else "xid")
        return _explain_code(kind, number, codes, policy)
    reasons = index.reasons()
    reason = reasons.get(message.lower())
    if reason is None and message.lower().startswith(_DCGM_TESTS):
        reason = reasons[_DCGM_TESTS]  # a test that is newer than the list of reasons
    if reason is None:
        end("explain", _unknown(message))
    if codes:
        end("explain", _NO_WORDS.format(message))
    return catalogue.explain_reason(reason, policy)


def _explain_code(kind: str, number: int, codes: list[int], policy: Policy) -> Explanation:
    decoded = kind == "xid" and (number == catalogue.NVLINK4_CODE or number in catalogue.NVLINK5_CODES)
    if codes and not decoded:
        end("explain", _NO_WORDS.format(f"{kind} {number}"))
    if kind == "sxid":
        return catalogue.explain_sxid(number, policy)
    if kind == "dcgm":
        return catalogue.explain_dcgm(number, policy)
    return catalogue.explain_xid(number, codes, policy)


def _unknown(message: str) -> str:
    names = {name: declared.reason.name for name, declared in index.reasons().items()}
    names |= {f"xid{code}": f"Xid{code}" for code in xid_table()}
    names |= {f"dcgm {row.id}": f"dcgm {row.id}" for row in dcgm_table().values()}
    names |= {row.name.lower(): f"dcgm {row.id}" for row in dcgm_table().values()}
    names |= {row.mnemonic.lower(): f"Xid{row.code}" for row in xid_table().values()}
    names |= {name: entry.name for name, (entry, *_) in index.words().items()}
    close = [names[name] for name in difflib.get_close_matches(message.lower(), names, 3)]
    meant = f" (did you mean {' or '.join(dict.fromkeys(close))}?)" if close else ""
    return f"unknown name {message[:60]!r}{meant}; allowed is {_ALLOWED}"


def _print(console: Screen, explanation: Explanation, directory: Path) -> None:
    console.print(
        Text.assemble((explanation.name, "bold"), f"  {explanation.mnemonic}" if explanation.mnemonic else ""),
        soft_wrap=True,
    )
    table = _labelled_rows()
    table.add_row("means", explanation.meaning)
    if explanation.advice != catalogue.NO_ADVICE:
        table.add_row(*explanation.advice)
    table.add_row("here", _here(explanation, directory))
    for label, text in explanation.details:
        table.add_row(label, text)
    if explanation.source:
        table.add_row("source", explanation.source)
    console.print(table)


def _print_words(console: Screen, meanings: tuple[IndexEntry, ...], here: LocalSettings) -> None:
    console.print(Text(meanings[0].name, "bold"))
    table = _labelled_rows()
    for meaning in meanings:
        table.add_row("as", meaning.kind)
        table.add_row("means", meaning.meaning)
        for value in _here_word(meaning, here).values():
            table.add_row("here", f"{value or 'empty'}{here.note}")
        table.add_row("more", meaning.more)
    console.print(table)


def _labelled_rows() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    return table


def _here(explanation: Explanation, directory: Path) -> Text:
    severity = explanation.here.severity
    text = Text.assemble((severity.name, SEVERITY_STYLES[severity]), f": {explanation.step}")
    if explanation.here.rule == "severity-overrides":
        place = directory / "severity-overrides"
        return text.append(f" (by {place}; it would be {explanation.otherwise.name})")
    return text.append(
        f" ({explanation.here.rule}{'; ' if explanation.here.reading else ''}{explanation.here.reading})"
    )


def _print_all(console: Screen, name: str, policy: Policy) -> None:
    """Print one line per code of this kind; SXids are grouped, because the word in the line decides."""
    if name == "sxid":
        _print_sxids(console)
        return
    rows = _ALL[name](policy)
    _print_table(console, _HEADERS[name], ((row, row.mnemonic if name == "dcgm" else row.meaning) for row in rows))
    if name == "xid":
        unused = ", ".join(str(code) for code, row in xid_table().items() if not row.meaning)
        console.print(f"Not reported by current GPUs, and only monitored: {unused}\n")


def _print_table(console: Screen, header: tuple[str, str], rows: Iterable[tuple[Explanation, str]]) -> None:
    """Print one line per code. A star marks a severity that this cluster overrides."""
    cells = ((explanation.name, _word_here(explanation), text) for explanation, text in rows)
    if not console.is_terminal:
        write_document(columns.aligned_within([(header[0], "here", header[1]), *cells], console.width) + "\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(header[0], no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column(header[1], overflow="fold")
    for name, word, text in cells:
        table.add_row(name, Text(word, STYLES.get(word.removesuffix("*"), STYLES[Severity.PASS.name])), text)
    console.print(table, "")


def _word_here(explanation: Explanation) -> str:
    severity = explanation.here.severity
    changed = "*" if explanation.here.rule == "severity-overrides" else ""
    return ("-" if severity is Severity.PASS else severity.name) + changed


def _print_sxids(console: Screen) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("SXid", max_width=24)
    table.add_column("numbers", overflow="fold")
    for kind, (_severity, message) in CLASSES.items():
        table.add_row(message, ", ".join(str(code) for code, row in sxid_table().items() if row.kind == kind))
    console.print(table)
    console.print("The word in an SXid's log line decides: Fatal is RESET, Non-fatal and Correctable are MONITOR.\n")
