"""Merge results that are the same for several objects: a report names every cause once. Pure.

200 bare pods with the same mistake in their own specs are 200 results, because each must be changed, but one item to
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.diagnose import Problem
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped

_WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_MOST_OF_A_CAUSE = 8
"""Maximum entries of one cause with different texts."""


class ProblemGroup(Struct, frozen=True):
    """Problem, and the subjects of problems that differ from it only in their own names.

    `unlike`: subjects of further results of the same cause with different texts, which are too many to be shown.
    """

    problem: Problem
    others: tuple[str, ...] = ()
    consequences: tuple[ProblemGroup, ...] = ()
    unlike: tuple[str, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        """Return the subjects of all merged problems."""
        return (self.problem.found.subject, *self.others)

    @property
    def affected(self) -> tuple[str, ...]:
        """Return the objects that do not work because of the problems, unless these are the subjects alone."""
        names = self.problem.found.affected
        return () if names in ((), (self.problem.found.subject,)) else names


def problem_groups(problems: Iterable[Problem]) -> tuple[ProblemGroup, ...]:
    """Merge similar problems in their order; a group has the position of its first problem."""
    some: dict[object, list[Problem]] = {}
    for problem in problems:
        # Consequences belong to one problem only, so problems with consequences are not merged.
        some.setdefault(_key(problem) if not problem.consequences else problem.found.subject, []).append(problem)
    groups = [
        ProblemGroup(
            _together(alike),
            tuple(problem.found.subject for problem in alike[1:]),
            problem_groups(alike[0].consequences),
        )
        for alike in some.values()
    ]
    return _bounded(groups)


def _bounded(groups: Sequence[ProblemGroup]) -> tuple[ProblemGroup, ...]:
    """Limit the entries of each cause; the last entry lists the subjects of the omitted ones."""
    by_cause = grouped((group.problem.found.cause.name, place) for place, group in enumerate(groups))
    kept: dict[int, ProblemGroup] = {}
    for places in by_cause.values():
        first, rest = places[:_MOST_OF_A_CAUSE], places[_MOST_OF_A_CAUSE:]
        kept |= {place: groups[place] for place in first}
        if rest:
            unlike = tuple(name for place in rest for name in groups[place].subjects)
            kept[first[-1]] = replace(groups[first[-1]], unlike=unlike)
    return tuple(kept[place] for place in sorted(kept))


def _key(problem: Problem) -> object:
    found = problem.found
    kind, *names = found.subject.split("/")
    return found.cause.name, found.certainty, kind, tuple(_nameless(step, names) for step in found.remedy)


def _nameless(step: str, names: Sequence[str]) -> str:
    """Return the step without the object's own names, which differ between commands."""
    return _WORD.sub(lambda word: "…" if word[0] in names else word[0], step)


def _together(alike: list[Problem]) -> Problem:
    """Return the first problem with the affected objects of all; its evidence represents the others."""
    first = alike[0]
    if len(alike) == 1:
        return first
    # Thousands of nodes may keep the same thousands of pods from work.
    distinct = {id(problem.found.affected): problem.found.affected for problem in alike}
    affected = tuple(dict.fromkeys(name for names in distinct.values() for name in names))
    own = {problem.found.subject for problem in alike}
    found = replace(first.found, affected=affected if set(affected) - own else ())
    return replace(first, found=found)
