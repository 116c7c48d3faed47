"""Volcano's objects: groups of pods that start together, and their queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import field

from diagnosis.snapshot.meta import ApiObject, S, read_object
from diagnosis.snapshot.pods import Conditions
from healthcheck.text.boundary import At, value_at

_API = "scheduling.volcano.sh/"


class PodGroup(ApiObject, frozen=True):
    """Group of Volcano. `phase` is '' for a group of another API.

    `least`: the total request, by resource, of all pods that must start together.
    """

    phase: Annotated[str, At("status.phase")] = ""
    queue: Annotated[str, At("spec.queue")] = "default"
    least: Annotated[Mapping[str, str], At("spec.minResources")] = field(default_factory=dict)
    conditions: Conditions = ()


class GroupQueue(ApiObject, frozen=True):
    """Queue of Volcano.

    `most`: the total limit of its groups by resource, if there is one. `given`: the amounts that they have.
    """

    state: Annotated[str, At("status.state")] = ""
    most: Annotated[Mapping[str, str], At("spec.capability")] = field(default_factory=dict)
    given: Annotated[Mapping[str, str], At("status.allocated")] = field(default_factory=dict)


def read_volcano(struct: type[S], kind: str, raw: object) -> S:
    """Read a PodGroup or Queue. Other schedulers have the same kinds with other phases: only their names are read.

    Objects in a list have no API version, and only Volcano's are listed.
    """
    version = value_at(raw, "apiVersion")
    is_volcanos = version is None or str(version).startswith(_API)
    return read_object(struct, kind, raw if is_volcanos else {"metadata": value_at(raw, "metadata")})
