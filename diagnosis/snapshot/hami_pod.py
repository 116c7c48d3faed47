"""HAMi's annotations on a pod: its cards, the state of its binding, and the card options that it requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum

from msgspec import Struct, field

from diagnosis.snapshot.annotation_text import LONGEST_TEXT, MOST_PARTS, epoch, flag, whole, word
from diagnosis.snapshot.json_fields import Fields
from healthcheck.text import strict_json

NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
USE_TYPE = "nvidia.com/use-gputype"
AVOID_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
AVOID_UUID = "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
MODE = "nvidia.com/vgpu-mode"
NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
_OPTIONS = (USE_TYPE, AVOID_TYPE, USE_UUID, AVOID_UUID, NUMA_BIND, MODE, NODE_POLICY, GPU_POLICY)
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
    """Slices of a card that a MIG instance of the pod occupies."""

    uuid: str
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


class CardOptions(Struct, frozen=True):
    """Card options that a pod requests. None means not set; lists are as written, even if empty."""

    use_types: tuple[str, ...] | None = None
    avoid_types: tuple[str, ...] | None = None
    use_uuids: tuple[str, ...] | None = None
    avoid_uuids: tuple[str, ...] | None = None
    numa_bind: bool = False
    mode: str | None = None
    node_policy: str | None = None
    gpu_policy: str | None = None
    written: Mapping[str, str] = field(default_factory=dict)
    """The annotations with these options."""


_NO_OPTIONS = CardOptions()


def read_grant(annotations: Mapping[str, str]) -> PodGrant | None:
    """Return the grant; None for a pod that HAMi's scheduler has not annotated."""
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


def read_card_options(annotations: Mapping[str, str]) -> CardOptions:
    written = {key: annotations[key] for key in _OPTIONS if key in annotations}
    if not written:
        return _NO_OPTIONS
    lists = {key: tuple(word(name) for name in text.split(",")[:256]) for key, text in written.items()}
    words = {key: word(text) for key, text in written.items()}
    return CardOptions(
        lists.get(USE_TYPE),
        lists.get(AVOID_TYPE),
        lists.get(USE_UUID),
        lists.get(AVOID_UUID),
        _binds(written.get(NUMA_BIND, "")),
        words.get(MODE),
        words.get(NODE_POLICY),
        words.get(GPU_POLICY),
        written,
    )


def _binds(text: str) -> bool:
    try:
        return flag(text)
    except ValueError:
        return False


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
            word(fields.text("gpuUUID")),
            fields.number("placement", "start") or 0,
            fields.number("placement", "size") or 0,
        )
        for fields in Fields({"listed": listed}).each("listed")
    )
