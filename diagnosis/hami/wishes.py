"""Parse a pod's own annotations about the cards that it requests from HAMi. Pure."""

from __future__ import annotations

from msgspec import Struct

from diagnosis.hami.words import flag, word
from diagnosis.snapshot.meta import Meta

USE_TYPE = "nvidia.com/use-gputype"
AVOID_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
AVOID_UUID = "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
MODE = "nvidia.com/vgpu-mode"
NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
NODE_POLICIES = ("binpack", "spread")
GPU_POLICIES = ("binpack", "spread", "topology-aware", "mutex", "numa")


class CardOptions(Struct, frozen=True):
    """Card options of a pod. None means not set; lists are as written, even if empty."""

    use_types: tuple[str, ...] | None = None
    avoid_types: tuple[str, ...] | None = None
    use_uuids: tuple[str, ...] | None = None
    avoid_uuids: tuple[str, ...] | None = None
    numa_bind: bool = False
    mode: str | None = None
    node_policy: str | None = None
    gpu_policy: str | None = None


def wishes(meta: Meta) -> CardOptions:
    told = meta.annotations
    return CardOptions(
        _list(told.get(USE_TYPE)),
        _list(told.get(AVOID_TYPE)),
        _list(told.get(USE_UUID)),
        _list(told.get(AVOID_UUID)),
        _binds(told.get(NUMA_BIND, "")),
        _word(told.get(MODE)),
        _word(told.get(NODE_POLICY)),
        _word(told.get(GPU_POLICY)),
    )


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word(one) for one in text.split(",")[:256])


def _word(text: str | None) -> str | None:
    return None if text is None else word(text)


def _binds(text: str) -> bool:
    try:
        return flag(text)
    except ValueError:
        return False
