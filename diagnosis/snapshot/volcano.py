"""Volcano's objects: groups of pods that start together, and their queues."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.pods import Condition, read_conditions

_API = "scheduling.volcano.sh/"


class PodGroup(Struct, frozen=True):
    """Group of Volcano. `phase` is '' for a group of another API.

    `least`: the total request, by resource, of all pods that must start together.
    """

    meta: Meta
    phase: str = ""
    queue: str = ""
    least: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class GroupQueue(Struct, frozen=True):
    """Queue of Volcano.

    `most`: the total limit of its groups by resource, if there is one. `given`: the amounts that they have.
    """

    meta: Meta
    state: str = ""
    most: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)


def read_pod_group(raw: Fields) -> PodGroup:
    """Read a PodGroup. Other schedulers have the same kind with other phases: only its name is read."""
    meta = read_meta("PodGroup", raw)
    if not _is_volcanos(raw):
        return PodGroup(meta)
    least, queue = raw.words("spec", "minResources"), raw.text("spec", "queue") or "default"
    return PodGroup(meta, raw.text("status", "phase"), queue, least, read_conditions(raw))


def read_group_queue(raw: Fields) -> GroupQueue:
    meta = read_meta("Queue", raw)
    if not _is_volcanos(raw):
        return GroupQueue(meta)
    given = raw.words("status", "allocated")
    return GroupQueue(meta, raw.text("status", "state"), raw.words("spec", "capability"), given)


def _is_volcanos(raw: Fields) -> bool:
    """Whether the object belongs to Volcano.

    Objects in a list have no API version, and only Volcano's are listed.
    """
    return raw.text("apiVersion").startswith(_API) or not raw.has("apiVersion")
