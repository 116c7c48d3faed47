"""Recognise refusals by HAMi's webhook from its messages, and by the quotas that HAMi counts itself."""

from __future__ import annotations

from diagnosis.causes.hami.hami_causes import NODE_NAMED, PRIVILEGED, QUOTA
from diagnosis.causes.refusals import IncompleteWorkload, Refusal
from diagnosis.facts.commands import command
from diagnosis.hami.installation import asks_for, installations
from diagnosis.hami.quota import given_of, kept_quotas
from diagnosis.hami.settings import HamiSettings
from diagnosis.model import FoundCause
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.pods import PodSpec


def denied(snapshot: Snapshot, incomplete: IncompleteWorkload, refusal: Refusal) -> FoundCause | None:
    """Return the cause for a refusal in the webhook's own wording; None for other texts."""
    evidence = (f"{incomplete.workload.subject}: {refusal.text}",)
    if "pod has node assigned" in refusal.text:
        return FoundCause(NODE_NAMED, incomplete.top, (*evidence, *_named_node(incomplete.spec)), (), (incomplete.top,))
    if "is privileged" in refusal.text:
        return FoundCause(PRIVILEGED, incomplete.top, evidence, (), (incomplete.top,))
    if "exceeding resource quota" in refusal.text:
        return _over_quota(snapshot, incomplete, evidence)
    return None


def _named_node(spec: PodSpec) -> tuple[str, ...]:
    return (f"the template names nodeName {spec.node}",) if spec.node else ()


def _over_quota(snapshot: Snapshot, incomplete: IncompleteWorkload, evidence: tuple[str, ...]) -> FoundCause:
    every = (each.settings for each in installations(snapshot))
    settings = next((each for each in every if asks_for(incomplete.spec, each)), HamiSettings())
    known = kept_quotas(snapshot, incomplete.namespace, settings)
    where = known[0].meta.subject if known else subject("Namespace", "", incomplete.namespace)
    messages = tuple(line for each in known for line in given_of(snapshot, each, settings))
    look = command("kubectl", "-n", incomplete.namespace, "describe", "resourcequotas")
    remedy = (f"Check the quota's limits (HAMi counts usage itself, `used` is meaningless): {look}",)
    return FoundCause(QUOTA, where, (*evidence, *messages), remedy, (incomplete.top,))
