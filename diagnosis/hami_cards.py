"""HAMi's bookkeeping of cards: what a node registers, and what a pod was given of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnosis.gpu_nodes import HAMI_REGISTER
from diagnosis.snapshot.meta import Meta
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.reading import Fields
from healthcheck.text import strict_json

_ALLOCATED = "hami.io/vgpu-devices-allocated"
_LONGEST = 64 * 1024
_MOST_PARTS = 1024


@dataclass(frozen=True, slots=True)
class Card:
    """As its node registered it. `slots` pods may share it; `memory` is in MiB, and may be scaled beyond its own."""

    uuid: str
    index: int
    slots: int
    memory: int
    cores: int
    kind: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class Share:
    """What one container was given of one card, in MiB and percent."""

    uuid: str
    memory: int
    cores: int


def registered(node: Node) -> tuple[Card, ...]:
    """The cards of the node; none where its registration can't be read. HAMi wrote text up to 2.7, JSON since."""
    text = node.meta.annotations.get(HAMI_REGISTER, "")
    if text.lstrip().startswith("["):
        return tuple(_from_json(text))
    return tuple(_from_text(text))


def shares(meta: Meta) -> tuple[Share, ...]:
    """What a pod's containers were given, container by container."""
    text = meta.annotations.get(_ALLOCATED, "")[:_LONGEST]
    return tuple(_shares(part for container in text.split(";") for part in container.split(":")))


def _shares(parts: Iterator[str]) -> Iterator[Share]:
    for number, part in enumerate(parts):
        words = part.split(",")
        if number < _MOST_PARTS and len(words) >= 4 and words[0]:
            yield Share(words[0], _whole(words[2]), _whole(words[3]))


def _from_json(text: str) -> Iterator[Card]:
    try:
        listed = strict_json.loads(text, _LONGEST)
    except ValueError:
        return
    for one in Fields({"cards": listed}).each("cards"):
        # Go leaves out what is zero or false.
        yield Card(
            one.text("id"),
            one.number("index") or 0,
            one.number("count") or 0,
            one.number("devmem") or 0,
            one.number("devcore") or 0,
            one.text("type"),
            one.flag("health"),
        )


def _from_text(text: str) -> Iterator[Card]:
    for number, part in enumerate(text[:_LONGEST].split(":")[:_MOST_PARTS]):
        words = part.split(",")
        if len(words) in (7, 9):
            index = _whole(words[7]) if len(words) == 9 else number
            slots, memory, cores = (_whole(word) for word in words[1:4])
            yield Card(words[0], index, slots, memory, cores, words[4], words[6].lower() == "true")


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
