"""`gpu-healthcheck explain`: the meaning of a code, reason or message, and the settings of this cluster for it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict, replace
from rich.table import Table
from rich.text import Text

from gpu_healthcheck.cli import catalogue, index, known_texts
from gpu_healthcheck.cli.catalogue import Explanation
from gpu_healthcheck.cli.index import IndexEntry
from gpu_healthcheck.cli.local_settings import LocalSettings, read_here
from gpu_healthcheck.cli.options import JsonOrYaml, OutputFormat, complete_explained_names
from gpu_healthcheck.cli.output import columns
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.words import SEVERITY_STYLES, STYLES, end
from gpu_healthcheck.healthcheck.catalog.cuda_errors import LibraryError
from gpu_healthcheck.healthcheck.catalog.dcgm import dcgm_table
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.sxid import CLASSES, sxid_table
from gpu_healthcheck.healthcheck.catalog.xid import xid_table
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.streams import write_document
from gpu_healthcheck.healthcheck.model import Severity

_DCGM_TESTS = "dcgmdiag"
"""The reason, in small letters, that begins the names of DCGM's tests."""
_CODE = re.compile(r"(?P<kind>xid|sxid|dcgm|cuda|nvml|nccl|)(?:\s*error)?[\s:]*(?P<number>\d{1,5})\Z", re.IGNORECASE)
_HEX = re.compile(r"(?:0x[0-9a-f]{1,8}|0)\Z", re.IGNORECASE)
_FIRST_SXID = 10000
_DATA_WORDS = re.compile(r"(?<=\()0x[0-9a-f]{1,8}(?:\s+0x[0-9a-f]{1,8})+(?=\))", re.IGNORECASE)
_DECODED = {f"Xid{code}" for code in (catalogue.NVLINK4_CODE, *catalogue.NVLINK5_CODES)}
_MOST = 6
"""Most results for one text."""
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
    "(CHECK_INTERVAL), a check (gpu-count), a metric or an alert; an error of CUDA, NVML or NCCL (cuda 802), a line "
    "of a log, or a message"
)
_NO_WORDS = "{}: only Xid 74 and 144 to 150 have data words to decode"
_UNJUDGED = "the driver reports an error in this line that no rule judges: it is unknown whether a GPU is faulty"
_ONE_OF = (
    "`gpu-healthcheck explain xid {0}` explains only the Xid, `gpu-healthcheck explain cuda {0}` only CUDA's error."
)
Result = Explanation | IndexEntry


Word = Annotated[
    str,
    typer.Argument(
        metavar="[WORD]",
        show_default=False,
        autocompletion=complete_explained_names,
        help="79, SXid20034, dcgm 52, cuda 802, GpuCountLow; a log line or message in quotes; "
        "xid, sxid, dcgm or reasons lists all of a kind; default: all.",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[HEX...]", help="Data words at the end of an NVLink Xid's log line, to decode."),
]


def explain(word: Word = "", words: Words = None, output: JsonOrYaml = None) -> None:
    """Explain a code, reason or message: its meaning, NVIDIA's advice, and the settings of this cluster."""
    here = read_here("explain")
    message, codes = _split([word, *(words or ())])
    if not codes and message.lower() in ("", *_ALL):
        _show_tables([message.lower()] if message else list(_ALL), output, here.policy)
        return
    results = _look_up(message, codes, here.policy) or _recognised(" ".join([word, *(words or ())]), here.policy)
    if not results:
        end("explain", _UNJUDGED if known_texts.is_unjudged_error(word) else _unknown(message))
    _show(results, output, here)


def _show_tables(names: Sequence[str], form: OutputFormat | None, policy: Policy) -> None:
    if form:
        write_as(form, {name: [_document(explanation) for explanation in _ALL[name](policy)] for name in names})
        return
    for name in names:
        _print_all(Screen(), name, policy)


def _show(results: Sequence[Result], form: OutputFormat | None, here: LocalSettings) -> None:
    if form:
        write_as(form, _as_document(results, here))
        return
    console = Screen()
    for name, some in groupby(results, lambda result: result.name):
        group = list(some)
        explanations = [result for result in group if isinstance(result, Explanation)]
        for explanation in explanations:
            _print(console, explanation, here.directory)
        entries = [result for result in group if isinstance(result, IndexEntry)]
        _print_words(console, "" if explanations else name, entries, here)


def _as_document(results: Sequence[Result], here: LocalSettings) -> dict[str, Any]:
    """Return a code or reason as its own document, with others that are meant under `also`; terms under `words`."""
    first, *rest = results
    documents = [_document(result) for result in results if isinstance(result, Explanation)]
    rows = [{**asdict(result), **_here_word(result, here)} for result in results if isinstance(result, IndexEntry)]
    if isinstance(first, Explanation):
        return {**documents[0], **({"also": [*documents[1:], *rows]} if rest else {})}
    return {"name": first.name, "words": rows, **({"also": documents} if documents else {})}


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


def _look_up(message: str, codes: list[int], policy: Policy) -> list[Result]:
    """Return the results for a code or name; none for other texts."""
    if found := _CODE.match(message):
        return _by_number(found["kind"].lower(), int(found["number"]), codes, policy)
    results = _by_name(message, policy)
    if results and codes:
        end("explain", _NO_WORDS.format(message))
    return results


def _by_name(name: str, policy: Policy) -> list[Result]:
    """Return all meanings of a name: the finding of a node first, then the cause that `diagnose` finds."""
    reason = index.reasons().get(name.lower())
    if reason is None and name.lower().startswith(_DCGM_TESTS):
        reason = index.reasons()[_DCGM_TESTS]  # a test that is newer than the list of reasons
    findings = [catalogue.explain_reason(reason, policy)] if reason is not None else []
    errors = [result for error in known_texts.errors_named(name) for result in _of_error(error, policy)]
    return [*findings, *index.words().get(index.without_prefix(name), ()), *errors]


def _of_error(error: LibraryError, policy: Policy, note: str = "") -> list[Result]:
    """Return an error of CUDA, NVML, NCCL or libfabric, and its cause."""
    return [known_texts.entry_of(error, note), *(_by_name(error.cause, policy) if error.cause else ())]


def _by_number(kind: str, number: int, codes: list[int], policy: Policy) -> list[Result]:
    """Return the code of this kind. A number alone may be that of an Xid and of an error of CUDA."""
    is_xid = number in xid_table()
    note = "" if kind or is_xid else f"Xid {number} is not in the catalogue."
    numbered = () if codes else known_texts.errors_numbered(kind or "cuda", number)
    errors = [result for error in numbered for result in _of_error(error, policy, note)]
    if kind in known_texts.NUMBERED or (errors and not is_xid):
        return errors
    code = _explain_code(kind or ("sxid" if number >= _FIRST_SXID else "xid"), number, codes, policy)
    if errors:
        code = replace(code, details=(*code.details, ("one of two", _ONE_OF.format(number))))
    return [code, *errors]


def _recognised(text: str, policy: Policy) -> list[Result]:
    """Return what a log line or message is about, the most specific first."""
    results: list[Result] = []
    results += _of_lines(text, policy)
    for found in () if results else known_texts.recognise(text):
        if isinstance(found, LibraryError):
            results += _of_error(found, policy)
        else:
            results += [found] if isinstance(found, IndexEntry) else _look_up(found, [], policy)
    if not results:  # the text may be a line of the kernel's, copied without its prefix
        results += _of_lines(f"NVRM: {text}", policy)
    return list(dict.fromkeys(results))[:_MOST]


def _of_lines(text: str, policy: Policy) -> list[Result]:
    """Return what lines of a kernel log are about, with the severity that they have in these lines."""
    results: list[Result] = []
    for name, ruling in known_texts.findings_in(text, policy).items():
        words = _DATA_WORDS.search(text) if name in _DECODED else None
        for result in _look_up(name, [int(word, 16) for word in words[0].split()] if words else [], policy):
            if isinstance(result, Explanation) and result.here.rule != "severity-overrides":
                here = replace(result.here, severity=ruling.severity, rule=ruling.rule)
                results.append(replace(result, here=here))
            else:
                results.append(result)
    return results


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
    names |= {name.lower(): name for name in known_texts.error_names()}
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


def _print_words(console: Screen, heading: str, meanings: Sequence[IndexEntry], here: LocalSettings) -> None:
    if heading:
        console.print(Text(heading, "bold"))
    table = _labelled_rows()
    for meaning in meanings:
        table.add_row("as", meaning.kind)
        table.add_row("means", meaning.meaning)
        for value in _here_word(meaning, here).values():
            table.add_row("here", f"{value or 'empty'}{here.note}")
        table.add_row("more", meaning.more)
    if meanings:
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
