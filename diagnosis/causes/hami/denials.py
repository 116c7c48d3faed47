"""Causes by which HAMi's webhook refuses pods, and the places in HAMi's source that several families name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.hami.installation import asks_for, installations
from gpu_healthcheck.diagnosis.hami.quota import quota_usage, quotas_of
from gpu_healthcheck.diagnosis.hami.settings import HamiSettings
from gpu_healthcheck.diagnosis.model import Family, FoundCause, Link, Signature, TextSource, rejecting
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.meta import subject

if TYPE_CHECKING:
    from gpu_healthcheck.diagnosis.causes.refusals import IncompleteWorkload, Refusal

WEBHOOK_FILE = "HAMi, pkg/scheduler/webhook.go"
CHART = "HAMi's chart, templates/scheduler"
PLUGIN_FILES = "HAMi, pkg/device-plugin/nvidiadevice/nvinternal/plugin"
_admitted = Family(Link.ADMITTED)


def codes(*names: str) -> Signature:
    """Return the codes by which HAMi's filter names the cause, including those for other vendors' cards."""
    return Signature("|".join(names), "HAMi's scheduler", frozenset((TextSource.EVENT,)))


PRIVILEGED = _admitted(
    "HamiSkipsPrivileged",
    "A container that requests GPUs is privileged: HAMi up to 2.9 ignores it, HAMi since 2.10 refuses the pod.",
    "Remove privileged from the container's securityContext: card limits have no effect on privileged containers.",
    source=f"{WEBHOOK_FILE}: `container … is privileged`",
)
NODE_NAMED = _admitted(
    "HamiNodeNamed",
    "A GPU workload sets nodeName, which bypasses HAMi's scheduler: HAMi's webhook or device plugin refuses the pods.",
    "Remove nodeName from the pod template, and select the node by a nodeSelector.",
    rejecting(r"do not use nodeName in task spec", PLUGIN_FILES),
    source=f"{WEBHOOK_FILE}: `pod has node assigned`, since 2.6; `do not use nodeName in task spec` before",
)
QUOTA = _admitted(
    "HamiQuotaExceeded",
    "The namespace has used up its ResourceQuota of card memory or cores, as HAMi counts it.",
    "Delete pods of the namespace, request less, or raise the quota.",
    codes("ResourceQuotaNotFit"),
    source="HAMi counts limits.nvidia.com/gpumem and limits.nvidia.com/gpucores of a ResourceQuota itself",
)


def denied(snapshot: Snapshot, incomplete: IncompleteWorkload, refusal: Refusal) -> FoundCause | None:
    """Return the cause for a refusal in the webhook's own wording; None for other texts."""
    evidence: tuple[str, ...] = (f"{incomplete.workload.subject}: {refusal.text}",)
    if "pod has node assigned" in refusal.text:
        if incomplete.spec.node:
            evidence = (*evidence, f"the template names nodeName {incomplete.spec.node}")
        return FoundCause(NODE_NAMED, incomplete.top, evidence, (), (incomplete.top,))
    if "is privileged" in refusal.text:
        return FoundCause(PRIVILEGED, incomplete.top, evidence, (), (incomplete.top,))
    if "exceeding resource quota" in refusal.text:
        return _over_quota(snapshot, incomplete, evidence)
    return None


def _over_quota(snapshot: Snapshot, incomplete: IncompleteWorkload, evidence: tuple[str, ...]) -> FoundCause:
    every = (installation.settings for installation in installations(snapshot))
    settings = next((each for each in every if asks_for(incomplete.spec, each)), HamiSettings())
    quotas = quotas_of(snapshot, incomplete.namespace, settings)
    to_change = quotas[0].meta.subject if quotas else subject("Namespace", "", incomplete.namespace)
    usage = tuple(line for quota in quotas for line in quota_usage(snapshot, quota, settings))
    describe = command("kubectl", "-n", incomplete.namespace, "describe", "resourcequotas")
    remedy = (f"Check the quota's limits (HAMi counts usage itself, `used` is meaningless): {describe}",)
    return FoundCause(QUOTA, to_change, (*evidence, *usage), remedy, (incomplete.top,))
