"""Determine the members of Kubernetes' own gangs, and which gangs the scheduler holds back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, SchedulingGroup
from gpu_healthcheck.diagnosis.snapshot.queues import NativeGang, kind_of

_SCHEDULED = ("PodGroupScheduled", "PodGroupInitiallyScheduled")
"""Conditions of a PodGroup in Kubernetes 1.36, and from 1.37 on."""


class Gang(Struct, frozen=True, dict=True):
    """Group of pods that name each other by `schedulingGroup` or `workloadRef`.

    `entry`: the object that defines the group; None if it is not visible. `members` have not ended, `ended` have.
    """

    group: SchedulingGroup
    entry: NativeGang | None
    members: tuple[Pod, ...]
    ended: tuple[Pod, ...]

    @property
    def defined(self) -> bool:
        return self.entry is not None and self.group.within in self.entry.least

    @property
    def least(self) -> int:
        """Return the number of pods that start together; 0 if each pod is scheduled alone, or it is unknown."""
        return (self.entry.least.get(self.group.within) if self.entry is not None else None) or 0

    @property
    def lacking(self) -> int:
        """Return how many pods the scheduler needs in addition to those that exist."""
        return max(self.least - len(self.members), 0)

    @property
    def unplaced(self) -> int:
        """Return how many more pods need a node so that the gang starts."""
        return max(self.least - self.placed, 0)

    @cached_property
    def placed(self) -> int:
        """Return how many of its pods have a node."""
        return sum(bool(pod.spec.node) for pod in self.members)


@lru_cache(maxsize=1)
def gangs(snapshot: Snapshot) -> Mapping[tuple[str, SchedulingGroup], Gang]:
    """Return the gangs by namespace and the group that their pods name."""
    entries = {(each.meta.kind, each.meta.namespace, each.meta.name): each for each in snapshot.gangs}
    named = grouped(((pod.meta.namespace, pod.spec.group), pod) for pod in snapshot.pods if pod.spec.group is not None)
    return {
        (namespace, group): Gang(
            group,
            entries.get((group.kind, namespace, group.name)),
            tuple(pod for pod in pods if not pod.over),
            tuple(pod for pod in pods if pod.over),
        )
        for (namespace, group), pods in named.items()
    }


def gang_of(snapshot: Snapshot, pod: Pod) -> Gang | None:
    """Return the pod's gang; None without one."""
    return gangs(snapshot)[pod.meta.namespace, pod.spec.group] if pod.spec.group is not None else None


def is_held_back(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the scheduler does not try to place the pod, because its group or members of it do not exist.

    Such a pod has neither a condition nor an event. If the groups may not be listed, a pod with a condition is not
    held back.
    """
    gang = gang_of(snapshot, pod)
    if gang is None or gang.defined:
        return gang is not None and gang.lacking > 0
    return snapshot.sees(kind_of(gang.group.kind)) or pod.condition("PodScheduled") is None


def group_message(snapshot: Snapshot, pod: Pod) -> str:
    """Return the scheduler's text about the pod's PodGroup; '' if it has not refused the group."""
    gang = gang_of(snapshot, pod)
    conditions = gang.entry.conditions if gang is not None and gang.entry is not None else ()
    refused = (each for each in conditions if each.type in _SCHEDULED and each.status == "False")
    return next((each.message or each.reason for each in refused), "")
