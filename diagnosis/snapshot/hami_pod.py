"""HAMi's annotations on a pod: its cards, the state of its binding, and the card options that it requests. Pure.

Words and numbers in annotations are parsed as Go does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.text.moments import EARLIEST, LATEST
from gpu_healthcheck.healthcheck.text.printable import printable

NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
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
_ALLOCATED_BY_VENDOR = re.compile(r"hami\.io/[A-Za-z0-9_.-]{1,60}-devices-allocated\Z", re.ASCII)
LONGEST_ANNOTATION = 64 * 1024
MOST_ENTRIES = 1024
"""Maximum entries of one annotation: cards of a node, containers of a pod, UUIDs of a list."""
LONGEST_WORD = 200
_LARGEST_INT32 = (1 << 31) - 1
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


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

    @property
    def card(self) -> str:
        return self.uuid.partition("[")[0]


Containers = tuple[tuple[ContainerShare, ...], ...]
"""Shares by container, init containers first; an empty tuple is a container without a card."""


class PodGrant(Struct, frozen=True):
    """Annotations of a pod from HAMi's scheduler and device plugin; unreadable ones count as absent."""

    node: str = ""
    at: datetime | None = None
    containers: Containers = ()
    phase: BindPhase | None = None
    bound_at: datetime | None = None

    @property
    def shares(self) -> tuple[ContainerShare, ...]:
        return tuple(share for shares in self.containers for share in shares)


class CardOptions(Struct, frozen=True):
    """Card options that a pod requests. Empty lists and None mean not set."""

    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    numa_bind: bool = False
    mode: str | None = None
    node_policy: str | None = None
    gpu_policy: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations with these options."""


_NO_OPTIONS = CardOptions()


def read_grant(annotations: Mapping[str, str]) -> PodGrant | None:
    """Return the grant; None for a pod that HAMi's scheduler has not annotated."""
    if not {NODE, TO_ALLOCATE, BIND_PHASE} & annotations.keys() and not any(
        map(_ALLOCATED_BY_VENDOR.match, annotations)
    ):
        return None
    phase = annotations.get(BIND_PHASE, "")
    return PodGrant(
        short(annotations.get(NODE, "")),
        _epoch(annotations.get(TIME, "")),
        _containers(annotations.get(ALLOCATED, "")),
        next((bind_phase for bind_phase in BindPhase if bind_phase.value == phase), None),
        _epoch(annotations.get(BIND_TIME, "")),
    )


def read_card_options(annotations: Mapping[str, str]) -> CardOptions:
    written = {key: annotations[key] for key in _OPTIONS if key in annotations}
    if not written:
        return _NO_OPTIONS
    words = {key: short(annotation) for key, annotation in written.items()}
    return CardOptions(
        use_types=list_items(written.get(USE_TYPE, "")),
        avoid_types=list_items(written.get(AVOID_TYPE, "")),
        use_uuids=list_items(written.get(USE_UUID, "")),
        avoid_uuids=list_items(written.get(AVOID_UUID, "")),
        numa_bind=written.get(NUMA_BIND) in _TRUE,
        mode=words.get(MODE),
        node_policy=words.get(NODE_POLICY),
        gpu_policy=words.get(GPU_POLICY),
        annotations=written,
    )


def short(text: str) -> str:
    """Return the text printable, and not longer than a name."""
    return printable(text, LONGEST_WORD)


def whole_number(text: str) -> int:
    """Parse a non-negative number of 32 bits. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > _LARGEST_INT32:
        raise ValueError(f"{short(text)!r} is not a whole number of 32 bits")
    return int(text)


def boolean(text: str) -> bool:
    """Parse a boolean. Raises ValueError."""
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{short(text)!r} is neither true nor false")
    return text in _TRUE


def list_items(text: str) -> tuple[str, ...]:
    """Return the words between commas that are not empty."""
    words = (word.strip() for word in text[:LONGEST_ANNOTATION].split(",")[:MOST_ENTRIES])
    return tuple(short(word) for word in words if word)


def _epoch(text: str) -> datetime | None:
    """Parse seconds since 1970."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        return None
    seconds = int(text)
    return datetime.fromtimestamp(seconds, UTC) if EARLIEST.timestamp() < seconds < LATEST.timestamp() else None


def _containers(annotation: str) -> Containers:
    """Parse the shares of all containers. Each container ends with a semicolon, each share with a colon."""
    if len(annotation) > LONGEST_ANNOTATION:
        return ()
    containers = annotation.split(";")[:MOST_ENTRIES][: annotation.count(";") or 1]
    try:
        return tuple(tuple(_shares(container)) for container in containers)
    except ValueError:
        return ()


def _shares(container: str) -> Iterator[ContainerShare]:
    for share in container.split(":")[:MOST_ENTRIES]:
        if share.strip():
            uuid, kind, memory, cores, *_ = (*share.split(","), *[""] * 4)
            if not uuid or not kind:
                raise ValueError("a share is UUID, type, memory and cores")
            yield ContainerShare(short(uuid), whole_number(memory), whole_number(cores))
