"""What HAMi's webhook refuses, by its own words, and the quotas that HAMi counts itself."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.cause import Found, command
from diagnosis.causes.admission.texts import Refusal
from diagnosis.causes.admission.wanting import Wanting
from diagnosis.causes.hami.declared import NODE_NAMED, PRIVILEGED, QUOTA
from diagnosis.hami.grants import shares
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.pods import PodSpec
from diagnosis.snapshot.rules import Quota

_COUNTED = ("limits.nvidia.com/gpumem", "limits.nvidia.com/gpumem-percentage", "limits.nvidia.com/gpucores")


def denied(snapshot: Snapshot, one: Wanting, refusal: Refusal) -> Found | None:
    """By the webhook's own words; None for others."""
    evidence = (f"{one.workload.subject}: {refusal.text}",)
    if "pod has node assigned" in refusal.text:
        return Found(NODE_NAMED, one.top, (*evidence, *_named_node(one.spec)), (), (one.top,))
    if "is privileged" in refusal.text:
        return Found(PRIVILEGED, one.top, evidence, (), (one.top,))
    if "exceeding resource quota" in refusal.text:
        return _over_quota(snapshot, one, evidence)
    return None


def quotas(snapshot: Snapshot, namespace: str) -> list[Quota]:
    """Those that HAMi enforces there itself."""
    of_namespace = (one for one in snapshot.quotas if one.meta.namespace == namespace)
    return [one for one in of_namespace if any(key in one.hard for key in _COUNTED)]


def used_of(snapshot: Snapshot, quota: Quota) -> Iterator[str]:
    """What the quota allows beside what pods of its namespace were given."""
    pods = [pod for pod in snapshot.pods if pod.meta.namespace == quota.meta.namespace and not pod.over]
    given = [share for pod in pods for share in shares(pod.meta)]
    used = {"gpumem": sum(one.memory for one in given), "gpucores": sum(one.cores for one in given)}
    for key in _COUNTED:
        if key in quota.hard:
            told = used.get(key.rpartition("/")[2])
            yield f"{quota.meta.subject}: {key} {quota.hard[key]}" + (f", {told} given out" if told is not None else "")


def _named_node(spec: PodSpec) -> tuple[str, ...]:
    return (f"the template names nodeName {spec.node}",) if spec.node else ()


def _over_quota(snapshot: Snapshot, one: Wanting, evidence: tuple[str, ...]) -> Found:
    known = quotas(snapshot, one.namespace)
    where = known[0].meta.subject if known else subject("Namespace", "", one.namespace)
    told = tuple(line for each in known for line in used_of(snapshot, each))
    look = command("kubectl", "-n", one.namespace, "describe", "resourcequotas")
    remedy = (f"See what the quota allows (HAMi counts itself, its `used` says nothing): {look}",)
    return Found(QUOTA, where, (*evidence, *told), remedy, (one.top,))
