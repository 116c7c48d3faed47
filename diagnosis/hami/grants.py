"""Read the cards that HAMi's scheduler assigned to a pod, and the state of the assignment. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from enum import Enum

from msgspec import Struct

from diagnosis.hami.annotation_text import LONGEST_TEXT, MOST_PARTS, epoch, whole, word
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta
from healthcheck.text import strict_json

NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
_OF_ANY = re.compile(r"hami\.io/[A-Za-z0-9_.-]{1,60}-devices-allocated\Z", re.ASCII)


class BindPhase(Enum):
    """State of a binding. The value is that of the annotation."""

    ALLOCATING = "allocating"
    """The scheduler has bound the pod; the device plugin has not finished."""
    SUCCESS = "success"
    FAILED = "failed"


class ContainerShare(Struct, frozen=True):
    """Share of one card that one container was given, in MiB and percent.

    Up to 2.9, the UUID of a MIG instance is the card's UUID followed by the position in a layout: `GPU-1[0-2]`.
    """

    uuid: str
    memory: int
    cores: int
    kind: str = "NVIDIA"

    @property
    def card(self) -> str:
        return self.uuid.partition("[")[0]


class MigInstance(Struct, frozen=True):
    """MIG instance that HAMi creates for a container, numbered from the pod's first init container."""

    container: int
    uuid: str
    profile: str
    start: int
    size: int


Containers = tuple[tuple[ContainerShare, ...], ...]
"""Shares by container, init containers first; an empty tuple is a container without a card."""


class PodGrant(Struct, frozen=True):
    """Annotations of a pod from HAMi's scheduler and device plugin; unreadable ones count as absent."""

    node: str = ""
    at: datetime | None = None
    containers: Containers = ()
    phase: BindPhase | None = None
    bound_at: datetime | None = None
    mig: tuple[MigInstance, ...] = ()

    @property
    def shares(self) -> tuple[ContainerShare, ...]:
        return tuple(share for shares in self.containers for share in shares)


def grant(meta: Meta) -> PodGrant | None:
    """Return the grant; None for a pod that HAMi's scheduler has not annotated."""
    annotations = meta.annotations
    if not {NODE, TO_ALLOCATE, BIND_PHASE} & annotations.keys() and not any(map(_OF_ANY.match, annotations)):
        return None
    phase = annotations.get(BIND_PHASE, "")
    return PodGrant(
        word(annotations.get(NODE, "")),
        epoch(annotations.get(TIME, "")),
        _shares(annotations.get(ALLOCATED, "")),
        next((bind_phase for bind_phase in BindPhase if bind_phase.value == phase), None),
        epoch(annotations.get(BIND_TIME, "")),
        _instances(annotations.get(MIG_ALLOCATIONS, "")),
    )


def shares(meta: Meta) -> tuple[ContainerShare, ...]:
    """Return the shares of NVIDIA cards that all containers of a pod were given."""
    pod_grant = grant(meta)
    return pod_grant.shares if pod_grant is not None else ()


def _shares(text: str) -> Containers:
    try:
        return tuple(_containers(text))
    except ValueError:
        return ()


def _containers(text: str) -> Iterator[tuple[ContainerShare, ...]]:
    if len(text) > LONGEST_TEXT:
        raise ValueError("it is too long")
    # Each container ends with a semicolon.
    for container in text.split(";")[:MOST_PARTS][: text.count(";") or 1]:
        yield tuple(_share(part) for part in container.split(":")[:MOST_PARTS] if part.strip())


def _share(part: str) -> ContainerShare:
    words = part.split(",")
    if len(words) < 4 or not words[0] or not words[1]:
        raise ValueError("a device is UUID, type, memory and cores")
    return ContainerShare(word(words[0]), whole(words[2]), whole(words[3]), word(words[1]))


def _instances(text: str) -> tuple[MigInstance, ...]:
    if not text:
        return ()
    try:
        listed = strict_json.loads(text, LONGEST_TEXT)
    except ValueError:
        return ()
    return tuple(
        MigInstance(
            fields.number("containerIndex") or 0,
            word(fields.text("gpuUUID")),
            word(fields.text("profile")),
            fields.number("placement", "start") or 0,
            fields.number("placement", "size") or 0,
        )
        for fields in Fields({"listed": listed}).each("listed")
    )
