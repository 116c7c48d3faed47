"""The words and reasons that `explain` knows, from index.json: to gather them from the code takes longer than all else.

`make docs` writes that file; `tools.docs --check` fails where it is stale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from msgspec import Struct

from healthcheck.model import PREFIX, Grace, Reason, Severity

SETTING = "a setting"


class IndexEntry(Struct, frozen=True):
    """One term. `kind` is its sort; `more` is the page with details."""

    name: str
    kind: str
    meaning: str
    more: str


class Declared(Struct, frozen=True):
    """A reason, and the check that finds it."""

    reason: Reason
    check: str
    group: str
    by_error: bool
    """Its severity may be worse: the error that a finding names decides."""


def words() -> Mapping[str, tuple[IndexEntry, ...]]:
    """Every word of ours, in small letters and without our prefix; some are of more than one kind."""
    return by_name(IndexEntry(**entry) for entry in _content()["words"])


def by_name(all_words: Any) -> dict[str, tuple[IndexEntry, ...]]:
    known: dict[str, tuple[IndexEntry, ...]] = {}
    for word in all_words:
        known[word.name.lower()] = (*known.get(word.name.lower(), ()), word)
    return known


def without_prefix(message: str) -> str:
    """As `words` has it: `…/mode` is `mode`."""
    return message.lower().removeprefix(f"{PREFIX}/")


def reasons() -> dict[str, Declared]:
    """Every reason with a name of its own, by that name in small letters; an Xid or SXid is named by its number."""
    return {entry["reason"]["name"].lower(): _declared(entry) for entry in _content()["reasons"]}


def defaults() -> Mapping[str, str]:
    """Of each setting, as it is written in the ConfigMap."""
    fields: Mapping[str, str] = _content()["defaults"]
    return fields


def _declared(row: Mapping[str, Any]) -> Declared:
    fields = dict(row["reason"])
    grace = Grace(**fields["grace"]) if fields["grace"] else None
    reason = Reason(**{**fields, "severity": Severity[fields["severity"]], "grace": grace})
    return Declared(reason, row["check"], row["group"], row["by_error"])


@cache
def _content() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((files("cli") / "index.json").read_text(encoding="utf-8"))
    return fields
