"""Run all searches over one snapshot, and arrange the results as causes and consequences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.causes import SEARCHES
from diagnosis.causes.first_fixes import with_fixes_first
from diagnosis.model import FoundCause, Search, Unchecked
from diagnosis.snapshot import Snapshot

_Key = tuple[str, str]
"""Name and subject of a cause."""
SAVED_STATE = "saved state"
"""Pseudo-kind for damaged parts of a saved state."""
MOST_EVIDENCE = 12
"""Maximum pieces of evidence for one cause; for the same fault on 5,000 nodes, the rest is counted."""


class Problem(Struct, frozen=True):
    """Result with its consequences. `evidence_left_out`: the number of further pieces of evidence."""

    found: FoundCause
    consequences: tuple[Problem, ...] = ()
    evidence_left_out: int = 0

    @property
    def reach(self) -> int:
        """Return how many objects the problem keeps from work, including those of its consequences."""
        return len(set(self.all_affected()))

    def all_affected(self) -> Iterator[str]:
        yield from self.found.affected or (self.found.subject,)
        for consequence in self.consequences:
            yield from consequence.all_affected()


class Diagnosis(Struct, frozen=True):
    """Result of a diagnosis. `problems` are sorted by severity, then urgency, certainty and reach."""

    at: datetime
    problems: tuple[Problem, ...]
    unseen: tuple[Unchecked, ...]


@lru_cache(maxsize=1)
def diagnose(snapshot: Snapshot, searches: tuple[Search, ...] = SEARCHES) -> Diagnosis:
    """Return the problems in the snapshot, and the parts that could not be checked.

    The result is cached, because it also decides whether more must be collected.
    """
    found: list[FoundCause] = []
    unseen = [Unchecked(SAVED_STATE, why, "everything in it") for why in snapshot.unread]
    for search in searches:
        if search.concerns is not None and not search.concerns(snapshot):
            continue
        lacking = [kind for kind in search.needs if not snapshot.sees(kind)]
        if lacking:
            names = ", ".join(cause.name for cause in search.causes)
            unseen += (Unchecked(kind, snapshot.missing[kind], names) for kind in lacking)
        else:
            found += (with_fixes_first(snapshot, result) for result in search.find(snapshot))
    return Diagnosis(snapshot.now, arranged(found), together(unseen))


def arranged(found: Iterable[FoundCause]) -> tuple[Problem, ...]:
    """Return one problem for each cause and subject in order, with consequences below their origin."""
    merged = _merged(found)
    above = _above(merged)
    children: dict[tuple[str, str], list[tuple[str, str]]] = {}
    roots = []
    for key in merged:
        parent = _parent(key, above)
        if parent is None:
            roots.append(key)
        else:
            children.setdefault(parent, []).append(key)
    return _sorted(_tree(key, merged, children) for key in roots)


def together(unseen: Iterable[Unchecked]) -> tuple[Unchecked, ...]:
    """Return one entry for each kind and reason."""
    hides: dict[tuple[str, str], list[str]] = {}
    for unchecked in unseen:
        hides.setdefault((unchecked.kind, unchecked.why), []).append(unchecked.hides)
    return tuple(Unchecked(kind, why, ", ".join(dict.fromkeys(what))) for (kind, why), what in sorted(hides.items()))


def _merged(found: Iterable[FoundCause]) -> dict[_Key, FoundCause]:
    some: dict[_Key, list[FoundCause]] = {}
    for result in found:
        some.setdefault((result.cause.name, result.subject), []).append(result)
    return {key: _put_together(same) for key, same in some.items()}


def _put_together(same: list[FoundCause]) -> FoundCause:
    if len(same) == 1:
        return same[0]
    because = {(cause.name, subject): (cause, subject) for result in same for cause, subject in result.because_of}
    return replace(
        same[0],
        evidence=_once(result.evidence for result in same),
        remedy=_once(result.remedy for result in same),
        affected=_once(result.affected for result in same),
        certainty=max(result.certainty for result in same),
        because_of=tuple(because.values()),
    )


def _once(texts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for some in texts for text in some))


def _above(merged: dict[_Key, FoundCause]) -> dict[_Key, list[_Key]]:
    """Return, for each result, its causes that were found, in its own order.

    A result may name thousands of causes that were not found.
    """
    return {
        key: [
            parent
            for cause, subject in result.because_of
            if (parent := (cause.name, subject)) in merged and parent != key
        ]
        for key, result in merged.items()
    }


def _parent(key: _Key, above: dict[_Key, list[_Key]]) -> _Key | None:
    """Return the first of its causes that was found and is not in turn its consequence."""
    return next((parent for parent in above[key] if not _follows(parent, key, above)), None)


def _follows(key: _Key, of: _Key, above: dict[_Key, list[_Key]]) -> bool:
    seen: set[_Key] = set()
    ahead = [key]
    while ahead:
        pair = ahead.pop()
        if pair == of:
            return True
        if pair not in seen:
            seen.add(pair)
            ahead += above[pair]
    return False


def _tree(
    key: tuple[str, str],
    merged: dict[tuple[str, str], FoundCause],
    children: dict[tuple[str, str], list[tuple[str, str]]],
) -> Problem:
    found = merged[key]
    beneath = _sorted(_tree(child, merged, children) for child in children.get(key, ()))
    shown = replace(found, evidence=found.evidence[:MOST_EVIDENCE])
    return Problem(shown, beneath, len(found.evidence) - len(shown.evidence))


def _sorted(causes: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(causes, key=_order))


def _order(problem: Problem) -> tuple[int, bool, int, int, str, str]:
    found = problem.found
    return (
        -found.cause.severity,
        not found.cause.urgent,
        -found.certainty,
        -problem.reach,
        found.cause.name,
        found.subject,
    )
