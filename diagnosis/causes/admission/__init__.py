"""Find GPU pods, and pods of components that GPUs need, whose creation is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from diagnosis.causes import runtime_handlers
from diagnosis.causes.admission import quotas, refusals, rules
from diagnosis.causes.admission.refusals import Refusal
from diagnosis.causes.admission.wanting import IncompleteWorkload, strangers, wanting
from diagnosis.causes.hami.denials import denied
from diagnosis.facts.commands import kubectl
from diagnosis.hami.installation import WEBHOOK
from diagnosis.model import Cause, Certainty, FoundCause, Origin, Search
from diagnosis.snapshot import Snapshot


def find_refused(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the workloads that lack pods, each with the cause of the refusal."""
    for incomplete in wanting(snapshot):
        yield from _judged(snapshot, incomplete)


def find_strangers(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield refused objects of other kinds, such as those of training operators, known only from an event."""
    for event, refusal in strangers(snapshot):
        yield FoundCause(refusal.cause or refusals.REFUSED, event.about, (refusal.text,), (), (), Certainty.LIKELY)


@lru_cache(maxsize=1)
def refused_workloads(snapshot: Snapshot) -> Mapping[str, tuple[Origin, ...]]:
    """Return, by workload, the causes that keep it from its pods.

    Only workloads whose missing pods are reported are included.
    """
    return {
        incomplete.workload.subject: tuple((found.cause.name, found.subject) for found in _judged(snapshot, incomplete))
        for incomplete in wanting(snapshot)
    }


def _judged(snapshot: Snapshot, incomplete: IncompleteWorkload) -> Iterator[FoundCause]:
    refusal = incomplete.refusal
    if refusal is None:
        yield from rules.find_runtime_class(snapshot, incomplete, incomplete.spec.runtime_class)
        yield from quotas.find_used_up(snapshot, incomplete)
        return
    match refusal.cause:
        case None:
            return
        case refusals.EXCEEDED:
            yield from quotas.find_exceeded(snapshot, incomplete, refusal)
        case runtime_handlers.CLASS_MISSING:
            yield from rules.find_runtime_class(snapshot, incomplete, refusal.name)
        case refusals.LIMIT_RANGE:
            yield from rules.find_limit_range(snapshot, incomplete, refusal)
        case refusals.UNREACHABLE:
            yield from rules.find_unreachable(snapshot, incomplete, refusal)
        case refusals.REFUSED if incomplete.is_component:
            return  # the search for that component reports it, with this text
        case cause:
            denial = denied(snapshot, incomplete, refusal) if refusal.name == WEBHOOK else None
            yield denial or _by_text(incomplete, refusal, cause)


def _by_text(incomplete: IncompleteWorkload, refusal: Refusal, cause: Cause) -> FoundCause:
    subject, remedy = rules.fix(incomplete, refusal)
    if not remedy:
        remedy = (f"{cause.remedy} See {kubectl('describe', incomplete.workload.meta)}",)
    return FoundCause(cause, subject, (f"{incomplete.workload.subject}: {refusal.text}",), remedy, (incomplete.top,))


SEARCHES = (
    Search(refusals.CAUSES, (), find_refused),
    Search((refusals.REFUSED,), ("Event",), find_strangers),
    Search((refusals.NEVER_APPLIES,), ("ResourceQuota",), quotas.find_never_applies),
)
