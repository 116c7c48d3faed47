"""List HAMi's terms with their releases: codes, events, annotations, resources, variables, metrics."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from msgspec import Struct

_FILE = "glossary.csv"

_KINDS = {
    "code": "a reason of HAMi's filter",
    "event": "an Event of HAMi",
    "node annotation": "a HAMi annotation on the node",
    "pod annotation": "a HAMi annotation on the pod",
    "label": "a HAMi label",
    "resource": "a HAMi resource",
    "quota": "a HAMi quota",
    "variable": "a HAMi variable",
    "metric of the scheduler": "a metric of HAMi's scheduler",
    "metric of the monitor": "a metric of HAMi's monitor",
}
_NEVER = "never"


class HamiWord(Struct, frozen=True):
    """One term. `meaning` ends with its releases, unless all since 2.4 have it."""

    name: str
    kind: str
    meaning: str
    source: str


@cache
def hami_words() -> tuple[HamiWord, ...]:
    """Return the words in the order of the table.

    Raises ValueError for an invalid row, which a build should have rejected.
    """
    text = files("diagnosis.hami").joinpath(_FILE).read_text(encoding="utf-8")
    reader = csv.DictReader(text.splitlines(), restval="", strict=True)
    words: dict[str, HamiWord] = {}
    for row in reader:
        name, kind = row["name"], _KINDS.get(row["kind"])
        if not name or not row["meaning"] or not row["source"] or kind is None or name in words or None in row:
            raise ValueError(f"{_FILE}:{reader.line_num}: {name!r}")
        meaning = " ".join(filter(None, (row["meaning"], _releases(row["since"], row["until"]))))
        words[name] = HamiWord(name, kind, meaning, row["source"])
    return tuple(words.values())


def _releases(since: str, until: str) -> str:
    if until == _NEVER:
        return ""
    if since and until:
        return f"Releases {since} to {until}."
    return f"Since {since}." if since else f"Up to {until}." if until else ""
