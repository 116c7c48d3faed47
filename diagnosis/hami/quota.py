"""Compute ResourceQuotas as HAMi does: only HAMi enforces `limits.nvidia.com/gpumem`, Kubernetes does not. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from diagnosis.facts.quantity import amount
from diagnosis.hami.card_usage import Share, parts
from diagnosis.hami.settings import HamiSettings
from diagnosis.hami.versions import Version
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.policy_objects import Quota

_ZERO_BLOCKS_SINCE: Version = (2, 10)


class Limit(Struct, frozen=True):
    """Limit of one namespace, in MiB or percent. `quota` is the subject that sets it."""

    quota: str
    most: int
    used: int

    @property
    def left(self) -> int:
        return self.most - self.used


class QuotaAmounts(Struct, frozen=True):
    """Amounts of all cards together that a namespace's pods may have; None if there is no limit."""

    memory: Limit | None = None
    cores: Limit | None = None

    def takes(self, part: Share) -> bool:
        return (self.memory is None or part.memory <= self.memory.left) and (
            self.cores is None or part.cores <= self.cores.left
        )


def room_of(snapshot: Snapshot, namespace: str, settings: HamiSettings, version: Version) -> QuotaAmounts:
    """Return the room of the namespace, by the narrower of two quotas.

    HAMi itself uses the quota that it last received.
    """
    memory = _limit(snapshot, namespace, settings.memory_name, max(settings.memory_factor, 1))
    cores = _limit(snapshot, namespace, settings.cores_name, 1)
    if memory is None and cores is None:
        return QuotaAmounts()
    used = _used_in(snapshot, namespace)
    return QuotaAmounts(_with(memory, used.memory, version), _with(cores, used.cores, version))


def kept_quotas(snapshot: Snapshot, namespace: str, settings: HamiSettings) -> tuple[Quota, ...]:
    """Return the quotas of the namespace that HAMi counts itself."""
    of_namespace = (quota for quota in snapshot.quotas if quota.meta.namespace == namespace)
    return tuple(quota for quota in of_namespace if any(_key(name) in quota.hard for name in _counted(settings)))


def given_of(snapshot: Snapshot, quota: Quota, settings: HamiSettings) -> Iterator[str]:
    """Yield the quota's limits, each with the amount given to pods of its namespace."""
    used, factor = _used_in(snapshot, quota.meta.namespace), max(settings.memory_factor, 1)
    for name, given in zip(_counted(settings), (used.memory // factor, used.cores), strict=True):
        if most := quota.hard.get(_key(name)):
            yield f"{quota.meta.subject}: {_key(name)} {most}, {given} allocated"


def _counted(settings: HamiSettings) -> tuple[str, str]:
    """Return the resources for which HAMi enforces quotas."""
    return settings.memory_name, settings.cores_name


def _key(resource: str) -> str:
    """Return the quota key of a resource.

    HAMi reads no other prefix; Kubernetes never counts resources with this prefix.
    """
    return f"limits.{resource}"


def _limit(snapshot: Snapshot, namespace: str, resource: str, factor: int) -> tuple[int, str] | None:
    found = []
    for quota in snapshot.quotas:
        value = amount(quota.hard.get(_key(resource), "")) if quota.meta.namespace == namespace else None
        if value is not None and value == value.to_integral_value():
            found.append((int(value) * factor, quota.meta.subject))
    return min(found, default=None)


def _with(limit: tuple[int, str] | None, used: int, version: Version) -> Limit | None:
    if limit is None or (not limit[0] and version < _ZERO_BLOCKS_SINCE):
        return None
    return Limit(limit[1], limit[0], used)


def _used_in(snapshot: Snapshot, namespace: str) -> Share:
    used = Share()
    for pod in snapshot.pods:
        if pod.meta.namespace == namespace and not pod.over and pod.grant is not None and pod.grant.node:
            for part in parts(pod, pod.grant).values():
                used = used.plus(part)
    return used
