"""Run all searches over one snapshot, and arrange the results as causes and consequences. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes import SEARCHES
from gpu_healthcheck.diagnosis.causes.first_fixes import with_fixes_first
from gpu_healthcheck.diagnosis.model import Certainty, FoundCause, Link, Origin, Search, Unchecked, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped

_Item = TypeVar("_Item")
SAVED_STATE = "saved state"
"""Pseudo-kind for damaged parts of a saved state."""
EVERYTHING = "everything about it"
"""Hidden part of an object that could not be read; the other objects of its kind are visible."""
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
        return len(set(self.all_affected())) if self.consequences else len(self.found.affected) or 1

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
    unseen += (Unchecked(one.kind, f"{one.subject}: {one.reason}", EVERYTHING) for one in snapshot.invalid)
    for search in searches:
        if search.concerns is not None and not search.concerns(snapshot):
            continue
        lacking = [kind for kind in search.needs if not snapshot.sees(kind)]
        if lacking:
            names = ", ".join(cause.name for cause in search.causes)
            unseen += (Unchecked(kind, snapshot.missing[kind], names, kind in snapshot.denied) for kind in lacking)
        else:
            found += (with_fixes_first(snapshot, result) for result in search.find(snapshot))
    if snapshot.recognised:
        found = list(_of_a_text(found, snapshot.other_logs))
    return Diagnosis(snapshot.now, arranged(found), together(unseen))


def _of_a_text(found: Iterable[FoundCause], logs: Collection[str]) -> Iterator[FoundCause]:
    """Yield the results as likely ones, without those of a log that a pod's result quotes too."""
    shown = [line for result in found if result.subject not in logs for line in result.evidence]
    for result in found:
        if result.subject not in logs or not any(result.evidence[0] in line for line in shown):
            yield replace(result, certainty=Certainty.LIKELY)


def arranged(found: Iterable[FoundCause]) -> tuple[Problem, ...]:
    """Return one problem for each cause and subject in order, with consequences below their origin."""
    same = grouped(((result.cause.name, result.subject), result) for result in found)
    merged = {key: _put_together(some) for key, some in same.items()}
    above = _above(merged)
    children: dict[Origin, list[Origin]] = {}
    roots = []
    for key in merged:
        # The first found cause of the result that is not at the same time a consequence of the result.
        parent = next((parent for parent in above[key] if not _follows(parent, key, above)), None)
        if parent is None:
            roots.append(key)
        else:
            children.setdefault(parent, []).append(key)
    return _sorted(_tree(key, merged, children) for key in roots)


def together(unseen: Iterable[Unchecked]) -> tuple[Unchecked, ...]:
    """Return one entry for each kind and reason."""
    hides = grouped(((each.kind, each.why, each.denied), each.hides) for each in unseen)
    return tuple(
        Unchecked(kind, why, ", ".join(dict.fromkeys(what)), denied)
        for (kind, why, denied), what in sorted(hides.items())
    )


def why_hidden(snapshot: Snapshot, link: Link, searches: tuple[Search, ...] = SEARCHES) -> str:
    """Return what is not visible, so that some causes that break this link can't be excluded; '' if nothing lacks."""
    breaking = (search for search in searches if any(cause.link is link for cause in search.causes))
    lacking = dict.fromkeys(kind for search in breaking for kind in search.needs if not snapshot.sees(kind))
    return f"{' and '.join(f'{kind}s' for kind in lacking)} are not visible" if lacking else ""


def _put_together(same: list[FoundCause]) -> FoundCause:
    if len(same) == 1:
        return same[0]
    return replace(
        same[0],
        evidence=_once(result.evidence for result in same),
        remedy=_once(result.remedy for result in same),
        affected=_once(result.affected for result in same),
        certainty=max(result.certainty for result in same),
        because_of=_once({id(result.because_of): result.because_of for result in same}.values()),
    )


def _once(each: Iterable[tuple[_Item, ...]]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(item for some in each for item in some))


def _above(merged: dict[Origin, FoundCause]) -> dict[Origin, list[Origin]]:
    """Return, for each result, those of its causes that were found: the result's own, then those of its row.

    A result may name thousands of causes that were not found. A row yields to a result that names the opposite.
    """
    above = {}
    found: dict[int, list[Origin]] = {}
    for key, result in merged.items():
        # Thousands of results may share one tuple of thousands of origins.
        if id(result.because_of) not in found:
            found[id(result.because_of)] = [each for each in result.because_of if each in merged]
        own = [*found[id(result.because_of)]]
        rows = (each for each in origins(result.cause.follows, result.subject) if each in merged)
        own += (each for each in rows if each not in own and key not in merged[each].because_of)
        above[key] = [each for each in own if each != key]
    return above


def _follows(key: Origin, of: Origin, above: dict[Origin, list[Origin]]) -> bool:
    visited: set[Origin] = set()
    pending = [key]
    while pending:
        pair = pending.pop()
        if pair == of:
            return True
        if pair not in visited:
            visited.add(pair)
            pending += above[pair]
    return False


def _tree(key: Origin, merged: dict[Origin, FoundCause], children: dict[Origin, list[Origin]]) -> Problem:
    found = merged[key]
    beneath = _sorted(_tree(child, merged, children) for child in children.get(key, ()))
    shown = replace(found, evidence=found.evidence[:MOST_EVIDENCE])
    return Problem(shown, beneath, len(found.evidence) - len(shown.evidence))


def _sorted(causes: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(causes, key=_order))


def _order(problem: Problem) -> tuple[int, int, int, int, str, str]:
    found = problem.found
    return (
        -found.cause.severity,
        -found.cause.urgent,
        -found.certainty,
        -problem.reach,
        found.cause.name,
        found.subject,
    )
