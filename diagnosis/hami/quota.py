"""A ResourceQuota as HAMi keeps it: `limits.nvidia.com/gpumem` is HAMi's alone, Kubernetes never counts it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnosis.hami.grants import grant
from diagnosis.hami.holding import Part, parts
from diagnosis.hami.settings import Settings
from diagnosis.hami.versions import Version
from diagnosis.quantity import amount
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import Pod

_ZERO_BLOCKS_SINCE: Version = (2, 10)


@dataclass(frozen=True, slots=True)
class Limit:
    """Of one namespace, in MiB or percent. `quota` is the subject that sets it."""

    quota: str
    most: int
    used: int

    @property
    def left(self) -> int:
        return self.most - self.used


@dataclass(frozen=True, slots=True)
class Room:
    """What a namespace's pods may have of all cards together; None where nothing limits it."""

    memory: Limit | None = None
    cores: Limit | None = None

    def takes(self, part: Part) -> bool:
        return (self.memory is None or part.memory <= self.memory.left) and (
            self.cores is None or part.cores <= self.cores.left
        )


def room_of(snapshot: Snapshot, namespace: str, settings: Settings, version: Version) -> Room:
    """Of two quotas the narrower one: HAMi takes the one it heard of last."""
    memory = _limit(snapshot, namespace, settings.memory_name, max(settings.memory_factor, 1))
    cores = _limit(snapshot, namespace, settings.cores_name, 1)
    if memory is None and cores is None:
        return Room()
    used = Part()
    for part in _held_in(snapshot, namespace):
        used = used.plus(part)
    return Room(_with(memory, used.memory, version), _with(cores, used.cores, version))


def _limit(snapshot: Snapshot, namespace: str, resource: str, factor: int) -> tuple[int, str] | None:
    found = []
    for one in snapshot.quotas:
        value = amount(one.hard.get(f"limits.{resource}", "")) if one.meta.namespace == namespace else None
        if value is not None and value == value.to_integral_value():
            found.append((int(value) * factor, one.meta.subject))
    return min(found, default=None)


def _with(limit: tuple[int, str] | None, used: int, version: Version) -> Limit | None:
    if limit is None or (not limit[0] and version < _ZERO_BLOCKS_SINCE):
        return None
    return Limit(limit[1], limit[0], used)


def _held_in(snapshot: Snapshot, namespace: str) -> Iterator[Part]:
    for pod in snapshot.pods:
        if pod.meta.namespace == namespace and not pod.over:
            yield from _held_by(pod)


def _held_by(pod: Pod) -> Iterator[Part]:
    told = grant(pod.meta)
    if told is not None and told.node:
        yield from parts(pod, told).values()
