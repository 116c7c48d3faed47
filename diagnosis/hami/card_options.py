"""Parse a pod's own annotations about the cards that it requests from HAMi. Pure."""

from __future__ import annotations

from msgspec import Struct

from diagnosis.hami.annotation_text import flag, word
from diagnosis.snapshot.meta import Meta

USE_TYPE = "nvidia.com/use-gputype"
AVOID_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
AVOID_UUID = "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
MODE = "nvidia.com/vgpu-mode"
NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"


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


def card_options(meta: Meta) -> CardOptions:
    fields = meta.annotations
    return CardOptions(
        _list(fields.get(USE_TYPE)),
        _list(fields.get(AVOID_TYPE)),
        _list(fields.get(USE_UUID)),
        _list(fields.get(AVOID_UUID)),
        _binds(fields.get(NUMA_BIND, "")),
        _word(fields.get(MODE)),
        _word(fields.get(NODE_POLICY)),
        _word(fields.get(GPU_POLICY)),
    )


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word(name) for name in text.split(",")[:256])


def _word(text: str | None) -> str | None:
    return None if text is None else word(text)


def _binds(text: str) -> bool:
    try:
        return flag(text)
    except ValueError:
        return False
