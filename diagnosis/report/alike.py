"""Finds that say the same of one object and another, told once: a report names every cause once. Pure.

200 bare pods with one mistake in each one's own spec are 200 finds, as each has to be changed, and one thing to read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.diagnose import Problem

_MOST_OF_A_CAUSE = 8
"""What differs in more than names: each is told until a report would be of nothing else."""


class Told(Struct, frozen=True):
    """A problem, and the subjects of those that differ from it by nothing but their own names.

    `unlike`: subjects of finds of the same cause that are too many to be told, each with words of its own.
    """

    problem: Problem
    others: tuple[str, ...] = ()
    consequences: tuple[Told, ...] = ()
    unlike: tuple[str, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        """Of all of them."""
        return (self.problem.found.subject, *self.others)

    @property
    def affected(self) -> tuple[str, ...]:
        """What does not work because of them, where that is more than they themselves."""
        names = self.problem.found.affected
        return () if names in ((), (self.problem.found.subject,)) else names


def told_once(problems: Iterable[Problem]) -> tuple[Told, ...]:
    """In their order; where several are alike, at the place of the first."""
    some: dict[object, list[Problem]] = {}
    for one in problems:
        # What follows from one does not follow from the other.
        some.setdefault(_key(one) if not one.consequences else one.found.subject, []).append(one)
    told = [
        Told(_together(alike), tuple(one.found.subject for one in alike[1:]), told_once(alike[0].consequences))
        for alike in some.values()
    ]
    return _bounded(told)


def _bounded(told: Sequence[Told]) -> tuple[Told, ...]:
    """The last that is told of a cause names those of it that are not."""
    by_cause: defaultdict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(told):
        by_cause[one.problem.found.cause.name].append(place)
    kept: dict[int, Told] = {}
    for places in by_cause.values():
        first, rest = places[:_MOST_OF_A_CAUSE], places[_MOST_OF_A_CAUSE:]
        kept |= {place: told[place] for place in first}
        if rest:
            unlike = tuple(name for place in rest for name in told[place].subjects)
            kept[first[-1]] = replace(told[first[-1]], unlike=unlike)
    return tuple(kept[place] for place in sorted(kept))


def _key(one: Problem) -> object:
    found = one.found
    kind, _, name = found.subject.partition("/")
    return found.cause.name, found.certainty, kind, tuple(_nameless(step, name) for step in found.remedy)


def _nameless(step: str, name: str) -> str:
    """Without the object's own names, which a command has one by one."""
    names = "|".join(re.escape(one) for one in (name, *name.split("/")) if one)
    return re.sub(rf"(?<![\w.-])(?:{names})(?![\w-])", "…", step) if names else step


def _together(alike: list[Problem]) -> Problem:
    """The first, with all that the others keep from work; of evidence its own is an example of theirs."""
    first = alike[0]
    if len(alike) == 1:
        return first
    affected = tuple(dict.fromkeys(name for one in alike for name in one.found.affected))
    own = {one.found.subject for one in alike}
    found = replace(first.found, affected=affected if set(affected) - own else ())
    return replace(first, found=found)
