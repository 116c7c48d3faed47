"""Kueue's objects: workloads that wait in a queue, and the queues."""

from __future__ import annotations

from msgspec import Struct

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.pods import Condition, PodSpec, condition_in, read_conditions, read_spec


class Queued(Struct, frozen=True):
    """Workload of Kueue: its owner waits until a queue has admitted it."""

    meta: Meta
    queue: str = ""
    specs: tuple[PodSpec, ...] = ()
    conditions: tuple[Condition, ...] = ()
    active: bool = True

    def is_true(self, kind: str) -> bool:
        return condition_in(self.conditions, kind, "True") is not None


class Queue(Struct, frozen=True):
    """A LocalQueue, or a ClusterQueue; `above` is the ClusterQueue of a LocalQueue."""

    meta: Meta
    above: str = ""
    conditions: tuple[Condition, ...] = ()


def read_queued(raw: Fields) -> Queued:
    """Read a Workload. A Workload of another API with the same name has no pods."""
    return Queued(
        read_meta("Workload", raw),
        raw.text("spec", "queueName"),
        tuple(read_spec(fields.at("template", "spec")) for fields in raw.each("spec", "podSets")),
        read_conditions(raw),
        not raw.has("spec", "active") or raw.flag("spec", "active"),
    )


def read_queue(kind: str, raw: Fields) -> Queue:
    return Queue(read_meta(kind, raw), raw.text("spec", "clusterQueue"), read_conditions(raw))
