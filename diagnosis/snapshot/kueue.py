"""Kueue's objects: workloads that wait in a queue, and the queues."""

from __future__ import annotations

from typing import Annotated

from diagnosis.snapshot.meta import ApiObject
from diagnosis.snapshot.pods import Conditions, PodSpec, condition_in
from healthcheck.text.boundary import At, entries, read, value_at


def _specs(pod_sets: object) -> tuple[PodSpec, ...]:
    return tuple(read(PodSpec, value_at(entry, "template", "spec") or {}) for entry in entries(pod_sets))


class Queued(ApiObject, frozen=True):
    """Workload of Kueue: its owner waits until a queue has admitted it.

    A Workload of another API with the same name has no pods.
    """

    queue: Annotated[str, At("spec.queueName")] = ""
    specs: Annotated[tuple[PodSpec, ...], At("spec.podSets"), _specs] = ()
    conditions: Conditions = ()
    active: Annotated[bool, At("spec.active")] = True

    def is_true(self, kind: str) -> bool:
        return condition_in(self.conditions, kind, "True") is not None


class Queue(ApiObject, frozen=True):
    """A LocalQueue, or a ClusterQueue; `above` is the ClusterQueue of a LocalQueue."""

    above: Annotated[str, At("spec.clusterQueue")] = ""
    conditions: Conditions = ()
