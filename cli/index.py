"""Terms and reasons of `explain`, from index.json: collecting them from the code would be slow.

`make docs` writes that file; `tools.docs --check` fails if it is outdated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.plain_words import plain_words
from gpu_healthcheck.healthcheck.model import PREFIX, Grace, Reason, Severity

SETTING = "a setting"
REASON = "the reason of a finding"


class IndexEntry(Struct, frozen=True):
    """One term of `explain`. `more` is the page with details."""

    name: str
    kind: str
    meaning: str
    more: str


class KnownText(Struct, frozen=True):
    """Message that identifies a cause, or the reason of a finding, `name`; of a component's log, its `fix` instead."""

    pattern: str
    writer: str
    name: str = ""
    fix: str = ""


class Declared(Struct, frozen=True):
    """A reason, and the check that reports it."""

    reason: Reason
    check: str
    group: str
    by_error: bool
    """The error in a finding may raise the severity."""


@cache
def words() -> Mapping[str, tuple[IndexEntry, ...]]:
    """Return all terms by name, in lower case and without our prefix; a name may have several kinds."""
    return by_name(IndexEntry(**entry) for entry in _content()["words"])


@cache
def texts() -> tuple[KnownText, ...]:
    """Return the messages that identify a cause or reason, the specific ones first."""
    return tuple(KnownText(**row) for row in _content()["texts"])


def by_name(all_words: Any) -> dict[str, tuple[IndexEntry, ...]]:
    known: dict[str, tuple[IndexEntry, ...]] = {}
    for word in all_words:
        known[word.name.lower()] = (*known.get(word.name.lower(), ()), word)
    return known


def without_prefix(message: str) -> str:
    """Return the name as a key of `words`: `PREFIX/mode` becomes `mode`."""
    return message.lower().removeprefix(f"{PREFIX}/")


@cache
def reasons() -> dict[str, Declared]:
    """Return all reasons except Xids and SXids, which are found by number; keys are in lower case."""
    return {entry["reason"]["name"].lower(): _declared(entry) for entry in _content()["reasons"]}


def in_plain_words(reason: str, subject: str, about: Mapping[str, str]) -> str:
    """Return a finding in plain words: `GPU 2 fell off the bus`."""
    return plain_words(reason, subject, about, _meanings())


@cache
def _meanings() -> Mapping[str, str]:
    others = (entry for entries in words().values() for entry in entries if entry.kind == REASON)
    return {declared.reason.name: declared.reason.meaning for declared in reasons().values()} | {
        entry.name: entry.meaning for entry in others
    }


def defaults() -> Mapping[str, str]:
    """Return the default of each setting, as written in the ConfigMap."""
    fields: Mapping[str, str] = _content()["defaults"]
    return fields


def _declared(row: Mapping[str, Any]) -> Declared:
    fields = dict(row["reason"])
    grace = Grace(**fields["grace"]) if fields["grace"] else None
    reason = Reason(**{**fields, "severity": Severity[fields["severity"]], "grace": grace})
    return Declared(reason, row["check"], row["group"], row["by_error"])


@cache
def _content() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((files("gpu_healthcheck.cli") / "index.json").read_text(encoding="utf-8"))
    return fields
