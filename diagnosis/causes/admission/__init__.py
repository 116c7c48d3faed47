"""Find GPU pods, and pods of components that GPUs need, whose creation is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diagnosis.causes.admission import admission_causes, quotas, rules
from diagnosis.causes.admission.texts import Refusal, RefusalSource
from diagnosis.causes.admission.wanting import IncompleteWorkload, strangers, wanting
from diagnosis.causes.hami.denials import denied
from diagnosis.hami.installation import WEBHOOK
from diagnosis.model import Certainty, FoundCause, Origin, Search, command
from diagnosis.snapshot import Snapshot


def find_refused(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the workloads that lack pods, each with the cause of the refusal."""
    for incomplete in wanting(snapshot):
        yield from _judged(snapshot, incomplete)


def find_strangers(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield refused objects of other kinds, such as those of training operators, known only from an event."""
    for event, refusal in strangers(snapshot):
        cause = admission_causes.BY_TEXT.get(refusal.why, admission_causes.REFUSED)
        yield FoundCause(cause, event.about, (refusal.text,), (), (), Certainty.LIKELY)


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
    match refusal.why:
        case RefusalSource.QUOTA:
            yield from quotas.find_exceeded(snapshot, incomplete, refusal)
        case RefusalSource.RUNTIME_CLASS:
            yield from rules.find_runtime_class(snapshot, incomplete, refusal.name)
        case RefusalSource.LIMIT_RANGE:
            yield from rules.find_limit_range(snapshot, incomplete, refusal)
        case RefusalSource.UNREACHABLE:
            yield from rules.find_unreachable(snapshot, incomplete, refusal)
        case RefusalSource.OTHER if incomplete.is_component:
            return  # its own family reports the missing component, with this text
        case RefusalSource.QUOTA_UNKNOWN:
            return
        case _:
            yield (denied(snapshot, incomplete, refusal) if refusal.name == WEBHOOK else None) or _by_text(
                incomplete, refusal
            )


def _by_text(incomplete: IncompleteWorkload, refusal: Refusal) -> FoundCause:
    cause = admission_causes.BY_TEXT.get(refusal.why, admission_causes.REFUSED)
    subject, remedy = rules.mend(incomplete, refusal)
    if not remedy:
        kind, namespace, name = (
            incomplete.workload.meta.kind.lower(),
            incomplete.namespace,
            incomplete.workload.meta.name,
        )
        remedy = (f"{cause.remedy} See {command('kubectl', '-n', namespace, 'describe', kind, name)}",)
    return FoundCause(cause, subject, (f"{incomplete.workload.subject}: {refusal.text}",), remedy, (incomplete.top,))


SEARCHES = (
    Search(admission_causes.CAUSES, (), find_refused),
    Search((admission_causes.REFUSED,), ("Event",), find_strangers),
    Search((admission_causes.NEVER_APPLIES,), ("ResourceQuota",), quotas.find_never_applies),
)
