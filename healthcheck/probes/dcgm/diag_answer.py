"""Parser of the output of `dcgmi diag -j` from DCGM 3.3 to 4, with any text outside the documents.

The formats are those of dcgmi/Diag.cpp and nvvs/include/NvvsJsonStrings.h, tags 3.3.0 to 4.6.0. Arrays are filled by
index, so that any array can contain a null. A test that did not run can be missing. WARN is printed as `Fail`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.text.printable import printable

LONGEST_ANSWER = 4 << 20
"""Most bytes that are read. Level 4 with 16 GPUs and full lists has about 300 KiB."""
DOCUMENT_MARK = re.compile(rb'"DCGM (?:GPU )?Diagnostic"\s*:')
"""First key of each document: that of DCGM 4, or with `GPU` that of older versions."""
SOFTWARE = "software"
_TOPS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_ITERATIONS = "iterations"
_MOST_FALSE_STARTS = 32
"""Most braces that do not begin a document: in a banner, in shell output, or in a truncated document."""
_MOST_DOCUMENTS, _MOST_RESULTS, _MOST_ERRORS, _MOST_SERIALS = 256, 4096, 64, 256
_LONGEST_TEXT, _LONGEST_NAME, _MOST_SAID = 600, 64, 8
_DEPLOYMENT = "deployment"
_TEXT_KEYS = ("warning", "warnings")
"""Keys of an error's text. DCGM 3.3.3 to 3.3.9 write the second key for the software tests."""
_ENTITY_KEYS = (("gpu_id", "gpu"), ("gpu_ids", "gpu"), ("cpu_id", "cpu"))
_KINDS = {"": "gpu", "switch": "nvswitch"}
_NAMES_A_GPU = re.compile(r"\bGPU (\d{1,4})\b")
_NO_PART_OF_A_SERIAL = re.compile(r"[^A-Za-z0-9._-]")
_WORDS, _LETTERS = re.compile(r"[a-z0-9]+"), re.compile(r"[a-z]+")
_SAME_TEST = {
    "gpu_memory": "memory",
    "eud_test": "eud",
    "cpu_eud_test": "cpu_eud",
    "pulse": "pulse_test",
    "nccl": "nccl_tests",
}
_STATUSES = {
    "pass": "pass",
    "fail": "fail",
    "warn": "fail",
    "skip": "skip",
    "skipped": "skip",
    "not run": "not-run",
    "notrun": "not-run",
    "": "not-run",
}


class DiagError(Struct, frozen=True):
    """One error of a test. None means that the output lacks the value."""

    text: str
    id: int | None = None
    category: int | None = None
    severity: int | None = None


class DiagResult(Struct, frozen=True):
    """Result of one test on one device. `test` is DCGM 4's name for the test, for all versions."""

    test: str
    status: str
    """Status: `pass`, `fail`, `skip`, `not-run`, or `unknown` for an unknown word."""
    kind: str = ""
    """Kind of device: `gpu`, `cpu` or `nvswitch`; '' for the whole node."""
    index: int | None = None
    """DCGM's number of the device; None for the whole node."""
    errors: tuple[DiagError, ...] = ()


class DiagAnswer(Struct, frozen=True, tag=True):
    """All results of one run of the diagnostic.

    `code` is its exit code; a negative value is the number of the signal that ended it, None means unknown. `level` is
    the requested level; None if unknown.
    """

    code: int | None = None
    level: int | None = None
    documents: int = 0
    results: tuple[DiagResult, ...] = ()
    runtime_errors: tuple[str, ...] = ()
    """Error messages of a run that failed as a whole."""
    version: str = ""
    driver: str = ""
    serials: Mapping[int, str] = field(default_factory=dict)
    """Serial numbers by DCGM's number of the GPU, as far as the driver reports them."""
    said: tuple[str, ...] = ()
    """First lines outside the JSON, of standard output, then of standard error."""
    cut_off: bool = False
    """Whether a document was truncated."""
    too_long: bool = False


def read_answer(out: bytes, err: bytes = b"", code: int | None = None, level: int | None = None) -> DiagAnswer:
    """Parse the output of the diagnostic. Never raises.

    Output without a document yields its text and no results.
    """
    text = out[:LONGEST_ANSWER].decode("utf-8", "replace")
    documents, texts, cut_off = _split(text)
    messages = _said([*texts, err[-65536:].decode("utf-8", "replace")])
    answer = DiagAnswer(code, level, said=messages, cut_off=cut_off, too_long=len(out) > LONGEST_ANSWER)
    for document in documents[:_MOST_DOCUMENTS]:
        answer = _with_document(answer, document)
    # Before DCGM 4, the parts of the software test report identical results.
    return replace(answer, results=tuple(dict.fromkeys(answer.results)))


def _split(text: str) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Return the documents in a text, the text outside them, and whether a document was cut off."""
    decoder = json.JSONDecoder()
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    position = begins = false_starts = 0
    cut_off = False
    while (brace := text.find("{", position)) >= 0 and false_starts < _MOST_FALSE_STARTS:
        try:
            value, end = decoder.raw_decode(text, brace)
        except (ValueError, RecursionError):
            false_starts += 1
            cut_off = cut_off or _begins_a_document(text[brace : brace + 200])
            position = brace + 1
            continue
        if found := list(_documents_in(value)):
            texts.append(text[begins:brace])
            documents += found
            begins = end
        position = end
    return documents, [*texts, "" if cut_off else text[begins:]], cut_off


def _begins_a_document(text: str) -> bool:
    key = text[1:].lstrip()
    return key.startswith(tuple(f'"{top}"' for top in (*_TOPS, _ITERATIONS, "Overall Result")))


def _documents_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the document, or those of `--iterations`, each with its enclosing fields."""
    if not isinstance(value, dict):
        return
    if any(top in value for top in _TOPS):
        yield value
    for iteration in _list(value.get(_ITERATIONS)):
        if isinstance(iteration, dict) and any(top in iteration for top in _TOPS):
            yield iteration


def _with_document(answer: DiagAnswer, document: Mapping[str, Any]) -> DiagAnswer:
    body = next((_dict(document[top]) for top in _TOPS if top in document), {})
    places = (body, document, _dict(document.get("metadata")))
    results = [row for test, category in _tests(body) for row in _results(test, category)]
    runtime_error = _text(body.get("runtime_error") or document.get("runtime_error"))
    return replace(
        answer,
        documents=answer.documents + 1,
        results=(*answer.results, *results)[:_MOST_RESULTS],
        runtime_errors=(*answer.runtime_errors, *([runtime_error] if runtime_error else []))[:_MOST_ERRORS],
        version=answer.version or _first(places, "version"),
        driver=answer.driver or _first(places, "Driver Version Detected"),
        serials={**answer.serials, **dict(_serials(places))},
    )


def _tests(body: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield each test, with its category in lower case."""
    for category in _list(body.get("test_categories")):
        if isinstance(category, dict):
            name = _text(category.get("category")).lower()
            yield from ((test, name) for test in _list(category.get("tests")) if isinstance(test, dict))


def _results(test: Mapping[str, Any], category: str) -> Iterator[DiagResult]:
    own_name = _text(test.get("name"))[:_LONGEST_NAME]
    name = _canonical(own_name, category)
    entries: set[tuple[int | None, str]] = set()
    statuses: set[str] = set()
    for raw in _list(test.get("results")):
        if isinstance(raw, dict):
            for row in _rows(raw, name, own_name):
                statuses.add(row.status)
                entries.update((error.id, error.text) for error in row.errors)
                yield row
    if isinstance(summary := test.get("test_summary"), dict):
        # Since 4.5, the summary repeats the errors of all devices. Only an error that belongs to none of them is new.
        errors = _errors(summary)
        own = tuple(diag_error for diag_error in errors if (diag_error.id, diag_error.text) not in entries)
        status = _status(summary.get("status"))
        fails_alone = status == "fail" and "fail" not in statuses and not errors
        if own or not statuses or fails_alone:
            yield DiagResult(name, status, errors=own)


def _rows(raw: Mapping[str, Any], name: str, own_name: str) -> Iterator[DiagResult]:
    """Yield a result for each device that the raw result covers."""
    status = _status(raw.get("status"))
    errors = _errors(raw) or (_errors_in_info(raw) if status == "fail" else ())
    kind, index = _entity(raw)
    if name == SOFTWARE and own_name.lower() != SOFTWARE:
        # DCGM 4 puts the name of the old test before the text.
        named = (replace(error, text=f"{own_name}: {error.text}"[:_LONGEST_TEXT]) for error in errors)
        yield from _rows_of_software(status, tuple(named), index)
    else:
        yield DiagResult(name, status, "" if index is None else kind, index, errors)


def _rows_of_software(status: str, errors: Sequence[DiagError], index: int | None) -> Iterator[DiagResult]:
    """Yield results of the software test before DCGM 4.

    Its output has one result for all GPUs, whose `gpu_id` is that of the last error only. The GPU of each of several
    errors appears only in its text.
    """
    if len(errors) == 1 and index is not None:
        yield DiagResult(SOFTWARE, status, "gpu", index, tuple(errors))
        return
    by_gpu: dict[int | None, list[DiagError]] = {}
    for error in errors:
        found = _NAMES_A_GPU.search(error.text)
        by_gpu.setdefault(int(found[1]) if found else None, []).append(error)
    for gpu, own in (by_gpu or {None: []}).items():
        yield DiagResult(SOFTWARE, status, "" if gpu is None else "gpu", gpu, tuple(own))


def _errors(raw: Mapping[str, Any]) -> tuple[DiagError, ...]:
    """Return the errors of a result, each an object of `warnings`.

    DCGM 3.3.0 and 3.3.1 put the text and the numbers of a software test's error next to each other in the result.
    """
    listed = _list(raw.get("warnings", raw.get("warning")))[: 4 * _MOST_ERRORS]
    warnings: list[Mapping[str, Any]] = [warning for warning in listed if isinstance(warning, dict)]
    found: dict[DiagError, None] = {}
    for warning in warnings or [raw]:
        text = next((_text(warning[key]) for key in _TEXT_KEYS if warning.get(key)), "")
        error = DiagError(text, *(_number(warning.get(f"error_{key}")) for key in ("id", "category", "severity")))
        if text or error.id:
            found[error] = None
    return tuple(found)[:_MOST_ERRORS]


def _errors_in_info(raw: Mapping[str, Any]) -> tuple[DiagError, ...]:
    """Return the text of `info` as errors, for a failure without a warning.

    Older versions describe failures there.
    """
    info = raw.get("info")
    texts = [_text(text) for text in ([info] if isinstance(info, str) else _list(info))[:_MOST_ERRORS]]
    return tuple(DiagError(text) for text in dict.fromkeys(texts) if text)


def _entity(raw: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the kind of device and DCGM's number of it; None if the result names no device."""
    if "entity_id" in raw:
        kind = "".join(_LETTERS.findall(_text(raw.get("entity_group")).lower()))[:16]
        return _KINDS.get(kind, kind), None if kind == "none" else _number(raw["entity_id"])
    return next(((kind, _number(raw[key])) for key, kind in _ENTITY_KEYS if key in raw), ("", None))


def _canonical(name: str, category: str) -> str:
    """Return DCGM 4's name of a test with any version's name; '' for a test without a name."""
    words = "_".join(_WORDS.findall(name.lower()))
    if words == SOFTWARE or (category == _DEPLOYMENT and words != "context_create"):
        return SOFTWARE
    return _SAME_TEST.get(words, words)


def _status(value: Any) -> str:
    return _STATUSES.get(_text(value).lower(), "unknown") if isinstance(value, str) or value is None else "unknown"


def _serials(places: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for place in places:
        for key, serial in list(_dict(place.get("GPU Device Serials")).items())[:_MOST_SERIALS]:
            yield from _serial(key, serial)
        for group in _list(place.get("entity_groups")):
            if isinstance(group, dict) and _text(group.get("entity_group")).lower() == "gpu":
                for entity in _list(group.get("entities"))[:_MOST_SERIALS]:
                    if isinstance(entity, dict):
                        yield from _serial(entity.get("entity_id"), entity.get("serial_num"))


def _serial(key: Any, value: Any) -> Iterator[tuple[int, str]]:
    index, serial = _number(key), _text(value)
    # Without a serial number, DCGM writes `<<<NOT_SUPPORTED>>>`, N/A or 0.
    if index is not None and serial.strip("0") and not _NO_PART_OF_A_SERIAL.search(serial):
        yield index, serial[:_LONGEST_NAME]


def _said(texts: Sequence[str]) -> tuple[str, ...]:
    lines = (line for text in texts for line in text[:65536].splitlines())
    return tuple([printed for line in lines if (printed := _text(line))][:_MOST_SAID])


def _first(places: Sequence[Mapping[str, Any]], key: str) -> str:
    return next((_text(place[key])[:_LONGEST_NAME] for place in places if _text(place.get(key))), "")


def _text(value: Any) -> str:
    """Return one line of printable text; '' if the value is not a text."""
    if not isinstance(value, str):
        return ""
    return printable(" ".join(value[: 4 * _LONGEST_TEXT].split()), _LONGEST_TEXT)


def _number(value: Any) -> int | None:
    """Return a small whole number, also from a text; None for other values."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) <= 8:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24 else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
