"""Compute ResourceQuotas as HAMi does: only HAMi enforces `limits.nvidia.com/gpumem`, Kubernetes does not. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.quantity import amount
from gpu_healthcheck.diagnosis.hami.cards import Share, share_by_card, total
from gpu_healthcheck.diagnosis.hami.settings import HamiSettings
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import Quota


class QuotaAmounts(Struct, frozen=True):
    """MiB and percent of all cards together that a namespace's pods may still have; None if there is no limit."""

    memory: int | None = None
    cores: int | None = None

    def takes(self, share: Share) -> bool:
        return (self.memory is None or share.memory <= self.memory) and (
            self.cores is None or share.cores <= self.cores
        )


def quota_left(snapshot: Snapshot, namespace: str, settings: HamiSettings) -> QuotaAmounts:
    """Return the amounts that the namespace has left, by the narrower of two quotas.

    HAMi itself uses the quota that it last received.
    """
    memory, cores = (_limit(snapshot, namespace, resource) for resource in (settings.memory_name, settings.cores_name))
    if memory is None and cores is None:
        return QuotaAmounts()
    used = _used_in(snapshot, namespace)
    return QuotaAmounts(
        None if memory is None else memory * settings.memory_factor - used.memory,
        None if cores is None else cores - used.cores,
    )


def quotas_of(snapshot: Snapshot, namespace: str, settings: HamiSettings) -> tuple[Quota, ...]:
    """Return the quotas of the namespace that HAMi counts itself."""
    keys = {_key(settings.memory_name), _key(settings.cores_name)}
    return tuple(quota for quota in snapshot.quotas if quota.meta.namespace == namespace and keys & quota.hard.keys())


def quota_usage(snapshot: Snapshot, quota: Quota, settings: HamiSettings) -> Iterator[str]:
    """Yield the quota's limits, each with the amount allocated to pods of its namespace."""
    used = _used_in(snapshot, quota.meta.namespace)
    amounts = ((settings.memory_name, used.memory // settings.memory_factor), (settings.cores_name, used.cores))
    for resource, allocated in amounts:
        if limit := quota.hard.get(_key(resource)):
            yield f"{quota.meta.subject}: {_key(resource)} {limit}, {allocated} allocated"


def _key(resource: str) -> str:
    """Return the quota key of a resource.

    HAMi reads no other prefix; Kubernetes never counts resources with this prefix.
    """
    return f"limits.{resource}"


def _limit(snapshot: Snapshot, namespace: str, resource: str) -> int | None:
    limits = (
        amount(quota.hard.get(_key(resource), "")) for quota in snapshot.quotas if quota.meta.namespace == namespace
    )
    return min((int(limit) for limit in limits if limit is not None and limit == int(limit)), default=None)


def _used_in(snapshot: Snapshot, namespace: str) -> Share:
    return total(
        share
        for pod in snapshot.pods
        if pod.meta.namespace == namespace and not pod.over and pod.grant is not None and pod.grant.node
        for share in share_by_card(pod, pod.grant).values()
    )
