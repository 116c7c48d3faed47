"""Judge and show the JSON of a DCGM diagnostic, for `gpu-healthcheck replay`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace
from rich.text import Text

from gpu_healthcheck.cli import index
from gpu_healthcheck.cli.options import OutputFormat
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.words import EXIT_CODES, SEVERITY_STYLES, STATUS_STYLES
from gpu_healthcheck.healthcheck.captures.blocks import CaptureError
from gpu_healthcheck.healthcheck.catalog.dcgm import return_of_text
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks.dcgm_diag import (
    ALSO,
    FAMILY,
    LEVEL_2,
    LEVEL_4,
    DevicesInUse,
    devices_in_use,
    in_words,
    level_of,
    rows_of,
    rule_in,
    why_not_run_here,
)
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.memory.deep_tests import after_deep_test, deep_result
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory
from gpu_healthcheck.healthcheck.model import Evidence, Finding, Now, Outcome
from gpu_healthcheck.healthcheck.probes.dcgm.diag import DcgmReading
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import DiagAnswer, DiagError, DiagResult, read_answer
from gpu_healthcheck.healthcheck.text import boundary
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import Identity
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide

_LONGEST_SHOWN = 300
_WORDS = {"pass": "passed", "fail": "failed", "skip": "was skipped", "not-run": "did not run", "unknown": "is unclear"}
_AS_SEARCHED = 60
_TEXT = re.compile(rb'"((?:[^"\\]|\\.)*+)"')
_LEVELS = {2: LEVEL_2, 4: LEVEL_4}


def judge_document(name: str, raw: bytes, saved_at: datetime, expected: Expectation, form: OutputFormat | None) -> int:
    """Judge and show the document; returns the exit code. Raises CaptureError if it is not output of a diagnostic.

    `saved_at` is the time of the file, in UTC.
    """
    answer = read_answer(raw)
    if not answer.documents and not answer.cut_off and not any(map(return_of_text, answer.said)):
        raise CaptureError(f"{name}: not the output of dcgmi diag -j; expected is its JSON, of DCGM 3.3 to 4")
    check = _LEVELS[level_of(answer)]
    outcomes = judge((check,), Evidence({check.needs[0]: DcgmReading(answer)}), expected)
    texts = {in_words(error): error.text for row in rows_of(answer) for error in row.errors if error.text}
    lines = _lines(raw)
    outcomes = tuple(_sourced(outcome, texts, lines, name) for outcome in outcomes)
    now = Now(saved_at, 0.0)
    memory = after_deep_test(Memory(), deep_result(outcomes, now.wall, now.wall), now)
    verdict = decide(memory, outcomes)
    if form:
        record = records.render(verdict, memory, Identity("", expected.instance_type), now.wall)
        write_as(form, boundary.as_json(record), indent=None)
    else:
        _show(name, verdict, answer, expected.policy)
    return EXIT_CODES[verdict.status]


def _sourced(outcome: Outcome, texts: Mapping[str, str], lines: Mapping[bytes, int], name: str) -> Outcome:
    """Return each finding with the line of the document that names its error, if that line can be located."""

    def source(finding: Finding) -> str:
        words = finding.detail if finding.detail in texts else finding.detail.rpartition(ALSO)[0]
        text = texts.get(words, "")
        # A software test has its own name before the text of the document.
        needles = (json.dumps(word)[1:-1].encode()[:_AS_SEARCHED] for word in (text, text.partition(": ")[2]) if word)
        number = next((lines[needle] for needle in needles if needle in lines), 0)
        return f"{name}:{number}" if number else name

    return replace(outcome, findings=tuple(replace(one, source=source(one)) for one in outcome.findings))


def _lines(raw: bytes) -> dict[bytes, int]:
    """Return the first line of each text, by the beginning of the text."""
    lines: dict[bytes, int] = {}
    number, counted = 1, 0
    for found in _TEXT.finditer(raw):
        number += raw.count(b"\n", counted, found.start())
        counted = found.start()
        lines.setdefault(found[1].lstrip()[:_AS_SEARCHED], number)
    return lines


def _show(name: str, verdict: Verdict, answer: DiagAnswer, policy: Policy) -> None:
    """Print each test with its devices and errors, then the verdict."""
    console = Screen(soft_wrap=True)
    driver = f", driver {answer.driver}" if answer.driver else ""
    console.print(Text(printable(f"DCGM {answer.version or 'of unknown version'}{driver}"), "bold"))
    for line in _tests(rows_of(answer), policy):
        console.print(line)
    console.print()
    explained: set[str] = set()
    for active_finding in verdict.active:
        for line in _finding(active_finding, explained):
            console.print(line)
    for cause in dict.fromkeys(row.cause for row in verdict.unobserved):
        console.print(Text(_short(f"could not check: {cause.cause.name}: {cause.detail}"), "magenta"))
    status = (verdict.status.value, STATUS_STYLES[verdict.status])
    console.print(Text.assemble(f"{_short(name)}: ", status, f", severity {verdict.severity.name}"))


def _tests(rows: Iterable[DiagResult], policy: Policy) -> Iterator[Text]:
    """Yield a line for each test and result with its devices, followed by its errors and their severity."""
    groups: dict[tuple[str, str], list[DiagResult]] = {}
    rows = tuple(rows)
    in_use = devices_in_use(rows)
    for row in rows:
        groups.setdefault((row.test, row.status), []).append(row)
    for (test, status), members in groups.items():
        devices = ", ".join(_device(row) for row in members if row.index is not None)
        yield Text(_short(f"{test} {_WORDS[status]}" + (f" on {devices}" if devices else "")))
        for row in members:
            where = f"{_device(row)}: " if row.index is not None else ""
            for error in row.errors:
                yield Text.assemble("  ", _short(where + in_words(error)), " -> ", _means(row, error, in_use, policy))


def _means(row: DiagResult, error: DiagError, in_use: DevicesInUse, policy: Policy) -> tuple[str, str]:
    if row.status == "pass":
        return "no fault, the test passed", "dim"
    if cause := why_not_run_here(row, error, in_use):
        return f"could not run ({cause.name})", "magenta"
    severity = rule_in(row, error, policy).severity
    return severity.name, SEVERITY_STYLES[severity]


def _finding(active_finding: ActiveFinding, explained: set[str]) -> Iterator[Text]:
    """Yield a finding with its evidence, and the meaning of its test if it was not shown yet."""
    finding = active_finding.finding
    severity = (f"{finding.severity.name} {finding.reason}", SEVERITY_STYLES[finding.severity])
    yield Text.assemble(severity, _short(f" on {finding.subject}: {finding.detail}"))
    reasons = index.reasons()
    reason = reasons.get(finding.reason.lower(), reasons[FAMILY.name.lower()]).reason
    if reason.name not in explained:
        explained.add(reason.name)
        yield Text(f"  {reason.meaning} {reason.action}")
    yield Text(_short(f"  rule {finding.rule or 'none'}, {finding.source}"), "dim")


def _device(row: DiagResult) -> str:
    return f"{row.kind}/{row.index}"


def _short(text: str) -> str:
    return printable(text, _LONGEST_SHOWN)
