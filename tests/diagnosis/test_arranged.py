"""Finds put together: one for each cause and subject, consequences beneath, the worst and surest first."""

from __future__ import annotations

import re

from gpu_healthcheck.diagnosis.causes import CAUSES
from gpu_healthcheck.diagnosis.causes.diagnose import MOST_EVIDENCE, arranged, diagnose
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Certainty, FoundCause, Link, Search
from tests.diagnosis.states import snapshot

ROOT = Cause("Root", CauseSeverity.MEDIUM, None, "a root", "mend it")
MIDDLE = Cause("Middle", CauseSeverity.HIGH, Link.SCHEDULED, "in between", "mend it")
LEAF = Cause("Leaf", CauseSeverity.LOW, Link.RUNNING, "a leaf", "mend it")


def test_the_same_cause_and_subject_are_one_with_all_that_they_say() -> None:
    result = FoundCause(ROOT, "node/a", ("x",), affected=("pod/t/1",), certainty=Certainty.LIKELY)
    other = FoundCause(ROOT, "node/a", ("x", "y"), affected=("pod/t/2",))
    (problem,) = arranged([result, other])
    assert problem.found.evidence == ("x", "y")
    assert problem.found.affected == ("pod/t/1", "pod/t/2")
    assert problem.found.certainty is Certainty.PROVEN


def test_a_consequence_stands_beneath_its_cause_and_by_itself_without_it() -> None:
    root = FoundCause(ROOT, "node/a", ("x",))
    middle = FoundCause(MIDDLE, "resource/gpu", ("y",), because_of=((ROOT.name, "node/a"),))
    leaf = FoundCause(LEAF, "pod/t/1", ("z",), because_of=((MIDDLE.name, "resource/gpu"),))
    (whole,) = arranged([leaf, middle, root])
    assert whole.found.cause is ROOT
    assert whole.consequences[0].found.cause is MIDDLE
    assert whole.consequences[0].consequences[0].found.cause is LEAF
    assert [problem.found.cause for problem in arranged([leaf, middle])] == [MIDDLE]
    assert [problem.found.cause for problem in arranged([leaf, root])] == [ROOT, LEAF]


def test_two_mutual_consequences_are_both_reported() -> None:
    result = FoundCause(ROOT, "a", ("x",), because_of=((MIDDLE.name, "b"),))
    other = FoundCause(MIDDLE, "b", ("y",), because_of=((ROOT.name, "a"),))
    assert {problem.found.cause.name for problem in arranged([result, other])} == {"Root", "Middle"}


def test_a_row_names_what_explains_it_on_the_same_object() -> None:
    follower = Cause("Follower", CauseSeverity.HIGH, None, "it follows", "mend it", follows=(ROOT.name,))
    root, same = FoundCause(ROOT, "node/a", ("x",)), FoundCause(follower, "node/a", ("y",))
    assert [problem.found.cause for problem in arranged([same, root])] == [ROOT]
    assert len(arranged([FoundCause(follower, "node/b", ("y",)), root])) == 2
    opposite = FoundCause(ROOT, "node/a", ("x",), because_of=((follower.name, "node/a"),))
    assert [problem.found.cause for problem in arranged([same, opposite])] == [follower]


def test_the_worst_the_surest_and_the_farthest_reaching_come_first() -> None:
    low = FoundCause(LEAF, "a", ("x",), affected=("p1", "p2", "p3"))
    likely = FoundCause(MIDDLE, "b", ("x",), affected=("p1", "p2"), certainty=Certainty.LIKELY)
    small, large = FoundCause(MIDDLE, "c", ("x",)), FoundCause(MIDDLE, "d", ("x",), affected=("p1", "p2"))
    order = [problem.found.subject for problem in arranged([low, likely, small, large])]
    assert order == ["d", "c", "b", "a"]


def test_evidence_is_bounded_and_what_is_left_out_is_counted() -> None:
    (problem,) = arranged([FoundCause(ROOT, "a", tuple(map(str, range(100))))])
    assert len(problem.found.evidence) == MOST_EVIDENCE
    assert problem.evidence_left_out == 100 - MOST_EVIDENCE


def test_a_search_without_its_kinds_is_skipped_and_reported() -> None:
    def find(_: object) -> list[FoundCause]:
        raise AssertionError

    diagnosis = diagnose(snapshot(missing=("Node",)), (Search((ROOT, LEAF), ("Node",), find),))
    assert diagnosis.problems == ()
    (unseen,) = diagnosis.unseen
    assert (unseen.kind, unseen.why, unseen.hides) == ("Node", "forbidden", "Root, Leaf")


def test_every_cause_has_one_meaning_and_tells_what_to_do() -> None:
    by_name: dict[str, set[Cause]] = {}
    for cause in CAUSES:
        by_name.setdefault(cause.name, set()).add(cause)
    assert [name for name, meanings in by_name.items() if len(meanings) > 1] == []
    assert [cause.name for cause in CAUSES if not re.fullmatch(r"(?:[A-Z][a-z0-9]+)+", cause.name)] == []
    assert [
        cause.name for cause in CAUSES if not (cause.means.endswith(".") and cause.remedy.endswith((".", "`")))
    ] == []
