"""DCGM's diagnostic errors, and where each of its severities stands on our ladder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from healthcheck.catalog.dcgm_causes import CAUSES
from healthcheck.catalog.policy import OVERRIDDEN, Policy
from healthcheck.catalog.rows import read_rows
from healthcheck.catalog.ruling import Ruling
from healthcheck.model import Cause, Severity

WORDS = ("NONE", "MONITOR", "ISOLATE", "UNKNOWN", "TRIAGE", "CONFIG", "RESET")
"""dcgmErrorSeverity_t by number, as `error_severity` in the JSON has it (dcgm_errors.h)."""
LADDER: Mapping[str, Severity] = {
    "NONE": Severity.MONITOR,
    "MONITOR": Severity.MONITOR,
    "ISOLATE": Severity.ISOLATE,
    "UNKNOWN": Severity.MONITOR,
    "TRIAGE": Severity.RESET,
    "CONFIG": Severity.MONITOR,
    "RESET": Severity.RESET,
}
"""docs/rules.md 19. An error of severity NONE or of one that nobody knows is still an error."""


class DcgmError(Struct, frozen=True):
    """One id of DCGM's list. `could_not_run`: the test said nothing about the hardware."""

    id: int
    name: str
    severity: str
    could_not_run: bool
    source: str
    override: Severity | None = None
    why: str = ""

    @property
    def rule(self) -> str:
        return f"{'dcgm_overrides' if self.override is not None else 'dcgm_errors'}.csv:{self.id}"


@cache
def dcgm_table() -> Mapping[int, DcgmError]:
    """By id. Raises ValueError for a row that a build should never have let through."""
    overrides = {int(row["id"]): row for _, row in read_rows("dcgm_overrides.csv")}
    table: dict[int, DcgmError] = {}
    for line, row in read_rows("dcgm_errors.csv"):
        error_id = int(row["id"])
        if row["severity"] not in WORDS or row["could_not_run"] not in ("yes", "no") or error_id in table:
            raise ValueError(f"dcgm_errors.csv:{line}: id {error_id}, severity {row['severity']!r}")
        ours = overrides.pop(error_id, None)
        table[error_id] = DcgmError(
            error_id,
            row["name"],
            row["severity"],
            row["could_not_run"] == "yes",
            row["source"],
            Severity[ours["severity"]] if ours else None,
            ours["why"] if ours else "",
        )
    if overrides:
        raise ValueError(f"dcgm_overrides.csv: no such id in dcgm_errors.csv: {sorted(overrides)}")
    return table


class DcgmTest(Struct, frozen=True):
    """A test of the diagnostic, by DCGM 4's name. `over_reports`: whatever it says, healthy GPUs fail it as well."""

    name: str
    level: int
    """The first of our two levels, 2 and 4, that runs it."""
    over_reports: bool
    failed_alone: Severity
    """Of a failure that names no error by its number."""
    meaning: str
    action: str
    source: str

    @property
    def rule(self) -> str:
        return f"dcgm_tests.csv:{self.name}"


@cache
def dcgm_tests() -> Mapping[str, DcgmTest]:
    """By name. Raises ValueError for a row that a build should never have let through."""
    tests: dict[str, DcgmTest] = {}
    for line, row in read_rows("dcgm_tests.csv"):
        if row["level"] not in ("2", "4") or row["over_reports"] not in ("yes", "no"):
            raise ValueError(f"dcgm_tests.csv:{line}: level {row['level']!r}, over_reports {row['over_reports']!r}")
        over_reports = row["over_reports"] == "yes"
        level, alone = int(row["level"]), Severity[row["failed_alone"]]
        told = (row["meaning"], row["action"], row["source"])
        tests[row["test"]] = DcgmTest(row["test"], level, over_reports, alone, *told)
    return tests


class DcgmReturn(Struct, frozen=True):
    """Why a run came to nothing, by dcgmReturn_t: the exit code is its last byte. Says nothing about the hardware."""

    number: int
    cause: Cause
    meaning: str
    words: re.Pattern[str] | None
    """How a text tells the same without the number."""


@cache
def dcgm_returns() -> tuple[DcgmReturn, ...]:
    """Raises KeyError for a row whose cause is not declared, which a build should never have let through."""
    causes = {one.name: one for one in CAUSES}
    rows = [row for _, row in read_rows("dcgm_returns.csv")]
    return tuple(
        DcgmReturn(
            int(row["number"]),
            causes[row["cause"]],
            row["meaning"],
            re.compile(row["words"], re.IGNORECASE) if row["words"] else None,
        )
        for row in rows
    )


_RETURN = re.compile(r"\bReturn: \((-\d{1,3})\)")


def return_of_code(code: int) -> DcgmReturn | None:
    """What an exit code says of the run as a whole; None for an end with results, and for a code that nobody knows."""
    return next((one for one in dcgm_returns() if one.number & 0xFF == code), None)


def return_of_text(text: str) -> DcgmReturn | None:
    """What a text says of the run as a whole: by the number in it, else by its words."""
    told = _RETURN.search(text)
    number = int(told[1]) if told else 0
    by_number = (one for one in dcgm_returns() if one.number == number)
    by_words = (one for one in dcgm_returns() if one.words and one.words.search(text))
    return next(by_number, next(by_words, None))


class _Message(Struct, frozen=True):
    id: int
    pattern: re.Pattern[str]


@cache
def dcgm_messages() -> tuple[_Message, ...]:
    rows = [row for _, row in read_rows("dcgm_messages.csv")]
    return tuple(_Message(int(row["id"]), re.compile(row["pattern"], re.IGNORECASE)) for row in rows)


def ids_of_text(text: str) -> tuple[int, ...]:
    """Which errors a text names by its words: before DCGM 3.2 the output had no ids, and one text for several."""
    return tuple(dict.fromkeys(one.id for one in dcgm_messages() if one.pattern.search(text)))


def rule_dcgm(error_id: int, stated: str | int | None, policy: Policy) -> Ruling:
    """What an error of the diagnostic means on this cluster.

    `stated` is the severity that the output itself names, by word or number; it knows its own version better than the
    table. None: it names none, as before DCGM 3.3.
    """
    reason = f"Dcgm{error_id}"
    if reason in policy.overrides:
        return Ruling(policy.overrides[reason], OVERRIDDEN)
    row = dcgm_table().get(error_id)
    if row is not None and row.override is not None:
        return Ruling(row.override, row.rule)
    word = _word(stated) or (row.severity if row else "UNKNOWN")
    return Ruling(LADDER[word], row.rule if row else "dcgm_errors.csv: no such id")


def _word(stated: str | int | None) -> str:
    """'' for what is no severity of DCGM's."""
    if isinstance(stated, int):
        return WORDS[stated] if 0 <= stated < len(WORDS) else ""
    word = (stated or "").strip().upper()
    if word.isdecimal() and len(word) == 1:
        return _word(int(word))
    return word if word in WORDS else ""
